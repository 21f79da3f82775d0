"""All measurements of `ecn-marl speed`, as one tree and as tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from ecn_marl._flags import flag
from ecn_marl.baselines.algorithms import algorithm_config
from ecn_marl.envs.registry import make
from ecn_marl.parallelism import cores, env_mesh, host_devices
from ecn_marl.render.tables import DASH, compact, number, percent, plain_table
from ecn_marl.speed import (
    cold,
    explained,
    floor,
    gpu,
    gpu_plan,
    machine,
    peers,
    programs,
    senders,
    stages,
    sweep,
)
from ecn_marl.speed.timing import Plan

SCENARIOS = ("websearch-v0", "incast-v0", "pet-websearch-v0")
STAGE_ENVS = 64
"""Environments of the stage breakdown and of the floor."""


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        scenarios: names of scenarios.
        envs: numbers of environments stepped at once.
        train: trainer to measure as well; None for none.
        plan: how programs are timed.
        devices: devices at most; None for all, on a CPU one per core.
        scaling: whether to measure how time grows with sizes.
        peers: whether to measure other simulators.
        stages: whether to measure stages and floors.
        senders: whether to compare kinds of senders on the first scenario.
        cold: whether to measure cold starts, and nothing else.
        explain: whether to explain the programs, and measure nothing.
        gpu: whether to measure the kernel of lanes beside XLA on a GPU, and nothing else.
        gpu_plan: whether to plan a step on an H100, and measure nothing.
    """

    scenarios: tuple[str, ...] = SCENARIOS
    envs: tuple[int, ...] = (1, 100, 1000)
    train: str | None = None
    plan: Plan = field(default_factory=Plan)
    devices: int | None = None
    scaling: bool = False
    peers: bool = False
    stages: bool = False
    senders: bool = False
    cold: bool = False
    explain: bool = False
    gpu: bool = False
    gpu_plan: bool = False


