"""Path of a flow through the network: ports there and back, delays, queues.

Equal-cost paths are in tables between edge switches (`Topology.routes`); a flow takes one by hash,
and its ACKs another.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.state import Flows, NetParams
from ecn_marl.sim.traffic.base import Offer
from ecn_marl.sim.traffic.sizes import PAYLOAD, packet_count, wire_bytes

ALONE, STANDALONE = "alone", "standalone"
IDEALS = (ALONE, STANDALONE)
"""Ideal completion times: of the flow alone, or by the formula of the recorded simulator."""


class Paths(NamedTuple):
    """Paths of flows and their constants, leaves `[M]`, see `find_paths`.

    `forward` and `back` are ports, numbered over all levels, at each level of each path,
    `[M, L W]`.
    """

    forward: Int[Array, "m rows"]
    back: Int[Array, "m rows"]
    rtt: Float[Array, " m"]
    after: Float[Array, " m"]
    ideal: Float[Array, " m"]
    line: Float[Array, " m"]


def find_paths(
    net: NetParams,
    offer: Offer,
    bits: Array,
    up: Bool[Array, " ports"] | None = None,
    *,
    n_ways: int = 1,
    ideal: str = ALONE,
) -> Paths:
    """Paths and path constants of offered flows.

    The ideal completion time is that of the flow alone, see `_beyond_bottleneck`, or the recorded
    packet simulator's `standalone`: both propagation delays, one store-and-forward time of a 1000 B
    packet per hop, and the wire bytes at the bottleneck's rate.

    Args:
        net: the network.
        offer: flows, `[M]`.
        bits: random uint32 per flow for the ECMP choice, `[M]`.
        up: which ports' links work; None for all. Paths that do not work are left out of the
            choice, as long as there are others.
        n_ways: paths W that a flow's packets are spread over, see `sprayed_paths`; 1 for one path.
        ideal: one of `IDEALS`.

    Returns:
        Ports, feedback delay, return delay and ideal FCT (µs), NIC rate (bytes/µs).
    """
    if n_ways > 1:
        return sprayed_paths(net, offer, n_ways, up, ideal)
    real = net.port_rate.dtype
    # The last entry is for levels that a path passes by: it takes no time.
    rate = jnp.append(net.port_rate, jnp.asarray(jnp.inf, real))
    delay = jnp.append(net.port_delay, jnp.asarray(0.0, real))
    src_edge, dst_edge = net.edge[offer.src], net.edge[offer.dst]
    # One hash for both directions: its higher bits choose the way back independently.
    forward = _hashed_path(net, (src_edge, dst_edge), offer.dst, offer.path, bits, up)
    back = _hashed_path(net, (dst_edge, src_edge), offer.src, offer.path_back, bits >> 8, up)
    delay_forth = net.nic_delay[offer.src] + delay[forward].sum(-1)
    delay_back = net.nic_delay[offer.dst] + delay[back].sum(-1)
    ack = net.ack_bytes / net.nic_rate[offer.dst] + (net.ack_bytes / rate[back]).sum(-1)
    line = net.nic_rate[offer.src]
    slowness = jnp.concatenate([1.0 / line[:, None], 1.0 / rate[forward]], -1)
    after = delay_forth + _beyond_bottleneck(net, offer, slowness) + delay_back + ack
    sending = _wire(net, offer) * slowness.max(-1)
    alone = after + sending
    standalone = delay_forth + delay_back + PAYLOAD * slowness.sum(-1) + sending
    return Paths(
        forward=forward,
        back=back,
        rtt=delay_forth + net.packet_bytes * slowness[:, 1:].sum(-1) + delay_back + ack,
        after=after,
        ideal=alone if ideal == ALONE else standalone,
        line=line,
    )


def _wire(net: NetParams, offer: Offer) -> Float[Array, " m"]:
    """Bytes of offered flows on the wire, `[M]`."""
    return wire_bytes(offer.payload, net.packet_bytes - PAYLOAD)


def _beyond_bottleneck(
    net: NetParams, offer: Offer, slowness: Float[Array, "m links"]
) -> Float[Array, " m"]:
    """Time that the packets of a lone flow take beyond that of its bytes at its slowest link, µs.

    Every link stores a packet before it forwards it, and sends one after the other. So the last of
    n packets arrives after the longest chain of transmissions in which each waits for the one
    before: down the links with one packet, through the packets at one link, on down with the last
    packet. All packets are full but the last, which follows the full ones up to some link: the
    longest chain is the largest of one sum per such link.

    Args:
        net: the network.
        offer: flows, `[M]`.
        slowness: time that a byte takes at each link, the NIC first, 0 for none, µs/byte.
    """
    n = packet_count(offer.payload)[:, None]
    full = net.packet_bytes
    last = _wire(net, offer)[:, None] - full * (n - 1.0)
    slowest = slowness.max(-1, keepdims=True)
    until, onward = jnp.cumsum(slowness, -1), jnp.cumsum(slowness[:, ::-1], -1)[:, ::-1]
    # The time at the slowest link is taken off term by term: 1 GB of it would leave no digits.
    missed = (slowest - jax.lax.cummax(slowness, axis=1)) * full * (n - 2.0)
    chains = full * (until - slowest) + last * (onward - slowest) - missed
    single = last[:, 0] * (until[:, -1] - slowest[:, 0])
    return jnp.where(n[:, 0] > 1, chains.max(-1), single)


def _hashed_path(
    net: NetParams,
    edges: tuple[Int[Array, " m"], Int[Array, " m"]],
    host: Int[Array, " m"],
    requested: Int[Array, " m"],
    bits: Array,
    up: Bool[Array, " ports"] | None,
) -> Int[Array, "m levels"]:
    """Ports of one path between two edge switches and to a host: as requested, or by hash.

    Args:
        net: the network.
        edges: edge switches at the start and at the end.
        host: host at the end.
        requested: number of the path, -1 for none given.
        bits: random uint32 per flow.
        up: which ports' links work; None for all.
    """
    n, last_port = net.n_paths[edges], net.last[host][:, None]
    # A list may name a path that this pair does not have: it takes the last one.
    requested = jnp.where(requested >= 0, jnp.minimum(requested, n - 1), -1)
    if up is None:
        hashed = (bits % n.astype(jnp.uint32)).astype(jnp.int32)
        chosen = jnp.where(requested >= 0, requested, hashed)
        return jnp.concatenate([net.routes[(*edges, chosen)], last_port], axis=1)
    routes = net.routes[edges]
    works = jnp.append(up, True)[routes].all(-1) & up[last_port]
    works = works & (jnp.arange(routes.shape[1]) < n[:, None])
    # If no path works, the first is taken, on which `tick.prepare` lets no flow send.
    count = jnp.maximum(works.sum(-1), 1)
    pick = (bits % count.astype(jnp.uint32)).astype(jnp.int32)
    hashed = jnp.argmax(works & (jnp.cumsum(works, -1) == pick[:, None] + 1), axis=-1)
    use_requested = (requested >= 0) & jnp.take_along_axis(works, requested[:, None], 1)[:, 0]
    chosen = jnp.where(use_requested, requested, hashed)
    middle = jnp.take_along_axis(routes, chosen[:, None, None], 1)[:, 0]
    return jnp.concatenate([middle, last_port], axis=1)


def sprayed_paths(
    net: NetParams,
    offer: Offer,
    ways: int,
    up: Bool[Array, " ports"] | None = None,
    ideal: str = ALONE,
) -> Paths:
    """All equal-cost paths of offered flows, and constants of flows spread evenly over them.

    A flow waits for its longest path. Its bottleneck is the NIC, or the port that is slow for the
    share of the flow that crosses it: four ports of 25 Gb/s with a path each carry 100 Gb/s.

    Args:
        net: the network.
        offer: flows, `[M]`; paths given for them are for other load balancing.
        ways: the most equal-cost paths W that there are.
        up: which ports' links work, None for all. Paths that do not work are left out, as long as
            there are others.
        ideal: one of `IDEALS`.
    """
    real = net.port_rate.dtype
    rate = jnp.append(net.port_rate, jnp.asarray(jnp.inf, real))
    delay = jnp.append(net.port_delay, jnp.asarray(0.0, real))
    src_edge, dst_edge = net.edge[offer.src], net.edge[offer.dst]

    def path_ports(edge: Array, end: Array, host: Array) -> Array:
        middle = net.routes[edge, end]
        last_port = jnp.broadcast_to(net.last[host][:, None, None], (*middle.shape[:2], 1))
        ports = jnp.concatenate([middle, last_port], -1)
        used = jnp.arange(ways) < net.n_paths[edge, end][:, None]
        if up is not None:
            works = used & jnp.append(up, True)[ports].all(-1)
            used = jnp.where(works.any(-1, keepdims=True), works, used)
        return jnp.where(used[..., None], ports, rate.size - 1)

    forward = path_ports(src_edge, dst_edge, offer.dst)
    back = path_ports(dst_edge, src_edge, offer.src)
    delay_forth = net.nic_delay[offer.src] + delay[forward].sum(-1).max(-1)
    delay_back = net.nic_delay[offer.dst] + delay[back].sum(-1).max(-1)
    ack = net.ack_bytes / net.nic_rate[offer.dst] + (net.ack_bytes / rate[back]).sum(-1).max(-1)
    line = net.nic_rate[offer.src]
    slowness = (1.0 / rate[forward]).sum(-1).max(-1)
    used = (forward[..., -1] < rate.size - 1).astype(real)
    # Rows without a port have an infinite rate, so they never are the bottleneck.
    same_port = (forward[:, :, None] == forward[:, None]) * used[:, None, :, None]
    load = same_port.sum(2) / used.sum(1)[:, None, None]
    bottleneck = jnp.minimum(line, (rate[forward] / load).min((-1, -2)))
    # Packets of one path may arrive before those of another: the last full one decides.
    last_stored = jnp.minimum(_wire(net, offer), net.packet_bytes) * slowness
    after = delay_forth + last_stored + delay_back + ack
    sending = _wire(net, offer) / bottleneck
    standalone = delay_forth + delay_back + PAYLOAD / line + PAYLOAD * slowness + sending

    def rows(ports: Array) -> Array:
        return jnp.swapaxes(ports, 1, 2).reshape(ports.shape[0], -1)

    return Paths(
        forward=rows(forward),
        back=rows(back),
        rtt=delay_forth + net.packet_bytes * slowness + delay_back + ack,
        after=after,
        ideal=after + sending if ideal == ALONE else standalone,
        line=line,
    )


def as_offer(flows: Flows) -> Offer:
    """Slots as offers, the input of `find_paths`, without chosen paths."""
    unset = jnp.full_like(flows.src, -1)
    return Offer(
        start=flows.start_in,
        src=flows.src,
        dst=flows.dst,
        payload=flows.payload,
        wire_high=flows.rest_high,
        wire_low=flows.rest_low,
        path=unset,
        path_back=unset,
        flow_id=flows.flow_id,
        valid=flows.stage > 0,
    )


def queue_numbers(
    paths: Paths, kind: Int[Array, " m"], bounds: tuple[int, ...], classes: int, ways: int = 1
) -> tuple[Int[Array, "rows m"], Int[Array, "back_rows m"]]:
    """Queues on the way: those of the data counted within their level, those of the ACKs globally.

    Args:
        paths: ways in terms of ports.
        kind: traffic class of each flow.
        bounds: first queue of each level, and one past the last.
        classes: queues per port.
        ways: paths that a flow can be on at once; those beyond the ones in `paths` have no queues.

    Returns:
        Local queues, the size of the level for none, `[L W, M]`; and global ones of the ACKs, Q for
        none, `[L, M]`, or `[L W, M]` where they are spread as well.
    """
    lows = jnp.array(np.repeat(bounds[:-1], ways), jnp.int32)
    highs = jnp.array(np.repeat(bounds[1:], ways), jnp.int32)
    forward, back = paths.forward, paths.back
    if forward.shape[1] < lows.shape[0]:
        forward = _as_first_way(forward, ways, bounds[-1] // classes)
    if classes > 1:
        n_ports = bounds[-1] // classes
        forward = jnp.where(forward < n_ports, forward * classes + kind[:, None], bounds[-1])
        back = jnp.where(back < n_ports, back * classes + kind[:, None], bounds[-1])
    local = jnp.where(forward < bounds[-1], forward - lows, highs - lows)
    return local.T, back.T


def _as_first_way(ports: Int[Array, "m levels"], ways: int, none: int) -> Int[Array, "m rows"]:
    """Ports of one path as those of the first of several ways."""
    unused = jnp.full((*ports.shape, ways - 1), none, ports.dtype)
    return jnp.concatenate([ports[..., None], unused], -1).reshape(ports.shape[0], -1)
