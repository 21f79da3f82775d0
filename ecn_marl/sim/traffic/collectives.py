"""Graphs of flows: collectives with the textbook amounts of data, and graphs from files.

Every builder returns the nodes of a `graphs.Graph`; ids say which step and hosts. References:
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC
69(2), 2009 (ring); Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19(1), 2005 (tree, all-to-all); Li et al., "Scaling distributed machine
learning with the parameter server", OSDI'14. The file format follows the idea of GOAL (Hoefler et
al., "LogGOPSim", 2010) and Chakra: nodes, and the nodes that each waits for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.traffic.flow_checks import MAX_SIZE, host_group
from ecn_marl.sim.traffic.graphs import Node, check_nodes

FIELDS = ("id", "src", "dst", "bytes", "delay_us", "after")
"""Fields of a node in a file; the last two may be left out."""


def ring_all_reduce(hosts: Sequence[int], size: int) -> tuple[Node, ...]:
    """All-reduce on a ring: n - 1 steps of reduce-scatter, then n - 1 of all-gather.

    In each of the 2(n - 1) steps every host sends the chunk that it has just received (1/n of the
    data) to the next one: 2(n - 1) `size` bytes in all, the minimum.

    Args:
        hosts: n hosts, at least 2, in the order of the ring.
        size: data of each host, bytes, at least n.

    Raises:
        ValueError: fewer than 2 hosts or one twice, or less than a byte per chunk.
    """
    ring = host_group("hosts", hosts, 2)
    n = len(ring)
    parts = _parts(size, n)
    return tuple(
        Node(
            id=f"step {step} from {ring[i]}",
            src=ring[i],
            dst=ring[(i + 1) % n],
            bytes=parts[(i - step) % n],
            after=(f"step {step - 1} from {ring[i - 1]}",) if step else (),
        )
        for step in range(2 * (n - 1))
        for i in range(n)
    )


def tree_all_reduce(hosts: Sequence[int], size: int) -> tuple[Node, ...]:
    """All-reduce on a binary tree: all data up to the root, and the sum down again.

    Every host but the root sends all its data to its parent once it has those of its children,
    and gets the sum back: 2(n - 1) `size` bytes in all.

    Args:
        hosts: n hosts, at least 2; host i is the parent of hosts 2i + 1 and 2i + 2.
        size: data of each host, bytes.

    Raises:
        ValueError: fewer than 2 hosts or one twice, or no data.
    """
    tree = host_group("hosts", hosts, 2)
    n = len(tree)
    (size,) = _parts(size, 1)

    def children(i: int) -> list[int]:
        return [c for c in (2 * i + 1, 2 * i + 2) if c < n]

    up = [
        Node(f"up from {tree[i]}", tree[i], tree[(i - 1) // 2], size, 0.0,
             tuple(f"up from {tree[c]}" for c in children(i)))
        for i in range(1, n)
    ]  # fmt: skip
    sums = tuple(f"up from {tree[c]}" for c in children(0))
    down = [
        Node(f"down to {tree[i]}", tree[(i - 1) // 2], tree[i], size, 0.0,
             (f"down to {tree[(i - 1) // 2]}",) if i > 2 else sums)
        for i in range(1, n)
    ]  # fmt: skip
    return (*up, *down)


def all_to_all(hosts: Sequence[int], size: int) -> tuple[Node, ...]:
    """Every host sends a part of its data to each other host, all at once.

    Args:
        hosts: n hosts, at least 2.
        size: data of each host, bytes, at least n: part j of n goes to host j, so that
            (n - 1) `size` bytes are sent in all, to the rounding of parts.

    Raises:
        ValueError: fewer than 2 hosts or one twice, or less than a byte per part.
    """
    group = host_group("hosts", hosts, 2)
    parts = _parts(size, len(group))
    return tuple(
        Node(f"{a} to {b}", a, b, parts[j]) for a in group for j, b in enumerate(group) if a != b
    )


def parameter_server(workers: Sequence[int], servers: Sequence[int], size: int) -> tuple[Node, ...]:
    """Workers push gradients to servers and pull parameters.

    Each server holds a part of the parameters. It sends it to all workers once it has the gradients
    of all: 2 `size` bytes per worker.

    Args:
        workers: hosts that compute.
        servers: hosts that hold the parameters, others than the workers.
        size: parameters, bytes, at least one per server.

    Raises:
        ValueError: no worker or server, one twice or both, or less than a byte per server.
    """
    workers, servers = host_group("workers", workers, 1), host_group("servers", servers, 1)
    if set(workers) & set(servers):
        raise bad_value("servers", servers, "other hosts than the workers")
    parts = list(zip(servers, _parts(size, len(servers)), strict=True))
    push = [Node(f"push {w} to {s}", w, s, part) for s, part in parts for w in workers]
    pull = [
        Node(f"pull {w} from {s}", s, w, part, 0.0, tuple(f"push {v} to {s}" for v in workers))
        for s, part in parts
        for w in workers
    ]
    return (*push, *pull)


def stripe_read(servers: Sequence[int], client: int, size: int, width: int) -> tuple[Node, ...]:
    """A file's stripe that a client reads from storage, all its parts at once.

    The step is over when the last part has arrived: the more parts, the deeper the incast, and the
    more a single late one costs.

    Args:
        servers: hosts that store it; parts are dealt to them in turn.
        client: the host that reads, not one of them.
        size: bytes of the stripe, at least one per part.
        width: number of parts, at least 1.

    Raises:
        ValueError: no server or one twice, the client among them, no part, or less than a byte per
            part.
    """
    stored = host_group("servers", servers, 1)
    if client in stored:
        raise bad_value("client", client, "another host than the servers")
    check_value("width", width, Whole(low=1))
    return tuple(
        Node(f"part {i} to {client}", stored[i % len(stored)], client, part)
        for i, part in enumerate(_parts(size, width))
    )


def read_graph(path: str | Path) -> tuple[Node, ...]:
    """Read the nodes of a graph from a JSON file.

    The file holds `{"nodes": [...]}`, every node an object with `id` (a number or text), `src` and
    `dst` (numbers of hosts), `bytes` (payload, an integer >= 1), and optionally `delay_us` (time
    from its last dependency to its start, µs, default 0) and `after` (ids of the nodes that have to
    finish before, default none):

        {"nodes": [
          {"id": "push", "src": 0, "dst": 1, "bytes": 1000000},
          {"id": "pull", "src": 1, "dst": 0, "bytes": 500000, "delay_us": 20, "after": ["push"]}
        ]}

    Args:
        path: the file.

    Raises:
        OSError: it cannot be read.
        ValueError: not such a file, or not a graph (see `graphs.check_nodes`); the error names the
            file, the node and the field.
    """
    where = str(path)
    try:
        tree = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{where}: not JSON: {error}") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("nodes"), list):
        raise bad_value(where, type(tree).__name__, 'an object with a list of "nodes"')
    for name in tree:
        if name != "nodes":
            raise unknown_name(f"field in {where}:", str(name), ("nodes",))
    nodes = [_node(where, i, entry) for i, entry in enumerate(tree["nodes"])]
    check_nodes(nodes, where)
    return tuple(nodes)


def _node(where: str, row: int, entry: object) -> Node:
    """A node of a file; `check_nodes` checks its values."""
    if not isinstance(entry, dict):
        raise bad_value(f"{where}: nodes[{row}]", entry, "an object with the fields of a node")
    place = f"{where}: node {entry.get('id', f'number {row}')!r}"
    for name in entry:
        if name not in FIELDS:
            raise unknown_name(f"field in {place}:", name, FIELDS)
    for name in FIELDS[:4]:
        if name not in entry:
            raise bad_value(f"{place}: {name}", None, "a value: the field is missing")
    after = entry.get("after", [])
    if not isinstance(after, list):
        raise bad_value(f"{place}: after", after, "a list of ids")
    return Node(**{**entry, "after": tuple(after)})


def _parts(size: int, n: int) -> list[int]:
    """`size` bytes in n parts that differ by at most one byte."""
    check_value("size", size, Whole(low=n, high=n * MAX_SIZE, unit="bytes"))
    return [int(size) * (i + 1) // n - int(size) * i // n for i in range(n)]
