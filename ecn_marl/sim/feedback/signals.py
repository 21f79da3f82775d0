"""Names of the signals, their inputs, and how they reach the senders."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._types import Leaf
from ecn_marl.sim.state import Flows

CNP, ACKS, PROBE, TELEMETRY, FIELD = "cnp", "acks", "probe", "telemetry", "field"
"""Signals a transport can need."""

FINE = 256.0
"""Marked packets and lost bytes are counted in 1/256: a count that wraps around stays exact."""


class Feedback(NamedTuple):
    """Signals that reach every sender in one substep, leaves `[F]`; None where not needed.

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


class Observed(NamedTuple):
    """Results of one substep of the queues that the feedback needs.

    Attributes:
        flows: slots, after the substep.
        give: bytes each flow sent, `[F]`.
        rate: rate each sender allowed, bytes/µs, `[F]`.
        dropped: bytes of each flow that were dropped, `[F]`.
        out: bytes delivered, `[F]`.
        log_survival: `-log` of the chance that a packet crosses all hops unmarked, `[F]`.
        wait: forward queueing delay, µs, `[F]`.
        queue: backlog of each queue, bytes, `[Q]`.
        sent: bytes sent by each queue, `[Q]`.
        busy: slots in use, `[F]`.
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
    busy: Bool[Array, " flows"]


class Line(NamedTuple):
    """Feedback delays, constant within a tick.

    Attributes:
        delay: feedback delay of each flow, substeps, `[F]`.
        far: where new marks go in the far part of the CNPs' delay line, `[F]`: the bit, if there is
            one word; else the substep within it, less the number of the substep they are made in.
        back_wait: queueing delay of the ACKs, and jitter, µs, `[F]`.
        stalled: flows stopped by a pause, `[F]`.
        queues: queue at each level, `Q` for none, `[L, F]`.
        hop_rate: its rate, bytes/µs, `inf` for none, `[L, F]`;
            None without telemetry or probes.
        packet: wire bytes of a packet.
    """

    delay: Int[Array, " flows"]
    far: Int[Array, " flows"]
    back_wait: Float[Array, " flows"]
    stalled: Bool[Array, " flows"]
    queues: Int[Array, "levels flows"]
    hop_rate: Float[Array, "levels flows"] | None
    packet: Float[Array, ""]


def write(
    log: Array, row: Array, step: Int[Array, ""], busy: Bool[Array, " flows"] | None = None
) -> Array:
    """Put a row into a history, where that of `D` substeps ago was.

    Args:
        log: history, `[D, ...]`.
        row: what to add.
        step: substep (integer clock).
        busy: slots in use, `[F]`, the last axis of the row; in free ones the old row stays, so that
            `lanes` can prove that it may pass over them. None for rows that are not of flows.
    """
    # In bounds by construction: the promise spares the compilers a check.
    at = step % log.shape[0]
    if busy is not None:
        row = jnp.where(busy, row, log.at[at].get(mode="promise_in_bounds"))
    return log.at[at].set(row, mode="promise_in_bounds")
