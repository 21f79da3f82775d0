"""The audit: what goes to the package, what its numbers mean, and what is refused."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from commands import failure, run
from small import SMALL, register

from ecn_marl.experiments import audit as au
from ecn_marl.experiments.datasets import Dataset, record
from ecn_marl.render.audit_table import audit_plot, audit_table

VIEW = {"features": "queue,tx_rate,queue~500", "history": 2, "actions": "discrete"}
SHORT = {"max_steps": 8, **VIEW}


@pytest.fixture(scope="module", autouse=True)
def small_scenario():
    register()


class Recorder:
    """In place of the package: keeps what it is given, and finds what it is told to."""

    def __init__(self, found):
        self.found, self.given = found, []

    def UserData(self, **columns):
        self.given.append(columns)
        return SimpleNamespace(**columns)

    def compute_diagnostics(self, data, **settings):
        metrics = {}
        for name, column in au.PROBES.items():
            metrics |= {column: self.found[name], f"{column}_null": 0.1}
        return SimpleNamespace(metrics=metrics)

    def memory_reactive_gap(self, memory, reactive):
        return {"delta_mean": float(np.mean(memory - reactive)), "p_value": 0.5, "n_pairs": 1}


FOUND = {"OAR": 0.5, "HAR": 0.3, "PIF": 0.1, "AA": 0.105, "DAI": 0.0}


@pytest.fixture(scope="module")
def steps(tmp_path_factory, small_scenario) -> Dataset:
    """Random actions of three episodes."""
    out = tmp_path_factory.mktemp("steps") / "random"
    return record("random", SMALL, out=out, episodes=3, seed=2, **SHORT)


def audited(monkeypatch, found, **options):
    package = Recorder(found)
    monkeypatch.setattr(au, "_package", lambda: package)
    return au.audit("random", SMALL, episodes=3, seed=2, ports=3, **SHORT, **options), package


def test_the_package_gets_the_newest_interval_of_the_episodes(monkeypatch, steps):
    result, package = audited(monkeypatch, FOUND)
    (given,) = package.given
    arrays, names = steps.arrays("random"), list(steps.facts["agents"])
    assert len(result["ports"]) == 3 and set(given["actions"]) == set(result["ports"])
    for port in result["ports"]:
        i = names.index(port)
        # Two intervals of three columns, the newest last; the average is left out.
        newest = arrays["obs"][:, :-1, i, 3:5].reshape(-1, 2)
        np.testing.assert_array_equal(given["observations"][port], newest)
        np.testing.assert_array_equal(given["actions"][port], arrays["action"][:, :, i].ravel())
        np.testing.assert_array_equal(given["timesteps"][port], np.tile(np.arange(8), 3))
        np.testing.assert_array_equal(given["episode_ids"][port], np.repeat(np.arange(3), 8))


def test_the_label_is_what_most_seeds_do(monkeypatch):
    result, _ = audited(monkeypatch, FOUND)
    row = result["seeds"][0]
    assert row["HAR"] == {"value": 0.3, "null": 0.1, "above": True}
    assert not row["AA"]["above"], "less than the smallest effect above its null"
    assert result["label"] == "memory"

    def rows(*which):
        return [{x: {"above": x in own} for x in au.PROBES} for own in which]

    assert au.label_of(rows(("OAR",), ("OAR", "HAR"))) == "reactive"
    assert au.label_of(rows(("DAI",), ("AA",), ())) == "coordination"
    assert au.label_of(rows(("HAR", "PIF"))) == "memory and coordination"


def test_what_memory_gains_is_that_of_the_same_episodes(monkeypatch):
    monkeypatch.setattr(au, "EPISODES", 2)
    scored, given = au.evaluate, []
    monkeypatch.setattr(au, "evaluate", lambda *a, **k: given.append(k) or scored(*a, **k))
    result, _ = audited(monkeypatch, FOUND, reactive="random")
    assert all(x["checkpoint"] == "best" and x["max_steps"] == 8 for x in given)
    assert result["gap"] == {"delta_mean": 0.0, "p_value": 0.5, "n_pairs": 1}
    text = str(audit_table(result).caption)
    assert "Memory changes J by +0.0 % over 1 pairs" in text
    assert audit_plot(result)[:4] == b"\x89PNG"


def test_what_cannot_be_audited(monkeypatch):
    monkeypatch.setattr(au, "_package", lambda: Recorder(FOUND))
    with pytest.raises(ValueError, match=r"policy = 'static:secn1' .* one of several settings"):
        au.audit("static:secn1", SMALL, episodes=1)
    for name in ("ports", "history", "nulls"):
        with pytest.raises(ValueError, match=name):
            au.audit("random", SMALL, episodes=1, **{name: 0})


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "dec_pomdp_diagnostics", None)
    assert "ecn-marl[audit]" in failure("audit", "random", "--scenario", SMALL)


@pytest.mark.slow
def test_the_package_finds_nothing_in_random_actions(tmp_path):
    pytest.importorskip("dec_pomdp_diagnostics", reason="extra audit is not installed")
    result = au.audit("random", "websearch-star-v0", episodes=4, ports=2, nulls=2, **VIEW)
    assert result["label"] == "reactive" and not result["seeds"][0]["OAR"]["above"]
    out = tmp_path / "audit.png"
    args = ("--scenario", "restore-serve-v0", "--episodes", "2", "--ports", "2", "--plot", out)
    text = run("audit", "pretrained:restore-serve-ippo", *map(str, args))
    assert "Label: " in text.stdout and out.stat().st_size > 5000
