"""Traffic matrices: which host sends to which, as relative weights of (source, destination).

A matrix is a tuple of rows, row i the weights of the destinations of host i, so that a source with
one stays hashable. Rows need not sum to one: a row twice as heavy sends twice as many flows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ecn_marl._checks import check_seed
from ecn_marl._errors import bad_value
from ecn_marl.sim.network.servers import Server, apart
from ecn_marl.sim.network.topology import Topology

Matrix = tuple[tuple[float, ...], ...]


def as_matrix(weights: np.ndarray | Sequence[Sequence[float]]) -> Matrix:
    """A matrix of numbers as tuples.

    Args:
        weights: weights >= 0, some above 0, none from a host to itself, `[H, H]`.

    Raises:
        ValueError: weights of another form.
    """
    try:
        w = np.array(weights, np.float64)
    except (TypeError, ValueError):
        raise bad_value("matrix", weights, "rows of numbers, one row for each host") from None
    square = w.ndim == 2 and w.shape[0] == w.shape[1] and w.shape[0] >= 2
    if not square or not np.isfinite(w).all() or (w < 0).any() or w.sum() <= 0:
        raise bad_value("matrix", w.shape, "finite weights >= 0 of H x H hosts, some above 0")
    if np.diagonal(w).any():
        host = int(np.flatnonzero(np.diagonal(w))[0])
        raise bad_value(f"matrix[{host}][{host}]", w[host, host], "0: no host sends to itself")
    return tuple(tuple(float(x) for x in row) for row in w)


def uniform(hosts: int) -> Matrix:
    """Equal weights for all pairs of different hosts."""
    return as_matrix(1.0 - np.eye(hosts))


def rack_local(topology: Topology, share: float) -> Matrix:
    """A share of the flows stays in the rack (under one edge switch), evenly; the rest leaves it.

    Args:
        topology: the network; every rack has at least two hosts, and there are at least two racks.
        share: share of the flows within a rack, in [0, 1].

    Raises:
        ValueError: a share out of range, or a network without such racks.
    """
    if not 0.0 <= share <= 1.0:
        raise bad_value("share", share, "a share in [0, 1]")
    edge = np.array(topology.edge)
    same = edge[:, None] == edge[None, :]
    near, far = same & ~np.eye(len(edge), dtype=bool), ~same
    if (share > 0 and not near.any(1).all()) or (share < 1 and not far.any(1).all()):
        raise bad_value("topology", topology.name, "two racks at least, of two hosts at least")
    # With a share of 0 or 1, rows of hosts without neighbours or without other racks are zeros.
    within = near / np.maximum(near.sum(1, keepdims=True), 1)
    across = far / np.maximum(far.sum(1, keepdims=True), 1)
    return as_matrix(share * within + (1.0 - share) * across)


def by_load(sending: Sequence[float], receiving: Sequence[float]) -> Matrix:
    """Hosts that send and receive unequally, weights `sending[i] * receiving[j]` (gravity model).

    Args:
        sending: relative rate at which each host sends, `[H]`.
        receiving: relative rate at which each host receives, `[H]`.
    """
    weights = np.outer(np.array(sending, float), np.array(receiving, float))
    np.fill_diagonal(weights, 0.0)
    return as_matrix(weights)


def permutation(hosts: int, seed: int = 0) -> Matrix:
    """Every host sends to one other and receives from one other: a random cycle through all."""
    check_seed(seed)
    order = np.random.default_rng(seed).permutation(hosts)
    weights = np.zeros((hosts, hosts))
    weights[order, np.roll(order, -1)] = 1.0
    return as_matrix(weights)


def shift(hosts: int, by: int) -> Matrix:
    """Host i sends to host i + by, modulo the number of hosts."""
    if by % hosts == 0:
        raise bad_value("by", by, f"a number that {hosts} hosts do not divide")
    return as_matrix(np.roll(np.eye(hosts), by, axis=1))


def incast_to(hosts: int, receivers: Sequence[int], share: float) -> Matrix:
    """A share of the flows goes to a few hot hosts, the rest evenly to all others.

    Args:
        hosts: number of hosts.
        receivers: the hot ones.
        share: share of the flows that goes to them, in (0, 1).
    """
    if not 0.0 < share < 1.0:
        raise bad_value("share", share, "a share in (0, 1)")
    if not 0 < len(set(receivers)) < hosts or not set(receivers) <= set(range(hosts)):
        raise bad_value("receivers", receivers, f"different hosts, not all of 0 to {hosts - 1}")
    hot = np.isin(np.arange(hosts), list(receivers))
    weights = np.where(hot, share / hot.sum(), (1.0 - share) / (~hot).sum()) * (1.0 - np.eye(hosts))
    column = weights.sum(0)
    target = np.where(hot, share / hot.sum(), (1.0 - share) / (~hot).sum())
    return as_matrix(weights * target / np.maximum(column, math.ulp(0.0)))


def between_servers(matrix: Matrix, server: Server) -> Matrix:
    """A matrix without weights between NICs of one server; every host sends as much as before.

    Args:
        matrix: weights of the hosts (NICs), `[H, H]`.
        server: server of each host, see `Topology.server`.

    Raises:
        ValueError: a host that sends to no other server.
    """
    weights = np.array(matrix)
    between = weights * apart(server)
    rows, kept_rows = weights.sum(1), between.sum(1)
    isolated = np.flatnonzero((rows > 0) & (kept_rows <= 0))
    if isolated.size:
        host = int(isolated[0])
        raise bad_value(f"matrix[{host}]", matrix[host], "a weight to a host of another server")
    return as_matrix(between * (rows / np.where(kept_rows > 0, kept_rows, 1.0))[:, None])


def of_servers(topology: Topology, weights: np.ndarray | Sequence[Sequence[float]]) -> Matrix:
    """A matrix of servers as one of their NICs, which share the weights evenly.

    Args:
        topology: the network.
        weights: weights of its servers, `[S, S]`, as `as_matrix` takes them.

    Raises:
        ValueError: weights of another form, or for another number of servers.
    """
    server = np.array(topology.server)
    count = np.bincount(server)
    w = np.array(as_matrix(weights))
    if len(w) != len(count):
        raise bad_value("matrix", f"{len(w)} rows", f"one for each of {len(count)} servers")
    return as_matrix((w / np.outer(count, count))[np.ix_(server, server)])
