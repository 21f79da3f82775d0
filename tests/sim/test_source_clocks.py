"""Clocks of sources: substeps of lists, phases and ticks, streams and their phases."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl.sim import Schedule, Simulator, star
from ecn_marl.sim.traffic.jobs import Requests, Timeline
from ecn_marl.sim.traffic.streams import Streams
from ecn_marl.sim.traffic.tickets import Finished

NET = star(4)


@pytest.mark.parametrize("dt_us", [2.0, 0.7])
def test_a_list_has_the_clock_of_its_simulator(dt_us):
    """A tick of 5 µs is no whole number of these substeps: the list's clock would be wrong."""
    with pytest.raises(ValueError, match=rf"dt_us of Schedule = {dt_us} .* 1, as the simulator"):
        Simulator(NET, (Schedule(dt_us, 4),), slots=4, dt_us=1.0, tick_steps=5)
    Simulator(NET, (Schedule(0.5, 4),), slots=4, dt_us=1.0, tick_steps=5)


def test_a_tick_holds_one_boundary_of_phases_at_most():
    requests = Requests(Timeline((150.0, 125.0), 0.2), (0.01, 0.0), (0, 1), (2, 3))
    with pytest.raises(ValueError, match=r"dt_us, tick_steps = \(5.0, 30\) .* up to 100 µs"):
        Simulator(NET, (requests,), dt_us=5.0, tick_steps=30, interval_steps=30, slots=16)
    Simulator(NET, (requests,), dt_us=5.0, tick_steps=20, interval_steps=20, slots=16)


def test_streams_begin_within_their_phase():
    """Those of a phase that is over would begin in the next one, which may have none."""
    line, senders = Timeline((200.0, 300.0)), ((2, 2), (0, 0))
    flows = ((1, 1), (1, 1))
    with pytest.raises(ValueError, match=r"start_us = 201.0 .* at most the shortest phase, 200 µs"):
        Streams(line, (0, 1), 2, senders, flows, start_us=201.0)
    source = Streams(line, (0, 1), 2, senders, flows, start_us=200.0, width=2)
    starts = jax.jit(jax.vmap(lambda seed: starts_of(source, seed)))(jnp.arange(20))
    begun = np.isfinite(starts)
    assert (begun.sum((1, 2)) == 2).all()
    assert (np.asarray(starts)[begun] <= 200.0).all()


def starts_of(source, seed, ticks=100, tick_us=5.0):
    """Starts of all flows of a source of which none ends, µs, infinite for none, `[ticks, M]`."""
    nic, params = jnp.full((4,), 3125.0), source.default_params()
    none = Finished(jnp.zeros(source.n_tickets, bool), jnp.zeros(source.n_tickets))
    state = source.init(jax.random.key(seed), params, nic, seed.astype(jnp.uint32))

    def step(state, tick):
        state = source.finished(state, params, nic, none, tick_us)
        offer = source.offer(state, params, nic)
        state = source.advance(state, params, nic, offer.valid.sum(), tick_us)
        return state, jnp.where(offer.valid, tick_us * tick + offer.start, jnp.inf)

    return jax.lax.scan(step, state, jnp.arange(ticks))[1]
