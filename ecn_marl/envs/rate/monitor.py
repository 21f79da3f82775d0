"""Observations of Aurora: a flow's monitor intervals, here from one RTT packet to the next.

Jay et al., "A Deep Reinforcement Learning Perspective on Internet Congestion Control", ICML 2019,
§4. Its monitor intervals last about a round trip; ours end where the flow acts. A NIC counts the
bytes that it paced out, those that were not dropped, and those that were delivered:

| column | what it is |
|---|---|
| `latency_gradient` | RTT less that of the interval before, over the length of the interval |
| `latency_ratio` | RTT over the smallest that the flow has seen |
| `send_ratio` | bytes paced out over bytes delivered, at most `MOST` |
| `throughput` | bytes delivered over what the NIC could have sent |
| `loss` | share of the bytes paced out that was dropped |

Its reward is computed from the last two. If flows share a NIC that is slower than the sum of their
rates, the bytes that the NIC holds back count as dropped.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from ecn_marl._types import Leaf
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.simulator import SimState
from ecn_marl.sim.traffic.sizes import CHUNK

MONITORED = ("latency_gradient", "latency_ratio", "send_ratio", "throughput", "loss")
"""Columns that need a `Monitor`."""

MOST = 100.0
"""Largest send ratio: a full buffer can keep all bytes of an interval."""


@struct.dataclass
class Monitor:
    """The current interval, leaves `[F]`.

    Attributes:
        elapsed: its length so far, µs.
        sent: bytes paced out.
        kept: of these, those that were not dropped.
        out: bytes delivered.
        rtt: RTT at the end of the last interval, µs; 0 if there is none.
        least: smallest RTT so far, µs; 0 if there is none.
    """

    elapsed: Leaf
    sent: Leaf
    kept: Leaf
    out: Leaf
    rtt: Leaf
    least: Leaf


def empty_monitor(flows: int) -> Monitor:
    """Counters at the start."""
    zero = jnp.zeros((flows,), jnp.float32)
    return Monitor(zero, zero, zero, zero, zero, zero)


def watch(
    monitor: Monitor,
    before: SimState,
    after: SimState,
    ends: Bool[Array, " flows"],
    step_us: float,
) -> tuple[Monitor, dict[str, Array]]:
    """Count a step, and close the intervals that end with it.

    Args:
        monitor: current intervals.
        before: network before the step, rates set.
        after: network after it.
        ends: flows whose RTT packet came back in the step.
        step_us: length of the step.

    Returns:
        Current intervals after the step, and the columns `MONITORED` `[F]`, valid where an interval
        ended.
    """
    old, new = before.flows, after.flows
    sending = (old.stage == life.SENDING) & (new.stage == life.SENDING)
    going = sending & (old.start_in <= 0)
    senders = new.transport
    # Parts are subtracted first: a float32 of all bytes left would lose those of one step.
    kept = (old.rest_high - new.rest_high) * CHUNK + (old.rest_low - new.rest_low)
    out = kept - (new.backlog.sum(0) - old.backlog.sum(0))
    monitor = Monitor(
        elapsed=jnp.where(going, monitor.elapsed + step_us, 0.0),
        sent=jnp.where(going, monitor.sent + old.transport.rate * step_us, 0.0),
        kept=jnp.where(going, monitor.kept + kept, 0.0),
        out=jnp.where(going, monitor.out + out, 0.0),
        rtt=jnp.where(sending, monitor.rtt, 0.0),
        least=jnp.where(sending, monitor.least, 0.0),
    )
    rtt = senders.inflation * new.rtt
    # Columns are computed for all slots; the bounds keep those of free ones finite.
    has_previous, length = monitor.rtt > 0.0, jnp.maximum(monitor.elapsed, step_us)
    least = jnp.where(monitor.least > 0.0, jnp.minimum(monitor.least, rtt), rtt)
    delivered = jnp.maximum(monitor.out, 0.0)
    sent = jnp.maximum(monitor.sent, 1.0)
    columns = {
        "latency_gradient": jnp.where(has_previous, (rtt - monitor.rtt) / length, 0.0),
        "latency_ratio": rtt / jnp.maximum(least, 1e-3),
        # The divisor is bounded as well: with nothing delivered the ratio is MOST, not inf.
        "send_ratio": jnp.minimum(monitor.sent / jnp.maximum(delivered, sent / MOST), MOST),
        "throughput": delivered / (jnp.maximum(senders.line, 1e-6) * length),
        "loss": jnp.clip(1.0 - monitor.kept / sent, 0.0, 1.0),
    }
    return Monitor(
        elapsed=jnp.where(ends, 0.0, monitor.elapsed),
        sent=jnp.where(ends, 0.0, monitor.sent),
        kept=jnp.where(ends, 0.0, monitor.kept),
        out=jnp.where(ends, 0.0, monitor.out),
        rtt=jnp.where(ends, rtt, monitor.rtt),
        least=jnp.where(ends, least, monitor.least),
    ), columns
