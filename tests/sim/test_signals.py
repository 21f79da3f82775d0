"""What senders hear, on small networks: each signal against what was really sent, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from netcases import OFF, ROWS, flow_list, start, wire

from ecn_marl.sim import Ecn, Schedule, Simulator, leaf_spine, scaled_ecn, schedule, star
from ecn_marl.sim import feedback as fb
from ecn_marl.sim import flows as fl
from ecn_marl.sim.metrics import counter_bytes

LINE = 3125.0
"""25 Gb/s in bytes/µs."""

PACKET = 1048
"""Wire bytes of a full packet."""

CHUNK = 100
"""Ticks per call of a compiled program."""

ALL = Ecn(*(np.full(9, x, np.float32) for x in (-2.0, -1.0, 1.0)))
"""Thresholds that mark even what leaves an empty queue."""

# --- a sender that listens ------------------------------------------------------------------------

SHAPES = {
    "sent": "F",
    "acked": "F",
    "marked": "F",
    "lost": "F",
    "returned": "F",
    "rtt": "F",
    "base_rtt": "F",
    "n_hops": "F",
    "hop_queue": "LF",
    "hop_sent": "LF",
    "hop_rate": "LF",
    "hop_step": "F",
    "mark": "F",
    "past_rate": "F",
}


@struct.dataclass
class EarParams:
    """Rate over line rate, and window in payload bytes."""

    share: Any = 1.0
    window: Any = 1e9


@struct.dataclass
class EarState:
    rate: Any
    window: Any
    at: Any
    log: Any


@dataclass(frozen=True)
class Ear:
    """Sends at a set rate under a set window, and writes down a tick of all that it hears."""

    kind: ClassVar[str] = "ear"
    header: ClassVar[float] = 0.0
    latched: ClassVar[bool] = False
    name: str = "ear"
    needs: frozenset[str] = frozenset((fb.ACKS, fb.PROBE, fb.TELEMETRY, fb.FIELD))
    steps: int = 5

    def default_params(self):
        return EarParams()

    def init(self, slots, dtype=jnp.float32, levels=1):
        zero = jnp.zeros((slots,), dtype)
        sizes = {"F": (self.steps, slots), "LF": (self.steps, levels, slots)}
        whole = {"hop_sent": jnp.uint32, "hop_step": jnp.int32, "returned": bool}
        log = {k: jnp.zeros(sizes[s], whole.get(k, dtype)) for k, s in SHAPES.items()}
        return EarState(zero, zero, jnp.zeros((), jnp.int32), log)

    def start(self, state, params, new, line, base_rtt):
        del base_rtt
        return replace(
            state,
            rate=jnp.where(new, line * params.share, state.rate),
            window=jnp.where(new, params.window, state.window),
        )

    def rate(self, state):
        return state.rate

    def window(self, state):
        return state.window

    def update(self, state, params, heard, dt):
        del params, dt
        log = {k: v.at[state.at].set(getattr(heard, k)) for k, v in state.log.items()}
        return replace(state, log=log, at=(state.at + 1) % self.steps)


def network(topology, dt_us=1.0, slots=8, **options):
    traffic = (Schedule(dt_us, ROWS),)
    sizes = {"tick_steps": 5, "interval_steps": 5, "slots": slots, "scheduled": ROWS}
    return Simulator(topology, traffic, Ear(), dt_us=dt_us, **sizes, **options)


STAR = network(star(9))
STAR_DROPS = network(star(9), pfc=False)
STAR_FAST = network(star(9, gbps=100.0), 5.0)
SPINE = network(leaf_spine(2, 2, 2))


def recorder(sim, length):
    """What is heard, substep by substep, and some of the state at the end of every tick."""

    def run(state, params, ecn):
        def one(state, _):
            state, _ = sim.interval(state, params, ecn)
            flows = state.flows
            dropped = state.totals.dropped
            kept = flows.flow_id, flows.stage, flows.backlog, state.queue, dropped
            return state, (flows.transport.log, kept)

        return jax.lax.scan(one, state, None, length=length)

    return run


@cache
def recording(sim, length):
    return jax.jit(recorder(sim, length))


def prepare(sim, rows, net, **transport):
    """Parameters for a flow list, with fields of `NetParams` and `EarParams` replaced."""
    params = sim.default_params(traffic=(schedule(flow_list(rows), sim.dt_us),))
    real = params.net.port_rate.dtype
    net = {
        k: np.broadcast_to(np.asarray(v, real), getattr(params.net, k).shape)
        for k, v in net.items()
    }
    values = {k: real.type(v) for k, v in transport.items()}
    return replace(
        params,
        net=replace(params.net, **net),
        transport=replace(params.transport, **values),
    )


class Heard:
    """A recording: signals `[T, ..., F]` per substep, state per tick."""

    def __init__(self, sim, state, log, kept):
        self.sim, self.state = sim, state
        self.signals = {k: np.concatenate(np.asarray(v)) for k, v in log.items()}
        self.flow_id, self.stage, self.backlog, self.queue, dropped = map(
            lambda x: x if isinstance(x, tuple) else np.asarray(x), kept
        )
        self.dropped = np.asarray(counter_bytes(dropped))

    def __getattr__(self, name):
        return self.signals[name]

    def of(self, flow, name):
        """Signal of a flow of the list while it had a slot, zero otherwise."""
        mine = np.repeat(self.flow_id == flow, self.sim.tick_steps, axis=0)
        return np.where(mine, self.signals[name], 0).sum(-1)

    def cumulated(self, flow, name):
        return np.cumsum(self.of(flow, name).astype(np.float64))


def listen(sim, rows, length=100, ecn=OFF, seed=0, net=(), change=lambda s: s, **transport):
    """Run a flow list for `length` ticks, a multiple of `CHUNK`."""
    params = prepare(sim, rows, dict(net), **transport)
    ecn = ecn if isinstance(ecn, Ecn) else scaled_ecn(params.net, *ecn)
    state = change(start(sim)(jax.random.key(seed), params))
    parts = []
    for _ in range(length // CHUNK):
        state, part = recording(sim, CHUNK)(state, params, ecn)
        parts.append(part)
    log, kept = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return Heard(sim, state, log, kept)


def round_trip(delay_us=1.0, hops=1, rate=LINE):
    """Four propagation delays on a star, a packet stored at the port, an ACK at NIC and port."""
    return 2 * (hops + 1) * delay_us + (hops * PACKET + (hops + 1) * 60) / rate


# --- ACKs -----------------------------------------------------------------------------------------

APART = [
    (1, 0, 1, 0.0),
    (2, 3, 999, 3.7),
    (3, 2, 1000, 12.0),
    (4, 5, 1001, 20.0),
    (5, 6, 20_000, 20.9),
    (6, 4, 20_500, 31.2),
    (7, 8, 150_000, 44.4),
    (1, 0, 100_000, 50.0),
    (2, 3, 2_000, 70.3),
    (8, 7, 64_017, 123.4),
    (1, 0, 12_345, 211.0),
]
"""Flows that do not meet, in more numbers than there are slots."""


@pytest.mark.parametrize("share", [1.0, 0.31])
def test_every_packet_is_acknowledged_once(share):
    heard = listen(STAR, APART, 200, ecn=ALL, share=share)
    for flow, (_, _, size, begin) in enumerate(APART):
        packets = math.ceil(size / 1000)
        assert heard.of(flow, "acked").sum() == packets
        assert heard.of(flow, "marked").sum() == packets
        assert heard.of(flow, "sent").sum() == pytest.approx(wire(size), abs=0.5)
        assert np.flatnonzero(heard.of(flow, "acked"))[0] + 1 >= begin + round_trip() - 1
    assert heard.lost.sum() == 0
    assert (heard.stage[-1] == fl.FREE).all()


@pytest.mark.parametrize("delay_us", [0.0, 1.0, 7.3, 55.0])
@pytest.mark.parametrize("begin", [0.0, 2.6])
def test_acks_come_after_a_round_trip(delay_us, begin):
    """Packet k leaves k spacings after the start; its ACK acts a round trip later, to a substep."""
    delays = {"nic_delay": delay_us, "port_delay": delay_us}
    heard = listen(STAR, [(1, 0, 1_000_000, begin)], 100, net=delays, share=0.17)
    leave = begin + np.arange(1000) * PACKET / (0.17 * LINE)
    now = np.arange(1, 501)
    back = leave + round_trip(delay_us)
    acked = heard.cumulated(0, "acked")
    for slack, side in ((1.01, np.less_equal), (-1.01, np.greater_equal)):
        assert side(acked, (back[:, None] <= now + slack).sum(0)).all()
    assert acked[-1] > 100


def test_acks_wait_in_the_queues_back():
    """A slow port sends without a break; what it sent is acknowledged through a queue of its own.

    While that grows as fast as time goes by no ACK comes; while it drains they come twice as fast.
    """
    rows = [(1, 0, 10**7, 0.0), (3, 1, 300_000, 60.0), (4, 1, 300_000, 60.0)]
    rates = np.array([1000.0] + 8 * [LINE])
    heard = listen(STAR, rows, 100, net={"port_rate": rates})
    acked = heard.cumulated(0, "acked")
    waits = np.repeat(np.append(0, heard.queue[:-1, 1]), 5) / LINE
    assert waits.max() > 90
    base = 4 + PACKET / 1000 + 2 * 60 / LINE
    then = np.arange(1, 501) - base - waits
    want = np.maximum.accumulate(np.maximum(then, 0) * 1000 / PACKET)
    # The packet begun counts, and the delay is renewed once per tick.
    assert np.abs(acked - want).max() < 1 + 5 + 1
    assert (np.diff(acked[80:150:10]) < 3).all()


def test_what_is_on_the_way_adds_up():
    """Sent = acknowledged + lost + in the queues + sent, or out, but not yet heard of."""
    rows = [(s, 0, 2_000_000, 10.0 * s) for s in range(1, 5)]
    heard = listen(STAR_DROPS, rows, 200, net={"buffer": 120e3}, share=0.6)
    assert heard.dropped[-1] > 1e6
    behind = math.ceil(round_trip() + 130e3 / LINE) + 5
    for flow in range(4):
        sent = heard.cumulated(flow, "sent")[4::5]
        acked = heard.cumulated(flow, "acked")[4::5] * PACKET
        lost = heard.cumulated(flow, "lost")[4::5]
        queued = np.where(heard.flow_id == flow, heard.backlog[:, 0], 0).sum(-1)
        unheard = sent - acked - lost - queued
        assert (unheard >= -PACKET - 1).all()
        # At most what was sent since the time that feedback takes at the very most.
        recent = sent - np.interp(np.arange(len(sent)) - behind / 5, np.arange(len(sent)), sent)
        assert (unheard <= recent + PACKET).all()


def test_losses_are_heard_of_a_round_trip_and_a_queue_later():
    """The ACK that shows a loss belongs to the packet behind, at the end of a full queue."""
    rows = [(s, 0, 3_000_000, 0.0) for s in range(1, 4)]
    heard = listen(STAR_DROPS, rows, 100, net={"buffer": 120e3})
    lost = np.cumsum(heard.lost.sum(-1, dtype=float))[4::5]
    full = heard.queue[20:, 0]
    assert full.min() > 100e3
    # Drops happen in whole ticks, and when a tick was full the next one is.
    when = np.arange(1, 101) * 5.0
    late = [t - np.interp(x, heard.dropped, when) for t, x in zip(when, lost, strict=True) if x > 0]
    expected = round_trip() + full.mean() / LINE
    assert np.mean(late) == pytest.approx(expected, abs=5)
    assert np.abs(np.array(late) - expected).max() < 12


def test_dropped_bytes_are_sent_again():
    rows = [(s, 0, 300_000, 1.3 * s) for s in range(1, 9)]
    heard = listen(STAR_DROPS, rows, 400, net={"buffer": 60e3}, window=30e3)
    assert np.isfinite(np.asarray(heard.state.fct_log)[:8]).all()
    assert heard.dropped[-1] > 50e3
    sent = sum(heard.of(flow, "sent").sum() for flow in range(8))
    assert sent == pytest.approx(8 * wire(300_000) + heard.dropped[-1], rel=1e-5)


@pytest.mark.parametrize("window", [1.0, 1000.0])
def test_the_smallest_window_never_locks(window):
    """One packet at a time, most of them dropped, and still every flow finishes."""
    rows = [(s, 0, 20_000, 0.0) for s in range(1, 9)]
    heard = listen(STAR_DROPS, rows, 400, net={"buffer": 2e3, "port_rate": 300}, window=window)
    assert np.isfinite(np.asarray(heard.state.fct_log)[:8]).all()
    assert heard.dropped[-1] > 20e3


# --- windows --------------------------------------------------------------------------------------


def in_flight(heard, flow):
    """Packets begun by the end of each substep, less ACKs heard by the end of the one before."""
    begun = np.ceil(heard.cumulated(flow, "sent") / PACKET - 2e-3)
    return begun - np.append(0, heard.cumulated(flow, "acked")[:-1])


@pytest.mark.parametrize("window", [1.0, 999.0, 1000.0, 1010.0, 2500.0, 14_500.0, 60_000.0])
@pytest.mark.parametrize("delay_us", [1.0, 10.2])
def test_windows_are_kept(window, delay_us):
    """Never more packets on the way than the window covers; all of them if it limits."""
    delays = {"nic_delay": delay_us, "port_delay": delay_us}
    rows = [(1, 0, 10**7, 0.0), (2, 0, 10**7, 0.0), (3, 4, 77_777, 33.3)]
    heard = listen(STAR, rows, 100, net=delays, window=window)
    cap = math.ceil(window / 1000)
    for flow in range(3):
        assert in_flight(heard, flow).max() <= cap
    assert in_flight(heard, 0).max() == cap


@pytest.mark.parametrize("window", [1000.0, 7000.0, 20_000.0])
def test_a_window_is_sent_per_round_trip(window):
    """Throughput of a flow alone is its window per round trip (to a substep), or the line rate."""
    delays = {"nic_delay": 12.0, "port_delay": 12.0}
    heard = listen(STAR, [(1, 0, 10**7, 0.0)], 200, net=delays, window=window)
    acked = heard.cumulated(0, "acked")
    ends = np.searchsorted(acked, np.arange(1, 10) * window / 1000)
    np.testing.assert_allclose(np.diff(ends), round_trip(12.0), atol=1.0)


@pytest.mark.parametrize("window", [15_000.0, 40_000.0])
def test_windows_beyond_the_way_fill_the_queue(window):
    """N windows less what propagation holds; the last packet counts as through when half is."""
    rows = [(s, 0, 10**7, 0.0) for s in range(1, 5)]
    heard = listen(STAR, rows, 100, window=window)
    packets = 4 * (window / 1000 + 0.5)
    queue = heard.queue[50:, 0].mean()
    held = (packets * PACKET - queue) / LINE
    assert held == pytest.approx(round_trip(), abs=1.0)


# --- probes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("delay_us", "share"), [(0.0, 1.0), (1.0, 1.0), (1.0, 0.02), (31.7, 0.4)])
def test_probes_time_an_empty_network(delay_us, share):
    delays = {"nic_delay": delay_us, "port_delay": delay_us}
    heard = listen(STAR, [(1, 0, 10**7, 1.2)], 100, net=delays, share=share)
    base = round_trip(delay_us)
    rtt = heard.of(0, "rtt")
    back = np.flatnonzero(heard.of(0, "returned"))
    np.testing.assert_allclose(rtt[back], base, rtol=1e-5)
    np.testing.assert_allclose(heard.of(0, "base_rtt")[50:], base, rtol=1e-5)
    # The next probe is the first packet to leave after the last one is back.
    spacing = PACKET / (share * LINE)
    cycle = max(math.ceil(base / spacing) * spacing, 1.0)
    assert np.diff(back).mean() == pytest.approx(cycle, rel=0.02)
    # It is sent in the second substep, and noticed in the third at the earliest.
    assert back[0] + 1 == pytest.approx(max(1.2 + base, 3.0), abs=1)


def test_probes_wait_in_standing_queues():
    """209 KB of a flow that is over stand before one at line rate, for as long as it lasts."""
    heard = listen(STAR, [(2, 0, 200_000, 0.0), (1, 0, 10**7, 0.0)], 200)
    queue = heard.queue[30:, 0]
    assert queue.min() == pytest.approx(wire(200_000), rel=0.01)
    back = heard.of(1, "returned")[400:] > 0
    assert back.sum() >= 6
    rtt = heard.of(1, "rtt")[400:][back]
    np.testing.assert_allclose(rtt, round_trip() + queue.mean() / LINE, rtol=1e-3)


def test_probes_find_the_queues_of_the_moment_they_leave():
    """Queues that grow and drain, on both ways: RTT = base + what waits when it is sent."""
    rows = [(1, 0, 10**7, 0.0), (2, 0, 150_000, 20.0), (3, 0, 250_000, 60.0)]
    rows += [(4, 1, 200_000, 90.0), (5, 1, 200_000, 95.0)]
    heard = listen(STAR, rows, 200, share=0.7)
    rtt, back = heard.of(0, "rtt"), np.flatnonzero(heard.of(0, "returned"))
    assert len(back) > 15
    times = np.arange(1001)
    at = np.append(0, np.arange(4, 1000, 5) + 1)
    ahead, behind = (np.interp(times, at, np.append(0, heard.queue[:, p])) for p in (0, 1))
    sent = back + 0.5 - rtt[back]
    want = round_trip() + (np.interp(sent, times, ahead) + np.interp(sent, times, behind)) / LINE
    # A substep of the time it left, and a tick of the queue on the way back.
    assert np.abs(rtt[back] - want).max() < 6
    assert np.abs(rtt[back] - want).mean() < 1.5
    assert rtt.max() > 60


def test_pauses_are_in_the_round_trip_time():
    """A probe held up by a pause comes back later, and says so."""
    zero, n = jnp.zeros(1), 1
    flows = fl.empty_flows(n, 1, 1, None, jnp.float32)
    flows = replace(flows, stage=jnp.ones(n, jnp.int32), rtt=zero + 5.25)
    seen = fb.Observed(flows, zero + 500, zero + 500, zero, zero, zero, zero, zero, zero)
    needs = frozenset((fb.PROBE,))

    def returns(held_steps):
        echo = fb.restart(
            fb.empty_echo(needs, n, 1, 1, jnp.float32), zero == 0, jnp.float32(PACKET)
        )
        heard_of = []
        for step in range(40):
            held = jnp.full(n, 2 <= step < 2 + held_steps)
            none = jnp.zeros(n, jnp.int32)
            rate = zero[None] + LINE
            line = fb.Line(none, none, zero, held, none[None], rate, jnp.float32(PACKET))
            echo, _, heard = fb.listen(echo, seen, line, jnp.int32(step), needs, 1.0)
            if heard.returned[0]:
                heard_of.append((step, float(heard.rtt[0])))
        return heard_of

    assert returns(0)[0] == (5, 5.25)
    assert returns(11)[0] == (16, 16.25)
    assert returns(11)[1][1] == 5.25


def test_flows_that_start_together_hear_of_each_other():
    """N first packets reach a port at once: their RTTs differ by whole packets, up to N - 1."""
    rows = [(s, 0, 5_000, 0.0) for s in range(1, 9)]
    waits = []
    for seed in range(4):
        heard = listen(STAR, rows, 100, seed=seed, share=0.1)
        first = [heard.of(f, "rtt")[np.flatnonzero(heard.of(f, "returned"))[0]] for f in range(8)]
        waits += [(x - round_trip()) * LINE / PACKET for x in first]
    np.testing.assert_allclose(waits, np.round(waits), atol=0.02)
    assert min(waits) >= -0.02
    assert max(waits) <= 7.02
    assert len(set(np.round(waits))) >= 5


# --- telemetry and fields -------------------------------------------------------------------------


def test_telemetry_is_the_port_one_return_delay_ago():
    """On three hops between leaves, and on one within a leaf."""
    rows = [(0, 2, 10**6, 0.0), (1, 2, 10**6, 3.0), (3, 2, 10**6, 7.0), (1, 0, 50_000, 40.0)]
    heard = listen(SPINE, rows, share=0.8)
    bounds = SPINE.topology.level_bounds
    hops = np.asarray(heard.state.flows.hop) + np.array(bounds[:-1])[:, None]
    here = hops < np.array(bounds[1:])[:, None]
    np.testing.assert_array_equal(here.sum(0)[[0, 1, 2, 3]], [3, 3, 1, 1])
    np.testing.assert_array_equal(heard.n_hops[100, :4], [3, 3, 1, 1])
    rates = np.array([p.gbps for p in SPINE.topology.ports]) * 125
    want = np.where(here, rates[np.minimum(hops, len(rates) - 1)], np.inf)
    np.testing.assert_array_equal(heard.hop_rate[100, :, :3], want[:, :3])
    checked = 0
    for flow in (0, 2):
        for step in range(60, 300):
            read = heard.hop_step[step, flow]
            if read % 5 != 4:  # the state is known at the ends of ticks
                continue
            queue = np.append(heard.queue[read // 5], 0)[np.where(here, hops, bounds[-1])[:, flow]]
            np.testing.assert_allclose(heard.hop_queue[step, :, flow], queue, rtol=1e-6)
            checked += queue.max() > 50e3
    assert checked > 40
    delay = np.arange(500) - heard.hop_step[:, 0]
    # Four links there and back; three packets stored, the middle hop four times as fast.
    base = 8 + (PACKET + 60) * (1 / LINE + 1 / rates.max()) + (PACKET + 2 * 60) / LINE
    assert delay[60:300].mean() == pytest.approx(base - 0.5, abs=1.5)


def test_telemetry_counts_what_ports_have_sent():
    """Modulo 2^32, and to the byte: a port that never idles sends its rate."""
    rows = [(1, 0, 10**7, 0.0), (2, 0, 10**7, 0.0)]

    def near_the_end(state):
        count, rest = state.echo.port_sent
        return replace(state, echo=replace(state.echo, port_sent=(count - np.uint32(10**6), rest)))

    heard = listen(STAR, rows, 200, change=near_the_end)
    sent = heard.hop_sent[10:, 0, 0].astype(np.int64)
    assert sent.max() > 2**31 > sent.min(), "it has wrapped around"
    more = np.diff(sent) % 2**32
    steps = np.diff(heard.hop_step[10:, 0])
    np.testing.assert_allclose(more, LINE * steps, atol=1)


def test_fields_are_one_feedback_delay_old():
    """Marking probability of the queue then, and nothing before the first mark can be back."""
    rows = [(1, 0, 10**7, 0.0), (2, 0, 10**7, 0.0)]
    heard = listen(STAR, rows, ecn=(50, 150, 0.5), share=0.75)
    mark = heard.of(0, "mark")
    delay = round(round_trip() - 0.5)
    assert (mark[:delay] == 0).all()
    then = np.arange(4, 300, 5)
    queue = heard.queue[: len(then), 0]
    ramp = np.where(queue > 150e3, 1.0, 0.5 * np.clip((queue - 50e3) / 100e3, 0, 1))
    seen = then + delay
    inside = seen < 300
    np.testing.assert_allclose(mark[seen[inside]], ramp[inside], atol=2e-5)
    assert (mark > 0.99).any()
    assert ((mark > 0.1) & (mark < 0.4)).any()
    assert (heard.of(0, "past_rate")[10:] == 0.75 * LINE).all()


# --- exactness ------------------------------------------------------------------------------------


def test_alone_and_in_a_batch():
    """The same bits under vmap."""
    rows = [(1, 0, 300_000, 0.0), (2, 0, 300_000, 4.0), (0, 1, 200_000, 9.0), (3, 1, 70_000, 20.0)]
    sim, settings = STAR, [(1.0, 20e3), (0.4, 1e9), (0.9, 3e3)]
    params = [prepare(sim, rows, {}, share=s, window=w) for s, w in settings]
    ecn = scaled_ecn(params[0].net, 20, 80, 0.5)
    keys = [jax.random.key(k) for k in range(3)]
    states = [start(sim)(k, p) for k, p in zip(keys, params, strict=True)]
    one = [recording(sim, CHUNK)(s, p, ecn) for s, p in zip(states, params, strict=True)]
    stack = (
        jax.tree.map(lambda *x: jnp.stack(x), *states),
        jax.tree.map(lambda *x: np.stack(x), *params),
    )
    many = jax.jit(jax.vmap(recorder(sim, CHUNK), (0, 0, None)))(*stack, ecn)
    for i, (_, (log, kept)) in enumerate(one):
        others, kept_there = jax.tree.map(lambda x, i=i: x[i], many[1])
        # The only signal that is an exponential: its last bit follows from how loops are cut.
        np.testing.assert_allclose(log.pop("mark"), others.pop("mark"), atol=1e-7)
        for a, b in zip(*map(jax.tree.leaves, ((log, kept), (others, kept_there))), strict=True):
            np.testing.assert_array_equal(a, b)
    assert sum(float(log["marked"].sum()) for _, (log, _) in one) > 10


def test_a_gigabyte_is_counted_to_the_packet():
    """10^6 ACKs, all of them marked, at 5 µs per substep."""
    rows = [(1, 0, 10**9, 0.0)]
    params = prepare(STAR_FAST, rows, {})
    state = start(STAR_FAST)(jax.random.key(0), params)

    @jax.jit
    def run(state):
        def one(carry, _):
            state, sums = carry
            state, _ = STAR_FAST.interval(state, params, ALL)
            log = state.flows.transport.log
            new = jnp.stack([log["acked"].sum(), (256 * log["marked"]).sum()])
            return (state, sums + new.astype(jnp.int32)), None

        return jax.lax.scan(one, (state, jnp.zeros(2, jnp.int32)), None, length=3400)[0]

    state, (acked, marked) = run(state)
    assert np.isfinite(state.fct_log[0])
    assert acked == 10**6
    assert marked / 256 == 10**6


def test_counts_may_wrap_around():
    """Long after 2^31 packets: the counters are only ever read as differences."""

    def late(state):
        high = np.int32(2**31 - 40)
        echo = state.echo
        echo = replace(
            echo,
            arrived=echo.arrived + high,
            acked=echo.acked + high,
            arrived_log=echo.arrived_log + high,
        )
        return replace(state, echo=echo)

    rows = [(1, 0, 300_000, 0.0), (2, 3, 300_000, 0.0)]
    usual = listen(STAR, rows, 100, ecn=ALL, window=9e3)
    wrapped = listen(STAR, rows, 100, ecn=ALL, window=9e3, change=late)
    assert usual.acked.sum() == 600
    for name in ("acked", "marked", "sent"):
        np.testing.assert_array_equal(usual.signals[name], wrapped.signals[name])


@pytest.mark.parametrize(("delay_us", "late"), [(60.0, False), (66.0, True)])
def test_feedback_from_beyond_the_memory_is_counted(delay_us, late):
    """256 µs are kept: once per tick and flow that it is not enough, the count goes up."""
    delays = {"nic_delay": delay_us, "port_delay": delay_us}
    rows = [(1, 0, 10**8, 0.0), (2, 3, 10**8, 100.0)]
    heard = listen(STAR, rows, 100, net=delays)
    assert (round_trip(delay_us) > STAR.memory_us) == late
    assert int(heard.state.totals.late_feedback) == (100 + 80 if late else 0)
