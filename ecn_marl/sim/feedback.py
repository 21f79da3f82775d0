"""What reaches the senders: marks, acknowledgements, round-trip times, in-network telemetry.

A transport says which signals it needs; the others are neither computed nor stored.

* `CNP`: single sampled marks, in a shift register per flow (one bit per substep).
* `ACKS`: packets, marked packets and lost bytes that the sender learns of, one ACK per packet.
* `PROBE`: the round-trip time of one packet per round trip, the one sent when the last came back.
* `TELEMETRY`: queue and bytes sent of every port on the way, as the ACK brings them (HPCC's INT).
* `FIELD`: marking probability and own rate one feedback delay ago (the fluid models' signals).

All but the first read a history of the last `depth` substeps: an ACK that arrives now left the last
queue one return delay (propagation, ACK queues) ago.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._types import Leaf
from ecn_marl.sim import flows as fl
from ecn_marl.sim.queues import shift_register_or
from ecn_marl.sim.random import to_unit, xorshift
from ecn_marl.sim.sizes import PAYLOAD
from ecn_marl.sim.slots import segment_sum
from ecn_marl.sim.state import Flows

CNP, ACKS, PROBE, TELEMETRY, FIELD = "cnp", "acks", "probe", "telemetry", "field"
"""Signals a transport can ask for."""

FINE = 256.0
"""Marked packets and lost bytes are counted in 1/256: a count that wraps around stays exact."""


class Feedback(NamedTuple):
    """What reaches every sender in one substep, leaves `[F]`; None where it was not asked for.

    Attributes:
        sent: wire bytes sent in this substep.
        running: flows that have data left to send.
        cnp: whether a CNP arrives.
        acked: packets acknowledged.
        marked: of these, packets that were marked (expected number, given that any was).
        lost: bytes that the sender learns were dropped.
        returned: whether the probe of a round trip came back.
        rtt: round-trip time of the last probe, µs.
        base_rtt: round-trip time of a packet through empty queues, µs.
        n_hops: queues on the way.
        hop_queue: queue of each port on the way, bytes, `[L, F]`.
        hop_sent: bytes sent by each port so far, modulo 2^32, uint32, `[L, F]`.
        hop_rate: rate of each port on the way, bytes/µs, `inf` for none, `[L, F]`.
        hop_step: substep in which the ports were read.
        mark: marking probability of the way, one feedback delay ago.
        past_rate: own rate, one feedback delay ago, bytes/µs.
    """

    sent: Float[Array, " flows"]
    running: Leaf = None
    cnp: Leaf = None
    acked: Leaf = None
    marked: Leaf = None
    lost: Leaf = None
    returned: Leaf = None
    rtt: Leaf = None
    base_rtt: Leaf = None
    n_hops: Leaf = None
    hop_queue: Leaf = None
    hop_sent: Leaf = None
    hop_rate: Leaf = None
    hop_step: Leaf = None
    mark: Leaf = None
    past_rate: Leaf = None


@struct.dataclass
class Echo:
    """State of the feedback; leaves are None unless a transport needs them. `D` rows of history.

    Attributes:
        unacked: packets sent (or begun), not acknowledged and not known to be lost, `[F]`.
        filled: bytes sent of the packet in progress, a full packet if there is none, `[F]`.
        arrived: packets delivered, 1/256 marked packets and 1/256 bytes lost so far, modulo 2^32,
            `[3, F]`.
        acked: the same, as far as the sender knows, `[3, F]`.
        arrived_log: history of `arrived`, `[D, 3, F]`.
        probe_left: µs until the probe is back, `[F]`.
        probe_rtt: round-trip time of the probe under way, µs, `[F]`.
        rtt: that of the last one that came back, µs, `[F]`.
        port_sent: bytes sent by each queue, modulo 2^32, and the rest below a byte, `[Q]` each.
        queue_log: history of the queues, bytes, `[D, Q]`.
        sent_log: history of `port_sent`, `[D, Q]`.
        field_log: history of path marking probability and rate, `[D, 2, F]`.
    """

    unacked: Leaf = None
    filled: Leaf = None
    arrived: Leaf = None
    acked: Leaf = None
    arrived_log: Leaf = None
    probe_left: Leaf = None
    probe_rtt: Leaf = None
    rtt: Leaf = None
    port_sent: Leaf = None
    queue_log: Leaf = None
    sent_log: Leaf = None
    field_log: Leaf = None


class Observed(NamedTuple):
    """What one substep of queues gives the feedback to work on.

    Attributes:
        flows: slots, after the substep.
        give: bytes each flow sent, `[F]`.
        rate: rate each flow asked for, bytes/µs, `[F]`.
        dropped: bytes of each flow that were dropped, `[F]`.
        out: bytes delivered, `[F]`.
        log_survival: `-log` of the chance that a packet crosses all hops unmarked, `[F]`.
        wait: forward queueing delay, µs, `[F]`.
        queue: backlog of each queue, bytes, `[Q]`.
        sent: bytes sent by each queue, `[Q]`.
    """

    flows: Flows
    give: Float[Array, " flows"]
    rate: Float[Array, " flows"]
    dropped: Float[Array, " flows"]
    out: Float[Array, " flows"]
    log_survival: Float[Array, " flows"]
    wait: Float[Array, " flows"]
    queue: Float[Array, " queues"]
    sent: Float[Array, " queues"]


class Line(NamedTuple):
    """How far away the senders are, for the length of a tick.

    Attributes:
        delay: feedback delay of each flow, substeps, `[F]`.
        far: position of a new mark in the far part of the CNPs' delay line, `[F]`.
        back_wait: queueing delay of the ACKs, and jitter, µs, `[F]`.
        held: flows stopped by a pause, `[F]`.
        queues: queue at each level, `Q` for none, `[L, F]`.
        hop_rate: its rate, bytes/µs, `inf` for none, `[L, F]`;
            None without telemetry or probes.
        packet: wire bytes of a packet.
    """

    delay: Int[Array, " flows"]
    far: Int[Array, " flows"]
    back_wait: Float[Array, " flows"]
    held: Bool[Array, " flows"]
    queues: Int[Array, "levels flows"]
    hop_rate: Float[Array, "levels flows"] | None
    packet: Float[Array, ""]


def empty_echo(needs: frozenset[str], slots: int, queues: int, depth: int, real: Any) -> Echo:
    """Feedback state of an empty network for the signals in `needs`."""
    zero, whole = jnp.zeros((slots,), real), jnp.zeros((3, slots), jnp.int32)
    echo = Echo(filled=zero if needs & {ACKS, PROBE} else None)
    if ACKS in needs:
        log = jnp.zeros((depth, 3, slots), jnp.int32)
        echo = replace(echo, unacked=zero, arrived=whole, acked=whole, arrived_log=log)
    if PROBE in needs:
        echo = replace(echo, probe_left=zero, probe_rtt=zero, rtt=zero)
    if TELEMETRY in needs:
        echo = replace(
            echo,
            port_sent=(jnp.zeros((queues,), jnp.uint32), jnp.zeros((queues,), real)),
            queue_log=jnp.zeros((depth, queues), real),
            sent_log=jnp.zeros((depth, queues), jnp.uint32),
        )
    if FIELD in needs:
        echo = replace(echo, field_log=jnp.zeros((depth, 2, slots), real))
    return echo


def restart(echo: Echo, new: Bool[Array, " flows"], packet: Float[Array, ""]) -> Echo:
    """Forget the former flow of the slots `new`; packet counts run on."""
    if echo.filled is not None:
        echo = replace(echo, filled=jnp.where(new, packet, echo.filled))
    if echo.unacked is not None:
        echo = replace(
            echo,
            unacked=jnp.where(new, 0.0, echo.unacked),
            acked=jnp.where(new, echo.arrived, echo.acked),
        )
    if echo.probe_left is not None:
        echo = replace(
            echo,
            probe_left=jnp.where(new, -1.0, echo.probe_left),
            probe_rtt=jnp.where(new, 0.0, echo.probe_rtt),
            rtt=jnp.where(new, 0.0, echo.rtt),
        )
    return echo


def listen(
    echo: Echo, seen: Observed, line: Line, step: Int[Array, ""], needs: frozenset[str], dt: float
) -> tuple[Echo, Flows, Feedback]:
    """Take in one substep, and read what arrives at the senders in it.

    Args:
        echo: state of the feedback.
        seen: what the queues did.
        line: delays.
        step: substep (integer clock).
        needs: signals asked for (static).
        dt: substep, µs.

    Returns:
        New state, slots with advanced coins, and the signals.
    """
    flows = seen.flows
    running = (flows.stage == fl.SENDING) & (flows.start_in < dt)
    n_hops = (line.queues < seen.queue.shape[0]).sum(0).astype(seen.give.dtype)
    heard = Feedback(sent=seen.give, running=running, base_rtt=flows.rtt, n_hops=n_hops)
    begun = begins = jnp.zeros_like(seen.give)
    if needs & {ACKS, PROBE}:
        begins = line.packet - echo.filled
        begun, filled = _begun(echo.filled, seen.give, line.packet)
        echo = replace(echo, filled=filled)
    if CNP in needs or ACKS in needs:
        flows, packets, hit, clear = _toss(flows, seen, line, ACKS in needs)
        if CNP in needs:
            flows, cnp = _ring(flows, hit, line)
            heard = heard._replace(cnp=cnp)
        if ACKS in needs:
            marks = _marked(packets, hit, clear, seen)
            gone = jnp.round(seen.dropped * FINE)
            came = jnp.stack([packets, marks, gone]).astype(jnp.int32)
            echo, news = _acknowledge(echo, seen, line, step, came, begun, dt)
            heard = heard._replace(acked=news[0], marked=news[1], lost=news[2])
    if PROBE in needs:
        echo, returned = _probe(echo, seen, line, running, begins, dt)
        heard = heard._replace(returned=returned, rtt=echo.rtt)
    if TELEMETRY in needs:
        echo, queue, sent = _telemetry(echo, seen, line, step)
        heard = heard._replace(hop_queue=queue, hop_sent=sent, hop_rate=line.hop_rate)
        heard = heard._replace(hop_step=step - line.delay)
    if FIELD in needs:
        echo, mark, rate = _field(echo, seen, line, step)
        heard = heard._replace(mark=mark, past_rate=rate)
    return echo, flows, heard


def _begun(filled: Array, more: Array, packet: Array) -> tuple[Array, Array]:
    """Packets whose first byte is among `more` bytes, and the bytes since the last one's start."""
    total = filled + more
    begun = jnp.maximum(jnp.ceil(total / packet - (1.0 + 1e-3)), 0.0)
    return begun, total - begun * packet


