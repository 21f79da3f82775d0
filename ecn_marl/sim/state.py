"""State, parameters and statistics of the simulator, as pytrees.

Axes: `F` flow slots, `P` switch egress ports, `C` traffic classes, `Q = P C` queues, `H` hosts,
`S` switches, `L` levels, `E` edge switches, `K` equal-cost paths, `W` ways of a
flow (1 unless its bytes can be on several paths, see `sim.core.ways`; rows are levels times ways).
Bytes, µs, bytes/µs throughout.
"""

from __future__ import annotations

from typing import Annotated

from flax import struct
from jaxtyping import PyTree

from ecn_marl._checks import NOT_NEGATIVE, POSITIVE
from ecn_marl._types import Leaf


@struct.dataclass
class NetParams:
    """The network's numbers; traced, so they can be randomised per episode.

    Attributes:
        port_rate: link rate of every port, bytes/µs, `[P]`.
        port_delay: propagation delay behind every port, µs, `[P]`.
        nic_rate: rate of every NIC, bytes/µs, `[H]`.
        nic_delay: propagation delay from every host to its switch, µs, `[H]`.
        buffer: shared buffer of every switch, bytes, `[S]`.
        pfc_alpha: share of the free buffer that one ingress may take, `[H + P]`.
        headroom: buffer set aside per ingress, bytes, `[H + P]`.
        reserve: guaranteed buffer per ingress, bytes.
        resume_gap: hysteresis of PFC, bytes.
        ack_bytes: wire bytes of an ACK.
        packet_bytes: wire bytes of a full data packet.
        edge: edge switch of every host, `[H]`.
        routes: ports of every path between edge switches, `[E, E, K, L - 1]`, see `Topology`.
        n_paths: number of equal-cost paths, `[E, E]`.
        last: port to every host, `[H]`.
        base_rtt: longest round-trip time of a packet through empty queues, µs; windows are sized
            for it.
        fail_step: substep at which the link behind each port fails, `[P]`; None without failures.
        repair_step: substep at which it works again, `[P]`; None without failures.
    """

    port_rate: Annotated[Leaf, POSITIVE]
    port_delay: Annotated[Leaf, NOT_NEGATIVE]
    nic_rate: Annotated[Leaf, POSITIVE]
    nic_delay: Annotated[Leaf, NOT_NEGATIVE]
    buffer: Annotated[Leaf, POSITIVE]
    pfc_alpha: Annotated[Leaf, POSITIVE]
    headroom: Annotated[Leaf, NOT_NEGATIVE]
    reserve: Annotated[Leaf, NOT_NEGATIVE]
    resume_gap: Annotated[Leaf, NOT_NEGATIVE]
    ack_bytes: Annotated[Leaf, NOT_NEGATIVE]
    packet_bytes: Annotated[Leaf, POSITIVE]
    edge: Leaf
    routes: Leaf
    n_paths: Leaf
    last: Leaf
    base_rtt: Annotated[Leaf, POSITIVE]
    fail_step: Leaf
    repair_step: Leaf


@struct.dataclass
class SimParams:
    """All traced parameters of a simulation.

    Attributes:
        net: the network.
        transport: constants of the senders.
        traffic: parameters of each traffic source.
        window: the flows that begin in these substeps (first, one past the last) are measured, i.e.
            their slowdowns are counted in `Totals`.
    """

    net: NetParams
    transport: PyTree
    traffic: tuple[PyTree, ...]
    window: tuple[Leaf, Leaf]


