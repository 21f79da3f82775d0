"""Common axes of the pages that show an episode, and the time at which they open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ecn_marl.render.episode import Side
from ecn_marl.sim.network.topology import KB


def tick_times(side: Side) -> np.ndarray:
    """Ends of the ticks of an episode, ms, `[T K]`."""
    intervals, ticks = side.episode.ticks.shape[:2]
    return (np.arange(intervals * ticks) + 1) * (side.env.interval_us / 1e3 / ticks)


def backlog(side: Side, port: int) -> np.ndarray:
    """Queue of a port at the ends of the ticks, KB, `[T K]`."""
    return side.episode.ticks[:, :, port].ravel() / KB


def returns(side: Side) -> np.ndarray:
    """Return so far at the end of every interval, mean over the ports, `[T]`."""
    return np.cumsum(np.asarray(side.episode.info["reward"], np.float64).mean(1))


def busiest_host(side: Side) -> int:
    """The port to a host with the most traffic."""
    hosts = side.env.sim.topology.ports_of_kind("host")
    return int(hosts[np.argmax(side.episode.info["utilisation"].mean(0)[hosts])])


def busiest(sides: Sequence[Side]) -> tuple[int, float]:
    """The port with the longest mean queue, and the time of its longest queue, ms.

    Queues of several episodes are added up.
    """
    # In float64, as a float32 sum over all ticks loses digits.
    mean = sum(side.episode.ticks.mean((0, 1), dtype=np.float64) for side in sides)
    port = int(np.argmax(mean))
    times = tick_times(sides[0])  # interpolated, since the other episode may have other ticks
    total = sum(np.interp(times, tick_times(side), backlog(side, port)) for side in sides)
    return port, float(times[int(np.argmax(total))])


def common_axes(sides: Sequence[Side]) -> dict[str, Any]:
    """Axis limits for pages that show episodes side by side, and the time at which they open.

    Returns:
        `port` (number) and `ms`: see `busiest`. `queue_kb`: longest queue or highest Kmax of every
        port, KB. `reward`: for every port, lowest and highest reward of an interval, of the port
        and of the mean over ports. `returns`: lowest and highest return so far, mean over the
        ports. Both ranges include 0. `slowdown`: highest of a finished flow, at least 2.
    """
    port, ms = busiest(sides)
    infos = [side.episode.info for side in sides]
    queue = np.max([side.episode.ticks.max((0, 1)) for side in sides], 0)
    kmax = np.max([info["kmax"].max(0) for info in infos], 0)
    rewards = [np.asarray(info["reward"], np.float64) for info in infos]
    means = [reward.mean(1) for reward in rewards]
    slowdowns = [f.slowdown or 0.0 for side in sides for f in side.episode.flows]
    return {
        "port": port,
        "ms": round(ms, 4),
        "queue_kb": np.round(np.maximum(queue, kmax) / KB, 3).tolist(),
        "reward": [_range([r[:, p] for r in rewards] + means) for p in range(len(queue))],
        "returns": _range([returns(side) for side in sides]),
        "slowdown": round(max([2.0, *slowdowns]), 3),
    }


def _range(parts: Sequence[np.ndarray]) -> list[float]:
    """Lowest and highest value of all parts and 0."""
    low = min(float(np.min(part)) for part in parts)
    high = max(float(np.max(part)) for part in parts)
    return [float(f"{x:.5g}") for x in (min(low, 0.0), max(high, 0.0))]
