"""How the flows of a NIC share its link: max-min fair, or packet by packet in turns.

Flows that may send whenever it is their turn (windows) share a link max-min fairly. Flows that
space their packets (rates) get less where they meet: a packet whose spacing is over waits for its
turn, and only then does the next spacing begin. Who always has a packet ready gets the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.core.slots import in_use, look_up, look_up_one, segment_sum


class Begins(NamedTuple):
    """Flows that start within a substep, `[F]` each.

    Attributes:
        flag: whether a flow may; few are at a time, and `lanes` passes over the others.
        idle: share of the substep that has passed when it starts, 0 if it started before.
        part: share of the substep that it has.
    """

    flag: Bool[Array, " flows"]
    idle: Float[Array, " flows"]
    part: Float[Array, " flows"]


class Paced(NamedTuple):
    """Flows that space their packets.

    Attributes:
        rate: rate that each sender allows, bytes/µs, `[F]`.
        demand: what flows demand whose packets wait, bytes/µs, by the wait in µs per byte, `[F]`.
    """

    rate: Float[Array, " flows"]
    demand: Callable[[Array], Array]


class Sharing(NamedTuple):
    """How NICs share their links.

    Attributes:
        level: share of a flow that is limited, while it can send, bytes/µs; the capacity where all
            demands fit, `[H]`.
        satisfied: what the flows below it demand, bytes/µs, `[H]`.
        n_limited: flows at it, each for the part of the substep that it has, `[H]`.
        demand: what flows demand that wait for their turns, bytes/µs, `[F]`.
        crowded: what spaced flows send while another always has a packet ready, in units of what
            they send on average over the substep, `[H]`; None if flows are not spaced.
        lead: how much sooner than by its share alone a flow's first packet is sent, µs per byte of
            a packet, `[H]`; None if flows are not spaced.
    """

    level: Float[Array, " hosts"]
    satisfied: Float[Array, " hosts"]
    n_limited: Float[Array, " hosts"]
    demand: Float[Array, " flows"]
    crowded: Float[Array, " hosts"] | None = None
    lead: Float[Array, " hosts"] | None = None


def water_level(
    demand: Float[Array, " flows"],
    src: Int[Array, " flows"],
    capacity: Float[Array, " hosts"],
    start: Float[Array, " hosts"],
    begins: Begins | None = None,
) -> Sharing:
    """Max-min fair shares of each host's NIC.

    The level `l` solves `sum_f min(demand_f, l) = capacity`; if the demands fit, none is limited.
    The left side is concave in `l`, so a Newton step from anywhere with a positive slope lands at
    or below the root: two steps from the last substep's level never overbook the NIC, and reach the
    root exactly once the set of limited flows has settled.

    A flow that starts within the substep has its turns in a part `w` of it only, so it gets at most
    `l w`. Until then a NIC sends what the others demand, and no more: with nothing else to send,
    flows that start in the middle of a substep have half of it. Both decide where NICs offer
    exactly what ports carry: a backlog there neither grows nor drains, so every byte that a start
    puts into it, or takes from it, stays.

    Args:
        demand: bytes/µs each flow could send, 0 for idle slots, `[F]`.
        src: source host of each slot, `[F]`.
        capacity: bytes/µs each host may send, `[H]`.
        start: a level to start from, e.g. that of the last substep, `[H]`.
        begins: flows that start within the substep; None for none.

    Returns:
        The level, and the flows below and at it before the last step.
    """
    n, full, start = capacity.shape[0], capacity, jnp.minimum(start, capacity)
    last, link = look_up(jnp.stack([start, capacity], -1), src).T
    weight = jnp.ones_like(demand) if begins is None else begins.part
    at = _at(demand, last * weight, weight, src, n)
    if begins is not None:
        # Who always has something to send wants all of the link.
        wants = jnp.where(at.limited, weight * link, demand)
        wanted = at.satisfied + at.n_limited * full
        capacity = capacity - _idle(wants, wanted, begins, src, full)
    # At a level far too high, flows below it may demand more than the capacity: restart at 0.
    level = jnp.where(at.satisfied <= capacity, full, 0.0)
    level = jnp.where(at.n_limited > 0, _step(capacity, at.satisfied, at.n_limited), level)
    share = look_up_one(level, src)
    at = _at(demand, share * weight, weight, src, n)
    level = jnp.where(at.n_limited > 0, _step(capacity, at.satisfied, at.n_limited), full)
    level = jnp.where((at.n_limited > 0) | (at.satisfied <= capacity), level, 0.0)
    return Sharing(level, at.satisfied, at.n_limited, demand)


def take_turns(
    demand: Float[Array, " flows"],
    paced: Paced,
    src: Int[Array, " flows"],
    capacity: Float[Array, " hosts"],
    line: Float[Array, " hosts"],
    start: Float[Array, " hosts"],
    begins: Begins,
) -> Sharing:
    """Shares of flows that space their packets, see `_waits`; otherwise as `water_level`.

    Flows at line rate, or twice their share, always have a packet ready. The others demand less
    than their rates by what their packets wait. A Newton step from the level that `_waits` finds
    makes the NIC send exactly what it can.

    Args:
        demand: bytes/µs each flow could send if its packets did not wait, `[F]`.
        paced: their rates, and what they demand if they do.
        src: source host of each slot, `[F]`.
        capacity: bytes/µs each host may send, `[H]`.
        line: rate of its link, ACKs included: spacings are multiples of its packet times, `[H]`.
        start: the level of the last substep, `[H]`.
        begins: flows that start within the substep.
    """
    n, full, start = capacity.shape[0], capacity, jnp.minimum(start, capacity)
    table = jnp.stack([start, capacity, line, 1.0 / jnp.maximum(start, 1e-3)], -1)
    last, link, whole, per_share = look_up(table, src).T
    ready = (demand > 0) & (paced.rate >= jnp.minimum(TWICE * last, LINE_RATE * link))
    held = jnp.where(ready, jnp.minimum(demand * per_share, begins.part), 0.0)
    rest, steady = jnp.where(ready, 0.0, demand), _in_step(paced.rate, whole)
    columns = jnp.stack([rest, held, rest * rest, jnp.where(steady, rest, 0.0)], -1)
    total, n_ready, squares, in_step = segment_sum(columns, src, n).T
    waits = _waits(total, squares, in_step, n_ready, full)
    wanted = waits.sent + n_ready * full
    capacity = capacity - _idle(rest + held * link, wanted, begins, src, full)
    level = waits.guess(start, capacity, full)
    share, wait, half = look_up(jnp.stack([level, waits.mean, waits.half], -1), src).T
    slowed = paced.demand(wait + jnp.where(steady, 0.0, half))
    demand = jnp.where(ready, demand, slowed)
    at = _at(demand, share * begins.part, begins.part, src, n)
    level = jnp.where(at.n_limited > 0, _step(capacity, at.satisfied, at.n_limited), full)
    # If the guess was too high, flows that start or end do not get what they demand.
    tight = _tight(demand, ready & ~at.limited, begins, src, capacity - at.satisfied, at.n_limited)
    never_too_much = capacity / demand.shape[0]
    level = jnp.where(at.satisfied <= capacity, level, jnp.maximum(tight, never_too_much))
    return Sharing(
        level, at.satisfied, at.n_limited, demand, waits.crowded, waits.lead(at.n_limited)
    )


class _At(NamedTuple):
    """Flows at a level: which `[F]`; what the others demand, and their number, `[H]`."""

    limited: Bool[Array, " flows"]
    satisfied: Float[Array, " hosts"]
    n_limited: Float[Array, " hosts"]


def _at(demand: Array, share: Array, weight: Array, src: Array, n: int) -> _At:
    """The flows that demand their `share` at least, each counted with its `weight`."""
    limited = (demand > 0) & (demand >= share)
    columns = [jnp.where(limited, 0.0, demand), jnp.where(limited, weight, 0.0)]
    satisfied, n_limited = segment_sum(jnp.stack(columns, -1), src, n).T
    return _At(limited, satisfied, n_limited)


def _step(capacity: Array, satisfied: Array | float, n_limited: Array) -> Array:
    """A Newton step: the level at which the flows at the last one use what others leave, `[H]`."""
    return jnp.maximum(capacity - satisfied, 0.0) / jnp.maximum(n_limited, 1e-6)


def _idle(
    demand: Float[Array, " flows"],
    total: Float[Array, " hosts"],
    begins: Begins,
    src: Int[Array, " flows"],
    capacity: Float[Array, " hosts"],
) -> Float[Array, " hosts"]:
    """What NICs could have sent before flows start, and had nothing to send, bytes/µs, `[H]`.

    `demand` is what each flow wants on average over the substep, `[F]`, and `total` that of all.
    """
    demand = jnp.where(begins.idle > 0, in_use(demand, begins.flag), 0.0)
    columns = jnp.stack([demand, demand * begins.idle], -1)
    fresh, moment = segment_sum(columns, src, capacity.shape[0]).T
    others = jnp.maximum(total - fresh, 0.0)
    return jnp.maximum(capacity - others, 0.0) * moment / jnp.maximum(fresh, 1e-6)


def _tight(
    demand: Float[Array, " flows"],
    short: Bool[Array, " flows"],
    begins: Begins,
    src: Int[Array, " flows"],
    left: Float[Array, " hosts"],
    n_limited: Float[Array, " hosts"],
) -> Float[Array, " hosts"]:
    """Level if `short` flows that start or end are limited, too; `left` is below 0, `[H]`."""
    short = short & begins.flag
    columns = jnp.stack([jnp.where(short, demand, 0.0), jnp.where(short, begins.part, 0.0)], -1)
    demanded, n_short = segment_sum(columns, src, left.shape[0]).T
    return _step(left + demanded, 0.0, n_limited + n_short)


LINE_RATE = 0.999
"""Flows at this share of their link's rate and above always have a packet ready."""

