"""Equal-cost paths between edge switches, the order of queues, and both as arrays.

Paths are computed per destination: the switches on shortest paths to an edge switch form a graph
without cycles, and its paths are built from the end. A pair of switches keeps all its equal-cost
paths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ecn_marl.errors import InvalidInput

Neighbours = Mapping[str, Sequence[str]]
"""The nodes that each node has a link to."""

Hop = tuple[str, str]
"""All links from a switch to a peer."""

End = tuple[str, str, int]
"""A port: (switch, peer, which of the parallel links)."""

MOST_ENTRIES = 2**26
"""Largest table of paths, entries: 256 MiB."""


@dataclass(frozen=True)
class Route:
    """Ports in the order in which they are served, and all paths in terms of them.

    Attributes:
        ends: (switch, peer, number of the parallel link) of each of the P ports, sorted by level.
        level: level of each port.
        edge: index of each host's edge switch among those with hosts, length H.
        routes: int32 `[E, E, K, L - 1]`, see `Topology`.
        n_paths: int32 `[E, E]`.
        last: int32 `[H]`.
        level_bounds: first port of every level, and one past the last.
    """

    ends: tuple[End, ...]
    level: tuple[int, ...]
    edge: tuple[int, ...]
    routes: np.ndarray
    n_paths: np.ndarray
    last: np.ndarray
    level_bounds: tuple[int, ...]


def compiled_routes(
    switches: Sequence[str],
    neighbours: Neighbours,
    edge_switch: Mapping[str, str],
    parallel: Mapping[Hop, int],
) -> Route:
    """Compile a network.

    Args:
        switches: switch names.
        neighbours: of every host and switch.
        edge_switch: of every host.
        parallel: number of links of every (node, neighbour).

    Raises:
        ValueError: an edge switch cannot reach another, shortest paths allow a cycle of queues, or
            there are more equal-cost paths than a table of `MOST_ENTRIES` holds.
    """
    hosted = set(edge_switch.values())
    edges = [s for s in switches if s in hosted]
    onwards = {end: _onwards(end, edges, switches, neighbours) for end in edges}
    level = _levels(onwards, edge_switch)
    ends = [(s, t, k) for s in switches for t in neighbours[s] for k in range(parallel[s, t])]
    # Ports on no shortest path carry nothing, so any level does for them.
    ends.sort(key=lambda end: level.get(end[:2], 0))
    number = {end: i for i, end in enumerate(ends)}
    levels = [level.get(end[:2], 0) for end in ends]
    routes, n_paths = _tables(edges, onwards, parallel, number, np.array(levels))
    per_level = np.bincount(levels, minlength=routes.shape[-1] + 1)
    edge_index = {s: i for i, s in enumerate(edges)}
    return Route(
        ends=tuple(ends),
        level=tuple(levels),
        edge=tuple(edge_index[s] for s in edge_switch.values()),
        routes=routes,
        n_paths=n_paths,
        last=np.array([number[s, h, 0] for h, s in edge_switch.items()], np.int32),
        level_bounds=tuple(int(x) for x in np.concatenate([[0], np.cumsum(per_level)])),
    )


def distances(
    start: Iterable[str], neighbours: Neighbours, among: set[str] | None = None
) -> dict[str, int]:
    """Hops from the nearest start node to every node that can be reached (within `among`)."""
    distance = dict.fromkeys(start, 0)
    todo = deque(distance)
    while todo:
        node = todo.popleft()
        for other in neighbours[node]:
            if other not in distance and (among is None or other in among):
                distance[other] = distance[node] + 1
                todo.append(other)
    return distance


Onwards = dict[str, list[str]]
"""Next switches on shortest paths to one edge switch, nearest switches first."""


def _onwards(
    end: str, edges: Sequence[str], switches: Sequence[str], neighbours: Neighbours
) -> Onwards:
    """Shortest paths to an edge switch from all others; switches on none of them are left out."""
    distance = distances([end], neighbours, set(switches))
    for edge in edges:
        if edge not in distance:
            raise InvalidInput(f"no path from switch {edge!r} to switch {end!r}")
    steps: Onwards = {}
    todo, visited = deque(edges), set(edges)
    while todo:
        node = todo.popleft()
        nearer = distance[node] - 1
        steps[node] = [t for t in neighbours[node] if distance.get(t, -1) == nearer >= 0]
        unvisited = [t for t in steps[node] if t not in visited]
        visited.update(unvisited)
        todo.extend(unvisited)
    return dict(sorted(steps.items(), key=lambda item: distance[item[0]]))


def _levels(onwards: Mapping[str, Onwards], edge_switch: Mapping[str, str]) -> dict[Hop, int]:
    """Level of every port: the highest for last hops, others as high as their followers allow.

    Counting from the end keeps all ports of one kind on one level in the usual topologies.
    """
    followers: dict[Hop, set[Hop]] = {(s, h): set() for h, s in edge_switch.items()}
    to_hosts: dict[str, set[Hop]] = {}
    for host, switch in edge_switch.items():
        to_hosts.setdefault(switch, set()).add((switch, host))
    for end, steps in onwards.items():
        for node, next_nodes in steps.items():
            for nxt in next_nodes:
                ports = {(nxt, t) for t in steps[nxt]} if nxt != end else to_hosts[end]
                followers.setdefault((node, nxt), set()).update(ports)
    height: dict[Hop, int] = {}

    def visit(port: Hop, trail: tuple[Hop, ...]) -> int:
        if port in trail:
            raise InvalidInput(f"shortest paths allow a cycle of queues at {port}")
        if port not in height:
            height[port] = 1 + max((visit(b, (*trail, port)) for b in followers[port]), default=-1)
        return height[port]

    for port in followers:
        visit(port, ())
    top = max(height.values())
    return {port: top - h for port, h in height.items()}


def _tables(
    edges: Sequence[str],
    onwards: Mapping[str, Onwards],
    parallel: Mapping[Hop, int],
    number: Mapping[End, int],
    level: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """`routes` and `n_paths` of a `Route`."""
    n = len(edges)
    n_paths = [_count(onwards[end], parallel) for end in edges]
    # Python integers: numbers of paths may overflow int64 before they are refused.
    counts = np.array([[to_end[start] for to_end in n_paths] for start in edges], object)
    max_paths, middle = int(counts.max()), int(level.max())
    if n * n * max_paths * max(middle, 1) > MOST_ENTRIES:
        raise InvalidInput(
            f"{max_paths} equal-cost paths between two of {n} edge switches are too many: expected "
            f"a table of at most {MOST_ENTRIES} entries"
        )
    routes = np.full((n, n, max_paths, middle), len(number), np.int32)
    for j, end in enumerate(edges):
        steps = onwards[end]
        paths: dict[str, np.ndarray] = {end: np.zeros((1, 0), np.int32)}
        # Nearest switches first, so that the paths of the next ones are there already.
        for node, next_nodes in steps.items():
            if node != end:
                paths[node] = np.concatenate(
                    [
                        _prepended(number[node, nxt, k], paths[nxt])
                        for nxt in next_nodes
                        for k in range(parallel[node, nxt])
                    ]
                )
        for i, start in enumerate(edges):
            rows = paths[start]
            routes[i, j, np.arange(len(rows))[:, None], level[rows]] = rows
    return routes, counts.astype(np.int32)


def _prepended(port: int, paths: np.ndarray) -> np.ndarray:
    """Paths with one more port in front."""
    return np.concatenate([np.full((len(paths), 1), port, np.int32), paths], axis=1)


def _count(steps: Onwards, parallel: Mapping[Hop, int]) -> dict[str, int]:
    """Number of shortest paths from every switch, every parallel link a path of its own."""
    n_paths: dict[str, int] = {}
    for node, next_nodes in steps.items():
        n_paths[node] = (
            sum(parallel[node, nxt] * n_paths[nxt] for nxt in next_nodes) if next_nodes else 1
        )
    return n_paths
