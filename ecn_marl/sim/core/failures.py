"""Links that fail and are repaired.

A link that is down sends nothing. Flows whose way crosses it choose another equal-cost path by a
new hash. What they had in flight is lost, counted as dropped, and sent again (selective repeat). A
flow with no path left waits until a repair.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._checks import Real, check_seed, check_value
from ecn_marl._errors import bad_value
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.paths import as_offer, find_paths, queue_numbers
from ecn_marl.sim.core.slots import busy
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.random import Stream, hash_bits
from ecn_marl.sim.state import Flows, NetParams, SimParams
from ecn_marl.sim.traffic.sizes import CHUNK

NEVER = 2**31 - 1
"""Substep of events that never happen."""


FAILING = ("share", "at_us", "repair_us", "seed")
"""Options of `fail_links`."""


def links_up(net: NetParams, step: Int[Array, ""]) -> Bool[Array, " ports"]:
    """Which ports' links work at a substep, `[P]`."""
    return (step < net.fail_step) | (step >= net.repair_step)


def fail_links(
    params: SimParams,
    topology: Topology,
    dt_us: float,
    *,
    share: float,
    at_us: float,
    repair_us: float | None = None,
    seed: int = 0,
) -> SimParams:
    """Let a random share of the links between switches fail, both directions together.

    Args:
        params: parameters of a simulator with `failures=True`.
        topology: its network.
        dt_us: its substep, µs.
        share: share of the links, in (0, 1]; at least one link fails.
        at_us: when they fail, µs.
        repair_us: when they are repaired, µs; None for never.
        seed: which links.

    Returns:
        Parameters with `net.fail_step` and `net.repair_step` set for the ports of these links.

    Raises:
        ValueError: a share outside (0, 1], times out of order or in the same substep, no link
            between switches, or a simulator without failures.
    """
    if params.net.fail_step is None:
        raise bad_value("failures", False, "True in the simulator that these parameters are for")
    longest = NEVER * float(dt_us) if dt_us > 0 else 0.0
    check_value("dt_us", dt_us, Real(above=0.0, unit="µs"))
    check_value("share", share, Real(above=0.0, high=1.0))
    check_value("at_us", at_us, Real(low=0.0, below=longest, unit="µs"))
    check_value("repair_us", repair_us, Real(low=0.0, below=longest, unit="µs", none=True))
    check_seed(seed)
    if repair_us is not None and not repair_us > at_us:
        raise bad_value("at_us, repair_us", (at_us, repair_us), "0 <= at_us < repair_us")
    fails = round(at_us / dt_us)
    repaired = NEVER if repair_us is None else round(repair_us / dt_us)
    if repaired == fails:
        allowed = f"times in different substeps of {dt_us:g} us: nothing would fail"
        raise bad_value("at_us, repair_us", (at_us, repair_us), allowed)
    number = {(p.switch, p.peer, p.link): i for i, p in enumerate(topology.ports)}
    links = ((*sorted(ends[:2]), ends[2]) for ends in number if _reverse(ends) in number)
    # Sorted, as sets of names come in another order in every process, and `seed` picks by place.
    pairs = sorted(set(links))
    if not pairs:
        raise bad_value("topology", topology.name, "a network with links between switches")
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(pairs), max(1, round(share * len(pairs))), replace=False)
    ports = [number[ends] for i in chosen for ends in (pairs[i], _reverse(pairs[i]))]
    # Copies: the parameters that were passed in stay as they are.
    fail = np.array(params.net.fail_step, np.int32)
    repair = np.array(params.net.repair_step, np.int32)
    fail[ports], repair[ports] = fails, repaired
    return replace(params, net=replace(params.net, fail_step=fail, repair_step=repair))


def _reverse(ends: tuple[str, str, int]) -> tuple[str, str, int]:
    """The other direction of a link."""
    return ends[1], ends[0], ends[2]


class Rerouted(NamedTuple):
    """Result of rerouting: slots, lost bytes of each flow `[F]`, bytes counted as delivered."""

    flows: Flows
    lost: Float[Array, " flows"]
    passed: Float[Array, ""]


