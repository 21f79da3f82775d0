"""All signals together: their state, and what a substep does to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim import lifecycle as life
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
    """State of the feedback; None for what no transport needs. CNPs are in `Flows`.

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


def empty_echo(needs: frozenset[str], slots: int, queues: int, depth: int, real: Any) -> Echo:
    """Feedback state of an empty network.

    Args:
        needs: signals asked for.
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


Notify = Callable[[Any, Bool[Array, " flows"]], tuple[Any, Bool[Array, " flows"]]]
"""Which marks leave as CNPs: from the senders' state and the marks, the state and the CNPs."""


def listen(
    echo: Echo,
    now: Observed,
    line: Line,
    step: Int[Array, ""],
    needs: frozenset[str],
    dt: float,
    notify: Notify | None = None,
    fine: int = 1,
) -> tuple[Echo, Flows, Feedback]:
    """Take in one substep, and read what arrives at the senders in it.

    Args:
        echo: state of the feedback.
        now: what the queues did.
        line: delays.
        step: substep (integer clock).
        needs: signals asked for (static).
        dt: substep, µs.
        notify: decides at the receivers which marks leave as CNPs; None for all.
        fine: substeps per bit of the far part of the CNPs' delay line (static).

    Returns:
        New state, slots with advanced coins, and the signals.
    """
    flows = now.flows
    running = (flows.stage == life.SENDING) & (flows.start_in < dt)
    n_hops = (line.queues < now.queue.shape[0]).sum(0).astype(now.give.dtype)
    news = Feedback(sent=now.give, running=running, base_rtt=flows.rtt, n_hops=n_hops)
    begun = None
    if echo.out is not None:
        out, begun = packets.begin(echo.out, now.give, line.packet)
        echo = replace(echo, out=out)
    if CNP in needs or ACKS in needs:
        flows, came = packets.arrive(flows, now, line, ACKS in needs)
        if CNP in needs:
            told = came.hit
            if notify is not None:
                senders, told = notify(flows.transport, told)
                flows = replace(flows, transport=senders)
            flows, bell = cnp.move(flows, told, line, step, fine)
            news = news._replace(cnp=bell)
        if echo.acks is not None and echo.out is not None and begun is not None:
            counts, out, learned = acks.step(
                echo.acks, echo.out, begun.packets, came, now, line, step, dt
            )
            echo = replace(echo, acks=counts, out=out)
            news = news._replace(acked=learned[0], marked=learned[1], lost=learned[2])
    if echo.probe is not None and begun is not None:
        probes, returned = probe.step(echo.probe, begun.after, running, now, line, dt)
        echo = replace(echo, probe=probes)
        news = news._replace(returned=returned, rtt=probes.rtt)
    if echo.telemetry is not None:
        counters, queue, sent = telemetry.step(echo.telemetry, now, line, step)
        echo = replace(echo, telemetry=counters)
        news = news._replace(hop_queue=queue, hop_sent=sent, hop_rate=line.hop_rate)
        news = news._replace(hop_step=step - line.delay)
    if echo.field is not None:
        past, mark, rate = field.step(echo.field, now, line, step, dt)
        echo = replace(echo, field=past)
        news = news._replace(mark=mark, past_rate=rate)
    return echo, flows, news


def kept(echo: Echo, before: Echo, busy: Bool[Array, " flows"]) -> Echo:
    """What slots in use count as it is now, what free ones count as it was.

    Why: a free slot that never changes is one that `lanes` can prove it may pass over. Histories
    are not among it: `signals.write` leaves them alone.

    Args:
        echo: state now.
        before: state at an earlier moment.
        busy: which slots are in use, `[F]`.
    """

    def one(now: Array, then: Array) -> Array:
        return jnp.where(busy, now, then)

    out, probes = (
        jax.tree.map(one, now, then)
        for now, then in ((echo.out, before.out), (echo.probe, before.probe))
    )
    counts = echo.acks
    if counts is not None and before.acks is not None:
        arrived, known = counts.arrived, counts.known
        counts = replace(
            counts,
            arrived=one(arrived, before.acks.arrived),
            known=one(known, before.acks.known),
        )
    return replace(echo, out=out, probe=probes, acks=counts)


def lose(echo: Echo, lost: Float[Array, " flows"], packet: Float[Array, ""]) -> Echo:
    """Tell the senders of bytes lost on the way, `[F]`; they notice one feedback delay later."""
    if echo.acks is None or echo.out is None:
        return echo
    unacked = jnp.maximum(echo.out.unacked - lost / packet, 0.0)
    return replace(echo, out=replace(echo.out, unacked=unacked), acks=acks.lose(echo.acks, lost))