TWICE = 1.99
"""Flows at so many times their share do, too. Just below 2: rates of a half of the link meet shares
of a quarter, and rounding is not to decide."""

STEADY = 0.014
"""Spacings this close to 2, 4, 8 or 16 packet times count as these."""


def _in_step(rate: Float[Array, " flows"], link: Float[Array, " flows"]) -> Bool[Array, " flows"]:
    """Whether a flow's spacing is 2, 4, 8 or 16 packet times: rates that cuts by half lead to."""
    part = rate / jnp.maximum(link, 1e-3)
    near = [jnp.abs(part - x) < STEADY * x for x in (1 / 2, 1 / 4, 1 / 8, 1 / 16)]
    return near[0] | near[1] | near[2] | near[3]


class Waits(NamedTuple):
    """How spaced flows wait for their turns, `[H]` each; times in µs per byte of a packet.

    Attributes:
        alone: wait while no other flow of the NIC always has a packet ready.
        beside: wait while others do.
        held: share of the substep in which they do.
        mean: wait over the substep, but for `half`.
        half: what flows that are not in step wait for the packet under way.
        sent: what spaced flows send while they are alone, bytes/µs.
        crowded: what they send beside others, in units of the mean.
        level: share of the link of a flow that always has a packet ready, bytes/µs.
        line: rate of the link, bytes/µs.
        even: share of each of as many equal flows as these amount to.
    """

    alone: Array
    beside: Array
    held: Array
    mean: Array
    half: Array
    sent: Array
    crowded: Array
    level: Array
    line: Array
    even: Array

    def guess(self, start: Array, capacity: Array, full: Array) -> Array:
        """A level to step from: near the root, and not so high that nobody is at it."""
        full_house = self.sent > 0.9 * capacity
        unlike = jnp.where(full_house, self.even * capacity, full)
        without = jnp.where(start < full, start, unlike)
        return jnp.where(self.held > 0, self.level, without)

    def lead(self, n_limited: Array) -> Array:
        """How much sooner than by its share a flow's first packet is sent, beside so many."""
        going = jnp.minimum(n_limited, 1.0)
        first = (1.0 - going) * self.alone + going * self.beside
        return jnp.maximum(1.0 / self.level - 1.0 / self.line - first, 0.0)


