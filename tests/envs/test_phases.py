"""Phases: their order and shares, and that only the parameters change."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl import lanes
from ecn_marl.envs.phases import Phase, PhaseEcn
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, Poisson, star


def sources(load, table="FbHdp", senders=1):
    burst = Incast(load=0.5, n_min=senders, n_max=senders, flow_kb=100.0, width=2)
    return (Poisson(load=load, table=table, width=2), burst)


CALM = Phase("calm", sources(0.1), delay_us=1.0, utilisation_weight=0.2)
BUSY = Phase("busy", sources(0.9, "WebSearch", 2), delay_us=4.0, utilisation_weight=0.8)
LATE = Phase("late", sources(0.9, "WebSearch", 2), delay_us=2.0)
SCENARIO = Scenario(
    topology=star(3, delay_us=4.0),
    traffic=sources(0.5),
    slots=8,
    max_steps=12,
    bins=0,
    phases=(CALM, BUSY, LATE),
    phase_steps=2,
)


@pytest.fixture(scope="module")
def env():
    return make(SCENARIO)


@pytest.fixture(scope="module")
def played(env):
    """Phases and rewards of an episode of two cycles, for 16 keys."""
    params = env.default_params
    ecn = env.static_ecn("secn1", params)

    def episode(key):
        def step(state, _):
            phase = env.phase(state, params)[0]
            _, state, reward, _, _, info = env.step_ecn(key, state, ecn, params)
            return state, (phase, reward, info["utilisation"], info["queue_mean"])

        _, state = env.reset(key, params)
        return jax.lax.scan(step, state, length=12)[1]

    return jax.jit(jax.vmap(lanes.mapped(episode)))(jax.random.split(jax.random.key(0), 16))


def test_every_cycle_holds_every_phase_once_in_varying_order(played):
    phase = np.asarray(played[0]).reshape(16, 2, 3, 2)
    assert (phase[..., 0] == phase[..., 1]).all()  # each lasts two intervals
    assert (np.sort(phase[..., 0], -1) == np.arange(3)).all()
    assert len({tuple(row) for row in phase[..., 0].reshape(-1, 3)}) == 6  # all orders occur


def test_reward_is_weighed_as_the_phase_asks(env, played):
    phase, reward, utilisation, queue = (np.asarray(x) for x in played)
    weight = np.array([0.2, 0.8, 0.3])[phase][..., None]
    level = sum(queue > 5e3 * 2.0**n for n in range(10)) / 10
    np.testing.assert_allclose(reward, weight * utilisation + (1 - weight) * (1 - level), atol=1e-5)


def test_parameters_of_a_phase_are_those_of_a_scenario_made_of_it(env):
    params = env.default_params
    for i, phase in enumerate(SCENARIO.phases):
        alone = replace(SCENARIO, phases=(), traffic=phase.traffic)
        expected = make(replace(alone, topology=star(3, delay_us=phase.delay_us))).default_params
        at_phase = env.at(params, jnp.int32(i))
        np.testing.assert_array_equal(at_phase.sim.net.port_delay, expected.sim.net.port_delay)
        np.testing.assert_array_equal(at_phase.sim.net.nic_delay, expected.sim.net.nic_delay)
        np.testing.assert_array_equal(at_phase.sim.net.routes, expected.sim.net.routes)
        assert float(at_phase.sim.traffic[0].load) == pytest.approx(phase.traffic[0].load)
        assert float(at_phase.sim.traffic[1].n_max) == phase.traffic[1].n_max
        phase_table, table = at_phase.sim.traffic[0].table, expected.sim.traffic[0].table
        u = np.linspace(0.001, 0.999, 97, dtype=np.float32)
        np.testing.assert_array_equal(
            jnp.interp(u, phase_table.cdf, phase_table.size), jnp.interp(u, table.cdf, table.size)
        )


def test_only_what_differs_is_stored_by_phase(env):
    sim, reward = env.default_params.vary
    assert sim.net.routes is None and sim.net.port_rate is None and reward.queue_scale is None
    assert sim.net.port_delay.shape == (3, 3) and reward.utilisation_weight.shape == (3,)


def test_parameters_can_be_made_while_tracing(env):
    def weight():
        return env.default_params.vary[1].utilisation_weight

    np.testing.assert_allclose(jax.jit(weight)(), [0.2, 0.8, 0.3])


def test_the_same_phase_over_and_over_is_no_phase_but_for_restarts():
    """One phase that lasts for the whole episode equals the plain environment, bit by bit."""
    single_phase = replace(SCENARIO, phases=(Phase("same"),), phase_steps=100)
    plain, phased = make(replace(SCENARIO, phases=())), make(single_phase)
    key = jax.random.key(5)
    _, a = jax.jit(plain.reset)(key, plain.default_params)
    _, b = jax.jit(phased.reset)(key, phased.default_params)
    b = replace(b, steps=b.steps + 1)  # past the start, where sources start anew
    a = replace(a, steps=a.steps + 1)
    ecn = plain.static_ecn("secn2", plain.default_params)
    step_a, step_b = jax.jit(plain.step_ecn), jax.jit(phased.step_ecn)
    for _ in range(4):
        obs_a, a, *_ = step_a(key, a, ecn, plain.default_params)
        obs_b, b, *_ = step_b(key, b, ecn, phased.default_params)
        np.testing.assert_array_equal(obs_a, obs_b)
    assert float(a.sim.totals.started) > 0


def test_a_switch_loses_no_flow():
    """With few slots a source stops at the switch, and every flow that began before it gets one."""
    heavy, light = (Poisson(load=x, table="GoogleRPC2008", width=24) for x in (0.4, 0.001))
    phases = (Phase("heavy", traffic=(heavy,)), Phase("light", traffic=(light,)))
    crowded = replace(
        SCENARIO, topology=star(3), traffic=(heavy,), phases=phases, phase_steps=4, max_steps=40
    )
    runs: dict[int, np.ndarray] = {}
    waiting: list[int] = []
    for slots in (8, 512):
        env = make(replace(crowded, slots=512))
        env = replace(env, sim=replace(env.sim, slots=slots))
        params, reset, step = env.default_params, jax.jit(env.reset), jax.jit(env.step_ecn)
        ecn, metrics = env.static_ecn("secn1", params), jax.jit(env.episode_metrics)
        of_light = replace(
            params, sim=env.at(params, jnp.int32(1)).sim
        )  # what is varied is in `vary`
        for seed in range(9):  # an episode that begins with the heavy phase
            _, state = reset(jax.random.key(seed), params)
            if int(env.phase(state, params)[0]) == 0:
                break
        history = []
        for _ in range(24):
            _, state, *_, info = step(jax.random.key(0), state, ecn, params)
            waiting.append(int(info["waiting"][0]))
            assert int(metrics(state, params)["waiting"]) == waiting[-1]
            assert int(metrics(state, of_light)["waiting"]) == waiting[-1]
            source = state.sim.traffic[0]
            history.append(
                (int(source.phase), int(source.source.count), int(state.sim.totals.started))
            )
        runs[slots] = np.array(history)
    assert max(waiting) > 2, "some wait at the end of an interval"
    began = runs[512][3, 2]
    assert runs[512][4, 0] == 1, "with many slots nothing waits at the switch"
    phase, count, started = runs[8].T
    assert began > started[3] + 20, "with few slots flows wait at the switch"
    last = (
        np.flatnonzero(phase == 0)[-1] if (phase == 0).all() else np.flatnonzero(phase == 1)[0] - 1
    )
    assert last > 4
    assert count[last] <= began <= started[last + 1], "all of them have had a slot by the handover"
    assert (np.diff(started) >= 0).all()


def test_thresholds_by_phase_are_those_of_the_phase_that_is_on(env):
    params, key = env.default_params, jax.random.key(1)
    by_phase = [env.static_ecn(s, params) for s in ("secn1", "secn2", "dctcp")]
    table = jax.tree.map(lambda *x: jnp.stack(x), *by_phase)
    _, state = jax.jit(env.reset)(key, params)
    step = jax.jit(env.step_ecn)
    visited = set()
    for _ in range(6):
        phase = int(env.phase(state, params)[0])
        *_, info = step(key, state, PhaseEcn(table.kmin, table.kmax, table.pmax), params)
        np.testing.assert_array_equal(info["kmax"], by_phase[phase].kmax)
        visited.add(phase)
        state = replace(state, steps=state.steps + 1)
    assert visited == {0, 1, 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": (Phase("far", delay_us=9.0),)}, "delay_us of phase far = 9.0"),
        ({"phases": (Phase("odd", (Poisson(),)),)}, "traffic of phase odd"),
        ({"phases": (CALM,), "phase_steps": 0}, "phase_steps = 0"),
    ],
)
def test_bad_phases_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        make(replace(SCENARIO, **change))


def test_a_load_for_phases_that_have_their_own_is_refused():
    with pytest.raises(ValueError, match=r"load = 0\.5"):
        make(SCENARIO, load=0.5)
