"""Round-trip times: one packet per round trip is timed."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from ecn_marl._types import Leaf
from ecn_marl.sim.core.slots import segment_sum
from ecn_marl.sim.feedback.signals import Line, Observed
from ecn_marl.sim.random import to_unit


@struct.dataclass
class Probe:
    """The packet of each flow that is being timed, leaves `[F]`.

    Attributes:
        left: µs until it is back.
        trip: its round-trip time, µs; 0 if there is none.
        rtt: that of the last one that came back, µs.
    """

    left: Leaf
    trip: Leaf
    rtt: Leaf


def init(slots: int, real: DTypeLike) -> Probe:
    """No probe under way."""
    zero = jnp.zeros((slots,), real)
    return Probe(left=zero, trip=zero, rtt=zero)


def restart(probe: Probe, new: Bool[Array, " flows"]) -> Probe:
    """Forget the former flow of the slots `new`."""
    return Probe(
        left=jnp.where(new, -1.0, probe.left),
        trip=jnp.where(new, 0.0, probe.trip),
        rtt=jnp.where(new, 0.0, probe.rtt),
    )


def step(
    probe: Probe,
    after: Float[Array, " flows"],
    running: Bool[Array, " flows"],
    observed: Observed,
    line: Line,
    dt: float,
) -> tuple[Probe, Bool[Array, " flows"]]:
    """Time one packet per round trip: the next is the first to leave after the last came back.

    Its round trip is known when it is sent: every queue lets it through when the bytes ahead of it
    have left. A pause makes it longer.

    Args:
        probe: probes under way.
        after: bytes that each flow sends before its next packet, `[F]`.
        running: flows that have data left to send, `[F]`.
        observed: what the queues did.
        line: delays.
        dt: substep, µs.

    Returns:
        Probes, and which came back, `[F]`.
    """
    left = jnp.where(line.stalled, probe.left, probe.left - dt)
    under_way = probe.trip > 0
    trip_now = jnp.where(line.stalled & under_way, probe.trip + dt, probe.trip)
    returned = under_way & (left <= 0)
    rtt = jnp.where(returned, trip_now, probe.rtt)
    # When, within the substep, the first packet leaves after the last probe is back.
    # Flows that send nothing launch nothing, but must not divide by zero.
    pace = jnp.maximum(observed.give / dt, 1e-6)
    first, spacing = after / pace, line.packet / pace
    back_at = jnp.where(returned, jnp.maximum(dt + left, 0.0), 0.0)
    # Packets leave every `spacing`; the first one after the probe is back carries the next.
    launch_at = first + jnp.ceil(jnp.maximum(back_at - first, 0.0) / spacing) * spacing
    begin = jnp.clip(observed.flows.start_in, 0.0, dt)
    launch_at = begin + launch_at * (1.0 - begin / dt)
    wait_before = observed.flows.wait
    trip = (
        wait_before
        + (observed.wait - wait_before) * (launch_at / dt)
        + observed.flows.rtt
        + line.back_wait
    )
    launch = running & (launch_at < dt) & (returned | ~under_way)
    trip = trip + _turn(launch & (probe.rtt <= 0) & ~under_way, observed, line)
    return Probe(
        left=jnp.where(launch, trip + launch_at - dt, left),
        trip=jnp.where(launch, trip, jnp.where(returned, 0.0, trip_now)),
        rtt=rtt,
    ), returned


def _turn(first: Array, observed: Observed, line: Line) -> Array:
    """Wait of a flow's first packet for those of flows that start with it, µs, `[F]`.

    N senders that start together put N packets in front of the same port at once, which serves them
    in random order. Fluid has no such packets, and N equal senders would stay equal for ever.
    """
    assert line.hop_rate is not None
    last, n = line.queues[-1], observed.queue.shape[0]
    others = segment_sum(first.astype(observed.give.dtype), last, n)
    rank = to_unit(observed.flows.coin) * jnp.maximum(jnp.append(others, 0.0)[last] - 1.0, 0.0)
    wait = jnp.round(rank) * line.packet / line.hop_rate[-1]
    return jnp.where(first, wait, 0.0)