def _waits(
    total: Float[Array, " hosts"],
    squares: Float[Array, " hosts"],
    steady: Float[Array, " hosts"],
    n_ready: Float[Array, " hosts"],
    line: Float[Array, " hosts"],
) -> Waits:
    """Waits of spaced flows, and what they leave to those that always have a packet ready.

    Beside `k` flows that always have a packet ready a NIC is always busy. It serves them in rounds,
    each of which has `r = 1 / l` packets if they get a share `l` of the link. A packet whose
    spacing is over waits for half a packet, the one under way, and for the rest of a round without
    its own flow, of `o` packets: `(o + 1 - k / o) / 2` in all, if the numbers of spaced packets in
    rounds are Poisson. So `k l + sum_f 1 / (1 / x_f + wait) = 1` for spaced flows of shares `x_f`.

    Flows in step, whose spacings are 2, 4, 8 or 16 packet times, do not wait for the packet under
    way: theirs are due at its end. If all flows of a NIC are, and none always has a packet ready,
    they do not meet at all.

    Args:
        total: what spaced flows would send alone, together, bytes/µs.
        squares: sum of the squares of that.
        steady: what of it is of flows in step, bytes/µs.
        n_ready: flows that always have a packet ready, each for its part of the substep.
        line: rate of each NIC, bytes/µs.
    """
    line, some = jnp.maximum(line, 1e-3), jnp.maximum(total, 1e-3)
    typical = squares / some
    own, in_step = typical / some, steady / some
    alone = _alone(some, squares, line) * (1.0 - own) * (1.0 - in_step**2)
    load, size, half = total / line, typical / line, 0.5 * (1.0 - in_step)
    k = jnp.maximum(n_ready, 1.0)
    share = jnp.maximum((1.0 - load) / k, 1.0 / (k + 1.0 / jnp.maximum(own, 1e-3)))
    share = jnp.where(total > 1e-2, share, 1.0 / k)
    wait = half
    for i in range(4):
        others = k + jnp.maximum(1.0 / share - k, 0.0) * (1.0 - own)
        wait = half + 0.5 * (others - k / others)
        if i < 3:
            left = (1.0 - load / (1.0 + size * wait)) / k
            share = jnp.maximum(0.5 * (share + left), 1e-3)
    beside, held = wait / line, jnp.minimum(n_ready, 1.0)
    mean = (1.0 - held) * alone + held * beside
    return Waits(
        alone=alone,
        beside=beside,
        held=held,
        mean=mean - held * half / line,
        half=0.5 * held / line,
        sent=total / (1.0 + typical * alone),
        crowded=(1.0 + typical * mean) / (1.0 + typical * beside),
        level=share * line,
        line=line,
        even=jnp.maximum(own, 1e-3),
    )


