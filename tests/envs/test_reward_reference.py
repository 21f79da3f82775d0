"""Rewards relative to a reference: 0 for it, 1 for the oracle, over an episode."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import failure, run, tiny

import ecn_marl
from ecn_marl.envs import reward_reference as rf
from ecn_marl.envs.registry import SCENARIOS, resolve_scenario
from ecn_marl.envs.telemetry import Telemetry
from ecn_marl.experiments import reward_references as rr
from ecn_marl.experiments.recipes import LEARNERS
from ecn_marl.sim import Incast

STAR, STEPS = "websearch-star-v0", 4
SHORT = {"max_steps": STEPS, "features": "queue"}
RESULTS = Path(__file__).parents[2] / "results"
BENCH = ("restore-serve-v0", "moving-tenants-v0", "shuffle-serve-v0", "mixed-rtt-v0", "fabric-v0")


def entry(reward: str, **changes):
    """An entry of a file for the short star, with made-up numbers."""
    env = ecn_marl.make(STAR, reward=reward, **SHORT)
    return {
        **rf.reward_facts(env.reward, dict(env.reward_options), env.interval_us),
        "episodes": rf.fingerprint(resolve_scenario(STAR, max_steps=STEPS), Telemetry()),
        "returns": {"static:secn1": [0.25 * i - 3.0 for i in range(env.num_agents)]},
        "headroom": {"static:secn1": {"value": 0.5}},
    } | changes


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("references") / "mine.json"
    path.write_text(json.dumps({"entries": [entry("acc"), entry("slowdown")]}))
    return path


def episode(**options):
    """Rewards of an episode under one action, `[T, A]`."""
    env = ecn_marl.make(STAR, **SHORT, **options)
    params, key = env.default_params, jax.random.key(5)
    action = env.action.sample(jax.random.key(1), env.num_agents)

    @jax.jit
    def play(params):
        def step(state, _):
            _, state, reward, _, _, _ = env.step(key, state, action, params)
            return state, reward

        return jax.lax.scan(step, env.reset(key, params)[1], length=STEPS)[1]

    return np.asarray(play(params), np.float64)


@pytest.mark.parametrize(
    ("reward", "credit"),
    [pytest.param("acc", None, marks=pytest.mark.thorough), ("slowdown", "team")],
)
def test_rewards_are_centred_port_by_port_and_scaled(file, reward, credit):
    plain = episode(reward=reward, credit=credit)
    relative = episode(reward=reward, credit=credit, reward_reference=f"static:secn1@{file}")
    ports = plain.shape[1]
    mean, headroom = np.array([0.25 * i - 3.0 for i in range(ports)]) / STEPS, 0.5
    if credit == "team":  # shares per port were measured: a team earns their sum
        mean, headroom = mean.sum(), headroom * ports
    np.testing.assert_allclose(relative, (plain - mean) / headroom, rtol=1e-4, atol=1e-4)
    assert plain.std() > 0.0


def test_a_reference_earns_0_and_the_oracle_1_over_the_episodes_measured():
    """The arithmetic from measured returns to relative rewards."""
    rng = np.random.default_rng(0)
    best, oracle = rng.normal(-3.0, 0.1, (50, 8)), rng.normal(-2.5, 0.1, (50, 8))
    headroom = rr._headroom("static:best", "acc", oracle, best)
    mean = best.mean(0)
    assert ((best - mean) / headroom["value"]).sum(1).mean() / 8 == pytest.approx(0.0, abs=1e-6)
    assert ((oracle - mean) / headroom["value"]).mean() == pytest.approx(1.0, rel=1e-5)
    assert headroom["low"] < headroom["value"] < headroom["high"]
    with pytest.raises(ValueError, match=r"reference = 'static:best' .*earns -0\.\d+ more"):
        rr._headroom("static:best", "pet", best, oracle)


@pytest.mark.parametrize("scenario", BENCH)
def test_what_ships_agrees_with_the_results_on_sealed_episodes(scenario):
    """Other episodes, other code: `bench` measured the reward of the same settings."""
    results = json.loads((RESULTS / scenario / "results.json").read_text())
    rows = {row["name"]: row for row in results["scenarios"][scenario]["policies"]}
    file = json.loads((rf.SHIPPED / f"{scenario}.json").read_text())
    for reference in ("static:best", "static:secn1"):
        env = ecn_marl.make(scenario, reward_reference=reference)
        relative, entries = env.reward_reference, file["entries"]
        headroom = entries[0]["headroom"][reference]
        assert headroom["low"] > 0.8 * headroom["value"], "the scale is known to a fifth"
        for policy, expected in ((reference, 0.0), (entries[0]["oracle"], 1.0)):
            earned = rows[policy]["figures"]["reward"]["value"]
            limits = np.array([earned["low"], earned["high"]]) * env.horizon
            low, high = (limits - relative.returns[0]) / relative.headroom
            slack = 0.1 + 0.5 * (high - low)  # of our own episodes
            assert low - slack < expected < high + slack, (policy, low, high)
            assert high - low < 0.6, "a test that can fail"


@pytest.mark.parametrize("scenario", BENCH)
def test_what_ships_serves_learners_of_the_benchmark(scenario):
    options = {**LEARNERS["ippo"].options, "credit": "path"}
    with pytest.raises(ValueError, match=r"reward_reference = .*credit='flows': not measured"):
        ecn_marl.make(scenario, **options | {"credit": "flows"}, reward_reference="static:best")
    env = ecn_marl.make(scenario, **options, reward_reference="static:best")
    shaped = {"reward": "slowdown-shaped", "reward_reference": "static:best"}
    team = ecn_marl.make(scenario, **shaped).reward_reference
    share = ecn_marl.make(scenario, **shaped, credit="path").reward_reference
    assert len(env.reward_reference.returns) == env.num_agents
    assert team.returns[0] == pytest.approx(sum(share.returns))
    assert team.headroom == pytest.approx(share.headroom * env.num_agents)


def test_other_episodes_and_rewards_are_refused(file):
    reference = f"static:secn1@{file}"
    ecn_marl.make(STAR, reward="acc", **SHORT, reward_reference=reference)
    ecn_marl.make(
        STAR, reward="slowdown", max_steps=2, interval_us=200.0, reward_reference=reference
    )
    for options in (
        {"max_steps": 5},
        {"load": 0.5},
        {"transport": "dcqcn:paper"},
        {"telemetry": {"action_delay": 1}},
        {"reward": "pet"},
        {"reward_options": {"utilisation_weight": 0.5}},
        {"max_steps": 2, "interval_us": 200.0},
    ):
        with pytest.raises(ValueError, match=r"reward_reference = .*mine\.json has static:secn1"):
            ecn_marl.make(STAR, **({"reward": "acc"} | SHORT | options), reward_reference=reference)
    with pytest.raises(ValueError, match=r"there is none\); `ecn-marl reward-reference` measures"):
        ecn_marl.make(STAR, reward_reference="static:best")
    with pytest.raises(ValueError, match=r"a file of `ecn-marl reward-reference` \(FileNotFound"):
        ecn_marl.make(STAR, reward_reference="static:best@nowhere.json")
    env = ecn_marl.parallel_env(STAR, reward="acc", **SHORT, reward_reference=reference)
    with pytest.raises(ValueError, match=r"max_cycles = 3 .* 4, the steps that its reward_ref"):
        env.max_cycles = 3
    with pytest.raises(ValueError, match="without a name has none"):
        ecn_marl.make(resolve_scenario(STAR), reward_reference="static:best")


@pytest.fixture
def pair(monkeypatch):
    """Two flows that share a port for all of the episode."""
    flows = Incast(n_min=2, n_max=2, flow_kb=2000.0, width=2)
    scenario = replace(tiny(), traffic=(flows,), max_steps=12, reward="acc")
    monkeypatch.setitem(SCENARIOS.registered, "pair-v0", lambda: scenario)
    return "pair-v0"


def test_the_command_writes_what_the_option_takes(pair, tmp_path, monkeypatch):
    deep, shallow = (np.full((1, 1, 3), 1.0) * x for x in ((2e3, 4e3, 1e-2), (2.5, 5.0, 1.0)))
    monkeypatch.setattr(rr, "policies", lambda *_: {"static:secn1": deep, "oracle": shallow})
    path = tmp_path / "mine.json"
    args = ["--reward", "acc", "--episodes", 4, "--out", path]
    result = run("reward-reference", pair, *args)
    assert result.exit_code == 0, result.output
    assert "static:secn1" in result.stdout and "what oracle earns above" in result.stdout
    recorded = json.loads(path.read_text())["entries"][0]
    env = ecn_marl.make(pair, reward_reference=f"static:secn1@{path}")
    assert env.reward_reference.returns == pytest.approx(recorded["returns"]["static:secn1"])
    earned = rr.returns(env, {"deep": deep, "shallow": shallow}, 4, 0, lambda *_: None)
    assert earned["deep"].mean() == pytest.approx(0.0, abs=1e-3)
    assert earned["shallow"].mean() == pytest.approx(1.0, abs=1e-3)
    assert (np.abs(earned["deep"].mean(0)) < 1e-3).all(), "centred port by port"
    assert "--out = " in failure("reward-reference", pair, "--out", tmp_path / "no" / "x.json")
