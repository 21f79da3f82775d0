"""Flows as agents: their turns, observations and rewards, and their fixed point."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl import lanes
from ecn_marl.envs.rate.actions import FACTORS, ContinuousFactor, DiscreteFactor
from ecn_marl.envs.rate.measure import Steered, measure
from ecn_marl.envs.rate.scenarios import HOSTS, make_rate, rate_scenarios, with_options
from ecn_marl.sim.metrics import counter_bytes

SMALL = {"buffer_mib": 1.0, "duration_us": 2e4, "warm_up_us": 1e4}
BASE_US = 8.0 + 1048 / 12500 + 2 * 60 / 12500
"""Four links of 2 us, a packet stored once and an ACK twice; propagation and storage by hand."""


def played(env, steps: int, seed: int = 0):
    """An episode of random actions: per step, actions, observations, rewards and info."""
    params = jax.tree.map(jnp.asarray, env.default_params)

    def step(carry, key):
        obs, state = carry
        action = env.action.sample(key, env.num_agents)
        obs, state, reward, _, truncated, info = env.step(key, state, action, params)
        return (obs, state), (action, obs, reward, truncated, info)

    @jax.jit
    def run(key):
        first = env.reset(key, params)
        return jax.lax.scan(step, first, jax.random.split(key, steps))

    (_, state), rows = run(jax.random.key(seed))
    return state, jax.tree.map(np.asarray, rows)


@pytest.fixture(scope="module")
def eight():
    columns = ("change", "error", "rate", "inflation")
    env = make_rate("many-to-one-8-v0", history=3, columns=columns, **SMALL)
    return env, *played(env, 3000)


def test_rates_follow_the_actions_of_those_whose_turn_it_is(eight):
    """Against a float64 model: the product of the factors at each returned RTT packet."""
    env, _, (action, _, _, _, info) = eight
    rate = np.ones(env.num_agents)
    acts = np.zeros(env.num_agents, bool)
    started = np.zeros(env.num_agents, bool)
    for t in range(len(action)):
        limits = 0.0008, 1.0  # 10 Mb/s of 100 Gb/s would be 0.0001; the scenario has 1 Mb/s
        factor = np.clip(action[t].astype(float), 0.8, 1.2)
        rate = np.where(acts, np.clip(rate * factor, 1e-5, limits[1]), rate)
        acts, started = info["acts"][t], started | (info["rate"][t] > 0)
        np.testing.assert_allclose(info["rate"][t][started], rate[started], rtol=1e-4)
    assert started.all()
    assert 300 < info["acts"].sum() < 3000 * 8 / 4


def test_turns_come_once_a_round_trip(eight):
    """Time between two turns: the measured RTT, plus at most the time of a packet."""
    env, _, (_, _, _, _, info) = eight
    for flow in range(env.num_agents):
        at = np.flatnonzero(info["acts"][:, flow])
        gap = np.diff(at) * env.step_us
        rtt = info["inflation"][at[1:], flow] * BASE_US
        packet = 1048 / (12500 * info["rate"][at[:-1], flow])
        assert (gap >= rtt - 2 * env.step_us).all()
        assert (gap <= rtt + packet * 1.3 + 2 * env.step_us).mean() > 0.97
        assert (info["inflation"][at, flow] >= 1 - 1e-5).all()


def test_observations_and_rewards_follow_from_rates_and_round_trips(eight):
    env, _, (_, obs, reward, truncated, info) = eight
    history = np.zeros((env.num_agents, 3, 4))
    last = np.ones(env.num_agents)
    for t in range(len(obs)):
        acts, rate = info["acts"][t], info["rate"][t].astype(float)
        inflation = info["inflation"][t].astype(float)
        x = np.maximum(inflation - 1.5, 0) * np.sqrt(rate)
        row = np.stack([np.log(np.maximum(rate, 1e-9) / last) / np.log(1.2), x / 0.064 - 1, rate,
                        inflation], -1)  # fmt: skip
        moved = np.concatenate([history[:, 1:], row[:, None]], 1)
        history = np.where(acts[:, None, None], moved, history)
        last = np.where(acts, rate, last)
        observed = obs[t].reshape(history.shape)
        np.testing.assert_allclose(observed, history, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(
            reward[t], np.where(acts, -((0.064 - x) ** 2), 0), rtol=1e-3, atol=1e-5
        )
    assert not truncated.any()


def test_same_seed_same_episode(eight):
    env, state, rows = eight
    repeated_state, repeated_rows = played(env, 3000)
    jax.tree.map(np.testing.assert_array_equal, rows, repeated_rows)
    other, _ = played(env, 3000, seed=1)
    totals = [counter_bytes(s.sim.totals.delivered) for s in (state, repeated_state, other)]
    assert totals[0] == totals[1] != totals[2]


def test_flows_do_not_wait_and_bytes_are_conserved(eight):
    env, state, _ = eight
    net = state.sim
    assert int(net.totals.deferred) == 0
    assert int(net.totals.started) == env.num_agents
    unsent = counter_bytes((net.flows.rest_high, net.flows.rest_low)).sum()
    size = env.num_agents * (2**29 // 8) * 2.0**18
    delivered = counter_bytes(net.totals.delivered) + float(net.queue[0])
    assert size - unsent == pytest.approx(delivered, rel=1e-5)


def steady(gain: float = 0.02, slope: float = 4.0):
    """A proportional controller of the error, with a forecast of it."""

    def act(_, obs):
        before, latest = obs[:, 1], obs[:, 3]
        return 1.0 + 0.2 * jnp.tanh(-gain * (latest + slope * (latest - before)))

    return act


ACT = steady()


@pytest.mark.parametrize(
    "flows", [8, *(pytest.param(n, marks=pytest.mark.thorough) for n in (2, 32))]
)
def test_the_fixed_point_is_fair_and_grows_with_the_root_of_n(flows):
    """Proposition 1: rates of 1/N, inflation of offset + target sqrt(N)."""
    spec = with_options(f"many-to-one-{flows}-v0", {"buffer_mib": 1.0, "duration_us": 6e4,
                                                    "warm_up_us": 4e4})  # fmt: skip
    metrics = measure(Steered(make_rate(spec), ACT), spec, seeds=2)
    inflation = 1.0 + metrics["queue_us"] / BASE_US
    np.testing.assert_allclose((inflation - 1.5) / (0.064 * np.sqrt(flows)), 1.0, rtol=0.02)
    assert (metrics["fairness"] > 0.98).all()
    assert (metrics["utilisation"] > 0.999).all()
    assert (metrics["drop_rate"] == 0).all()


def test_another_target_moves_it():
    spec = with_options("many-to-one-2-v0", {"duration_us": 4e4, "warm_up_us": 2e4})
    metrics = measure(Steered(make_rate(spec, target=0.2, offset=1.0), ACT), spec)
    assert metrics["queue_us"][0] / BASE_US == pytest.approx(0.2 * np.sqrt(2), rel=0.02)


def test_lanes_and_xla_agree():
    spec = with_options("many-to-one-2-v0", {"duration_us": 1.2e4, "warm_up_us": 6e3})
    subject = Steered(make_rate(spec), ACT)
    fast = measure(subject, spec)
    with lanes.off():
        slow = measure(replace(subject, act=steady()), spec)  # compiled anew
    for name in fast:
        np.testing.assert_allclose(fast[name], slow[name], rtol=2e-3)


def test_names_and_sizes():
    assert {f"many-to-one-{n}-v0" for n in HOSTS} < set(rate_scenarios())
    for n, (hosts, per_host) in HOSTS.items():
        assert hosts * per_host == n
        env = make_rate(f"many-to-one-{n}-v0")
        assert env.num_agents == n
        assert env.sim.topology.n_hosts == hosts + 1
    assert make_rate("all-to-all-8-v0").num_agents == 56
    long_short = make_rate("long-short-1024-v0").sim.traffic
    assert sum(group.n_flows for group in long_short) == 1024
    assert [group.endless for group in long_short] == [True, False]


def test_actions():
    assert ContinuousFactor().factor(jnp.array([0.1, 0.9, 3.0])).tolist() == pytest.approx(
        [0.8, 0.9, 1.2]
    )
    codec = DiscreteFactor()
    assert codec.factor(jnp.arange(-1, 7)).tolist() == pytest.approx([0.8, *FACTORS, 1.2])
    assert set(np.asarray(codec.sample(jax.random.key(0), 100)).tolist()) == set(range(6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scenario": "many-to-one-3-v0"}, "unknown rate scenario .*many-to-one-2-v0"),
        ({"target": 0.0}, r"target = 0\.0 .* a number > 0"),
        ({"offset": -1.0}, r"offset = -1\.0"),
        ({"history": 0}, "history = 0"),
        ({"history": True}, "history = True .* an integer"),
        ({"target": True}, "target = True .* a number > 0"),
        ({"columns": ("rtt",)}, "unknown column 'rtt'"),
        ({"actions": "box"}, "unknown actions 'box'.*continuous"),
        ({"transport": "swift:htsim"}, "transport = 'swift:htsim' .* rate-agent"),
        ({"duration": 3}, "unknown rate scenario option 'duration'.*duration_us"),
        ({"warm_up_us": 3e6}, "warm_up_us, duration_us"),
        ({"tick_steps": 20}, r"dt_us \* tick_steps = 20.0 .* round trip"),
        ({"size": 1}, "size = 1"),
        ({"size": 100}, "size = 100 .* a multiple of 64"),
        ({"kind": "one-to-one"}, "unknown kind of scenario"),
        ({"duration_us": 1e10}, r"duration_us = 1.* at most 2147483647 steps of 2 us"),
        ({"ecn": "secn3"}, "unknown ECN setting 'secn3'"),
        ({"ecn": "200,5,0.1"}, "ecn: Kmin, Kmax = "),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        make_rate(**({"scenario": "many-to-one-8-v0"} | change))


@pytest.mark.usefixtures("unchecked")
def test_values_of_other_types():
    for factors in ((0.5, float("nan")), (0.5, float("inf")), (1.0, 1.0), (0.0, 1.0), (1.0,)):
        with pytest.raises(ValueError, match="factors = "):
            DiscreteFactor(factors)
    for change, message in (
        ({"target": "x"}, "target = 'x' .* a number > 0"),
        ({"columns": 3}, "columns = 3 .* a tuple of names"),
        ({"actions": 3}, "actions = 3 .* continuous, discrete, or a codec"),
    ):
        with pytest.raises(ValueError, match=message):
            make_rate("many-to-one-8-v0", **change)
    assert make_rate("many-to-one-8-v0", history=np.int64(3)).history == 3


def test_short_flows_take_their_bytes_from_the_long_one():
    """The long flow sends the link's capacity minus that of seven short ones; then it recovers."""
    options = {"interrupt_us": 500.0, "duration_us": 5e3, "buffer_mib": 4.0}
    spec = with_options("long-short-8-v0", options)
    metrics = measure(Steered(make_rate(spec), ACT), spec)
    window_us = 4500.0
    short_share = 7 * (100e3 + 100 * 48) / (12500.0 * window_us)
    assert metrics["long_bandwidth"][0] == pytest.approx(1.0 - short_share, abs=0.01)
    assert 0.0 <= metrics["recovery_us"][0] < 1500.0
    assert "fairness" not in metrics