@struct.dataclass
class Flows:
    """The flow slots, every leaf `[F]` unless noted.

    Attributes:
        stage: 0 free, 1 sending (or about to start), 2 last byte in the network, 3 last ACK on its
            way back, 4 done but with bytes left in the fluid upstream of the last port.
        src: source host.
        dst: destination host.
        kind: traffic class.
        flow_id: number within a schedule, -1 for anonymous flows.
        payload: bytes to deliver.
        rest_high: wire bytes not yet sent, whole chunks.
        rest_low: wire bytes not yet sent, rest; with `rest_high` exact at any size.
        start_in: µs until the flow starts, counted down to 0.
        start_step: substep (integer clock) of the start.
        start_rest: µs between that substep and the start.
        hop: queue at each level of the way, counted within the level, `[L W, F]`; the size of the
            level for none.
        back: queue at each level of the ACKs' way, `[L, F]`, `Q` for none; `[L W, F]` where ACKs
            are sprayed.
        backlog: bytes queued at each level, `[L W, F]`.
        due: bytes of the present batch that leave per substep, see `sim.core.fifo`, `[L W, F]`.
        waiting: bytes of the batches that follow, `[L W, F]` each.
        partial: bytes delivered of the packet in progress; starts at a random phase (packets of
            flows that start together are served in turn), with acknowledgements at a full packet.
        pace: rate at which the packet under way is sent, bytes/µs.
        spaced: bytes until the next packet is due, 0 or less if it is.
        gate: µs until the first byte has crossed the queues (no marks before).
        wait: forward queueing delay at the end of the last substep, µs.
        level: level of queues that the last byte of each way is at, see `core.last_byte`, `[W, F]`.
        ahead: bytes that its queue has to send until it has left, `[W, F]`.
        tail: µs from the end of the tick until the last byte leaves the last level (stage 2, when
            it is known, a long time before) or the last ACK arrives (stages 3 and 4).
        after: µs from the last byte's departure at the last port's queue to its ACK's arrival,
            queues aside.
        rtt: feedback delay without queues, µs.
        ideal: ideal completion time, µs.
        back_wait: queueing delay on the ACKs' way, µs.
        delivered: wire bytes delivered in the current tick.
        marks: CNPs on their way, one bit per substep, 32 of them per word, `[W, F]`.
        late_marks: CNPs further away, one bit per `SimConfig.fine` substeps, `[V, F]`.
        coin: state of the marking coin.
        transport: state of the senders.
        ticket: number by which a source learns that the flow has finished, -1 for none; None if
            no source of the simulator needs it, see `sim.traffic.tickets`.
        gaps: missing packets of go-back-N receivers, see `core.recovery`; None with other recovery.
        by_way: wire bytes delivered in the current tick by each way, `[W, F]`; None with one.
        flowlets: pauses between packets, see `sim.core.flowlets`; None with other load balancing.
    """

    stage: Leaf
    src: Leaf
    dst: Leaf
    kind: Leaf
    flow_id: Leaf
    payload: Leaf
    rest_high: Leaf
    rest_low: Leaf
    start_in: Leaf
    start_step: Leaf
    start_rest: Leaf
    hop: Leaf
    back: Leaf
    backlog: Leaf
    due: Leaf
    waiting: tuple[Leaf, ...]
    partial: Leaf
    pace: Leaf
    spaced: Leaf
    gate: Leaf
    wait: Leaf
    level: Leaf
    ahead: Leaf
    tail: Leaf
    after: Leaf
    rtt: Leaf
    ideal: Leaf
    back_wait: Leaf
    delivered: Leaf
    marks: Leaf
    late_marks: Leaf
    coin: Leaf
    transport: PyTree
    ticket: Leaf = None
    gaps: PyTree = None
    by_way: Leaf = None
    flowlets: PyTree = None


@struct.dataclass
class Totals:
    """Counters since the start.

    What grows beyond the digits of float32 or int32 is a pair of whole units and a rest, see
    `sizes.exact_add`: bytes and ticks of flows in units of `sizes.CHUNK`, times of
    `tickets.TIME_UNIT`, sums of slowdowns of `sizes.SLOWDOWN_UNIT`.

    Attributes:
        offered: wire bytes of all admitted flows, and what is left to send gained after drops: the
            bytes dropped, but for rounding.
        delivered: wire bytes that left their last port.
        dropped: wire bytes dropped (and sent again).
        spilled: of these, those of ticks in which full buffers dropped bytes that PFC protects; a
            sum of reals, good to seven digits.
        started: flows admitted.
        finished: flows whose last ACK is back, per size class `[3]` (<= 100 KB, <= 1 MB, larger).
        begun: admitted flows that began within `SimParams.window`, `[3]`.
        measured: of these, those whose last ACK is back, `[3]`.
        slowdown: sum of the slowdowns of `measured`, `[3]` each.
        log_slowdown: sum of their natural logarithms, `[3]` each.
        histogram: the same slowdowns in log-spaced bins, one class after the other, `[3 * bins]`;
            None without bins. No leaf has size zero: some libraries cannot save such.
        deferred: flows that waited for a free slot or a place among a tick's arrivals.
        deferred_us: sum of the time they waited, µs.
        pauses: PFC pauses sent.
        late_feedback: times (ticks of a flow) that a feedback delay exceeded the history that is
            kept, and was cut to it.
        flow_ticks: ticks of all flows; `late_feedback` counts some of them.
        flowlets: paths drawn for flowlets after the first of a flow, and times (ticks of a flow)
            that one kept its path because an older flowlet had not drained; None without flowlets.
    """

    offered: tuple[Leaf, Leaf]
    delivered: tuple[Leaf, Leaf]
    dropped: tuple[Leaf, Leaf]
    spilled: Leaf
    started: Leaf
    finished: Leaf
    begun: Leaf
    measured: Leaf
    slowdown: tuple[Leaf, Leaf]
    log_slowdown: tuple[Leaf, Leaf]
    histogram: Leaf
    deferred: Leaf
    deferred_us: tuple[Leaf, Leaf]
    pauses: Leaf
    late_feedback: tuple[Leaf, Leaf]
    flow_ticks: tuple[Leaf, Leaf]
    flowlets: tuple[Leaf, Leaf] | None = None


