"""States in mid-episode, saved and restored by libraries: they go on bit by bit."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization

import ecn_marl
from ecn_marl.envs.rate.scenarios import make_rate
from ecn_marl.sim import (
    ClosedLoop,
    FlowGroup,
    Graph,
    Poisson,
    Schedule,
    Simulator,
    leaf_spine,
    ring_all_reduce,
    schedule,
    star,
)
from ecn_marl.sim.config import RECOVERIES, TrafficClass
from ecn_marl.sim.core.ways import BALANCINGS
from ecn_marl.sim.state import COUNTS
from ecn_marl.sim.transports import parse_transport
from ecn_marl.wrappers import AutoReset, EpisodeStatistics

SENDERS = ("dcqcn:hpcc-run", "dctcp:sigcomm10", "hpcc:hpcc", "swift:htsim", "timely:hpcc")
KEY = jax.eval_shape(lambda: jax.random.key(0))


def empty_leaves(tree) -> list[str]:
    """Names of the leaves without an element."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path) for path, leaf in leaves if leaf.size == 0]


def twin(name: str) -> str:
    """The small scenario that a large one only differs from in size."""
    if "-full-" in name:
        return name.replace("-full-", "-")
    return name.replace("-64-", "-16-").replace("-v0", "-small-v0")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if twin(name) in ecn_marl.scenarios() else ())
        for name in ecn_marl.scenarios()
    ],
)
def test_no_leaf_of_a_scenarios_state_is_empty(name):
    """Orbax, safetensors and others refuse to save such."""
    env = ecn_marl.make(name)
    assert empty_leaves(jax.eval_shape(env.sim.init, KEY, env.default_params.sim)) == []


@pytest.mark.parametrize("name", ["restore-serve-v0", "storage-train-v0", "websearch-star-v0"])
def test_no_leaf_of_a_wrapped_state_is_empty(name):
    """With histories, sums and the last episode's metrics."""
    env = EpisodeStatistics(AutoReset(ecn_marl.make(name)))
    state = jax.eval_shape(env.reset, KEY, env.default_params)[1]
    assert empty_leaves(state) == []


def test_no_leaf_of_a_state_of_rate_control_is_empty():
    env = make_rate("many-to-one-8-v0")
    assert empty_leaves(jax.eval_shape(env.reset, KEY, env.default_params)[1]) == []


POISSON = (Poisson(load=0.3),)


@pytest.mark.parametrize(
    "options",
    [
        *({"transport": parse_transport(name)} for name in SENDERS),
        *({"loss_recovery": name} for name in RECOVERIES),
        *({"load_balancing": name} for name in BALANCINGS),
        *({"bins": n, "counts": counts} for n, counts in ((0, ()), (8, COUNTS))),
        {"failures": True, "ack_priority": True, "accrue": True, "pfc": False},
        {"traffic": (Graph(ring_all_reduce(range(4), 4000)), ClosedLoop((0,), (1,)))},
        {"traffic": (FlowGroup((0,), (1,)),)},
        {"classes": tuple(TrafficClass(n, parse_transport(n)) for n in SENDERS[:2])},
    ],
)
def test_no_leaf_of_a_simulators_state_is_empty(options):
    sim = Simulator(leaf_spine(2, 2, 2), **{"traffic": POISSON, "slots": 16, **options})
    params = sim.default_params()
    assert empty_leaves(jax.eval_shape(sim.init, KEY, params)) == []


def test_a_log_is_as_long_as_its_schedule():
    flows = {"src": [0, 1], "dst": [1, 2], "size_B": [10, 20], "start_ns": [0.0, 1.0]}
    logged = Simulator(star(3), (Schedule(1.0, 2),), slots=4, scheduled=2)
    params = logged.default_params(traffic=(schedule(flows, 1.0),))
    assert jax.eval_shape(logged.init, KEY, params).fct_log.shape == (2,)
    unlogged = Simulator(star(3), (Schedule(1.0, 2),), slots=4)
    assert jax.eval_shape(unlogged.init, KEY, params).fct_log is None


def through_orbax(state, folder):
    saver = ocp.StandardCheckpointer()
    saver.save(folder / "state", state)
    saver.wait_until_finished()
    return saver.restore(folder / "state", jax.tree.map(ocp.utils.to_shape_dtype_struct, state))


def through_flax(state, folder):
    return serialization.from_bytes(state, serialization.to_bytes(state))


def through_pickle(state, folder):
    return pickle.loads(pickle.dumps(state))


def through_npz(state, folder):
    leaves, form = jax.tree.flatten(state)
    np.savez(folder / "state.npz", *leaves)
    with np.load(folder / "state.npz") as file:
        return jax.tree.unflatten(form, [file[name] for name in file.files])


@pytest.fixture(scope="module")
def midway():
    """A state in the middle of the second episode, and a function that plays on from a state."""
    env = EpisodeStatistics(AutoReset(ecn_marl.make("incast-v0", max_steps=4)))
    params = env.default_params
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    action = env.action_space(params).sample(jax.random.key(9))

    def play(state, first, last):
        rows = []
        for t in range(first, last):
            key = jax.random.fold_in(jax.random.key(1), t)
            obs, state, reward, *_ = step(key, state, action, params)
            rows += [obs, reward, *jax.tree.leaves(state)]
        return state, jax.device_get(rows)

    state, _ = play(reset(jax.random.key(1), params)[1], 0, 6)
    assert int(state.finished) == 1 and float(jnp.sum(state.env.env.sim.queue)) > 0
    return state, play


@pytest.mark.parametrize("through", [through_orbax, through_flax, through_pickle, through_npz])
@pytest.mark.usefixtures("unchecked")
def test_a_restored_state_goes_on_bit_by_bit(midway, tmp_path, through):
    state, play = midway
    restored = through(state, tmp_path)
    _, expected = play(state, 6, 10)
    for a, b in zip(expected, play(restored, 6, 10)[1], strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ecn_marl.scenarios())
def test_no_first_state_holds_nan(name):
    """A training does not save a state with NaN: it stops."""
    env = ecn_marl.make(name)
    _, state = jax.jit(env.reset)(jax.random.key(0), env.default_params)
    real = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert not any(bool(jnp.isnan(x).any()) for x in real)
