"""The simulator's intervals through lanes: every sender, drops, classes, failing links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_and_lanes import CHEAP, raw

import ecn_marl
from ecn_marl import lanes
from ecn_marl.sim import Dcqcn, Ecn, Poisson, Simulator, leaf_spine, star
from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.transports import Dctcp, Hpcc, Reno, Swift, Timely
from ecn_marl.wrappers import AutoReset, Lanes

BATCH, WARM = 20, 6
"""Environments, and intervals before they are compared."""


def network(transport: Any, topology: Any = None, **options: Any) -> Simulator:
    """A small network with busy hosts; its environments differ in traffic."""
    return Simulator(
        topology or star(5),
        (Poisson(load=0.7),),
        transport,
        dt_us=2.0,
        tick_steps=5,
        interval_steps=20,
        slots=24,
        **options,
    )


CASES = {
    "two levels": lambda: network(Dcqcn.of("hpcc-paper"), leaf_spine(2, 2, 2)),
    "two NICs per server, paced CNPs": lambda: network(
        Dcqcn.of("sigcomm15-np50us"), leaf_spine(2, 3, 2, nics_per_server=2)
    ),
    "timely, failures, jitter": lambda: network(Timely(), failures=True, jitter_us=1.0),
    "swift, sprayed, failures": lambda: network(
        Swift(), leaf_spine(2, 3, 3), load_balancing="spray", failures=True
    ),
    "flowlets": lambda: network(
        Dctcp(), leaf_spine(2, 3, 3), load_balancing="flowlet", flowlet_gap_us=3.0
    ),
    "hpcc": lambda: network(Hpcc()),
    "swift": lambda: network(Swift()),
    "classes, drops": lambda: network(
        Dctcp(),
        buffer_mib=0.2,
        classes=(
            TrafficClass("bulk", Dctcp()),
            TrafficClass("web", Reno(), lossless=False, weight=2.0),
        ),
        class_of=(1,),
    ),
}

QUICK = {"classes, drops"}
"""That with the most options, compared in every run of the suite; the others are `thorough`."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough)
        for name in sorted(CASES)
    ],
)
def test_an_interval_is_that_of_xla(name: str) -> None:
    """From the same states: nearly all numbers agree; a coin may fall otherwise by rounding."""
    sim = CASES[name]()
    params = sim.default_params()
    ports = sim.topology.n_ports
    ecn = Ecn(jnp.full(ports, 20e3), jnp.full(ports, 80e3), jnp.full(ports, 0.2))

    def advance(state: Any, params: Any) -> Any:
        return sim.interval(state, params, ecn)

    keys = jax.random.split(jax.random.key(0), BATCH)
    states = jax.jit(jax.vmap(sim.init, (0, None)), compiler_options=CHEAP)(keys, params)
    plain = jax.jit(jax.vmap(advance, (0, None)), compiler_options=CHEAP)
    for _ in range(WARM):
        states, _ = plain(states, params)
    expected = plain(states, params)
    found = jax.jit(lanes.vmap(advance, (0, None)))(states, params)
    agree = total = 0
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        x, y = raw(a), raw(b)
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        agree += np.isclose(y, x, rtol=1e-3, atol=1e-3, equal_nan=True).sum()
        total += x.size
    assert total > BATCH * 500
    assert agree >= 0.995 * total
    sent, same = raw(expected[1].tx_bytes).sum(), raw(found[1].tx_bytes).sum()
    assert sent > 0
    np.testing.assert_allclose(same, sent, rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.slow
def test_episodes_have_the_same_statistics() -> None:
    """Steps of whole environments, auto-reset included, over more than an episode."""
    env = AutoReset(ecn_marl.make("incast-v0"))
    params = replace(env.default_params, max_steps=jnp.int32(10))
    keys = jax.random.split(jax.random.key(1), 64)
    _, start = jax.jit(jax.vmap(env.reset, (0, None)), compiler_options=CHEAP)(keys, params)

    def run(step: Any) -> Any:
        def body(state: Any, key: jax.Array) -> Any:
            act, env_key = jax.random.split(key)
            action = env.action.sample(act, env.num_agents)
            action = jnp.broadcast_to(action, (64, *action.shape))
            _, state, reward, _, truncated, _ = jax.vmap(step, (0, 0, 0, None))(
                jax.random.split(env_key, 64), state, action, params
            )
            return state, (reward.mean(), truncated.all())

        return jax.lax.scan(body, start, jax.random.split(jax.random.key(2), 25))[1]

    compiled = jax.jit(run, static_argnums=0, compiler_options=CHEAP)
    (reward, over), (fast, fast_over) = compiled(env.step), compiled(Lanes(env).step)
    np.testing.assert_array_equal(over, fast_over)
    assert int(over.sum()) == 2
    np.testing.assert_allclose(fast, reward, rtol=2e-3)