def _toss(
    flows: Flows, seen: Observed, line: Line, acks: bool
) -> tuple[Flows, Array, Array, Array]:
    """Packets delivered in this substep, and whether any of them is marked.

    With acknowledgements a packet counts with its first byte, and every packet once; otherwise,
    from a random phase on, when it is complete.

    Marks fall on whole packets: a flow at 1 % of the line rate has a packet to mark only every so
    many substeps, however full the queue is. No mark can be seen before a flow's first byte has
    crossed the queues it found.
    """
    if acks:
        packets, partial = _begun(flows.partial, seen.out, line.packet)
    else:
        total = flows.partial + seen.out
        packets = jnp.floor(total / line.packet + 1e-3)
        partial = total - packets * line.packet
    coin = xorshift(flows.coin)
    clear = jnp.exp(-packets * seen.log_survival)
    hit = (to_unit(coin) > clear) & (flows.gate <= 0)
    flows = replace(flows, partial=partial, coin=coin)
    return flows, packets, hit, clear


def _ring(flows: Flows, hit: Array, line: Line) -> tuple[Flows, Array]:
    """Move the delay line of the CNPs by one substep."""
    words, late = list(flows.marks), flows.late_marks
    for i, word in enumerate(words):
        words[i] = shift_register_or(word, hit & (line.delay // 32 == i), line.delay - 32 * i)
    far = hit & (line.delay >= 32 * len(words))
    cnp = (words[0] & 1) == 1
    carry = [(word & 1) << 31 for word in words[1:]] + [jnp.uint32(0)]
    marks = jnp.stack([(w >> 1) | c for w, c in zip(words, carry, strict=True)])
    return replace(flows, marks=marks, late_marks=shift_register_or(late, far, line.far)), cnp


def _marked(packets: Array, hit: Array, clear: Array, seen: Observed) -> Array:
    """Expected number of marked packets, in 1/256, given whether any is marked."""
    share = (1.0 - jnp.exp(-seen.log_survival)) / (1.0 - clear + 1e-9)
    marks = jnp.where(hit, packets * share, 0.0)
    return jnp.clip(jnp.round(marks * FINE), 0, packets * FINE)


def _acknowledge(
    echo: Echo, seen: Observed, line: Line, step: Array, came: Array, begun: Array, dt: float
) -> tuple[Echo, Array]:
    """Count packets at the receiver, and read the counts that the ACKs bring now.

    A delay that grows holds ACKs back, one that shrinks lets them overtake: a count never falls. A
    loss shows when the packet behind the lost one is acknowledged, which waits in the queues first.

    Returns:
        New state; packets, marked packets and lost bytes that the sender learns of, `[3, F]`.
    """
    arrived = echo.arrived + came
    log = _write(echo.arrived_log, arrived, step)
    depth, flow = log.shape[0], jnp.arange(arrived.shape[1])
    later = jnp.minimum(line.delay + jnp.round(seen.wait / dt).astype(jnp.int32), depth - 1)
    delay = jnp.stack([line.delay, line.delay, later])
    then = log[(step - delay) % depth, jnp.arange(3)[:, None], flow]
    news = jnp.maximum(then - echo.acked, 0)
    acked, marked, lost = news.astype(seen.give.dtype)
    heard = jnp.stack([acked, marked / FINE, lost / FINE])
    # Below 0 by part of a packet where lost bytes were not whole packets.
    unacked = echo.unacked + begun - acked - heard[2] / line.packet
    echo = replace(echo, arrived=arrived, acked=echo.acked + news, arrived_log=log, unacked=unacked)
    return echo, heard


def _probe(
    echo: Echo, seen: Observed, line: Line, running: Array, begins: Array, dt: float
) -> tuple[Echo, Array]:
    """Time one packet per round trip: the next is the first to leave after the last came back.

    Its round trip is known when it is sent: every queue lets it through when the bytes ahead of it
    have left. A pause makes it longer. `begins` is how many bytes are sent before the next packet.
    """
    left = jnp.where(line.held, echo.probe_left, echo.probe_left - dt)
    under_way = echo.probe_rtt > 0
    trip_now = jnp.where(line.held & under_way, echo.probe_rtt + dt, echo.probe_rtt)
    returned = under_way & (left <= 0)
    rtt = jnp.where(returned, trip_now, echo.rtt)
    # When, within the substep, the first packet leaves after the last probe is back.
    pace = jnp.maximum(seen.give / dt, 1e-6)
    first, spacing = begins / pace, line.packet / pace
    back = jnp.where(returned, jnp.maximum(dt + left, 0.0), 0.0)
    at = first + jnp.ceil(jnp.maximum(back - first, 0.0) / spacing) * spacing
    begin = jnp.clip(seen.flows.start_in, 0.0, dt)
    at = begin + at * (1.0 - begin / dt)
    before = seen.flows.wait
    trip = before + (seen.wait - before) * (at / dt) + seen.flows.rtt + line.back_wait
    launch = running & (at < dt) & (returned | ~under_way)
    trip = trip + _turn(launch & (echo.rtt <= 0) & ~under_way, seen, line)
    return replace(
        echo,
        probe_left=jnp.where(launch, trip + at - dt, left),
        probe_rtt=jnp.where(launch, trip, jnp.where(returned, 0.0, trip_now)),
        rtt=rtt,
    ), returned


def _turn(first: Array, seen: Observed, line: Line) -> Array:
    """Wait of a flow's first packet for those that start at the same moment, µs, `[F]`.

    N senders that start together put N packets in front of the same port at once, which serves them
    in random order. Fluid has no such packets, and N equal senders would stay equal for ever.
    """
    assert line.hop_rate is not None
    last, n = line.queues[-1], seen.queue.shape[0]
    others = segment_sum(first.astype(seen.give.dtype), last, n)
    rank = to_unit(seen.flows.coin) * jnp.maximum(jnp.append(others, 0.0)[last] - 1.0, 0.0)
    wait = jnp.round(rank) * line.packet / line.hop_rate[-1]
    return jnp.where(first, wait, 0.0)


def _telemetry(echo: Echo, seen: Observed, line: Line, step: Array) -> tuple[Echo, Array, Array]:
    """Queues and counters of the ports on the way, as they were when the ACKed packet left."""
    count, rest = echo.port_sent
    rest = rest + seen.sent
    whole = jnp.floor(rest)
    count = count + whole.astype(jnp.uint32)
    queues, counts = _write(echo.queue_log, seen.queue, step), _write(echo.sent_log, count, step)
    row = (step - line.delay) % queues.shape[0]
    port = jnp.minimum(line.queues, seen.queue.shape[0] - 1)
    here = line.queues < seen.queue.shape[0]
    echo = replace(echo, port_sent=(count, rest - whole), queue_log=queues, sent_log=counts)
    return echo, jnp.where(here, queues[row, port], 0.0), counts[row, port]


def _field(echo: Echo, seen: Observed, line: Line, step: Array) -> tuple[Echo, Array, Array]:
    """Marking probability and rate one feedback delay ago; none before the flow's first mark."""
    mark = -jnp.expm1(-seen.log_survival)
    log = _write(echo.field_log, jnp.stack([mark, seen.rate]), step)
    then = log[(step - line.delay) % log.shape[0], :, jnp.arange(mark.shape[0])]
    young = step - seen.flows.start_step < line.delay
    past = jnp.where(young, jnp.stack([jnp.zeros_like(mark), seen.rate]), then.T)
    return replace(echo, field_log=log), past[0], past[1]


def lose(echo: Echo, lost: Float[Array, " flows"], packet: Float[Array, ""]) -> Echo:
    """Tell the senders of bytes lost on the way, `[F]`; they notice one feedback delay later."""
    if echo.unacked is None:
        return echo
    news = jnp.round(lost).astype(jnp.int32)
    return replace(
        echo,
        unacked=jnp.maximum(echo.unacked - lost / packet, 0.0),
        arrived=echo.arrived.at[2].add(news),
    )


def room(echo: Echo, window: Float[Array, " flows"], packet: Float[Array, ""]) -> Array:
    """Wire bytes each flow may still send under its window (payload bytes), `[F]`.

    A packet may begin while less than the window is on the way; once begun, it is sent whole.
    """
    packets = jnp.maximum(jnp.ceil(window / PAYLOAD - 1e-3), 1.0)
    return jnp.maximum(packets - echo.unacked, 0.0) * packet + (packet - echo.filled)


def _write(log: Array, row: Array, step: Array) -> Array:
    """Put a row into a history."""
    return log.at[step % log.shape[0]].set(row)
