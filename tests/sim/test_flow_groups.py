"""Groups of flows: who sends to whom, when, and that no byte is lost."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl.sim.metrics import counter_bytes
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.simulator import Simulator, scaled_ecn
from ecn_marl.sim.traffic.flow_groups import ENDLESS_CHUNKS, FlowGroup
from ecn_marl.sim.traffic.sizes import CHUNK
from ecn_marl.sim.transports import parse_transport

NIC = jnp.full((5,), 12500.0)


def arrivals(group: FlowGroup, seed: int, tick_us: float, ticks: int) -> list[tuple]:
    """The flows of a source whose width is a number, taken as a simulator takes them."""
    params, flows = group.default_params(), []
    state = group.init(jax.random.key(seed), params, NIC)
    for tick in range(ticks):
        offer = group.offer(state, params, NIC)
        start = np.asarray(offer.start)
        taken = np.asarray(offer.valid) & (start < tick_us)
        assert (np.diff(start) >= 0).all()
        assert start[taken].min(initial=0.0) > -1e-2  # none had to wait
        flows += [
            (tick * tick_us + s, int(a), int(b))
            for s, a, b, t in zip(start, offer.src, offer.dst, taken, strict=True)
            if t
        ]
        state = group.advance(state, params, NIC, jnp.asarray(taken.sum()), tick_us)
    return flows


@pytest.mark.parametrize(
    ("sources", "destinations", "each"),
    [((1, 2, 3), (0,), 4), ((0, 1, 2, 3), (0, 1, 2, 3), 1), ((4, 1), (2, 3), 3)],
)
def test_every_pair_begins_once_within_the_window(sources, destinations, each):
    want = Counter((s, d) for s in sources for d in destinations if s != d for _ in range(each))
    group = FlowGroup(sources, destinations, each, start_us=7.0, start_window_us=40.0)
    width = group.demand(np.asarray(NIC), 5.0).most
    assert width < group.n_flows
    group = FlowGroup(sources, destinations, each, start_us=7.0, start_window_us=40.0, width=width)
    flows = arrivals(group, 3, 5.0, 12)
    assert Counter((a, b) for _, a, b in flows) == want
    starts = np.array([s for s, _, _ in flows])
    share = 40.0 / len(flows)  # the i-th begins in the i-th part of the window
    assert (np.floor((starts - 7.0) / share) == np.arange(len(flows))).all()
    assert flows == arrivals(group, 3, 5.0, 12)
    assert flows != arrivals(group, 4, 5.0, 12)


def test_bytes_are_conserved_and_endless_flows_go_on():
    """Two endless flows, and one that makes the buffer overflow until it ends."""
    groups = (FlowGroup((1, 2), (0,)), FlowGroup((3,), (0,), flow_kb=50.0, start_us=100.0))
    sim = Simulator(
        star(4, gbps=100.0, delay_us=2.0),
        groups,
        parse_transport("rate-agent:line-rate,share=0.45"),
        interval_steps=100,
        slots=3,
        pfc=False,
        buffer_mib=0.02,
    )
    params = jax.tree.map(jnp.asarray, sim.default_params())
    state = jax.jit(sim.init)(jax.random.key(0), params)
    run = jax.jit(lambda s: sim.interval(s, params, scaled_ecn(params.net, 5, 200, 0.01))[0])
    size, short = ENDLESS_CHUNKS // 2 * CHUNK, 50e3 + 50 * 48
    for i in range(4):
        state = run(state)
        left = counter_bytes((state.flows.rest_high, state.flows.rest_low)).sum()
        delivered, dropped = (
            float(counter_bytes(getattr(state.totals, n))) for n in ("delivered", "dropped")
        )
        sent = 2 * size + (short if i else 0.0) - left
        assert sent == pytest.approx(delivered + float(state.queue[0]), abs=16.0)  # float32
        # In a star no byte waits but in the queue, so at 45 % each this is what was sent.
        assert delivered == pytest.approx(
            0.9 * 12500 * 100 * (i + 1) + (short if i else 0), rel=0.03
        )
        assert (dropped > 1000.0) == (i > 0)
        assert int(state.totals.finished.sum()) == (i > 0)
    # Nothing wraps around: all bytes admitted, and what was sent again.
    assert counter_bytes(state.totals.offered) == pytest.approx(
        2 * size + short + dropped, rel=1e-6
    )
    assert int(state.totals.deferred) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": ()}, "sources = .* different numbers of hosts"),
        ({"sources": (1, 1)}, "sources = .* different numbers of hosts"),
        ({"destinations": (1,), "sources": (1,)}, "destinations = .* no source of it"),
        ({"each": 0}, "each = 0 .* integer >= 1"),
        ({"flow_kb": 0.0}, r"flow_kb = 0\.0 .* infinity"),
        ({"start_us": -1.0}, r"start_us = -1\.0"),
        ({"start_window_us": float("nan")}, "start_window_us = nan"),
    ],
)
def test_bad_groups_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        FlowGroup(**({"sources": (1, 2), "destinations": (0,)} | change))


def test_hosts_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="sources"):
        Simulator(star(3), (FlowGroup((1, 7), (0,)),), slots=2)
