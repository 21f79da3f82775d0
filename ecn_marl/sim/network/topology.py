"""Topologies: switches, links and equal-cost paths, compiled to arrays.

A `Topology` is built once on the host with numpy. Every directed link that leaves a switch is an
egress *port* with a queue; a directed link that leaves a host is that host's NIC. Ports are sorted
by *level*: on every path the levels strictly increase, so one pass over the levels moves bytes
through all hops of the network in a single substep (fluid that finds empty queues crosses the
network without artificial per-hop delay).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

import numpy as np

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.network.links import Link, Rates, adjacency, at_least, check_links, host_rates
from ecn_marl.sim.network.routing import Route, compiled_routes, distances
from ecn_marl.sim.network.servers import Server, check_servers
from ecn_marl.sim.units import GBPS, KB, MIB

__all__ = [
    "GBPS",
    "KB",
    "MIB",
    "Link",
    "Port",
    "Topology",
    "acc_testbed",
    "dumbbell",
    "fat_tree",
    "from_links",
    "leaf_spine",
    "parking_lot",
    "parse_topology",
    "star",
]


@dataclass(frozen=True)
class Port:
    """A switch egress port: the queue in front of one directed link.

    Attributes:
        switch: name of the switch that owns the queue.
        peer: name of the node at the other end of the link.
        gbps: link rate, Gb/s.
        delay_us: propagation delay to the peer, µs.
        kind: `host` (peer is a host), `up` or `down` (towards or away from the core); leaf-spine
            names these `leaf-up` and `spine-down`.
        level: position in the order in which queues are served within a substep.
        link: which of the parallel links to the peer.
    """

    switch: str
    peer: str
    gbps: float
    delay_us: float
    kind: str
    level: int
    link: int = 0

    @property
    def name(self) -> str:
        """`switch->peer`, with `#1`, `#2`, … for further links to the same peer."""
        return f"{self.switch}->{self.peer}" + (f"#{self.link}" if self.link else "")


@dataclass(frozen=True)
class Topology:
    """A network of hosts and switches with all its shortest paths.

    `P` is the number of ports, `H` of hosts, `S` of switches, `L` of levels, `E` of switches with
    hosts (edges), `K` the largest number of equal-cost paths. A path goes from edge switch to edge
    switch and then out of the port to the host, which is on the last level. Networks are equal if
    names, ports, rates, delays and servers are: the tables of routes follow from these.

    Attributes:
        name: for messages and run directories, e.g. `star:9`.
        hosts: host names, length H.
        switches: switch names, length S.
        ports: the P egress ports, sorted by level.
        nic_gbps: rate of each host's NIC, Gb/s, length H.
        nic_delay_us: propagation delay from each host to its switch, µs, length H.
        edge: index in `0..E-1` of each host's edge switch, length H.
        routes: int32 `[E, E, K, L - 1]`, port index at each level of the k-th path from an edge
            switch to another, `P` where the path has no hop at that level.
        n_paths: int32 `[E, E]`, number of equal-cost paths, all there are.
        last: int32 `[H]`, port to each host, the last hop of every path there.
        level_bounds: `L + 1` offsets; level `l` holds ports `bounds[l]:bounds[l + 1]`.
        server: server that each host is a NIC of, numbered from 0, length H; one NIC per server
            unless given. See `servers`.
    """

    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...] = field(compare=False)
    ports: tuple[Port, ...]
    nic_gbps: tuple[float, ...]
    nic_delay_us: tuple[float, ...]
    edge: tuple[int, ...] = field(compare=False)
    routes: np.ndarray = field(compare=False)
    n_paths: np.ndarray = field(compare=False)
    last: np.ndarray = field(compare=False)
    level_bounds: tuple[int, ...] = field(compare=False)
    server: Server = field(default=(), hash=False)

    def __post_init__(self) -> None:
        """Give every host a server of its own, unless servers are given; check them."""
        object.__setattr__(self, "server", self.server or tuple(range(len(self.hosts))))
        check_servers(self.server, len(self.hosts))

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return len(self.hosts)

    @property
    def bonds(self) -> Server:
        """`server` if some server has several NICs, else empty."""
        return self.server if len(set(self.server)) < self.n_hosts else ()

    @property
    def n_ports(self) -> int:
        """Number of switch egress ports, each one a queue and an agent."""
        return len(self.ports)

    @property
    def n_switches(self) -> int:
        """Number of switches."""
        return len(self.switches)

    @property
    def n_levels(self) -> int:
        """Number of levels, the longest possible path in hops."""
        return len(self.level_bounds) - 1

    @property
    def port_names(self) -> tuple[str, ...]:
        """Name of every port, `switch->peer`."""
        return tuple(p.name for p in self.ports)

    def ports_of_kind(self, kind: str) -> np.ndarray:
        """Indices of the ports of one kind (`host`, `up`, `down`, `leaf-up`, `spine-down`)."""
        return np.array([i for i, p in enumerate(self.ports) if p.kind == kind], dtype=np.int32)

    def port_switch(self) -> np.ndarray:
        """Switch index of every port, int32 `[P]`."""
        index = {name: i for i, name in enumerate(self.switches)}
        return np.array([index[p.switch] for p in self.ports], dtype=np.int32)

    def link_switch(self) -> np.ndarray:
        """Switch at the receiving end of every directed link, int32 `[H + P]`.

        Directed links are numbered NICs first, then ports; links into hosts get `S` (no switch).
        """
        index = {name: i for i, name in enumerate(self.switches)}
        names = self._edge_names()
        nic = [index[names[e]] for e in self.edge]
        port = [index.get(p.peer, self.n_switches) for p in self.ports]
        return np.array(nic + port, dtype=np.int32)

    def paths(self, source: SupportsIndex, sink: SupportsIndex) -> np.ndarray:
        """All equal-cost paths from a host to another, int32 `[n, L]`, `P` for no hop at a level.

        Args:
            source: index of the host that sends.
            sink: index of the host that receives.
        """
        src_edge, dst_edge = self.edge[source], self.edge[sink]
        middle = self.routes[src_edge, dst_edge, : self.n_paths[src_edge, dst_edge]]
        return np.concatenate([middle, np.full((len(middle), 1), self.last[sink])], axis=1)

    def _edge_names(self) -> list[str]:
        ends = zip(self.edge, self.last, strict=True)
        names = {edge: self.ports[last].switch for edge, last in ends}
        return [names[i] for i in range(len(names))]


def from_links(
    name: str,
    hosts: Sequence[str],
    switches: Sequence[str],
    links: Sequence[Link],
    *,
    kinds: dict[str, str] | None = None,
    server: Sequence[int] = (),
) -> Topology:
    """Build a topology from a list of links.

    Args:
        name: name of the network.
        hosts: host names; each must have exactly one link, to a switch.
        switches: switch names.
        links: full-duplex links; several between the same switches are parallel.
        kinds: names for the port kinds `up` and `down`, e.g. `{"up": "leaf-up"}`.
        server: server that each host is a NIC of, numbered from 0; empty for one NIC per server.

    Returns:
        The compiled topology.

    Raises:
        ValueError: two nodes have one name, a link names an unknown node, joins a node with itself
            or has a rate or delay out of range, a host has no or several links, a host cannot be
            reached, or the shortest paths allow a cycle of queues (no order of levels exists; such
            a network can also deadlock under PFC).
    """
    neighbours = adjacency(hosts, switches, links)
    by_ends: dict[tuple[str, str], list[Link]] = {}
    for link in links:
        by_ends.setdefault((link.a, link.b), []).append(link)
        by_ends.setdefault((link.b, link.a), []).append(link)
    parallel = {ends: len(group) for ends, group in by_ends.items()}
    edge_switch = {h: neighbours[h][0] for h in hosts}
    try:
        route = compiled_routes(switches, neighbours, edge_switch, parallel)
    except ValueError as error:
        raise InvalidInput(f"topology {name!r}: {error}") from None
    label = {"up": "up", "down": "down"} | (kinds or {})
    # 0 for hosts, 1 at the edge, growing towards the core.
    tier = distances(hosts, neighbours)
    ports = _ports(route, by_ends, tier, label)
    return Topology(
        name=name,
        hosts=tuple(hosts),
        switches=tuple(switches),
        ports=ports,
        nic_gbps=tuple(by_ends[h, edge_switch[h]][0].gbps for h in hosts),
        nic_delay_us=tuple(by_ends[h, edge_switch[h]][0].delay_us for h in hosts),
        edge=route.edge,
        routes=route.routes,
        n_paths=route.n_paths,
        last=route.last,
        level_bounds=route.level_bounds,
        server=tuple(server),
    )


def _ports(
    route: Route,
    links: dict[tuple[str, str], list[Link]],
    tier: dict[str, int],
    label: dict[str, str],
) -> tuple[Port, ...]:
    """The ports of a compiled network; hosts have tier 0."""
    ports = []
    for (switch, peer, k), level in zip(route.ends, route.level, strict=True):
        kind = "up" if tier[peer] > tier[switch] else "down"
        link = links[switch, peer][k]
        kind = "host" if tier[peer] == 0 else label[kind]
        ports.append(Port(switch, peer, link.gbps, link.delay_us, kind, level, k))
    return tuple(ports)


def star(hosts: int, *, gbps: Rates = 25.0, delay_us: float = 1.0) -> Topology:
    """Hosts around one switch.

    Args:
        hosts: number of hosts, at least 2.
        gbps: rate of every link, or of each, Gb/s.
        delay_us: one-way propagation delay of every link, µs.

    Returns:
        A topology with `hosts` ports, port `i` towards host `i`.
    """
    at_least("hosts", hosts, 2)
    check_links(f"star:{hosts}", hosts)
    names = [f"host{i}" for i in range(hosts)]
    links = [Link(h, "switch0", r, delay_us) for h, r in host_rates(names, gbps)]
    return from_links(f"star:{hosts}", names, ["switch0"], links)


def dumbbell(
    left: int,
    right: int,
    *,
    gbps: float = 25.0,
    uplink_gbps: float | None = None,
    delay_us: float = 1.0,
    uplink_delay_us: float | None = None,
) -> Topology:
    """Two switches joined by one link, hosts on both sides.

    Args:
        left: hosts on the first switch.
        right: hosts on the second switch.
        gbps: rate of the host links, Gb/s.
        uplink_gbps: rate of the link between the switches, Gb/s; `gbps` if None.
        delay_us: one-way propagation delay of every link, µs.
        uplink_delay_us: that of the link between the switches, µs; `delay_us` if None.
    """
    at_least("left", left, 1)
    at_least("right", right, 1)
    check_links(f"dumbbell:{left},{right}", left + right + 1)
    names = [f"host{i}" for i in range(left + right)]
    middle_gbps = gbps if uplink_gbps is None else uplink_gbps
    middle_delay = delay_us if uplink_delay_us is None else uplink_delay_us
    links = [Link("switch0", "switch1", middle_gbps, middle_delay)]
    links += [
        Link(h, "switch0" if i < left else "switch1", gbps, delay_us) for i, h in enumerate(names)
    ]
    return from_links(f"dumbbell:{left},{right}", names, ["switch0", "switch1"], links)


def parking_lot(hops: int, *, gbps: float = 25.0, delay_us: float = 1.0) -> Topology:
    """A chain of `hops + 1` switches with two hosts each.

    Args:
        hops: links between switches, at least 1.
        gbps: rate of every link, Gb/s.
        delay_us: one-way propagation delay of every link, µs.
    """
    at_least("hops", hops, 1)
    check_links(f"parking-lot:{hops}", 3 * hops + 2)
    switches = [f"switch{i}" for i in range(hops + 1)]
    names = [f"host{i}" for i in range(2 * (hops + 1))]
    links = [Link(a, b, gbps, delay_us) for a, b in itertools.pairwise(switches)]
    links += [Link(h, switches[i // 2], gbps, delay_us) for i, h in enumerate(names)]
    return from_links(f"parking-lot:{hops}", names, switches, links)


def leaf_spine(
    leaves: int,
    hosts_per_leaf: int,
    spines: int,
    *,
    gbps: Rates = 25.0,
    uplink_gbps: float = 100.0,
    delay_us: float = 1.0,
    uplink_delay_us: float | None = None,
    parallel: int = 1,
    nics_per_server: int = 1,
) -> Topology:
    """A two-tier Clos network: every leaf has a link, or several, to every spine.

    Args:
        leaves: number of leaf switches.
        hosts_per_leaf: hosts on each leaf; host `h` is on leaf `h // hosts_per_leaf`.
        spines: number of spine switches.
        gbps: rate of the host links, or of each, Gb/s.
        uplink_gbps: rate of the links between leaves and spines, Gb/s.
        delay_us: one-way propagation delay of every link, µs.
        uplink_delay_us: that of the links between leaves and spines, µs; `delay_us` if None.
        parallel: links between a leaf and a spine.
        nics_per_server: NICs of each server, on as many leaves side by side: with 2, leaves 0 and
            1 are a pair, and host `i` of either is a NIC of the same server. Hosts are NICs.

    Returns:
        A topology with `leaves * hosts_per_leaf + 2 * leaves * spines * parallel` ports of the
        kinds `leaf-up`, `spine-down` and `host`.
    """
    at_least("leaves", leaves, 2)
    at_least("hosts_per_leaf", hosts_per_leaf, 1)
    at_least("spines", spines, 1)
    at_least("parallel", parallel, 1)
    at_least("nics_per_server", nics_per_server, 1)
    n_links = leaves * (hosts_per_leaf + spines * parallel)
    check_links(f"leaf-spine:{leaves},{hosts_per_leaf},{spines}", n_links)
    if leaves % nics_per_server or (leaves == nics_per_server and hosts_per_leaf == 1):
        allowed = f"a number that divides {leaves} leaves, with two servers at least"
        raise bad_value("nics_per_server", nics_per_server, allowed)
    names = [f"host{i}" for i in range(leaves * hosts_per_leaf)]
    leaf = [f"leaf{i}" for i in range(leaves)]
    spine = [f"spine{i}" for i in range(spines)]
    rates = enumerate(host_rates(names, gbps))
    links = [Link(h, leaf[i // hosts_per_leaf], r, delay_us) for i, (h, r) in rates]
    spine_delay = delay_us if uplink_delay_us is None else uplink_delay_us
    links += [
        Link(a, b, uplink_gbps, spine_delay) for a in leaf for b in spine for _ in range(parallel)
    ]
    several = f"x{parallel}" if parallel > 1 else ""
    bonded = f"-nics{nics_per_server}" if nics_per_server > 1 else ""
    place = [divmod(h, hosts_per_leaf) for h in range(len(names))]
    return from_links(
        f"leaf-spine:{leaves},{hosts_per_leaf},{spines}{several}{bonded}",
        names,
        leaf + spine,
        links,
        kinds={"up": "leaf-up", "down": "spine-down"},
        server=[lf // nics_per_server * hosts_per_leaf + i for lf, i in place],
    )


def acc_testbed() -> Topology:
    """The testbed of ACC (Yan et al., SIGCOMM'21, §5.1): 24 servers with two NICs, 4 leaves.

    25 Gb/s NICs, each server's two on the two leaves of a pair; every leaf has four 100 Gb/s links
    to two spines. Propagation delays, switches included, are such that the round trip of an empty
    packet takes the paper's averages: 2.32 µs under one leaf, 6.13 µs between leaves.

    Returns:
        A topology of 48 hosts (NICs) and 80 ports.
    """
    return leaf_spine(
        4, 12, 2, parallel=2, nics_per_server=2, delay_us=0.58, uplink_delay_us=0.9525
    )


def fat_tree(
    k: int, *, gbps: Rates = 25.0, uplink_gbps: float | None = None, delay_us: float = 1.0
) -> Topology:
    """A three-tier fat-tree of switches with `k` ports (Al-Fares et al., SIGCOMM'08, §2.2).

    `k` pods of `k / 2` edge and `k / 2` aggregation switches, `(k / 2)**2` cores, `k**3 / 4` hosts.
    Hosts of different pods have `(k / 2)**2` equal-cost paths, all of which are used.

    Args:
        k: ports of a switch, an even number >= 2.
        gbps: rate of the host links, or of each, Gb/s.
        uplink_gbps: rate of the links between switches, Gb/s; that of the fastest host if None.
            With half of that the network is oversubscribed 2:1.
        delay_us: one-way propagation delay of every link, µs.

    Returns:
        A topology with `5 k**3 / 4` ports of the kinds `up`, `down` and `host`.

    Raises:
        ValueError: `k` is odd or too small.
    """
    at_least("k", k, 2)
    if k % 2:
        raise bad_value("k", k, "an even number >= 2")
    check_links(f"fat-tree:{k}", 3 * k**3 // 4)
    half = k // 2
    core = [f"core{i}" for i in range(half * half)]
    up = [[f"agg{p}.{i}" for i in range(half)] for p in range(k)]
    edge = [[f"edge{p}.{i}" for i in range(half)] for p in range(k)]
    names = [f"host{i}" for i in range(k * half * half)]
    flat = [switch for pod in edge for switch in pod]
    rates = host_rates(names, gbps)
    switch_gbps = max(r for _, r in rates) if uplink_gbps is None else uplink_gbps
    links = [Link(h, flat[i // half], r, delay_us) for i, (h, r) in enumerate(rates)]
    for p in range(k):
        links += [Link(a, b, switch_gbps, delay_us) for a in edge[p] for b in up[p]]
        for i, switch in enumerate(up[p]):
            links += [
                Link(switch, c, switch_gbps, delay_us) for c in core[i * half : (i + 1) * half]
            ]
    switches = [*flat, *(switch for pod in up for switch in pod), *core]
    return from_links(f"fat-tree:{k}", names, switches, links)


_SHAPES: dict[str, tuple[Callable[..., Topology], int]] = {
    "star": (star, 1),
    "dumbbell": (dumbbell, 2),
    "parking-lot": (parking_lot, 1),
    "leaf-spine": (leaf_spine, 3),
    "fat-tree": (fat_tree, 1),
}

_MIDDLE = ("dumbbell", "leaf-spine", "fat-tree")
"""Shapes whose links between switches have a rate of their own."""


def is_shape(text: str) -> bool:
    """Whether a text begins with the name of a shape, as `parse_topology` takes it."""
    return text.partition(":")[0] in _SHAPES


def parse_topology(text: str, *, gbps: float, uplink_gbps: float, delay_us: float) -> Topology:
    """Build a topology from its short form, as the command line takes it.

    Args:
        text: `star:HOSTS`, `dumbbell:LEFT,RIGHT`, `parking-lot:HOPS`,
            `leaf-spine:LEAVES,HOSTS_PER_LEAF,SPINES` or `fat-tree:K`.
        gbps: rate of the host links, Gb/s.
        uplink_gbps: rate of the links between switches where the shape has its own, Gb/s.
        delay_us: one-way propagation delay of every link, µs.

    Raises:
        ValueError: unknown shape or wrong number of sizes.
    """
    kind, _, sizes = text.partition(":")
    if not is_shape(text):
        raise unknown_name("topology", kind, _SHAPES)
    build, arity = _SHAPES[kind]
    try:
        numbers = [int(x) for x in sizes.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != arity:
        raise bad_value("topology", text, f"{kind}: followed by {arity} integer(s), comma between")
    extra = {"uplink_gbps": uplink_gbps} if kind in _MIDDLE else {}
    return build(*numbers, gbps=gbps, delay_us=delay_us, **extra)