@struct.dataclass
class SimState:
    """State of a simulation.

    Attributes:
        step: substeps since the start (integer clock).
        seed: seeds paths and marking coins of the flows.
        flows: the flow slots.
        pool: bytes in each queue that belong to no slot: ACKs, then data of released flows,
            `[2, Q]`.
        ack_rate: ACK arrivals at each queue, bytes/µs, `[Q]`.
        nic_acks: ACKs each host sends, bytes/µs, `[H]`.
        echo: feedback under way, see `feedback.Echo`.
        level: round-robin share of each NIC in the last substep, bytes/µs, `[H]`.
        queue: backlog of each queue, bytes, `[Q]`.
        batches: times of what leaves the queues in order, a `fifo.Batches`.
        sent: bytes each queue sent in the last substep, `[Q]`.
        pace: rate at which each queue is served, bytes/µs, `[Q]`; None with a single class.
        paused: directed links paused by PFC (NICs first, then ports), per class, `[(H + P) C]`.
        full: directed links whose headroom is full, per class, `[(H + P) C]`.
        traffic: state of each traffic source.
        totals: counters since the start.
        fct_log: completion time of each scheduled flow, µs, NaN if unfinished, `[N]`; None without
            such flows.
        flags: structures of fixed size that were too small so far, a bit each, see `core.flags`.
        crowded: whether a flow found no free slot in the last tick.
        flow_log: the flows that have finished, a `flow_log.FlowLog`; None if it is not kept.
        places: where every host of the sources stands, `[H]`; None if hosts stay.
    """

    step: Leaf
    seed: Leaf
    flows: Flows
    pool: Leaf
    ack_rate: Leaf
    nic_acks: Leaf
    echo: PyTree
    level: Leaf
    queue: Leaf
    batches: PyTree
    sent: Leaf
    paused: Leaf
    full: Leaf
    traffic: tuple[PyTree, ...]
    totals: Totals
    fct_log: Leaf
    flags: Leaf
    crowded: Leaf
    pace: Leaf = None
    flow_log: PyTree = None
    places: Leaf = None


