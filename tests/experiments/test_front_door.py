"""`train`, `evaluate`, `load_policy`: the same policy by three ways, and a user's own policies."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import code_blocks
import jax
import numpy as np
import pytest
import small
from commands import TINY, Counter, failure, run
from synthetic import evaluation
from tiers import tiers

import ecn_marl
from ecn_marl import lanes
from ecn_marl._files import without_nan
from ecn_marl.baselines.evaluation.statistics import mean_interval
from ecn_marl.baselines.search import SearchResult
from ecn_marl.envs.scenario import Scenario
from ecn_marl.experiments import policies as po
from ecn_marl.experiments import searches
from ecn_marl.experiments.front import Run
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.results import Comparison
from ecn_marl.sim import Incast, star
from ecn_marl.sim.traffic.jobs import Timeline
from ecn_marl.sim.traffic.phased_incast import PhasedIncast

pytestmark = pytest.mark.usefixtures("tiny_scenario")

PHASED = "phased-v0"
"""Two phases of three intervals."""

SETTINGS = {
    "rule": [320.0, 1280.0, 0.2, 5.0, 20.0, 1.0, 1.0],
    "oracle": [[[5.0, 20.0, 1.0]], [[320.0, 1280.0, 0.2]]],
    "static:best": [[[5.0, 20.0, 1.0]]],
}


def phased() -> Scenario:
    def bursts(load):
        return Incast(load=load, n_max=2, flow_kb=50.0)

    timeline = Timeline((120.0, 120.0), names=("quiet", "busy"))
    return Scenario(
        topology=star(3),
        traffic=(PhasedIncast(timeline, (bursts(0.2), bursts(0.9))),),
        dt_us=5.0,
        slots=8,
        max_steps=6,
        interval_us=40.0,
        pfc=False,
        bins=40,
    )


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    if PHASED not in ecn_marl.scenarios():
        ecn_marl.register(PHASED, phased)

    def find(name, scenario, *_, **__):
        settings = np.asarray(SETTINGS[name])
        if scenario != PHASED and name == "oracle":
            settings = settings[:1]
        return SearchResult(name, settings, 1.0, 1, 1, ())

    monkeypatch.setattr(searches, "find", find)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_scenario):
    out = tmp_path_factory.mktemp("runs") / "first"
    settings = {"envs": 2, "rollout": 4, "minibatches": 1, "epochs": 1, "hidden": (4,)}
    env = {"interval_us": 80.0, "features": "flows"}
    return ecn_marl.train("ippo", TINY, steps=16, out=out, env=env, eval_every=0, **settings)


SAME = {
    "kmin": "kmin_bytes",
    "pmax": "pmax",
    "queue_mean": "queue_mean_bytes",
    "tx_bytes": "sent_bytes",
}
"""What has the same bits however an episode is played: infos, and columns of records. A reward is
the same but for the last bit: compilers may round a product and a sum once."""


def by_hand(policy, env, key, hidden=()):
    """Infos of an episode through `parallel_env`, `[T, A]` each, and rewards."""
    observations, infos = env.reset(options={"key": key})
    rows = []
    while env.agents:
        own = {a: {n: x for n, x in info.items() if n not in hidden} for a, info in infos.items()}
        observations, reward, _, _, infos = env.step(policy(observations, own))
        columns = {name: [info[name] for info in infos.values()] for name in SAME}
        rows.append({"reward": list(reward.values())} | columns)
    return {name: np.asarray([row[name] for row in rows], np.float32) for name in rows[0]}


def by_vector(policy, env, keys, hidden=()):
    """The same of several episodes through `vector_env`, `[N, T, A]` each."""
    observations, infos = env.reset(options={"key": keys})
    rows = []
    for _ in range(env.core.horizon):
        own = {n: x for n, x in infos.items() if n.removeprefix("_") not in hidden}
        observations, _, _, _, infos = env.step(policy(observations, own))
        rows.append({name: infos[name] for name in ("reward", *SAME)})
    return {name: np.stack([row[name] for row in rows], 1) for name in rows[0]}


RUN, RIVALS = "a run", ("dynamic:pi", "rule", "oracle")


@pytest.fixture(scope="module")
def evaluated(trained):
    """Evaluations of three episodes by name, each made once."""
    results = {}

    def get(name):
        if name not in results:
            given = (trained,) if name == RUN else (name, PHASED)
            results[name] = ecn_marl.evaluate(*given, episodes=3)
        return results[name]

    return get


@pytest.fixture(scope="module")
def faces():
    """`parallel_env` and `vector_env` by what they are for: one pair for all rivals.

    It has the counters of all of them; each is told of its own alone.
    """
    made = {}

    def get(name, scenario, options):
        key = name if name == RUN else "rivals"
        if key not in made:
            made[key] = (
                ecn_marl.parallel_env(scenario, **options),
                ecn_marl.vector_env(scenario, 3, **options),
            )
        return made[key]

    return get


@pytest.mark.parametrize("name", tiers(["dynamic:pi", "rule", "oracle", RUN], RUN))
def test_the_same_bits_by_three_ways(name, trained, evaluated, faces):
    result, scenario = evaluated(name), TINY if name == RUN else PHASED
    policy = ecn_marl.load_policy(trained if name == RUN else name, scenario)
    options = dict(policy.make_options)
    hidden = set()
    if name != RUN:
        needed = [ecn_marl.load_policy(x, PHASED).make_options for x in RIVALS]
        counts = dict.fromkeys(n for x in needed for n in x.get("counts", ()))
        assert {x["actions"] for x in needed} == {"thresholds"} and counts
        hidden = set(counts) - set(options.get("counts", ()))
        options["counts"] = tuple(counts)
    ports = result.ports
    shape, columns = (3, -1, 3), {"reward": "reward", **SAME}
    expected = {
        name: ports[column].to_numpy().astype(np.float32).reshape(shape)
        for name, column in columns.items()
    }
    hand, vector = faces(name, scenario, options)
    batch = by_vector(policy, vector, result.keys, hidden)
    alone = [by_hand(policy, hand, key, hidden) for key in result.keys]
    for name, wanted in expected.items():
        exact = np.testing.assert_array_equal if name in SAME else np.testing.assert_allclose
        exact(batch[name], wanted, **({} if name in SAME else {"rtol": 1e-6}))
        exact([x[name] for x in alone], wanted, **({} if name in SAME else {"rtol": 1e-6}))
    assert len(np.unique(expected["reward"])) > 1


def test_the_pure_functions_are_the_policy(evaluated):
    """In a vmapped loop of one's own: `init`, `act`, `observe`."""
    policy = ecn_marl.load_policy("oracle", PHASED)
    env = ecn_marl.make(PHASED, **policy.make_options)
    params, result = env.default_params, evaluated("oracle")

    def episode(words):
        obs, state = env.reset(jax.random.wrap_key_data(words), params)
        memory = policy.observe(policy.init(), env.reset_info(state, params))

        def step(carry, key):
            obs, state, memory = carry
            action, memory = policy.act(key, obs, memory)
            obs, state, reward, _, _, info = env.step(key, state, action, params)
            return (obs, state, policy.observe(memory, info)), reward

        keys = jax.random.split(jax.random.key(0), env.horizon)
        return jax.lax.scan(step, (obs, state, memory), keys)[1]

    rewards = jax.jit(jax.vmap(lanes.mapped(episode)))(result.keys)
    expected = result.ports["reward"].to_numpy().reshape(rewards.shape)
    np.testing.assert_allclose(rewards, expected, rtol=1e-6)


