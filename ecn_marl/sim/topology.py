"""Topologies: switches, links and equal-cost paths, compiled to arrays.

A `Topology` is built once on the host with numpy. Every directed link that leaves a switch is an
egress *port* with a queue; a directed link that leaves a host is that host's NIC. Ports are sorted
by *level*: on every path the levels strictly increase, so one pass over the levels moves bytes
through all hops of the network in a single substep (fluid that finds empty queues crosses the
network without artificial per-hop delay).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ecn_marl._errors import bad_value

GBPS = 125.0
"""Bytes per microsecond in one Gb/s."""

KB = 1000.0
"""Bytes in one KB, the unit of ECN thresholds."""

MIB = float(2**20)
"""Bytes in one MiB, the unit of switch buffers."""


Hop = tuple[str, str]
"""A port on the way: (switch, peer)."""

Hops = tuple[Hop, ...]
"""A path: the ports a packet leaves by, in order."""


@dataclass(frozen=True)
class Link:
    """One full-duplex link between two nodes.

    Attributes:
        a: name of one end.
        b: name of the other end.
        gbps: rate of each direction, Gb/s.
        delay_us: one-way propagation delay, µs.
    """

    a: str
    b: str
    gbps: float
    delay_us: float


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
    """

    switch: str
    peer: str
    gbps: float
    delay_us: float
    kind: str
    level: int


@dataclass(frozen=True)
class Topology:
    """A network of hosts and switches with all its shortest paths.

    `P` is the number of ports, `H` of hosts, `S` of switches, `L` of levels, `E` of switches with
    hosts (edges), `K` the largest number of equal-cost paths.

    Attributes:
        name: for messages and run directories, e.g. `star:9`.
        hosts: host names, length H.
        switches: switch names, length S.
        ports: the P egress ports, sorted by level.
        nic_gbps: rate of each host's NIC, Gb/s, length H.
        nic_delay_us: propagation delay from each host to its switch, µs, length H.
        edge: index in `0..E-1` of each host's edge switch, length H.
        routes: int32 `[E, H, K, L]`, port index at each level of the k-th path from an edge
            switch to a host, `P` where the path has no hop at that level.
        n_paths: int32 `[E, H]`, number of equal-cost paths.
        level_bounds: `L + 1` offsets; level `l` holds ports `bounds[l]:bounds[l + 1]`.
    """

    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    ports: tuple[Port, ...]
    nic_gbps: tuple[float, ...]
    nic_delay_us: tuple[float, ...]
    edge: tuple[int, ...]
    routes: np.ndarray
    n_paths: np.ndarray
    level_bounds: tuple[int, ...]

    def __hash__(self) -> int:
        """Hash by what identifies the network; the route table follows from it."""
        return hash((self.name, self.hosts, self.ports, self.nic_gbps, self.nic_delay_us))

    def __eq__(self, other: object) -> bool:
        """Equal if names, ports, rates and delays are equal."""
        if not isinstance(other, Topology):
            return NotImplemented
        mine = (self.name, self.hosts, self.ports, self.nic_gbps, self.nic_delay_us)
        return mine == (
            other.name,
            other.hosts,
            other.ports,
            other.nic_gbps,
            other.nic_delay_us,
        )

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return len(self.hosts)

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
        """`switch->peer` of every port."""
        return tuple(f"{p.switch}->{p.peer}" for p in self.ports)

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

    def _edge_names(self) -> list[str]:
        names: dict[int, str] = {}
        number = {host: i for i, host in enumerate(self.hosts)}
        for p in self.ports:
            if p.peer in number:
                names[self.edge[number[p.peer]]] = p.switch
        return [names[i] for i in range(len(names))]


