"""Where nodes and ports of a network are drawn, and in which colour."""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np
from jaxtyping import Float

from ecn_marl.sim.network.topology import Topology

STOPS: tuple[tuple[float, str], ...] = (
    (0.0, "#dde2e8"),
    (0.02, "#b9d3ea"),
    (1.0, "#2f7fc1"),
    (1.0, "#ffd480"),
    (2.0, "#e07b00"),
    (2.0, "#8a1c00"),
    (2.5, "#4a0a00"),
)
"""Colours by `level`: blues below Kmin, ambers between Kmin and Kmax, dark red above.

Lightness falls within each of the three, and the hues stay apart without red-green vision.
"""

DARK_STOPS: tuple[tuple[float, str], ...] = (
    (0.0, "#3b434c"),
    (0.02, "#3f6285"),
    (1.0, "#6fb3ec"),
    (1.0, "#b97a12"),
    (2.0, "#ffc861"),
    (2.0, "#f0493a"),
    (2.5, "#ff9d93"),
)
"""The same levels and hues on a dark page, where lightness rises."""

TOP_LEVEL = STOPS[-1][0]
"""Levels are clipped here, at 1.5 Kmax."""

EMPTY = 1000.0
"""Queues below one packet, bytes, count as empty, even if Kmin is 0."""


def level(
    queue: Float[np.ndarray, "*n"], kmin: Float[np.ndarray, "*n"], kmax: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """Queue lengths on the scale of their thresholds.

    Args:
        queue: backlog, bytes.
        kmin: queue at which marking starts, bytes.
        kmax: queue at which every packet is marked, bytes.

    Returns:
        0 below `EMPTY`, 1 at `kmin`, 2 at `kmax`, `TOP_LEVEL` at half of `kmax` more and above.
    """
    # Kmin may be 0 and Kmax may equal it; all three are computed before one is chosen.
    below = queue / np.maximum(kmin, 1.0)
    ramp = 1.0 + (queue - kmin) / np.maximum(kmax - kmin, 1.0)
    above = 2.0 + (queue - kmax) / np.maximum(kmax, 1.0)
    chosen = np.where(queue < kmin, below, np.where(queue < kmax, ramp, above))
    return np.where(queue < EMPTY, 0.0, np.clip(chosen, 0.0, TOP_LEVEL))


def node_places(net: Topology) -> dict[str, tuple[float, float]]:
    """Places of all hosts and switches in the unit square, y upwards.

    Hosts of a single switch are placed around it. Otherwise nodes are placed in rows by their
    distance from the nearest host: hosts lowest, each below its switch.
    """
    if net.n_switches == 1:
        angle = np.linspace(0, 2 * np.pi, net.n_hosts, endpoint=False)
        ring = 0.5 + 0.42 * np.stack([np.sin(angle), np.cos(angle)], axis=1)
        hosts = {h: (float(x), float(y)) for h, (x, y) in zip(net.hosts, ring, strict=True)}
        return {net.switches[0]: (0.5, 0.5), **hosts}
    tier = _tiers(net)
    highest = max(tier.values())
    home = {p.peer: p.switch for p in net.ports if p.kind == "host"}
    by_switch = sorted(net.hosts, key=lambda host: net.switches.index(home[host]))
    places = _row(by_switch, 0.06)
    for height in range(1, highest + 1):
        row = [s for s in net.switches if tier[s] == height]
        y = 0.06 + 0.88 * height / highest if highest > 1 else 0.7
        even_places = _row(row, y)
        for switch in row:
            host_places = [places[host][0] for host in by_switch if home[host] == switch]
            x = float(np.mean(host_places)) if host_places else even_places[switch][0]
            places[switch] = (x, y)
    return places


def _row(names: list[str], y: float) -> dict[str, tuple[float, float]]:
    """Names side by side, with equal margins."""
    n = len(names)
    return {name: ((i + 0.5) / n, y) for i, name in enumerate(names)}


def _tiers(net: Topology) -> dict[str, int]:
    """Hops from every node to the nearest host."""
    tier = dict.fromkeys(net.hosts, 0)
    todo = deque(net.hosts)
    while todo:
        node = todo.popleft()
        for port in net.ports:
            if port.peer == node and port.switch not in tier:
                tier[port.switch] = tier[node] + 1
                todo.append(port.switch)
    return tier


def port_lines(net: Topology) -> Float[np.ndarray, "ports 2 2"]:
    """Line of every port, from its switch all the way to its peer.

    The two ports of a link between switches have the same line, in opposite directions: draw them
    `side_by_side`.

    Returns:
        Start and end, `[P, 2, (x, y)]`.
    """
    places = node_places(net)
    return np.array([[places[port.switch], places[port.peer]] for port in net.ports])


def side_by_side(
    net: Topology, lines: Float[np.ndarray, "ports 2 2"], gap: float
) -> Float[np.ndarray, "ports 2 2"]:
    """Lines of ports on a page, those between switches shifted to their right.

    So both directions of a link are visible from end to end.

    Args:
        net: the network.
        lines: start and end of every port's line, pixels, x to the right, y upwards.
        gap: distance between the middles of the two directions, pixels.
    """
    direction = lines[:, 1] - lines[:, 0]
    right = np.stack([direction[:, 1], -direction[:, 0]], 1)
    right /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-9)
    trunk = np.array([port.kind != "host" for port in net.ports])
    return lines + (0.5 * gap * trunk[:, None] * right)[:, None]


def axis_top(value_kb: float, leads: tuple[int, ...] = (1, 2, 5)) -> float:
    """The least of 100, 200, 500, 1000, … KB that is not below a value; `leads` are 1, 2, 5."""
    for decade, lead in itertools.product(range(2, 9), leads):
        if lead * 10.0**decade >= value_kb:
            return lead * 10.0**decade
    return value_kb
