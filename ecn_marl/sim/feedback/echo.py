"""All signals together: their state, and a substep of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.feedback import acks, cnp, field, packets, probe, telemetry
from ecn_marl.sim.feedback.signals import (
    ACKS,
    CNP,
    FIELD,
    PROBE,
    TELEMETRY,
    Feedback,
    Line,
    Observed,
)
from ecn_marl.sim.state import Flows


@struct.dataclass
class Echo:
    """State of the feedback; None for signals that no transport needs. CNPs are in `Flows`.

    Attributes:
        out: packets on the way, for acknowledgements and probes.
        acks: counts of packets.
        probe: round-trip times.
        telemetry: counters of the ports.
        field: marking probabilities.
    """

    out: packets.Outstanding | None = None
    acks: acks.Acks | None = None
    probe: probe.Probe | None = None
    telemetry: telemetry.Telemetry | None = None
    field: field.Field | None = None


def empty_echo(needs: frozenset[str], slots: int, queues: int, depth: int, real: DTypeLike) -> Echo:
    """Feedback state of an empty network.

    Args:
        needs: signals that the senders need.
        slots: flow slots F.
        queues: queues Q.
        depth: substeps of history D.
        real: type of real numbers.
    """
    return Echo(
        out=packets.init(slots, ACKS in needs, real) if needs & {ACKS, PROBE} else None,
        acks=acks.init(slots, depth) if ACKS in needs else None,
        probe=probe.init(slots, real) if PROBE in needs else None,
        telemetry=telemetry.init(queues, depth, real) if TELEMETRY in needs else None,
        field=field.init(slots, depth, real) if FIELD in needs else None,
    )


def restart(echo: Echo, new: Bool[Array, " flows"], packet: Float[Array, ""]) -> Echo:
    """Forget the former flow of the slots `new`; packet counts run on."""
    if echo.out is not None:
        echo = replace(echo, out=packets.restart(echo.out, new, packet))
    if echo.acks is not None:
        echo = replace(echo, acks=acks.restart(echo.acks, new))
    if echo.probe is not None:
        echo = replace(echo, probe=probe.restart(echo.probe, new))
    return echo


Notify = Callable[[PyTree, Bool[Array, " flows"]], tuple[PyTree, Bool[Array, " flows"]]]
"""Decides which marks leave as CNPs: (senders' state, marks) to (state, CNPs)."""


def listen(
    echo: Echo,
    observed: Observed,
    line: Line,
    step: Int[Array, ""],
    needs: frozenset[str],
    dt: float,
    notify: Notify | None = None,
    fine: int = 1,
) -> tuple[Echo, Flows, Feedback]:
    """Add one substep to the feedback, and return what reaches the senders in it.

    Args:
        echo: state of the feedback.
        observed: what the queues did.
        line: delays.
        step: substep (integer clock).
        needs: signals that the senders need (static).
        dt: substep, µs.
        notify: decides at the receivers which marks leave as CNPs; None for all.
        fine: substeps per bit of the far part of the CNPs' delay line (static).

    Returns:
        New state, slots with advanced coins, and the signals.
    """
    flows = observed.flows
    running = (flows.stage == life.SENDING) & (flows.start_in < dt)
    n_hops = (line.queues < observed.queue.shape[0]).sum(0).astype(observed.give.dtype)
    signals = Feedback(sent=observed.give, running=running, base_rtt=flows.rtt, n_hops=n_hops)
    begun = None
    if echo.out is not None:
        out, begun = packets.begin(echo.out, observed.give, line.packet)
        echo = replace(echo, out=out)
    if CNP in needs or ACKS in needs:
        flows, arrivals = packets.arrive(flows, observed, line, ACKS in needs)
        if CNP in needs:
            cnps = arrivals.hit
            if notify is not None:
                senders, cnps = notify(flows.transport, cnps)
                flows = replace(flows, transport=senders)
            flows, received = cnp.move(flows, cnps, line, step, fine)
            signals = signals._replace(cnp=received)
        if echo.acks is not None and echo.out is not None and begun is not None:
            counts, out, learned = acks.step(
                echo.acks, echo.out, begun.packets, arrivals, observed, line, step, dt
            )
            echo = replace(echo, acks=counts, out=out)
            signals = signals._replace(acked=learned[0], marked=learned[1], lost=learned[2])
    if echo.probe is not None and begun is not None:
        probes, returned = probe.step(echo.probe, begun.after, running, observed, line, dt)
        echo = replace(echo, probe=probes)
        signals = signals._replace(returned=returned, rtt=probes.rtt)
    if echo.telemetry is not None:
        counters, queue, sent = telemetry.step(echo.telemetry, observed, line, step)
        echo = replace(echo, telemetry=counters)
        signals = signals._replace(hop_queue=queue, hop_sent=sent, hop_rate=line.hop_rate)
        signals = signals._replace(hop_step=step - line.delay)
    if echo.field is not None:
        past, mark, rate = field.step(echo.field, observed, line, step, dt)
        echo = replace(echo, field=past)
        signals = signals._replace(mark=mark, past_rate=rate)
    return echo, flows, signals


def kept(echo: Echo, before: Echo, busy: Bool[Array, " flows"]) -> Echo:
    """Feedback state of slots in use as it is now, of free ones as it was.

    Why: a free slot that never changes is one that `lanes` can prove it may pass over. Histories
    are left out: `signals.write` keeps their rows for free slots.

    Args:
        echo: state now.
        before: state at an earlier moment.
        busy: which slots are in use, `[F]`.
    """

    def keep(new: Array, old: Array) -> Array:
        return jnp.where(busy, new, old)

    out, probes = (
        jax.tree.map(keep, new, old)
        for new, old in ((echo.out, before.out), (echo.probe, before.probe))
    )
    counts = echo.acks
    if counts is not None and before.acks is not None:
        arrived, known = counts.arrived, counts.known
        counts = replace(
            counts,
            arrived=keep(arrived, before.acks.arrived),
            known=keep(known, before.acks.known),
        )
    return replace(echo, out=out, probe=probes, acks=counts)


def lose(echo: Echo, lost: Float[Array, " flows"], packet: Float[Array, ""]) -> Echo:
    """Count bytes as lost on the way, `[F]`; senders notice one feedback delay later."""
    if echo.acks is None or echo.out is None:
        return echo
    # Senders take packets off as they learn of their loss. Those beyond what they can learn of
    # would stay on the way for ever.
    unlearnt = jnp.maximum(lost - acks.MOST, 0.0)
    unacked = echo.out.unacked - unlearnt / packet
    return replace(echo, out=replace(echo.out, unacked=unacked), acks=acks.lose(echo.acks, lost))