def deep(observations):
    """A rule of PettingZoo's dicts: deep thresholds where the first feature is above 0.1."""
    return {a: np.array([4 if x[0] > 0.1 else 1, 2, 5]) for a, x in observations.items()}


def deep_pure(key, obs, state):
    """The same, pure, for all ports at once."""
    first = jax.numpy.where(obs[:, 0] > 0.1, 4, 1)
    return jax.numpy.stack([first, first * 0 + 2, first * 0 + 5], -1), state


def test_a_users_own_policies():
    result = ecn_marl.evaluate([deep, deep_pure, Counter()], TINY, episodes=2)
    assert list(result.records) == ["deep", "deep_pure", "Counter"]
    ports = result.ports
    mine, pure = (ports[ports["policy"] == name] for name in ("deep", "deep_pure"))
    for column in ("reward", "kmin_bytes", "queue_mean_bytes"):
        np.testing.assert_array_equal(mine[column], pure[column])
    assert set(mine["kmin_bytes"]) == {10e3, 80e3}
    counted = ports[ports["policy"] == "Counter"].groupby("interval")["kmin_bytes"].unique()
    assert [list(x) for x in counted] == [[5e3], [5e3], [320e3], [320e3], [320e3], [320e3]]
    frames = [result.flows[result.flows["policy"] == name] for name in ("deep", "deep_pure")]
    np.testing.assert_array_equal(*(f["fct_us"] for f in frames))


