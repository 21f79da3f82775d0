"""Timelines, requests and flow sets: what arrives, against a recount in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netcases import kolmogorov
from roundoff import U64

from ecn_marl.sim.traffic.incast import Incast
from ecn_marl.sim.traffic.jobs import FlowSets, Requests, Timeline, clock_of
from ecn_marl.sim.traffic.phased_incast import PhasedIncast
from ecn_marl.sim.traffic.sizes import size_table

LINE = Timeline((3000.0, 1000.0, 2000.0), length_jitter=0.5)
NIC = np.full(6, 3125.0, np.float32)
TICK, TICKS = 10.0, 6000


@partial(jax.jit, static_argnums=(0, 3))
def drive(source, seeds, takes, tick_us=TICK):
    """Offers of every tick, taking at most `takes[t]` of the flows that are due."""
    params = source.default_params()
    key, episode = jax.random.key(seeds[0]), seeds[1].astype(jnp.uint32)

    def tick(state, most):
        offer = source.offer(state, params, jnp.asarray(NIC))
        due = offer.valid & (offer.start < tick_us)
        taken = due & (jnp.cumsum(due) <= most)
        new = source.advance(state, params, jnp.asarray(NIC), taken.sum(), tick_us)
        return new, (offer, taken, state.clock)

    return jax.lax.scan(tick, source.init(key, params, jnp.asarray(NIC), episode), takes)[1]


def arrivals(source, seed=0, episode=0, takes=None):
    """Absolute starts (µs), sources, destinations, payloads of what was taken, and the clocks."""
    takes = np.full(TICKS, 64) if takes is None else takes
    offer, taken, clock = jax.device_get(drive(source, jnp.array([seed, episode]), takes))
    number = np.broadcast_to(np.arange(len(takes))[:, None], taken.shape)[taken]
    start = np.asarray(offer.start, np.float64)[taken] + number * TICK
    order = np.diff(np.where(offer.valid, offer.start, 1e30), axis=1)
    assert not (order < 0).any(), "every offer is in order of start"
    return start, offer.src[taken], offer.dst[taken], offer.payload[taken], clock


def boundaries(clock):
    """Start of every phase, µs, and its length, read from the clocks."""
    index = np.asarray(clock.index)
    first = np.flatnonzero(np.diff(index, prepend=-1))
    starts = first * TICK - np.asarray(clock.spent, np.float64)[first]
    return starts, np.asarray(clock.length, np.float64)[first]


REQUESTS = Requests(LINE, (0.05, 0.0, 0.4), (0, 1, 2), (2, 3, 4), width=16)
SETS = FlowSets(
    LINE, phase=1, pairs=((0, 3), (1, 3), (2, 4), (5, 0), (4, 0)), fill=0.7, start_us=300.0, width=4
)


def test_phases_follow_one_another_and_all_sources_agree_on_them():
    *_, clock = arrivals(REQUESTS, seed=1, episode=7)
    starts, lengths = boundaries(clock)
    assert len(starts) > 20
    np.testing.assert_allclose(starts[1:], starts[:-1] + lengths[:-1], atol=0.02)
    share = lengths / np.array(LINE.lengths_us)[np.arange(len(lengths)) % 3]
    assert share.min() >= 0.5 and share.max() <= 1.5 and share.std() > 0.15
    other = arrivals(SETS, seed=99, episode=7)[-1]
    for a, b in zip(jax.tree.leaves(clock), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(arrivals(REQUESTS, 1, 8)[-1].length, clock.length)


def test_requests_come_at_the_rate_of_their_phase():
    start, src, dst, payload, clock = arrivals(REQUESTS)
    starts, lengths = boundaries(clock)
    slot = np.searchsorted(starts, start, side="right") - 1
    phase = slot % 3
    assert not (phase == 1).any()
    for index, rate in ((0, 0.05), (2, 0.4)):
        of_phase = np.arange(len(starts)) % 3 == index
        of_phase[-1] = False
        expected = rate * lengths[of_phase].sum()
        n = np.isin(slot, np.flatnonzero(of_phase)).sum()
        assert abs(n - expected) < 4 * math.sqrt(expected)
        within = (start - starts[slot])[phase == index] / lengths[slot][phase == index]
        within = within[slot[phase == index] < len(starts) - 1]
        assert kolmogorov(within, lambda x: x) < 1.95 / math.sqrt(len(within))
    assert set(src) == {0, 1, 2} and set(dst) == {2, 3, 4} and not (src == dst).any()
    assert abs((src[dst == 2] == 0).mean() - 0.5) < 0.1, "the others share what host 2 would send"
    u = np.log(payload / 500.0) / np.log(100.0)
    assert kolmogorov(u, lambda x: x) < 1.95 / math.sqrt(len(u)) + 2e-3


KINDS = ((0.3, 3, 20.0), (0.8, 4, 100.0), (0.1, 2, 5.0))
"""Load, senders and KB of the bursts of every phase."""

BURSTS = PhasedIncast(LINE, tuple(Incast(x, n, n, kb, 3) for x, n, kb in KINDS), width=4)


def test_bursts_are_of_the_kind_of_their_phase():
    start, src, dst, payload, clock = arrivals(BURSTS)
    starts, lengths = boundaries(clock)
    # The tick in which a phase begins may still begin a burst of the phase before.
    slot = np.asarray(clock.index)[np.floor(start / TICK + 1e-3).astype(int)]
    assert (dst == 3).all() and not (src == 3).any()
    for phase, (load, n, kb) in enumerate(KINDS):
        slots = np.arange(phase, len(starts) - 1, 3)
        np.testing.assert_array_equal(payload[np.isin(slot, slots)], 1000.0 * kb)
        first = np.array([start[slot == i].min() for i in slots])
        assert (np.abs(first - starts[slots]) <= TICK).all(), "a phase begins with a burst"
        gap = n * kb * 1048.0 / (load * NIC[3])
        further = np.isin(slot, slots).sum() / n - len(slots)
        expected = lengths[slots].sum() / gap
        assert abs(further - expected) < 4.0 * math.sqrt(expected) + 1.0


def test_a_burst_begins_whole_before_the_next_phase():
    """One flow gets a slot every sixth tick, so bursts are late, and reach into other phases."""
    takes = (np.arange(TICKS) % 6 == 0).astype(int)
    *_, payload, clock = arrivals(BURSTS, takes=takes)
    assert len(boundaries(clock)[0]) > 20
    edges = np.flatnonzero(np.diff(payload)) + 1
    for part in np.split(payload, edges)[:-1]:
        n = {1000.0 * kb: n for _, n, kb in KINDS}[float(part[0])]
        assert len(part) % n == 0
    assert len(edges) > 6


class PreciseRequests(Requests):
    """Times are added up in float64 where JAX has it."""

    def _gap(self, seed, index):
        return super()._gap(seed, index).astype(float)


class PreciseSets(FlowSets):
    """The same of sets."""

    def init(self, *args):
        state = super().init(*args)
        return replace(state, origin=state.origin.astype(float))


@given(seed=st.integers(0, 1000), shift=st.integers(0, 2), block=st.integers(1, 40))
@settings(max_examples=6, deadline=None)
def test_a_source_that_is_not_served_loses_nothing_and_moves_no_start(seed, shift, block):
    """Taking nothing for a while, then all: the same flows with the same starts, in float64.

    A wait of up to 400 µs crosses at most one boundary.
    """
    # Up to 200 arrivals are due; every tick rounds that twice, and 0.05 of them come in a µs.
    near = 2 * TICKS * 200 * U64 / 0.05
    for kind, plain in ((PreciseRequests, REQUESTS), (PreciseSets, SETS)):
        source = kind(**(vars(plain) | {"shift": shift}))
        takes = np.full(TICKS, 64)
        withheld = takes.copy()
        withheld[(np.arange(TICKS) // block) % 2 == 0] = 0
        withheld[-50:] = 64
        with jax.enable_x64(True):
            prompt, late = (arrivals(source, seed, seed + 1, t) for t in (takes, withheld))
        assert len(prompt[0]) > 20
        np.testing.assert_allclose(late[0], prompt[0], rtol=0, atol=near)
        for a, b in zip(late[1:4], prompt[1:4], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shift", [0, 1])
def test_sets_fill_their_links(shift):
    source = FlowSets(**(vars(SETS) | {"shift": shift}))
    start, src, dst, payload, clock = arrivals(source)
    starts, lengths = boundaries(clock)
    slot = np.searchsorted(starts, start, side="right") - 1
    assert ((slot - shift) % 3 == 1).all()
    assert (start - starts[slot] <= 300.02).all()
    full_sets = [s for s in np.unique(slot) if s < len(starts) - 1]
    for s in full_sets:
        of_set = slot == s
        assert sorted(zip(src[of_set], dst[of_set], strict=True)) == sorted(SETS.pairs)
        wire = 0.7 * (lengths[s] - 300.0) * 3125.0
        for host, n in ((3, 2), (4, 1), (0, 2)):
            size = payload[of_set & (dst == host)] * 1.048 / (wire / n)
            assert (abs(size - 1.0) <= 0.1501).all()
    orders = {tuple(src[slot == s]) for s in full_sets}
    assert len(orders) > 3, "the order is drawn anew"


def test_clock_of_finds_the_first_timeline():
    assert clock_of((), ()) is None


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Timeline(()), "lengths_us"),
        (lambda: Timeline((150.0,), length_jitter=0.5), "lengths_us"),
        (lambda: Timeline((1e3, float("nan"))), "lengths_us"),
        (lambda: Timeline((1e3,), length_jitter=1.0), "length_jitter"),
        (lambda: Timeline((1e3,), names=("a", "b")), "names"),
        (lambda: Requests(LINE, (1.0,), (0,), (1,)), "per_us"),
        (lambda: Requests(LINE, (1.0, 1.0, float("nan")), (0,), (1,)), "per_us"),
        (lambda: Requests(LINE, (1.0, 1.0, 1.0), (0,), (0,)), "sources"),
        (lambda: Requests(LINE, (1.0, 1.0, 1.0), (0, 0), (1,)), "sources"),
        (lambda: Requests(LINE, (1.0, 1.0, 1.0), (0,), (-1,)), "destinations"),
        (lambda: Requests(LINE, (1.0, 1.0, 1.0), (0,), (1,), 5.0, 1.0), "smallest_kb"),
        (lambda: FlowSets(LINE, 3, ((0, 1),)), "phase"),
        (lambda: FlowSets(LINE, 0, ((0, 0),)), "pairs"),
        (lambda: FlowSets(LINE, 0, ((0, 1),), fill=0.0), "fill"),
        (lambda: FlowSets(LINE, 0, ((0, 1),), start_us=500.0), "start_us"),
    ],
)
def test_bad_values_are_refused(make, field):
    with pytest.raises(ValueError, match=field):
        make()


def test_payloads_of_a_table_have_its_distribution():
    """Kolmogorov's distance to the table, whose sizes are rounded down to whole bytes."""
    table = size_table("WebSearch")
    source = replace(REQUESTS, table="WebSearch")
    _, _, _, payload, _ = arrivals(source)
    assert len(payload) > 3000
    distance = kolmogorov(payload, lambda x: np.interp(x + 0.5, table.size, table.cdf))
    assert distance < 1.95 / math.sqrt(len(payload))
    demand = source.demand(NIC, TICK)
    assert demand.wire == pytest.approx(1.048 * float(table.mean), rel=0.01)


def test_a_table_that_there_is_not_is_named():
    with pytest.raises(ValueError, match="unknown flow-size table 'WebSaerch'"):
        replace(REQUESTS, table="WebSaerch")