def from_links(
    name: str,
    hosts: Sequence[str],
    switches: Sequence[str],
    links: Sequence[Link],
    *,
    max_paths: int = 16,
    kinds: dict[str, str] | None = None,
) -> Topology:
    """Build a topology from a list of links.

    Args:
        name: name of the network.
        hosts: host names; each must have exactly one link, to a switch.
        switches: switch names.
        links: full-duplex links.
        max_paths: equal-cost shortest paths kept per pair of edge switch and host.
        kinds: names for the port kinds `up` and `down`, e.g. `{"up": "leaf-up"}`.

    Returns:
        The compiled topology.

    Raises:
        ValueError: two nodes have one name, a link names an unknown node, joins a node with itself
            or two nodes again, or has a rate or delay out of range, a host has no or several
            links, a host cannot be reached, or the shortest paths allow a cycle of queues (no
            order of levels exists; such a network can also deadlock under PFC).
    """
    neighbours = _adjacency(hosts, switches, links)
    by_ends = {(ln.a, ln.b): ln for ln in links} | {(ln.b, ln.a): ln for ln in links}
    home = {h: neighbours[h][0] for h in hosts}
    edges = [s for s in switches if s in set(home.values())]
    host_set = set(hosts)
    paths: dict[tuple[str, str], list[Hops]] = {}
    for dst in hosts:
        distance = _distances(dst, neighbours, host_set)
        for e in edges:
            if e not in distance:
                raise ValueError(f"topology {name!r}: no path from switch {e!r} to host {dst!r}")
            paths[e, dst] = _shortest_paths(e, dst, neighbours, distance, max_paths)
    level = _levels(paths.values(), name)
    ends = [(s, t) for s in switches for t in neighbours[s]]
    ends.sort(key=lambda st: level.get(st, 0))
    tier = _tiers(switches, hosts, neighbours)
    label = {"up": "up", "down": "down"} | (kinds or {})
    ports = tuple(
        Port(
            s,
            t,
            by_ends[s, t].gbps,
            by_ends[s, t].delay_us,
            "host" if t in host_set else label["up" if tier[t] > tier[s] else "down"],
            level.get((s, t), 0),
        )
        for s, t in ends
    )
    index = {st: i for i, st in enumerate(ends)}
    routes, n_paths = _route_table(paths, edges, list(hosts), index, level)
    per_level = np.bincount([p.level for p in ports], minlength=routes.shape[-1])
    return Topology(
        name=name,
        hosts=tuple(hosts),
        switches=tuple(switches),
        ports=ports,
        nic_gbps=tuple(by_ends[h, home[h]].gbps for h in hosts),
        nic_delay_us=tuple(by_ends[h, home[h]].delay_us for h in hosts),
        edge=tuple(edges.index(home[h]) for h in hosts),
        routes=routes,
        n_paths=n_paths,
        level_bounds=tuple(int(x) for x in np.concatenate([[0], np.cumsum(per_level)])),
    )