def _alone(
    total: Float[Array, " hosts"], squares: Float[Array, " hosts"], line: Float[Array, " hosts"]
) -> Float[Array, " hosts"]:
    """How much longer a byte takes since packets wait for their turns, µs, `[H]`.

    A packet whose spacing is over waits while its NIC sends those of other flows, and only then
    does the next spacing begin. So flows whose rates together fill a link use 85 to 95 % of it.
    Where flows use a part `u` of a link, and each a share `s` of that, a packet waits for half a
    packet whenever others are being sent, and for those that wait already: `u (1 - s) / 2 / (1 - u
    (1 - 2 s))` packets, as in a closed queueing network, if spacings are independent of each other.

    Args:
        total: what flows would send alone, together, bytes/µs.
        squares: sum of the squares of that.
        line: rate of each NIC, bytes/µs.

    Returns:
        The waiting time per byte of a packet, of a flow whose share is next to nothing; for others
        it is `1 - s` of that.
    """
    typical = squares / total
    share, offered = typical / total, total / line
    used, wait = jnp.minimum(offered, 1.0), jnp.zeros_like(total)
    for i in range(3):
        # An idle NIC has a share of 0, and a used part of next to nothing.
        wait = 0.5 * used / (1.0 - used * jnp.clip(1.0 - 2.0 * share, 0.0, 0.999))
        if i < 2:
            slowed = 1.0 + typical / line * wait * (1.0 - share)
            used = jnp.minimum(offered / slowed, 1.0)
    return wait / line
