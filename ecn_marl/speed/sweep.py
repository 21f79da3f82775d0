"""Growth of time with environments, ports, flow slots, substeps and devices, one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim.network.topology import Topology, leaf_spine, star
from ecn_marl.sim.traffic.poisson import Poisson
from ecn_marl.speed.programs import Measured, time_env
from ecn_marl.speed.timing import Plan, summarise

SWEEP_S = 0.3
"""Approximate length of a timed run of a sweep, s."""

STARS = (8, 16, 32, 64, 128, 256, 512, 1024)
FABRICS = ((2, 4, 2), (4, 8, 2), (6, 12, 3), (12, 24, 6), (24, 48, 12))
"""(leaves, hosts per leaf, spines); the fourth is `pet-websearch-v0`, the last has 1152 hosts."""
ENVS = (1, 4, 16, 64, 256, 1024, 4096)
SLOTS = (16, 32, 64, 128, 256, 512)
SUBSTEPS = (20, 40, 80)
BASE_ENVS, BASE_HOSTS, BASE_SLOTS = 64, 16, 64
DEVICE_ENVS = 1024
EPISODE_US = 20_000.0


@dataclass(frozen=True)
class Point:
    """One measurement of a sweep.

    Attributes:
        sweep: name of the size that varies.
        size: its value: environments, ports, flow slots, substeps or devices.
        env: the environment.
        envs: how many are stepped at once.
        devices: devices that share them.
    """

    sweep: str
    size: int
    env: EcnEnv
    envs: int
    devices: int = 1


def network(topology: Topology, slots: int, interval_us: float = 100.0) -> EcnEnv:
    """Web-search traffic at 60 % load, as in `websearch-v0`, on a network; episodes of 20 ms.

    Episodes have the same length for all intervals: a network fills slowly, and more flows are more
    work. Slots are what a sweep varies, so they may be too few for the traffic.
    """
    width = min(32, max(4, topology.n_hosts // 8))
    traffic = (Poisson(load=0.6, table="WebSearch", width=width),)
    steps = round(EPISODE_US / interval_us)
    env = make(Scenario(topology, traffic, dt_us=5.0, interval_us=interval_us, max_steps=steps))
    return replace(env, sim=replace(env.sim, slots=slots))


def points(devices: int = 1) -> Iterator[Point]:
    """Every measurement.

    Args:
        devices: number of available devices; all sweeps but that of devices use one.
    """
    base = network(star(BASE_HOSTS), BASE_SLOTS)
    for envs in ENVS:
        yield Point("environments", envs, base, envs)
    for hosts in STARS:
        yield Point("star, ports", hosts, network(star(hosts), BASE_SLOTS), BASE_ENVS)
    for leaves, hosts, spines in FABRICS:
        fabric = leaf_spine(leaves, hosts, spines, gbps=25.0, uplink_gbps=100.0)
        env = network(fabric, 4 * fabric.n_hosts)
        yield Point("leaf-spine, ports (4 slots per host)", fabric.n_ports, env, 4)
    for slots in SLOTS:
        yield Point("flow slots", slots, network(star(BASE_HOSTS), slots), BASE_ENVS)
    for substeps in SUBSTEPS:
        env = network(star(BASE_HOSTS), BASE_SLOTS, interval_us=5.0 * substeps)
        yield Point("substeps", substeps, env, BASE_ENVS)
    for power in range(devices.bit_length() if devices > 1 else 0):
        yield Point("devices", 2**power, base, DEVICE_ENVS, 2**power)


def scaling(
    plan: Plan,
    devices: int = 1,
    show: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Measure every point.

    Args:
        plan: how each is timed; without steps given, runs of `SWEEP_S`.
        devices: number of available devices.
        show: called with the next measurement.

    Returns:
        Rows with `sweep`, `size`, the sizes of everything, `step_us` (summary of the wall time of a
        step of all environments), `step_cpu_us`, `compile_s` (tracing and both compilers), and
        `per_doubling`: growth of the wall
        time since the row before, as a factor per doubling of the size (None in the first row).
        `per_doubling_cpu` is the same of CPU time, for machines whose cores others use.
    """
    run_plan = (
        plan if plan.steps is not None else Plan(plan.runs, None, min(plan.target_s, SWEEP_S))
    )
    rows: list[dict[str, Any]] = []
    measurements: dict[tuple[EcnEnv, int, int], Measured] = {}
    for point in points(devices):
        if show:
            show(f"scaling: {point.sweep} {point.size}")
        key = (point.env, point.envs, point.devices)  # several sweeps share a point
        if key not in measurements:
            measurements[key] = time_env(point.env, point.envs, point.devices, run_plan)
        measured = measurements[key]
        timing, sim = measured.timing, point.env.sim
        rows.append(
            {
                "sweep": point.sweep,
                "size": point.size,
                "envs": point.envs,
                "devices": measured.devices,
                "ports": point.env.num_agents,
                "slots": sim.slots,
                "substeps": sim.interval_steps,
                "step_us": {
                    name: 1e6 * x / timing.steps
                    for name, x in summarise(list(timing.wall_s)).items()
                },
                "step_cpu_us": 1e6 * timing.step_cpu_s,
                "compile_s": measured.program.trace_s + measured.program.compile_s,
                "state_bytes_per_env": measured.state_bytes,
            }
        )
        before = rows[-2] if len(rows) > 1 and rows[-2]["sweep"] == point.sweep else None
        rows[-1]["per_doubling"] = _growth(before, rows[-1], lambda row: row["step_us"]["median"])
        rows[-1]["per_doubling_cpu"] = _growth(before, rows[-1], lambda row: row["step_cpu_us"])
    return rows


def _growth(
    before: dict[str, Any] | None, row: dict[str, Any], time: Callable[[dict[str, Any]], float]
) -> float | None:
    """Factor by which the time grew for every doubling of the size."""
    if before is None or not time(before) > 0:
        return None
    doublings = math.log2(row["size"] / before["size"])
    return float((time(row) / time(before)) ** (1.0 / doublings))