def test_what_does_not_fit_is_refused(trained, tmp_path):
    refused = partial(pytest.raises, ValueError)
    with refused(match=r"policy = .* with 0 arguments"):
        ecn_marl.evaluate(lambda: None, TINY)
    with refused(match="one action for every agent"):
        ecn_marl.evaluate(lambda observations: {}, TINY, episodes=1)
    with refused(match=r"state of act = .*init\(\)"):
        ecn_marl.evaluate(lambda key, obs, state: (obs[:, :3], 1), TINY, episodes=1)
    with refused(match=r"interval_us = 40.0 .* expected 80.0, what .* was trained with"):
        ecn_marl.evaluate(["static:secn1", trained], interval_us=40.0)
    with refused(match="policies = 'static:secn1'"):
        ecn_marl.evaluate(["static:secn1", "static:secn1"], TINY)
    with refused(match="an environment made with"):
        policy = ecn_marl.load_policy("rule", TINY)
        env = ecn_marl.parallel_env(TINY, actions="thresholds")
        by_hand(policy, env, np.zeros(2, np.uint32))
    with refused(match=r"shape of observations .* flows_begun.*make_options"):
        policy = ecn_marl.load_policy(trained)
        by_hand(policy, ecn_marl.parallel_env(TINY, features="pet"), np.zeros(2, np.uint32))
    with refused(match="unknown setting of ippo .*env="):
        ecn_marl.train("ippo", TINY, feature="pet")
    with refused(match="a learner"):
        never = tmp_path / "never"
        ecn_marl.train("ippo", TINY, env={"actions": "thresholds"}, steps=8, out=never)
    assert not never.exists()


def test_options_of_a_reset():
    env = ecn_marl.parallel_env(TINY)
    vector = ecn_marl.vector_env(TINY, 2)
    rates = ecn_marl.rate_parallel_env("many-to-one-2-v0")
    known = {env: "known: key", rates: "known: key", vector: "known: key, reset_mask"}
    for face, names in known.items():
        with pytest.raises(ValueError, match=f"unknown option of reset 'nonsense': {names}"):
            face.reset(options={"nonsense": 1})
        with pytest.raises(ValueError, match="key = "):
            face.reset(options={"key": [1, 2, 3]})


STATICS = ("static:secn1", "static:5,20,1")


@pytest.fixture(scope="module")
def statics(tiny_scenario):
    return ecn_marl.evaluate(STATICS, TINY, episodes=4)


def test_comparisons_are_paired(statics):
    paired = statics.compare(*STATICS, "short_mean")
    first, second = (statics.records[name].columns["short_mean"][0] for name in STATICS)
    mean, half = mean_interval(np.log(first / second))
    np.testing.assert_allclose(
        (paired.value, paired.low, paired.high), np.exp([mean, mean - half, mean + half])
    )
    assert not statics.compare(*STATICS, "queue_mean").ratio
    with pytest.raises(ValueError, match="unknown policy of this result"):
        statics.compare("rule", "static:secn1")
    assert "SECN1" in statics._repr_html_() and "SECN1" in str(statics)


def test_seeds_of_both_learners_widen_an_interval():
    """Student's t over the seeds of each, and over the episodes, in quadrature."""
    rng = np.random.default_rng(2)
    a, b = (np.exp(rng.normal(0, 0.05, (n, 1)) + rng.normal(0, 0.1, (n, 8))) for n in (4, 3))
    one, other = Comparison("a", "b", "J", a, b), Comparison("b", "a", "J", b, a)
    np.testing.assert_allclose(
        (one.value, one.low, one.high), (1 / other.value, 1 / other.high, 1 / other.low)
    )
    logs = np.log(a), np.log(b)
    halves = [mean_interval(x.mean(1))[1] for x in logs]
    halves.append(mean_interval(logs[0].mean(0) - logs[1].mean(0))[1])
    assert np.log(one.high / one.value) == pytest.approx(np.hypot.reduce(halves))


def test_a_run_is_a_policy(trained, evaluated):
    assert repr(trained).endswith("ippo in tiny-v0, 16 steps>")
    assert trained._repr_png_().startswith(b"\x89PNG")
    policy = ecn_marl.load_policy(str(trained.folder))
    assert policy.make_options["interval_us"] == 80.0
    row = evaluated(RUN).summary["policies"][0]
    assert evaluated(RUN).summary["scenario"] == TINY, "where it was trained"
    assert (row["name"], row["interval_us"]) == (str(trained.folder), 80.0)
    assert po.resolve(trained).label == "IPPO first"


