"""A flow's way through the network: ports there and back, delays, queues.

Equal-cost paths are in tables between edge switches (`Topology.routes`); a flow takes one by hash,
and its ACKs another.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.sizes import PAYLOAD, packet_count, wire_bytes
from ecn_marl.sim.state import NetParams
from ecn_marl.sim.traffic import Offer


class Paths(NamedTuple):
    """What a flow's way through the network implies, leaves `[M]` or `[M, L]` (global ports)."""

    forward: Int[Array, "m levels"]
    back: Int[Array, "m levels"]
    rtt: Float[Array, " m"]
    after: Float[Array, " m"]
    ideal: Float[Array, " m"]
    line: Float[Array, " m"]


def find_paths(
    net: NetParams, offer: Offer, bits: Array, up: Bool[Array, " ports"] | None = None
) -> Paths:
    """Paths and path constants of offered flows.

    The ideal completion time is the packet simulator's `standalone`: both propagation delays, one
    store-and-forward time of a 1000 B packet per hop, and the wire bytes at the bottleneck's rate.

    Args:
        net: the network.
        offer: flows, `[M]`.
        bits: random uint32 per flow for the ECMP choice, `[M]`.
        up: which ports' links work; None for all. Paths that do not work are left out of the
            choice, as long as there are others.

    Returns:
        Ports, feedback delay, return delay and ideal FCT (µs), NIC rate (bytes/µs).
    """
    real = net.port_rate.dtype
    rate = jnp.append(net.port_rate, jnp.asarray(jnp.inf, real))
    delay = jnp.append(net.port_delay, jnp.asarray(0.0, real))
    here, there = net.edge[offer.src], net.edge[offer.dst]

    def choose(edge: Array, end: Array, host: Array, wanted: Array, shift: int) -> Array:
        n, last = net.n_paths[edge, end], net.last[host][:, None]
        wanted = jnp.where(wanted >= 0, jnp.minimum(wanted, n - 1), -1)
        if up is None:
            hashed = ((bits >> shift) % n.astype(jnp.uint32)).astype(jnp.int32)
            chosen = jnp.where(wanted >= 0, wanted, hashed)
            return jnp.concatenate([net.routes[edge, end, chosen], last], axis=1)
        routes = net.routes[edge, end]
        works = jnp.append(up, True)[routes].all(-1) & up[last]
        works = works & (jnp.arange(routes.shape[1]) < n[:, None])
        count = jnp.maximum(works.sum(-1), 1)
        pick = ((bits >> shift) % count.astype(jnp.uint32)).astype(jnp.int32)
        hashed = jnp.argmax(works & (jnp.cumsum(works, -1) == pick[:, None] + 1), axis=-1)
        given = (wanted >= 0) & jnp.take_along_axis(works, wanted[:, None], 1)[:, 0]
        chosen = jnp.where(given, wanted, hashed)
        middle = jnp.take_along_axis(routes, chosen[:, None, None], 1)[:, 0]
        return jnp.concatenate([middle, last], axis=1)

    forward = choose(here, there, offer.dst, offer.path, 0)
    back = choose(there, here, offer.src, offer.path_back, 8)
    go = net.nic_delay[offer.src] + delay[forward].sum(-1)
    home = net.nic_delay[offer.dst] + delay[back].sum(-1)
    ack = net.ack_bytes / net.nic_rate[offer.dst] + (net.ack_bytes / rate[back]).sum(-1)
    header = net.packet_bytes - PAYLOAD
    wire = wire_bytes(offer.payload, header)
    last = offer.payload - PAYLOAD * (packet_count(offer.payload) - 1.0) + header
    line = net.nic_rate[offer.src]
    bottleneck = jnp.minimum(line, rate[forward].min(-1))
    stored = PAYLOAD / line + (PAYLOAD / rate[forward]).sum(-1)
    return Paths(
        forward=forward,
        back=back,
        rtt=go + (net.packet_bytes / rate[forward]).sum(-1) + home + ack,
        after=go + (last[:, None] / rate[forward]).sum(-1) + home + ack,
        ideal=go + home + stored + wire / bottleneck,
        line=line,
    )


def queue_numbers(
    paths: Paths, kind: Int[Array, " m"], bounds: tuple[int, ...], classes: int
) -> tuple[Int[Array, "levels m"], Int[Array, "levels m"]]:
    """Queues on the way: those ahead counted within their level, those of the ACKs as they are.

    Args:
        paths: ways in terms of ports.
        kind: traffic class of each flow.
        bounds: first queue of each level, and one past the last.
        classes: queues per port.

    Returns:
        Local queues, the size of the level for none; and global ones, Q for none, `[L, M]`.
    """
    lows = jnp.array(bounds[:-1], jnp.int32)
    highs = jnp.array(bounds[1:], jnp.int32)
    ahead, home = paths.forward, paths.back
    if classes > 1:
        n_ports = bounds[-1] // classes
        ahead = jnp.where(ahead < n_ports, ahead * classes + kind[:, None], bounds[-1])
        home = jnp.where(home < n_ports, home * classes + kind[:, None], bounds[-1])
    local = jnp.where(ahead < bounds[-1], ahead - lows, highs - lows)
    return local.T, home.T
