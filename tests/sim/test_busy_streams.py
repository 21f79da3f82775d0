"""Streams: who sends in which phase, that the link stays busy, and what cannot be asked for."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl.sim import Dcqcn, Simulator, star
from ecn_marl.sim.core.queues import scaled_ecn
from ecn_marl.sim.network.topology import GBPS
from ecn_marl.sim.random import shuffled
from ecn_marl.sim.traffic.jobs import Timeline
from ecn_marl.sim.traffic.sizes import CHUNK
from ecn_marl.sim.traffic.streams import Streams, _rank

LINE = Timeline((1000.0, 2000.0))
SOURCES = (1, 2, 3, 4, 5, 6)


def streams(**fields) -> Streams:
    """Two phases: one sender with a stream, then two to four with up to three each."""
    settings = {"senders": ((1, 1), (2, 4)), "flows": ((1, 1), (1, 3)), "start_us": 50.0, **fields}
    return Streams(LINE, SOURCES, 0, **settings)


@pytest.mark.parametrize("n", [1, 2, 6, 7, 12])
def test_ranks_are_the_places_of_the_cyclic_order(n):
    for seed in range(5):
        bits = jax.random.bits(jax.random.key(seed), (2,), jnp.uint32)
        order = np.asarray(shuffled(bits, jnp.arange(n), n))
        rank = np.asarray(_rank(bits, jnp.arange(n), n))
        np.testing.assert_array_equal(rank[order], np.arange(n))


def test_senders_are_drawn_anew_within_their_limits():
    source = streams()
    params = source.default_params()
    active = jax.jit(jax.vmap(lambda k: source.active(params, jnp.uint32(5), k)))
    sending = np.asarray(active(jnp.arange(400))).reshape(400, 6, 3)
    senders, flows = sending.any(2).sum(1), sending.sum(2)
    assert set(senders[::2]) == {1} and set(flows[::2].ravel()) == {0, 1}
    assert set(senders[1::2]) == {2, 3, 4} and set(flows[1::2].ravel()) == {0, 1, 2, 3}
    assert (sending.any(2).mean(0) > 0.2).all()  # every host in its turn
    assert not (sending & ~np.logical_or.accumulate(sending[..., ::-1], -1)[..., ::-1]).any()


def simulator(source: Streams) -> Simulator:
    """A star of seven hosts at 25 Gb/s."""
    return Simulator(star(7), (source,), Dcqcn(), dt_us=2.0, tick_steps=5, slots=32)


@pytest.fixture(scope="module")
def run():
    """Interval by interval of 100 µs: flows in progress, bytes delivered."""
    compiled = jax.jit(lambda sim, state, p, ecn: sim.collect(state, p, ecn)[0], static_argnums=0)

    def go(source: Streams, intervals: int) -> tuple[np.ndarray, np.ndarray, Simulator]:
        sim = replace(simulator(source), interval_steps=50)
        params = sim.default_params()
        state, ecn = (
            jax.jit(sim.init)(jax.random.key(1), params),
            scaled_ecn(params.net, 100, 400, 0.2),
        )
        busy, delivered = [], []
        for _ in range(intervals):
            state = compiled(sim.program, state, params, ecn)
            busy.append(int((np.asarray(state.flows.stage) > 0).sum()))
            delivered.append(
                float(state.totals.delivered[0]) * CHUNK + float(state.totals.delivered[1])
            )
        assert int(state.totals.deferred) == 0
        offered = float(state.totals.offered[0]) * CHUNK + float(state.totals.offered[1])
        assert delivered[-1] <= offered
        return np.array(busy), np.diff(delivered, prepend=0.0), state

    return go


def test_the_receivers_link_is_busy_from_start_to_end(run):
    busy, delivered, _ = run(streams(), 60)
    assert delivered[2:].sum() > 0.93 * 58 * 100.0 * 25.0 * GBPS
    phase = np.arange(60) % 30 >= 10
    assert busy[~phase][2:10].max() <= 4  # flows at the end of a phase are small
    assert busy[phase].max() >= 2


def test_flows_of_a_fixed_size_follow_one_another(run):
    source = streams(flow_kb=100.0)
    _, delivered, state = run(source, 20)
    finished = int(state.totals.finished.sum())
    assert finished == pytest.approx(delivered.sum() / 104_800, abs=6)
    assert int(np.asarray(state.traffic[0].number).sum()) - finished <= 12


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"senders": ((1, 1),)}, "for each of 2 phases"),
        ({"senders": ((1, 1), (3, 2))}, "senders"),
        ({"senders": ((1, 1), (1, 7))}, "at most the 6 sources"),
        ({"flows": ((1, 1), (1, -3))}, "flows"),
        ({"fill": 0.0}, "fill"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        streams(**fields)
    with pytest.raises(ValueError, match="the receiver not among them"):
        Streams(LINE, (0, 1), 0, ((1, 1), (1, 1)), ((1, 1), (1, 1)))