TRAIN_PAGE = Path(__file__).parents[2] / "docs" / "howto" / "train.md"
PAGE_SMALLER = {
    '"restore-serve-v0"': f'"{small.SMALL}"',
    "steps=2_048": "steps=16, rollout=4, minibatches=2, hidden=(4,), eval_every=0",
}
"""Of the page on training: the smallest network, one update."""


def test_code_of_the_page_on_training_runs_in_a_small_network(tmp_path, monkeypatch):
    """In this process, which has imported all that is slow to import."""
    small.register()
    monkeypatch.chdir(tmp_path)
    ((language, text),) = code_blocks.blocks(TRAIN_PAGE.read_text())
    assert language == "python"
    for whole_text, shorter in PAGE_SMALLER.items():
        assert whole_text in text
        text = text.replace(whole_text, shorter)
    exec(text, {})  # a page of ours
    assert (tmp_path / "slowdown.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "runs" / "first" / "config.json").is_file()


def test_the_command_and_the_function_are_one(statics, tmp_path):
    name = STATICS[0]
    command = ["eval", name, "--scenario", TINY, "--episodes", 4, "--records", tmp_path / "r"]
    answer = run(*command, "--json")
    assert answer.exit_code == 0, answer.output
    flows = statics.flows.query(f"policy == '{name}'")
    assert ecn_marl.read_records(tmp_path / "r").frame("flows").equals(flows)
    row = json.loads(answer.stdout)["evaluation"]["policies"][0]
    assert row["J"] == without_nan(statics.summary["policies"][0]["J"])
    assert row["settings"] == [[5.0, 200.0, 0.01]] and row["interval_us"] == 40.0
    assert (tmp_path / "r" / "slowdown.png").is_file()
    assert "--overwrite" in failure(*command)


def test_bench_is_a_function(tmp_path, monkeypatch):
    """Its plan, tables and frame; that the engine trains and scores, `test_bench` tests."""
    plans = []

    def scored(plan, show):
        plans.append(plan)
        names = ("static:best", "oracle", *plan.policies)
        return {small.SMALL: {x: Record.of(x, [evaluation(x, 4)], {}) for x in names}}

    small.register()
    monkeypatch.setattr("ecn_marl.experiments.bench.bench", scored)
    result = ecn_marl.bench(small.SMALL, "SECN1", episodes=4, seeds=2, out=tmp_path / "b")
    (plan,) = plans
    assert (plan.policies, plan.seeds, plan.episodes) == (("static:secn1",), 2, 4)
    assert len(result.episodes) == 12 and set(result.episodes["scenario"]) == {small.SMALL}
    assert f"## {small.SMALL}" in repr(result)
    assert (tmp_path / "b" / "results.json").is_file()


@pytest.mark.parametrize(
    "option",
    [
        {"scenario": "many-to-one-8-v0"},
        {"seeds": 3},
        {"env": {"load": 0.5}},
        {"eval_every": 5},
        {"eval_episodes": 2},
        {"randomise": {"load": (0.5, 2.0)}},
        {"allow_flagged": True},
    ],
)
def test_learners_of_rates_refuse_what_they_do_not_have(tmp_path, option):
    """An option without an effect would be a training that nobody asked for."""
    with pytest.raises(ValueError, match=f"{next(iter(option))} = "):
        ecn_marl.train("adpg", **option, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_learners_of_rates_move_the_bar_of_the_caller(tmp_path, monkeypatch):
    def train_rate(*_, progress, **__):
        progress({"update": 1, "steps": 64, "reward": 0.0}, 2)
        (tmp_path / "config.json").write_text(
            '{"algorithm": "adpg", "settings": {}, "steps": 64, "seed": 0}'
        )

    monkeypatch.setattr("ecn_marl.experiments.rate.train_rate", train_rate)
    moved = []
    ecn_marl.train("adpg", seeds=1, out=tmp_path, show=lambda done, note: moved.append(done))
    assert moved == [64]


def test_a_run_that_was_killed_while_it_wrote_a_line(tmp_path):
    """The line counts for nothing, as for the training that goes on; a run may have no line yet."""
    config = {"algorithm": "ippo", "settings": {}, "steps": 64, "seed": 0, "scenario": TINY}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = Run(tmp_path)
    assert repr(run).endswith("ippo in tiny-v0, 0 steps>")
    (tmp_path / "metrics.jsonl").write_text('{"update": 1, "steps": 8}\n{"update": 2, "st')
    assert repr(run).endswith("ippo in tiny-v0, 8 steps>")
    assert len(run.frame) == 1