def run(request: Request, show: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Run the requested measurements.

    Args:
        request: what to measure.
        show: called with the next measurement.

    Returns:
        `machine`, `plan`, `environments` and `training` (rows of `programs`), and, if requested,
        `explain`, `cold`, `gpu`, `gpu_plan`, `scaling`, `peers`, `stages`, `floor` and `senders`.
        `machine.load_average` is taken at the start.

    Raises:
        ValueError: an unknown scenario or trainer, more devices than there are, or no GPU.
    """
    if request.gpu:
        gpu.check_gpu()
    if request.gpu_plan:
        gpu_plan.check_plugin()
    envs = {name: make(name) for name in request.scenarios}
    if request.train is not None:
        algorithm_config(request.train)  # an error for a trainer that does not exist
    devices = start_devices(request.devices)  # before anything runs: then their number is fixed
    announce, plan = show or (lambda _: None), request.plan
    result: dict[str, Any] = {
        "machine": machine.describe(),
        "plan": {"runs": plan.runs, "steps": plan.steps, "target_s": plan.target_s},
        "environments": [],
        "training": [],
    }
    if request.gpu:
        todo = gpu.jobs(request.scenarios, request.envs, request.train)
        result["gpu"] = gpu.measure(todo, announce, runs=plan.runs)
        return result
    if request.cold:
        result["cold"] = cold.measure(request.scenarios, plan.runs, announce)
        return result
    if request.gpu_plan:
        result["gpu_plan"] = gpu_plan.rows(envs, request.envs, announce)
        return result
    if request.explain:
        result["explain"] = explained.rows(envs, announce)
        return result
    for name, env in envs.items():
        for count in request.envs:
            announce(f"{name}, {count} environments")
            measured = programs.time_env(env, count, devices, plan)
            result["environments"].append(programs.env_row(name, env, count, measured))
            if request.train is not None:
                announce(f"{name}, {count} environments, train {request.train}")
                measured_training, per_update = programs.time_training(
                    request.train, env, count, plan
                )
                row = programs.training_row(
                    name, request.train, env, count, measured_training, per_update
                )
                result["training"].append(row)
    if request.scaling:
        result["scaling"] = sweep.scaling(plan, devices, announce)
    if request.peers:
        announce("recorded packets, replay")
        result["peers"] = [
            *peers.jaxmarl_rows(request.envs, devices, plan, announce),
            *peers.packet_rows(),
            *peers.replays(plan, devices),
        ]
    if request.stages:
        name, env = next(iter(envs.items()))
        result["stages"] = {"scenario": name, "envs": STAGE_ENVS}
        result["stages"]["rows"] = stages.breakdown(env, STAGE_ENVS, plan, announce)
        announce("floor")
        result["floor"] = {"scenario": name} | floor.floor(env, STAGE_ENVS, plan)
    if request.senders:
        name = request.scenarios[0]
        result["senders"] = {"scenario": name, "rows": senders.rows(name, plan, announce)}
    return result


def start_devices(devices: int | None) -> int:
    """Start the backend with a number of devices, and return how many can be used.

    Args:
        devices: number of devices; None for all, where on a CPU every core becomes one.

    Raises:
        ValueError: there are fewer devices.
    """
    if devices is None:
        with suppress(ValueError):  # JAX has started already: its devices cannot change
            host_devices(cores())
    else:
        host_devices(devices)
    return env_mesh(devices).size


def tables(result: dict[str, Any]) -> list[Table]:
    """Tables of what `run` returns."""
    if "cold" in result:
        return [cold.table(result["cold"])]
    if "explain" in result:
        return explained.tables(result["explain"])
    if "gpu_plan" in result:
        return gpu_plan.tables(result["gpu_plan"])
    if "gpu" in result:
        return [gpu.table(result["gpu"])]
    parts = [_speed_table("Environments, random actions", result["environments"])]
    if result["training"]:
        parts.append(_speed_table("Training", result["training"]))
    parts.append(_memory_table([*result["environments"], *result["training"]]))
    if "scaling" in result:
        parts.append(_scaling_table(result["scaling"]))
    if "peers" in result:
        parts.append(_peer_table(result["peers"]))
    if "stages" in result:
        parts += [_stage_table(result["stages"]), _floor_table(result["floor"])]
    if "senders" in result:
        parts.append(senders.table(result["senders"]["scenario"], result["senders"]["rows"]))
    return parts


def heading(result: dict[str, Any]) -> str:
    """Lines above the tables: the command, the machine, versions."""
    facts, plan = result["machine"], result["plan"]
    load = ", ".join(f"{x:.2f}" for x in facts["load_average"] or ()) or DASH
    steps = f"{plan['steps']} steps" if plan["steps"] else f"about {plan['target_s']:g} s"
    version_texts = ", ".join(f"{name} {x}" for name, x in facts["versions"].items() if x)
    method = f"{plan['runs']} runs of {steps} after a warm-up [min..max; iqr]"
    if "cold" in result:
        method = f"{plan['runs']} processes"
    measured = f"Medians of {method}"
    if "explain" in result or "gpu_plan" in result:
        measured = "Nothing was measured: instructions are counted in the program"
    return (
        f"$ {facts['command']}\n"
        f"{facts['platform']}: {facts['devices']} x {facts['device_kind']}; {facts['processor']}, "
        f"{facts['cores']} cores; load average {load}\n{version_texts}\n"
        f"Batches run as {facts['batches']}\n"
        f"{measured}"
    )


def _cells(row: dict[str, float]) -> tuple[str, str, str]:
    """Median, range and interquartile range."""
    return (
        compact(row["median"]),
        f"{compact(row['min'])}–{compact(row['max'])}",
        compact(row["iqr"]),
    )


def _speed_table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Speed of environments or of training."""
    names = ["envs", "dev.", "env-\nsteps/s", "min–max", "iqr", "agent-\nsteps/s"]
    names += ["flow-\nsubst./s", "sim\ns/s", "cores", "CPU\nns", "comp.\ns", "flag-\nged"]
    scenario = Column("scenario", no_wrap=True)
    table = plain_table(title, [scenario], names, padding=(0, 1, 0, 0))
    for row in rows:
        rates = ("agent_steps_per_s", "flow_substeps_per_s", "sim_s_per_wall_s")
        table.add_row(
            row["scenario"],
            f"{row['envs']:,}",
            str(row["devices"]),
            *_cells(row["env_steps_per_s"]),
            *[compact(row[name]["median"]) for name in rates],
            number(row["cores_used"]["median"]),
            number(row["cpu_ns_per_flow_substep"], 0),
            number(row["trace_s"] + row["compile_s"], 0),
            percent(row["flagged"]["any"], 0),
        )
    table.caption = (
        "flow-subst.: flow slots x substeps x steps; sim s/s: simulated seconds of all "
        "environments per wall second;\ncores: CPU time over wall time; CPU ns: CPU time of a "
        "flow slot and substep;\nflagged: share of the environments in which a structure of fixed "
        "size was too small"
    )
    raised = dict.fromkeys(name for row in rows for name in row["flagged"] if name != "any")
    for name in raised:
        table.caption += f"\n{name}: {flag(name).event}; cure: {flag(name).cure}"
    return table


def _memory_table(rows: list[dict[str, Any]]) -> Table:
    """Memory of all programs."""
    names = ("envs", "state of one", "arguments", "temporaries", "peak so far")
    table = plain_table("Memory, MB", ["program", "scenario"], names)
    for row in rows:
        sizes = [row["program_bytes"].get(name) for name in ("arguments", "temporaries")]
        cells = [DASH if x is None else number(x / 1e6, 2) for x in sizes]
        table.add_row(
            row["program"],
            row["scenario"],
            f"{row['envs']:,}",
            number(row["state_bytes_per_env"] / 1e6, 4),
            *cells,
            number(row["peak_memory"]["bytes"] / 1e6, 0),
        )
    table.caption = f"per device; peak: {rows[0]['peak_memory']['source']}" if rows else ""
    return table


def _scaling_table(rows: list[dict[str, Any]]) -> Table:
    title = "Time of a step of all environments; x2: factor per doubling of the size"
    names = ["size", "envs", "ports", "slots", "substeps", "step, µs", "min–max", "iqr"]
    names += ["x2", "CPU, µs", "x2", "compile, s"]
    table = plain_table(title, ["sweep"], names, padding=(0, 1, 0, 0))
    for row in rows:
        sizes = [f"{row[name]:,}" for name in ("size", "envs", "ports", "slots", "substeps")]
        table.add_row(
            row["sweep"],
            *sizes,
            *_cells(row["step_us"]),
            number(row["per_doubling"]),
            compact(row["step_cpu_us"]),
            number(row["per_doubling_cpu"]),
            number(row["compile_s"], 1),
        )
    return table


def _peer_table(rows: list[dict[str, Any]]) -> Table:
    names = ("envs", "dev.", "agent-steps/s", "sim ms/s", "min–max")
    table = plain_table("Other simulators", ["what"], names, padding=(0, 1, 0, 0))
    table.add_column("note")
    for row in rows:
        speeds = [row.get(name) for name in ("agent_steps_per_s", "sim_ms_per_wall_s")]
        with_value = [x for x in speeds if x]
        table.add_row(
            row["name"],
            str(row.get("envs", row.get("lanes", DASH))),
            str(row.get("devices", DASH)),
            *[compact(x["median"]) if x else DASH for x in speeds],
            _cells(with_value[0])[1] if with_value else DASH,
            escape(row["note"]),
        )
    table.caption = "sim ms/s: simulated ms per wall second, all lanes together"
    return table


def _stage_table(result: dict[str, Any]) -> Table:
    title = f"Stages of a step of {result['scenario']}, {result['envs']} environments, one device"
    table = plain_table(title, ["stage"], ["CPU, µs", "wall, µs", "share of CPU"])
    for row in result["rows"]:
        times = (number(row["cpu_us"], 0), number(row["wall_us"], 0))
        table.add_row(row["stage"], *times, percent(row["share"]))
    table.caption = "Differences of the program with and without a stage, least of all runs."
    return table


def _floor_table(result: dict[str, Any]) -> Table:
    title = (
        f"Time of a flow slot and substep of {result['scenario']}, {result['envs']} environments"
    )
    table = plain_table(title, ["part"], ["amount", "ns"])
    amounts, ns = result["per_flow_substep"], result["floor_ns"]
    rows = (
        ("arithmetic", f"{amounts['flops']:.0f} operations"),
        ("memory", f"{amounts['bytes']:.0f} B"),
        ("transcendentals", f"{amounts['transcendentals']:.2f}"),
        ("scatters", str(amounts["scatters"])),
        ("gathers", str(amounts["gathers"])),
        ("program", "sum"),
        ("state", f"{amounts['state_bytes']:.0f} B"),
    )
    for name, amount in rows:
        table.add_row(name, amount, number(ns[name], 1))
    table.add_row("measured, CPU", "", number(result["measured_ns"], 1))
    table.caption = (
        f"measured over program: {result['over_program']:.1f}, over state read and written once: "
        f"{result['over_state']:.1f}"
    )
    return table
