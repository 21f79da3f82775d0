"""How network cards recover lost packets, `SimConfig.loss_recovery`.

* `selective`: only lost bytes are sent again. Windowed senders such as TCP's with
  SACK, and IRN's cards, do so.
* `go-back-n`: the receiver discards everything behind a lost packet until that packet has come
  again, and the sender starts over from it. RoCE cards do so (Mittal et al., SIGCOMM'18, §2).
* `irn`: `selective`, with at most a bandwidth-delay product on the way (ibid., §3: BDP-FC), so its
  senders need a window.

The fluid model of go-back-N has what costs throughput. Lost bytes add up to a packet. The receiver
misses it when the bytes ahead of it have arrived. From then on, for the feedback delay and the
queues on the way, all bytes that arrive are discarded, counted as dropped, and sent again. There is
no timeout: the last packet of a flow is missed as any other.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from ecn_marl._types import Leaf
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.hops import Moved
from ecn_marl.sim.core.slots import in_use
from ecn_marl.sim.state import Flows


@struct.dataclass
class Gaps:
    """Missing packets of go-back-N receivers, leaves `[F]`.

    Attributes:
        short: bytes lost so far of a packet that is not missed yet.
        until: µs until the next missing packet would have arrived; negative without one.
        void: µs for which arriving bytes are still discarded, 0 or less for none.
    """

    short: Leaf
    until: Leaf
    void: Leaf


def empty(slots: int, real: DTypeLike) -> Gaps:
    """Nothing missed."""
    zero = jnp.zeros((slots,), real)
    return Gaps(short=zero, until=zero - 1.0, void=zero)


def restart(gaps: Gaps, new: Bool[Array, " flows"]) -> Gaps:
    """Forget the former flow of the slots `new`."""
    fresh = empty(new.shape[0], gaps.short.dtype)
    return jax.tree.map(lambda initial, old: jnp.where(new, initial, old), fresh, gaps)


def discard(
    flows: Flows,
    moved: Moved,
    busy: Bool[Array, " flows"],
    back_wait: Float[Array, " flows"],
    packet: Array,
    dt: float,
) -> tuple[Flows, Moved]:
    """Let go-back-N receivers discard the bytes after a gap, at the end of a substep.

    Args:
        flows: slots, after the hops.
        moved: what the queues did; bytes delivered are in `out`.
        busy: which slots are in use, `[F]`.
        back_wait: queueing delay of the ACKs, µs, `[F]`.
        packet: wire bytes of a packet.
        dt: substep, µs.

    Returns:
        Slots that send the discarded bytes again, and `moved` with these bytes among the dropped.
    """
    gaps: Gaps = flows.gaps
    opens = (gaps.until >= 0) & (gaps.until < dt)
    covered = jnp.clip(gaps.void, 0.0, dt)
    covered = covered + jnp.where(opens, dt - jnp.maximum(gaps.until, covered), 0.0)
    # What a done flow left in the queues has arrived already, see `lifecycle.release`.
    discarded = jnp.where(flows.stage == life.DONE, 0.0, moved.out * (covered / dt))
    wasted = in_use(discarded, busy)
    # Lost bytes open a gap of their own only if they would arrive after the void.
    share = jnp.clip((dt + moved.wait - gaps.void) / dt, 0.0, 1.0)
    lost = in_use(jnp.where(gaps.until < 0, share * moved.dropped, 0.0), busy)
    missed = (lost > 0) & (gaps.short + lost >= packet)
    # Without lost bytes nothing is missed, but the quotient must stay finite.
    part = jnp.clip((packet - gaps.short) / jnp.maximum(lost, 1e-3), 0.0, 1.0)
    gap_due = jnp.maximum(moved.wait - share * (1.0 - part) * dt, 0.0)
    new = Gaps(
        short=jnp.where(missed, 0.0, gaps.short + lost),
        until=jnp.where(
            missed, gap_due, jnp.where(opens, -1.0, jnp.maximum(gaps.until - dt, -1.0))
        ),
        void=jnp.where(
            opens,
            gaps.until - dt + flows.rtt + back_wait + moved.wait,
            jnp.maximum(gaps.void - dt, 0.0),
        ),
    )
    resend = (wasted > 0) & (flows.stage > life.SENDING) & (flows.stage < life.DONE)
    flows = replace(
        flows,
        gaps=new,
        rest_low=flows.rest_low + wasted,
        stage=jnp.where(resend, life.SENDING, flows.stage),
    )
    return flows, moved._replace(out=moved.out - wasted, dropped=moved.dropped + wasted)