@struct.dataclass
class PortStats:
    """Statistics of every port over one tuning interval, every leaf `[P]` unless noted.

    What follows `n_flows` is only counted if `SimConfig.counts` asks for it, and is None otherwise.
    A flow belongs to the ports that were on its way when it began, or at the start of the interval.

    Attributes:
        queue: backlog at the end of the interval, bytes.
        queue_mean: time mean of the backlog, bytes.
        queue_sq: time mean of the squared backlog, bytes².
        queue_max: largest backlog, bytes.
        tx_bytes: bytes sent, ACKs included.
        marked_bytes: expected bytes sent with an ECN mark.
        utilisation: `tx_bytes` over what the link could have sent, in [0, 1].
        paused: share of the interval in which the port was paused, mean of its classes.
        n_flows: flows in progress at the end of the interval that cross the port.
        flows_begun: flows that began in the interval; one that waited for a free slot begins when
            it gets it. Every flow counts once in its life.
        flows_seen: flows in progress at any time in the interval: those at its start, and those
            that began. A flow is in progress until its last byte has left its last port, and
            again if bytes are lost after that.
        n_senders: distinct source hosts of the flows seen.
        n_mice: of the flows seen, those that had sent at most 1 MB when last seen.
        n_elephants: of the flows seen, those that had sent more than 1 MB.
        class_bytes: data bytes sent, by what their flow had sent in all by then (payload, to the
            tick): at most 100 KB, at most 1 MB, more, `[P, 3]`.
        marked_packets: packets sent with an ECN mark, drawn as a counter would show them; their
            mean over draws is `marked_bytes` over the size of a packet.
        class_queue: backlog per traffic class at the end of the interval, bytes, `[P, C]`; None
            with a single class, as are the next three.
        class_queue_mean: time mean of that backlog, bytes, `[P, C]`.
        class_tx_bytes: bytes sent per traffic class, `[P, C]`. ACKs that ride in a class of their
            own (`ack_priority`) belong to none.
        class_marked_bytes: expected bytes sent with an ECN mark per traffic class, `[P, C]`.
        accrued: slowdown that flows of each size class accrued in the interval, as far as this port
            is accountable for it, see `delays.accrued`, `[P, 3]`; None if it is not kept.
        progress: shares of their bytes that these flows delivered in the interval, likewise.
    """

    queue: Leaf
    queue_mean: Leaf
    queue_sq: Leaf
    queue_max: Leaf
    tx_bytes: Leaf
    marked_bytes: Leaf
    utilisation: Leaf
    paused: Leaf
    n_flows: Leaf
    flows_begun: Leaf = None
    flows_seen: Leaf = None
    n_senders: Leaf = None
    n_mice: Leaf = None
    n_elephants: Leaf = None
    class_bytes: Leaf = None
    marked_packets: Leaf = None
    class_queue: Leaf = None
    class_queue_mean: Leaf = None
    class_tx_bytes: Leaf = None
    class_marked_bytes: Leaf = None
    accrued: Leaf = None
    progress: Leaf = None


COUNTS = (
    "flows_begun",
    "flows_seen",
    "n_senders",
    "n_mice",
    "n_elephants",
    "class_bytes",
    "marked_packets",
)
"""Fields of `PortStats` that are counted on request (`SimConfig.counts`)."""


@struct.dataclass
class FlowCounts:
    """Counters of flows behind `PortStats`; None where they are not needed.

    Attributes:
        present: flows in progress at the start, `[P]`.
        begun: flows that began since, `[P]`.
        entered: those, and flows that had sent all, lost bytes, and send again since, `[P]`.
        senders: whether a host has sent through a port, one array `[ports * H]` per level.
        big_before: of those present, the ones beyond 1 MB, `[P]`.
        big_since: flows that went beyond 1 MB since, `[P]`.
        settled: slots whose flow is beyond 1 MB already, or was never seen, `[F]`.
        away: slots whose flow had sent all at the start and has not lost bytes since, `[F]`.
        class_bytes: bytes by what their flow had sent, `[P, 3]`.
        square: bytes sent times their squared marking probability, `[P]`.
    """

    present: Leaf = None
    begun: Leaf = None
    entered: Leaf = None
    senders: Leaf = None
    big_before: Leaf = None
    big_since: Leaf = None
    settled: Leaf = None
    away: Leaf = None
    class_bytes: Leaf = None
    square: Leaf = None


@struct.dataclass
class PortSums:
    """Running sums behind `PortStats`, every leaf `[P]` unless noted.

    All but `peak` and `counts` add up from one interval to the next, see `stats.merge`.

    Attributes:
        queue: backlog, summed over substeps.
        square: squared backlog, summed over substeps.
        peak: largest backlog.
        sent: bytes sent.
        marked: expected bytes sent with a mark.
        paused: time in which the port was paused, µs.
        by_class: of each queue backlog summed over substeps, bytes sent, expected bytes sent with
            a mark, `[3, Q]`, or None.
        counts: counters of flows, None without any.
        accrued: slowdown that accrued, `[P, 3]`, or None.
        progress: shares of bytes that were delivered, `[P, 3]`, or None.
    """

    queue: Leaf
    square: Leaf
    peak: Leaf
    sent: Leaf
    marked: Leaf
    paused: Leaf
    by_class: Leaf = None
    counts: PyTree = None
    accrued: Leaf = None
    progress: Leaf = None


__all__ = [
    "COUNTS",
    "FlowCounts",
    "Flows",
    "NetParams",
    "PortStats",
    "PortSums",
    "SimParams",
    "SimState",
    "Totals",
]