def reroute(
    flows: Flows,
    used: Bool[Array, " flows"],
    net: NetParams,
    step: Int[Array, ""],
    seed: Array,
    bounds: tuple[int, ...],
    classes: int,
) -> Rerouted:
    """Move flows off broken paths.

    Args:
        flows: slots.
        used: those in use whose flows did not begin just now, `[F]`.
        net: the network.
        step: substep.
        seed: uint32 of the episode.
        bounds: first queue of each level, and one past the last.
        classes: queues per port.
    """
    up = links_up(net, step)
    # The last entry is for levels that a flow passes by.
    works = jnp.append(up, True)
    lows, highs = np.array(bounds[:-1])[:, None], np.array(bounds[1:])[:, None]
    queues = jnp.where(flows.hop < highs - lows, lows + flows.hop, bounds[-1])
    forth = works[queues // classes].all(0)
    back = works[flows.back // classes].all(0)
    # Paths break seldom: `lanes` skips all slots but these.
    broken = busy(used & ~(forth & back))
    bits = hash_bits(seed, flows.coin.astype(jnp.int32), Stream.REROUTE)
    offer = as_offer(flows)
    paths = find_paths(net, offer, bits, up)
    local, back_queue = queue_numbers(paths, flows.kind, bounds, classes)
    # Data stay on their way if that of the ACKs alone is broken, and the other way round.
    cut = broken & ~forth
    moved = replace(
        flows,
        hop=jnp.where(cut, local, flows.hop),
        back=jnp.where(broken & ~back, back_queue, flows.back),
        rtt=jnp.where(broken, paths.rtt, flows.rtt),
        after=jnp.where(broken, paths.after, flows.after),
        wait=jnp.where(cut, 0.0, flows.wait),
    )
    return _emptied(moved, cut, jnp.where(cut, flows.backlog.sum(0), 0.0))


def reroute_ways(
    flows: Flows,
    used: Bool[Array, " flows"],
    net: NetParams,
    step: Int[Array, ""],
    seed: Array,
    bounds: tuple[int, ...],
    classes: int,
    n_sprayed: int,
) -> Rerouted:
    """`reroute` where a flow can have bytes on several ways; each way breaks by itself.

    Sprayed flows take all paths that work, repaired ones as well. Others draw a new path for their
    new bytes if that one is broken; bytes of an old flowlet on a broken path are lost.

    Args:
        flows: slots.
        used: those in use whose flows did not begin just now, `[F]`.
        net: the network.
        step: substep.
        seed: uint32 of the episode.
        bounds: first queue of each level, and one past the last.
        classes: queues per port.
        n_sprayed: paths that packets are spread over, 1 for flowlets.
    """
    up, n_levels = links_up(net, step), len(bounds) - 1
    works, w = jnp.append(up, True), flows.hop.shape[0] // n_levels
    lows, highs = (np.repeat(b, w)[:, None] for b in (bounds[:-1], bounds[1:]))
    queues = jnp.where(flows.hop < highs - lows, lows + flows.hop, bounds[-1])
    forth = works[queues // classes].reshape(n_levels, w, -1).all(0)
    back = works[flows.back // classes].all(0)
    bits = hash_bits(seed, flows.coin.astype(jnp.int32), Stream.REROUTE)
    paths = find_paths(net, as_offer(flows), bits, up, n_ways=n_sprayed)
    hop, back_queue = queue_numbers(paths, flows.kind, bounds, classes, w)
    cut = used & ~forth
    rows = jnp.tile(cut, (n_levels, 1))
    rerouted = used if n_sprayed > 1 else used & (cut[0] | ~back)
    moved = replace(
        flows,
        hop=jnp.where(used if n_sprayed > 1 else rows, hop, flows.hop),
        back=jnp.where(used if n_sprayed > 1 else used & ~back, back_queue, flows.back),
        rtt=jnp.where(rerouted, paths.rtt, flows.rtt),
        after=jnp.where(rerouted, paths.after, flows.after),
        wait=jnp.where(cut.any(0), 0.0, flows.wait),
    )
    return _emptied(moved, rows, jnp.where(rows, flows.backlog, 0.0).sum(0))


def _emptied(flows: Flows, cut: Array, stranded: Float[Array, " flows"]) -> Rerouted:
    """Take from flows what they had on broken paths.

    Args:
        flows: slots, on their new paths.
        cut: where the old ones are broken, `[F]`, or of every way `[L W, F]`.
        stranded: bytes there.
    """
    # If the last byte of a flow has arrived (first in, first out), the fluid it left behind
    # counts as delivered.
    arrived = flows.stage >= life.RETURNING
    lost, passed = jnp.where(arrived, 0.0, stranded), jnp.where(arrived, stranded, 0.0).sum()
    # A flow that had sent its last byte has to send again.
    resend = (lost > 0) & (flows.stage > life.SENDING)
    # Many MB may be lost at once: whole chunks go to the high part, so that float32 rounds none.
    chunks = jnp.floor(lost / CHUNK)
    emptied = replace(
        flows,
        backlog=jnp.where(cut, 0.0, flows.backlog),
        due=jnp.where(cut, 0.0, flows.due),
        waiting=tuple(jnp.where(cut, 0.0, x) for x in flows.waiting),
        rest_high=flows.rest_high + chunks.astype(flows.rest_high.dtype),
        rest_low=flows.rest_low + (lost - chunks * CHUNK),
        stage=jnp.where(resend, life.SENDING, flows.stage),
    )
    return Rerouted(emptied, lost, passed)
