"""Telemetry options: observations and thresholds, recomputed from an ideal environment."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecn_marl
from ecn_marl.baselines.evaluation.stateful_policy import StatefulPolicy
from ecn_marl.envs import privileged
from ecn_marl.envs.ecn import EpisodeSums
from ecn_marl.envs.episode import EnvState, PhaseEcn
from ecn_marl.envs.features import FeatureScale, fill, flatten, push
from ecn_marl.envs.telemetry import Telemetry, first_ports
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.core.stats import from_info, to_info
from ecn_marl.sim.network.topology import Link, from_links, leaf_spine
from ecn_marl.sim.traffic.incast import Incast
from ecn_marl.sim.traffic.jobs import Timeline
from ecn_marl.sim.traffic.phased_incast import PhasedIncast

SCENARIO = "websearch-star-v0"
STEPS = 9
OF_FLOWS = "queue,tx_rate,flows_begun,kmin,flows_seen,incast_degree,mice_fraction"


def make(telemetry: Any = None, features: str = "queue,tx_rate,flows_begun,kmin", **options: Any):
    """A small environment with high load, so that queues build up at once."""
    return ecn_marl.make(
        SCENARIO, features=features, history=2, load=0.9, telemetry=telemetry, **options
    )


def settings(env: Any, params: Any) -> list[Ecn]:
    """Another setting at every step."""
    return [env.static_ecn(f"{5 + 7 * t},{100 + 13 * t},0.{t + 1}", params) for t in range(STEPS)]


@functools.cache
def programs(env: Any) -> tuple[Any, Any]:
    """`reset` and `step_ecn`, compiled once for equal environments."""
    cheap = {"xla_backend_optimization_level": 0}
    return jax.jit(env.reset), jax.jit(env.step_ecn, compiler_options=cheap)


def play(env: Any, thresholds: list[Ecn] | None = None) -> list[dict[str, Any]]:
    """Results of every step of an episode; the first entry is that of the reset."""
    params = env.default_params
    reset, step = programs(env)
    obs, state = reset(jax.random.key(3), params)
    rows = [{"obs": np.asarray(obs)}]
    for ecn in thresholds or settings(env, params):
        obs, state, reward, _, _, info = step(jax.random.key(0), state, ecn, params)
        rows.append({"obs": np.asarray(obs), "reward": np.asarray(reward), "state": state, **info})
    return rows


def bare_step(env: Any, state: Any, ecn: Ecn, params: Any) -> Any:
    """A step without telemetry, written from its parts."""
    sim, stats = env.sim.interval(state.sim, params.sim, ecn)
    reward = env.reward(stats, params.reward, env.port_scale(params.sim), env.interval_us)
    history = push(state.history, env.feature.compute(stats, ecn, params.scale))
    steps, sums = state.steps + 1, state.sums
    sums = EpisodeSums(
        reward=sums.reward + reward,
        queue=sums.queue + stats.queue_mean,
        queue_sq=sums.queue_sq + stats.queue_sq,
        utilisation=sums.utilisation + stats.utilisation,
        paused=sums.paused + stats.paused,
    )
    next_state = EnvState(sim=sim, ecn=ecn, history=history, steps=steps, sums=sums)
    never = jnp.zeros((env.num_agents,), bool)
    over = jnp.broadcast_to(steps >= params.max_steps, never.shape)
    counts = {
        name: jnp.broadcast_to(count, reward.shape).astype(reward.dtype)
        for name, count in env.accounts(sim, params).items()
    }
    return flatten(history), next_state, reward, never, over, to_info(stats) | ecn.__dict__ | counts


def operations(jaxpr: Any) -> Counter[str]:
    """How often each primitive occurs, loops and calls included."""
    counts: Counter[str] = Counter()
    for equation in jaxpr.eqns:
        inner = [x for x in jax.tree.leaves(equation.params) if hasattr(x, "eqns")]
        inner += [x.jaxpr for x in jax.tree.leaves(equation.params) if hasattr(x, "jaxpr")]
        counts[equation.primitive.name] += 1
        for sub in inner:
            counts += operations(sub)
    return counts


def test_the_default_costs_nothing_and_changes_no_bit() -> None:
    """Against a step without telemetry: the same operations, results and state."""
    env = make()
    assert env.telemetry == Telemetry()
    params = env.default_params
    _, state = programs(env)[0](jax.random.key(3), params)
    assert state.telemetry is None

    def bare(key: Any, state: Any, ecn: Ecn, params: Any) -> Any:
        return bare_step(env, state, ecn, params)

    args = jax.random.key(0), state, settings(env, params)[0], params
    with_telemetry, plain = (
        operations(jax.make_jaxpr(f)(*args).jaxpr) for f in (env.step_ecn, bare)
    )
    assert with_telemetry == plain
    assert plain["scan"] >= 2
    delayed = make({"observation_delay": 1})
    _, late = jax.eval_shape(delayed.reset, args[0], params)
    delayed_jaxpr = jax.make_jaxpr(delayed.step_ecn)(args[0], late, *args[2:])
    assert sum(operations(delayed_jaxpr.jaxpr).values()) > sum(with_telemetry.values()), (
        "the count sees telemetry"
    )

    reference_step = jax.jit(bare, compiler_options={"xla_backend_optimization_level": 0})
    for ecn, row in zip(settings(env, params), play(env)[1:], strict=True):
        obs, state, reward, *_ = reference_step(args[0], state, ecn, params)
        np.testing.assert_array_equal(row["obs"], obs)
        np.testing.assert_array_equal(row["reward"], reward)
        for a, b in zip(*map(jax.tree.leaves, (state, row["state"])), strict=True):
            np.testing.assert_array_equal(a, b)


def recount(ideal: list[dict[str, Any]], env: Any, every: int, delay: int) -> list[np.ndarray]:
    """Observations recomputed from the `info` of an ideal environment."""
    params = env.default_params
    scale = FeatureScale.create(env.port_scale(params.sim), collected_us=100.0 * every)
    idle = env.initial.scaled(env.port_scale(params.sim))
    history = fill(env.feature.compute(env.idle_stats(), idle, scale), env.feature.history)
    pending, observations = [], [np.asarray(flatten(history))]
    rows = ideal[1:]
    for t in range(len(rows)):
        if (t + 1) % every == 0:
            period = rows[t + 1 - every : t + 1]
            stats = from_info({k: v for k, v in rows[t].items() if k not in ("obs", "state")})
            stats = replace(
                stats,
                utilisation=sum(r["utilisation"] for r in period) / every,
                tx_bytes=sum(r["tx_bytes"] for r in period),
                flows_begun=sum(r["flows_begun"] for r in period),
            )
            ecn = Ecn(rows[t]["kmin"], rows[t]["kmax"], rows[t]["pmax"])
            pending.append((t + delay, env.feature.compute(stats, ecn, scale)))
        for at, features in pending:
            if at == t:
                history = push(history, features)
        observations.append(np.asarray(flatten(history)))
    return observations


def added(obs: np.ndarray) -> np.ndarray:
    """The first four of `OF_FLOWS`, of both intervals."""
    return obs.reshape(len(obs), 2, -1)[..., :4]


@pytest.mark.parametrize(
    ("every", "delay"),
    [(3, 2), *(pytest.param(*x, marks=pytest.mark.thorough) for x in ((1, 2), (3, 0), (2, 3)))],
)
def test_observations_come_seldom_and_late(every: int, delay: int) -> None:
    """Counters of the whole period, seen when the delay is over; the network is the same."""
    options = {"observation_delay": delay}
    if every > 1:
        options["period_us"] = 100.0 * every
    env, plain = make(options, OF_FLOWS), make(None, OF_FLOWS)
    ideal, late = play(plain), play(env)
    for expected, delayed, ideal_row in zip(
        recount(ideal, env, every, delay), late, ideal, strict=True
    ):
        # Of what is added up; sets of flows and senders are below.
        np.testing.assert_allclose(added(delayed["obs"]), added(expected), rtol=1e-5, atol=1e-6)
        for name in ("queue", "tx_bytes", "reward", "kmin"):
            if name in ideal_row:
                np.testing.assert_array_equal(delayed[name], ideal_row[name])
    assert len({ideal_row["obs"].tobytes() for ideal_row in late}) == 1 + (STEPS - delay) // every


def test_flows_that_stay_are_seen_once_in_a_period() -> None:
    """Sets of flows and senders are joined, not added up."""
    delay = 2
    env = make({"period_us": 300.0, "observation_delay": delay}, OF_FLOWS)
    rows, ideal = play(env), play(make(None, OF_FLOWS))
    for end in (3, 6):
        period = ideal[end - 2 : end + 1]
        flows = period[0]["flows_seen"] + sum(r["flows_begun"] for r in period[1:])
        latest = rows[end + delay]["obs"][:, -3:]
        np.testing.assert_allclose(latest[:, 0], np.log1p(flows) / np.log(257), rtol=1e-5)
        most = np.max([r["n_senders"] for r in period], 0)
        every = np.sum([r["n_senders"] for r in period], 0)
        degree = np.round(np.expm1(latest[:, 1] * np.log(65)))
        assert (degree >= most).all()
        assert (degree <= np.minimum(every, env.sim.topology.n_hosts - 1)).all()
        assert (degree < every).any()


CASES = {
    "5,200,0.001": (0.0, 200e3, 0.01),
    "61,62,0.456": (80e3, 120e3, 0.46),
    "100,139,0.999": (80e3, 120e3, 1.0),
    "200,400,0.2": (200e3, 400e3, 0.2),
}
"""Settings, and what is in force of them in whole percents and steps of 40 KB."""


def test_limited_thresholds_are_in_force_when_their_delay_is_over() -> None:
    """Whole percents, steps of thresholds, two intervals later."""
    env = make({"action_delay": 2, "pmax_percent": True, "quantum_kb": 40.0})
    params, plain = env.default_params, make()
    chosen = [list(CASES)[t % len(CASES)] for t in range(STEPS)]
    rows = play(env, [env.static_ecn(setting, params) for setting in chosen])[1:]
    in_force = [CASES["5,200,0.001"]] * 2 + [CASES[setting] for setting in chosen]  # first SECN1
    thresholds = [
        Ecn(*(jnp.full(env.num_agents, x, jnp.float32) for x in values))
        for values in in_force[:STEPS]
    ]
    for expected, row in zip(thresholds, rows, strict=True):
        for name in ("kmin", "kmax", "pmax"):
            np.testing.assert_allclose(row[name], getattr(expected, name), rtol=1e-6)
    early = play(plain, thresholds)[1:]
    # The first one still shows what was set before the episode.
    for a, b in zip(rows[1:], early[1:], strict=True):
        np.testing.assert_allclose(a["obs"], b["obs"], rtol=1e-4, atol=1e-5)


def test_a_decision_takes_its_time() -> None:
    """250 µs are two and a half intervals: equal to a delay of five intervals of 50 µs."""
    env, halves = make(), make({"action_delay": 5}, interval_us=50.0)
    late = replace(env, telemetry=Telemetry(decision_delay_us=243.0))  # rounded up to a tick
    assert late.telemetry.late(100.0, 10.0) == (2, 5)
    thresholds = settings(env, env.default_params)
    rows = play(late, thresholds)[1:]
    fine = play(halves, [ecn for ecn in thresholds for _ in range(2)])[1:]
    for t, row in enumerate(rows):
        for name in ("queue", "kmin", "pmax"):
            np.testing.assert_array_equal(row[name], fine[2 * t + 1][name])
        sent = fine[2 * t]["tx_bytes"] + fine[2 * t + 1]["tx_bytes"]
        np.testing.assert_allclose(row["tx_bytes"], sent, rtol=1e-5)
    assert any((a["queue"] != b["queue"]).any() for a, b in zip(rows, play(env)[1:], strict=True))


def test_the_option_of_make_is_that_of_telemetry() -> None:
    env = make(decision_delay_us=30.0)
    assert env.telemetry == Telemetry(decision_delay_us=30.0)
    assert make({"action_delay": 1}, decision_delay_us=30.0).telemetry.action_delay == 1
    with pytest.raises(ValueError, match=r"decision_delay_us = 40\.0 .* that of telemetry, 30"):
        make({"decision_delay_us": 30.0}, decision_delay_us=40.0)
    with pytest.raises(ValueError, match=r"decision_delay_us = -1\.0"):
        make(decision_delay_us=-1.0)
    with pytest.raises(ValueError, match=r"decision_delay_us = 500\.0 .* less than an episode"):
        make(decision_delay_us=500.0, max_steps=5)
    with pytest.raises(ValueError, match="decision_delay_us = nan"):
        make(decision_delay_us=float("nan"))


def test_one_profile_is_that_of_the_first_port_of_each_switch() -> None:
    net = leaf_spine(2, 2, 2)
    first = first_ports(net)
    names = [p.switch for p in net.ports]
    assert [names.index(name) for name in names] == first.tolist()
    ports = net.n_ports
    ecn = Ecn(*(jnp.arange(ports, dtype=jnp.float32) + x for x in (1.0, 100.0, 0.0)))
    limited = Telemetry(one_profile=True).limited(ecn, net)
    np.testing.assert_array_equal(limited.kmin, np.asarray(ecn.kmin)[first])
    np.testing.assert_array_equal(limited.kmax, np.asarray(ecn.kmax)[first])
    np.testing.assert_array_equal(limited.pmax, np.asarray(ecn.pmax)[first])
    assert len(set(np.asarray(limited.kmin).tolist())) == net.n_switches


def test_noisy_marks_are_counts_and_right_on_average() -> None:
    """`marked_rate` of a port that sends: a whole number of packets, near what is expected."""
    noisy, exact = make({"noisy_marks": True}, "acc"), make()
    assert noisy.sim.counts == ("marked_packets",)
    assert make(None, "acc").sim.counts == ()
    packet = float(noisy.default_params.sim.net.packet_bytes)
    rate = noisy.feature.names.index("marked_rate") + noisy.feature.width
    counted = expected = 0.0
    same = True
    for a, b in zip(play(noisy)[1:], play(exact)[1:], strict=True):
        np.testing.assert_array_equal(a["marked_bytes"], b["marked_bytes"])
        packets = a["obs"][:, rate] * a["tx_bytes"] / np.maximum(a["utilisation"], 1e-9) / packet
        np.testing.assert_allclose(packets, a["marked_packets"], atol=2e-3)
        same = same and np.allclose(packets, b["marked_bytes"] / packet, atol=0.1)
        counted += float(a["marked_packets"].sum())
        expected += float(a["marked_bytes"].sum()) / packet
    assert expected > 100
    assert abs(counted - expected) < 4 * np.sqrt(expected)
    assert not same


@pytest.fixture(scope="module")
def phased() -> Any:
    """An environment with two phases, its states in six intervals, and Kmin in each."""
    bursts = tuple(Incast(load=load, n_max=2) for load in (0.3, 0.8))
    traffic = PhasedIncast(Timeline((200.0, 200.0)), bursts)
    telemetry = {"action_delay": 1, "period_us": 200.0}
    env = ecn_marl.make(SCENARIO, telemetry=telemetry, traffic=traffic)
    params = env.default_params
    reset, step = programs(env)
    _, state = reset(jax.random.key(3), params)
    one, two = env.static_ecn("10,40,0.1", params), env.static_ecn("160,640,0.5", params)
    names = ("kmin", "kmax", "pmax")
    by_phase = PhaseEcn(*(jnp.stack([getattr(e, f) for e in (one, two)]) for f in names))
    states, kmin = [state], []
    for _ in range(6):
        _, state, *_, info = step(jax.random.key(0), state, by_phase, params)
        states.append(state)
        kmin.append(float(info["kmin"][0]))
    return env, states, kmin


def test_phases_keep_working(phased) -> None:
    """Thresholds for each phase are selected first and delayed then."""
    env, states, kmin = phased
    phase = [int(np.ravel(env.phase(state, env.default_params))[0]) for state in states[:-1]]
    assert set(phase) == {0, 1}
    assert kmin == pytest.approx([5e3, *[(10e3, 160e3)[p] for p in phase[:-1]]])


def test_the_clock_of_a_phase_is_known_to_critics(phased) -> None:
    """`privileged`: the time spent in a phase grows by an interval, as much as is left shrinks."""
    env, states, _ = phased
    known = [np.asarray(privileged.privileged(env, s, env.default_params)) for s in states]
    phases = np.stack(known)[:, :, :-2].argmax(-1)
    times = np.stack(known)[:, 0, -2:]
    same = np.flatnonzero(np.diff(times[:, 0]) > 0)
    assert len(same) >= 3 and (phases[same] == phases[same + 1]).all()
    moved = np.diff(times, axis=0)[same]
    np.testing.assert_allclose(
        moved, [[env.interval_us / 1e3, -env.interval_us / 1e3]] * len(same), rtol=1e-4
    )
    np.testing.assert_allclose(times.sum(1), 0.2, rtol=1e-5)


def test_pettingzoo_and_info_keep_working() -> None:
    env = ecn_marl.parallel_env(
        SCENARIO,
        features="flows",
        telemetry=Telemetry(period_us=200.0, action_delay=1, one_profile=True),
        max_cycles=3,
    )
    obs, _ = env.reset(seed=0)
    while env.agents:
        actions = {a: env.action_space(a).sample() for a in env.agents}
        obs, _, _, _, infos = env.step(actions)
    assert env.observation_space("port_0").contains(obs["port_0"])
    assert {"flows_begun", "flows_seen", "n_senders", "small_bytes"} <= set(infos["port_0"])
    assert isinstance(infos["port_0"]["flows_begun"], float)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period_us": 0.0}, "period_us = 0.0 is not allowed"),
        ({"period_us": 2e7}, r"period_us = 20000000.0 .* <= 1e\+07 µs"),
        ({"period_us": 250.0}, "period_us = 250.0 .*multiple of the tuning interval, 100 µs"),
        ({"period_us": 50.0}, "period_us = 50.0 .*multiple of the tuning interval"),
        ({"period_us": 1e6}, "period_us, observation_delay = .*within the episode of 200"),
        ({"observation_delay": -1}, "observation_delay = -1 .*an integer from 0 to 1000"),
        ({"observation_delay": 1001}, "observation_delay = 1001 "),
        ({"observation_delay": 200}, "first observation within the episode of 200"),
        ({"action_delay": True}, "action_delay = True .*an integer"),
        ({"action_delay": 200}, "action_delay = 200 .*fewer intervals than the 200"),
        ({"quantum_kb": -1.0}, r"quantum_kb = -1.0 .*a number >= 0 and <= 1e\+09 KB"),
        ({"quantum_kb": 1e38}, r"quantum_kb = 1e\+38 "),  # thresholds were 0 times infinity, NaN
        ({"quantum_kb": float("nan")}, "quantum_kb = nan"),
        ({"periods_us": 100.0}, "unknown telemetry option 'periods_us': did you mean 'period_us'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(options)


@pytest.mark.parametrize("name", ["pmax_percent", "one_profile", "noisy_marks"])
def test_switches_are_true_or_false(name: str) -> None:
    """The check of the class itself; in this suite the type checker would raise first."""
    options = Telemetry()
    object.__setattr__(options, name, "yes")
    with pytest.raises(ValueError, match=f"{name} = 'yes' is not allowed: expected True or False"):
        options.__post_init__()


@pytest.mark.parametrize(
    ("name", "value"), [("period_us", "100"), ("quantum_kb", "x"), ("quantum_kb", True)]
)
def test_times_and_sizes_are_numbers(name: str, value: object) -> None:
    options = Telemetry()
    object.__setattr__(options, name, value)
    with pytest.raises(ValueError, match=f"{name} = {value!r} is not allowed: expected a number"):
        options.__post_init__()


def test_policies_that_make_observations_anew_refuse_other_views() -> None:
    algorithm = SimpleNamespace(start=print, decide=print, watch=print, costs=print)  # never called
    with pytest.raises(
        ValueError, match=r"telemetry = .*policies with a memory see every interval"
    ):
        StatefulPolicy(algorithm, None, make({"observation_delay": 1}))


def test_networks_whose_switches_are_not_in_order() -> None:
    pairs = [("b", "h0"), ("a", "h1"), ("b", "h2"), ("a", "b"), ("a", "h3")]
    links = [Link(a, b, 25.0, 1.0) for a, b in pairs]
    net = from_links("pair", ["h0", "h1", "h2", "h3"], ["b", "a"], links)
    names = [p.switch for p in net.ports]
    assert first_ports(net).tolist() == [names.index(name) for name in names]