def star(hosts: int, *, gbps: float = 25.0, delay_us: float = 1.0) -> Topology:
    """Hosts around one switch.

    Args:
        hosts: number of hosts, at least 2.
        gbps: rate of every link, Gb/s.
        delay_us: one-way propagation delay of every link, µs.

    Returns:
        A topology with `hosts` ports, port `i` towards host `i`.
    """
    _at_least("hosts", hosts, 2)
    names = [f"host{i}" for i in range(hosts)]
    links = [Link(h, "switch0", gbps, delay_us) for h in names]
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
    _at_least("left", left, 1)
    _at_least("right", right, 1)
    names = [f"host{i}" for i in range(left + right)]
    middle = gbps if uplink_gbps is None else uplink_gbps
    far = delay_us if uplink_delay_us is None else uplink_delay_us
    links = [Link("switch0", "switch1", middle, far)]
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
    _at_least("hops", hops, 1)
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
    gbps: float = 25.0,
    uplink_gbps: float = 100.0,
    delay_us: float = 1.0,
    uplink_delay_us: float | None = None,
) -> Topology:
    """A two-tier Clos network: every leaf has one link to every spine.

    Args:
        leaves: number of leaf switches.
        hosts_per_leaf: hosts on each leaf; host `h` is on leaf `h // hosts_per_leaf`.
        spines: number of spine switches.
        gbps: rate of the host links, Gb/s.
        uplink_gbps: rate of the links between leaves and spines, Gb/s.
        delay_us: one-way propagation delay of every link, µs.
        uplink_delay_us: that of the links between leaves and spines, µs; `delay_us` if None.

    Returns:
        A topology with `leaves * hosts_per_leaf + 2 * leaves * spines` ports of the kinds
        `leaf-up`, `spine-down` and `host`.
    """
    _at_least("leaves", leaves, 2)
    _at_least("hosts_per_leaf", hosts_per_leaf, 1)
    _at_least("spines", spines, 1)
    names = [f"host{i}" for i in range(leaves * hosts_per_leaf)]
    leaf = [f"leaf{i}" for i in range(leaves)]
    spine = [f"spine{i}" for i in range(spines)]
    links = [Link(h, leaf[i // hosts_per_leaf], gbps, delay_us) for i, h in enumerate(names)]
    far = delay_us if uplink_delay_us is None else uplink_delay_us
    links += [Link(a, b, uplink_gbps, far) for a in leaf for b in spine]
    return from_links(
        f"leaf-spine:{leaves},{hosts_per_leaf},{spines}",
        names,
        leaf + spine,
        links,
        kinds={"up": "leaf-up", "down": "spine-down"},
    )


_SHAPES: dict[str, tuple[Callable[..., Topology], int]] = {
    "star": (star, 1),
    "dumbbell": (dumbbell, 2),
    "parking-lot": (parking_lot, 1),
    "leaf-spine": (leaf_spine, 3),
}


def parse_topology(text: str, *, gbps: float, uplink_gbps: float, delay_us: float) -> Topology:
    """Build a topology from its short form, as the command line takes it.

    Args:
        text: `star:HOSTS`, `dumbbell:LEFT,RIGHT`, `parking-lot:HOPS` or
            `leaf-spine:LEAVES,HOSTS_PER_LEAF,SPINES`.
        gbps: rate of the host links, Gb/s.
        uplink_gbps: rate of the links between switches where the shape has its own, Gb/s.
        delay_us: one-way propagation delay of every link, µs.

    Raises:
        ValueError: unknown shape or wrong number of sizes.
    """
    from ecn_marl._errors import unknown_name

    kind, _, sizes = text.partition(":")
    if kind not in _SHAPES:
        raise unknown_name("topology", kind, _SHAPES)
    build, arity = _SHAPES[kind]
    try:
        numbers = [int(x) for x in sizes.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != arity:
        raise bad_value("topology", text, f"{kind}: followed by {arity} integer(s), comma between")
    extra = {"uplink_gbps": uplink_gbps} if kind in ("dumbbell", "leaf-spine") else {}
    return build(*numbers, gbps=gbps, delay_us=delay_us, **extra)


def _at_least(field: str, value: int, low: int) -> None:
    if value < low:
        raise bad_value(field, value, f"an integer >= {low}")


def _adjacency(
    hosts: Sequence[str], switches: Sequence[str], links: Sequence[Link]
) -> dict[str, list[str]]:
    neighbours: dict[str, list[str]] = {n: [] for n in (*hosts, *switches)}
    for node in neighbours:
        if [*hosts, *switches].count(node) > 1:
            raise bad_value("node name", node, "a name of its own for every host and switch")
    for ln in links:
        for end in (ln.a, ln.b):
            if end not in neighbours:
                raise bad_value("link end", end, "the name of a host or switch")
        if not ln.gbps > 0:
            raise bad_value("gbps", ln.gbps, "a rate > 0 Gb/s")
        if not ln.delay_us >= 0:
            raise bad_value("delay_us", ln.delay_us, "a delay >= 0 µs")
        if ln.b == ln.a or ln.b in neighbours[ln.a]:
            raise bad_value("link", (ln.a, ln.b), "two different nodes, not joined by another link")
        neighbours[ln.a].append(ln.b)
        neighbours[ln.b].append(ln.a)
    for h in hosts:
        if len(neighbours[h]) != 1 or neighbours[h][0] not in set(switches):
            raise bad_value(f"links of {h}", neighbours[h], "exactly one link, to a switch")
    return neighbours


def _distances(dst: str, neighbours: dict[str, list[str]], hosts: set[str]) -> dict[str, int]:
    """Hops to `dst` from every switch; hosts do not forward."""
    distance = {dst: 0}
    todo = deque([dst])
    while todo:
        node = todo.popleft()
        for other in neighbours[node]:
            if other not in distance and other not in hosts:
                distance[other] = distance[node] + 1
                todo.append(other)
    return distance


def _shortest_paths(
    src: str, dst: str, neighbours: dict[str, list[str]], distance: dict[str, int], limit: int
) -> list[Hops]:
    """Up to `limit` shortest paths as tuples of (switch, peer) ports."""
    if src == dst:
        return [()]
    found: list[Hops] = []
    for nxt in neighbours[src]:
        if distance.get(nxt, 1 << 30) == distance[src] - 1:
            for rest in _shortest_paths(nxt, dst, neighbours, distance, limit - len(found)):
                found.append(((src, nxt), *rest))
            if len(found) >= limit:
                break
    return found


def _levels(all_paths: Iterable[list[Hops]], name: str) -> dict[Hop, int]:
    """Level of every port: last hops share the highest, others as late as their followers allow.

    Counting from the end keeps all ports of one kind on one level in the usual topologies.
    """
    after: dict[Hop, set[Hop]] = {}
    for paths in all_paths:
        for path in paths:
            for a, b in itertools.pairwise(path):
                after.setdefault(a, set()).add(b)
            if path:
                after.setdefault(path[-1], set())
    height: dict[Hop, int] = {}

    def visit(port: Hop, trail: Hops) -> int:
        if port in trail:
            raise ValueError(f"topology {name!r}: shortest paths allow a cycle of queues at {port}")
        if port not in height:
            height[port] = 1 + max((visit(b, (*trail, port)) for b in after[port]), default=-1)
        return height[port]

    for port in after:
        visit(port, ())
    top = max(height.values())
    return {port: top - h for port, h in height.items()}


def _tiers(
    switches: Sequence[str], hosts: Sequence[str], neighbours: dict[str, list[str]]
) -> dict[str, int]:
    """Distance from the nearest host: 1 at the edge, growing towards the core."""
    tier = {h: 0 for h in hosts}
    todo = deque(hosts)
    while todo:
        node = todo.popleft()
        for other in neighbours[node]:
            if other not in tier:
                tier[other] = tier[node] + 1
                todo.append(other)
    return tier


def _route_table(
    paths: dict[tuple[str, str], list[Hops]],
    edges: list[str],
    hosts: list[str],
    index: dict[Hop, int],
    level: dict[Hop, int],
) -> tuple[np.ndarray, np.ndarray]:
    n_levels = max(level.values()) + 1
    k = max(len(p) for p in paths.values())
    routes = np.full((len(edges), len(hosts), k, n_levels), len(index), dtype=np.int32)
    n_paths = np.zeros((len(edges), len(hosts)), dtype=np.int32)
    for (e, dst), options in paths.items():
        i, j = edges.index(e), hosts.index(dst)
        n_paths[i, j] = len(options)
        for o, path in enumerate(options):
            for port in path:
                routes[i, j, o, level[port]] = index[port]
    return routes, n_paths
