"""Tables of learners: what scenarios ask of a policy, and the README's, from made-up seeds."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def tables(monkeypatch):
    from generated import learners

    def given(memory: float, joint: float, noise: float = 0.0):
        """J without memory and that of `mappo`, relative to `ippo`; seeds differ by `noise`."""
        rng = np.random.default_rng(0)
        seeds = 5.0 * np.exp(rng.normal(0.0, 0.05, 10))
        episodes = np.exp(rng.normal(0.0, 0.3, 64))
        other = memory * np.exp(noise * rng.normal(size=10))
        scores = np.outer(seeds, episodes)
        sealed = {"scenario": "x", "scores": {"ippo": scores, "mappo": joint * scores}}
        arms = [
            {"scenario": "x", "arm": "", "seeds": seeds},
            {"scenario": "x", "arm": "flows", "seeds": seeds * other, "probe": "memory"},
        ]
        monkeypatch.setattr(learners, "_sealed", lambda: [sealed])
        monkeypatch.setattr(learners, "_ablations", lambda: arms)
        return learners

    return given


@pytest.mark.parametrize(
    ("memory", "joint", "noise", "label"),
    [
        (1.00, 1.00, 0.0, "reactive"),
        (1.08, 1.00, 0.0, "memory"),
        (1.00, 0.95, 0.0, "coordination"),
        (1.08, 0.95, 0.0, "memory, coordination"),
        (0.90, 1.10, 0.0, "reactive"),
        (1.005, 0.995, 0.0, "reactive"),
        (1.02, 1.00, 0.2, "reactive"),
    ],
    ids=["level", "memory", "others", "both", "worse", "too little", "not certain"],
)
def test_labels(tables, memory, joint, noise, label):
    learners = tables(memory, joint, noise)
    assert learners.label("x") == label
    effect, half = learners.needed()["x"]["mappo"]
    assert effect == pytest.approx(np.log(joint), abs=1e-9) and half < 1e-9
    if not noise:
        assert learners.needed()["x"]["memory"][0] == pytest.approx(np.log(memory))
    assert learners.label("another") == "–"
    learners._ablations().pop()  # no run without memory: not known
    assert learners.label("x") == ("memory?, coordination" if joint == 0.95 else "memory?")


def test_an_interval_is_that_of_paired_seeds(tables):
    """Student's t by hand."""
    learners = tables(1.02, 1.0, 0.03)
    base, arm = learners._ablations()
    each = np.log(arm["seeds"] / base["seeds"])
    mean, half = learners.needed()["x"]["memory"]
    assert mean == pytest.approx(each.mean())
    assert half == pytest.approx(2.2621571628 * each.std(ddof=1) / np.sqrt(10))


def test_the_readmes_table_is_relative_to_the_best_static_setting(monkeypatch):
    from generated import learners

    rng = np.random.default_rng(1)
    static = np.exp(rng.normal(2.0, 0.3, 32))
    seeds = np.exp(rng.normal(np.log(0.7), 0.02, 10))
    scores = {"static:best": [static], "rule": [0.8 * static], "ippo": np.outer(seeds, static)}
    scores |= {"oracle:ports": [0.6 * static], "oracle": [0.9 * static]}
    one = {"scenario": "one-v0", "scores": scores, "oracle": "oracle:ports", "seeds": {"ippo": 10}}
    other = {**one, "scenario": "two-v0", "scores": {"static:best": [static]}}
    monkeypatch.setattr(learners, "_sealed", lambda: [one, other])
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in learners.results().strip().splitlines()
    )
    table = {name: dict(zip(head[1:], values, strict=True)) for name, *values in rows}
    assert head == ["policy", "one", "two"] and set(table) == {f"`{n}`" for n in learners.SHOWN}
    assert table["`oracle`"]["one"] == "0.600 [0.600, 0.600]", "the better one of the scenario's"
    assert table["`rule`"] == {"one": "0.800 [0.800, 0.800]", "two": "–"}
    mean, low, high = map(float, table["`ippo`"]["one"].translate({91: 32, 93: 32, 44: 32}).split())
    assert mean == pytest.approx(np.exp(np.log(seeds).mean()), abs=1e-3)
    half = 2.2621571628 * np.log(seeds).std(ddof=1) / np.sqrt(10)
    assert np.log([low, high]) == pytest.approx(
        [np.log(mean) - half, np.log(mean) + half], abs=2e-3
    )
