"""Tables and the plot of speed, from `results/speed*.json`, which `ecn-marl speed --out` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ecn_marl.speed import gpu, gpu_plan
from generated.markdown import markdown

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results"
PICTURE = ROOT / "docs" / "pictures" / "speed.png"

NO_BREAK = "\u00a0"

GREY = "#808890"
"""Ink that can be read on white and on black."""

MEASURED = {"speed": "2026-11-30", "speed-epyc": "2026-11-28"}
"""Records of one command on several machines, and when each was made."""

MANY = 1000
"""Environments at once in the tables of peers and machines."""

REPLAY = "d_WebSearch_60_arrival_window run SECN2"
"""The recorded run of packets that replays are compared with."""


@cache
def record(name: str = "speed") -> dict[str, Any]:
    """What was measured."""
    result: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text())
    return result


def speed_machine() -> str:
    """The command, the machine and the versions."""
    return _about(record())


def _about(measurement: Mapping[str, Any]) -> str:
    machine = measurement["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"    {machine['command']}\n\n"
        f"{machine['processor']}, {machine['cores']} cores; {versions}. "
        f"Load average at the start: {machine['load_average'][0]:.1f}. Medians of "
        f"{measurement['plan']['runs']} runs after a warm-up, with their least and greatest."
    )


def speed_machines() -> str:
    """The same figures on every kind of machine that was measured."""
    rows = []
    for name, day in MEASURED.items():
        measured = record(name)
        own = {r["scenario"]: r for r in measured["environments"] if r["envs"] == MANY}
        mpe = next(r for r in measured["peers"] if "MPE" in r["name"] and r["envs"] == MANY)
        found = [own["websearch-v0"], own["restore-serve-v0"], mpe]
        packets, *replayed = (r["sim_ms_per_wall_s"]["median"] for r in replays(name))
        rows.append(
            (
                f"{measured['machine']['processor']}, {day}",
                *(_rate(row["agent_steps_per_s"]) for row in found),
                *(f"{speed / packets:.3g}" for speed in replayed),
            )
        )
    own_names = ("`websearch-v0`", "`restore-serve-v0`")
    head = ("two cores", *own_names, "MPE_simple_spread_v3", "one replay", "64 replays")
    return markdown(head, rows)


def speed_environments() -> str:
    """Environments under random actions."""
    rows, before = [], None
    for row in record()["environments"]:
        name = f"`{row['scenario']}` ({row['agents']} agents, {row['slots']} slots)"
        rows.append(
            (
                name if name != before else "",
                row["envs"],
                _rate(row["env_steps_per_s"]),
                si(row["agent_steps_per_s"]["median"]),
                f"{row['cpu_ns_per_flow_substep']:.2g}",
                f"{row['trace_s'] + row['compile_s']:.1f}",
            )
        )
        before = name
    head = (
        "scenario",
        "envs",
        "steps/s (min–max)",
        "agent-steps/s",
        "CPU ns per slot and substep",
        "compile, s",
    )
    return markdown(head, rows)


def speed_training() -> str:
    """Training beside the environments alone."""
    training = record("speed-training")
    head = ("", "envs", "steps/s (min–max)", "agent-steps/s")
    rows = [
        (
            f"`{row['scenario']}`, {row['program']}",
            row["envs"],
            _rate(row["env_steps_per_s"]),
            si(row["agent_steps_per_s"]["median"]),
        )
        for row in (*training["environments"], *training["training"])
    ]
    return f"{_about(training)}\n\n{markdown(head, rows)}"


def speed_packets() -> str:
    """Replays of a recorded flow list beside the packet simulator."""
    packets, one, many = replays()
    base = packets["sim_ms_per_wall_s"]["median"]
    machine = f"here, {record()['machine']['cores']} cores"
    measured = (
        ("ns-3 (HPCC's fork, optimised build)", packets, "recorded, one core of an AMD EPYC"),
        ("one replay", one, "here, one core"),
        ("64 replays at once", many, machine),
    )
    rows = []
    for name, row, where in measured:
        speed = row["sim_ms_per_wall_s"]
        rows.append((name, _rate(speed), f"{speed['median'] / base:.3g}", where))
    head = ("simulator", "simulated ms per wall second (min–max)", "over packets", "machine")
    return markdown(head, rows)


def speed_peers() -> str:
    """Environments of other packages."""
    rows = []
    for row in record()["peers"]:
        if "agent_steps_per_s" in row and row["envs"] == MANY:
            name = f"{row['name']} ({row['agents']} agents, {row['envs']} environments)"
            rows.append((name, _rate(row["agent_steps_per_s"])))
    for row in record()["environments"]:
        if row["envs"] == MANY:
            name = f"`{row['scenario']}` ({row['agents']} agents, 1000 environments)"
            rows.append((name, _rate(row["agent_steps_per_s"])))
    return markdown(("environment", "agent-steps/s (min–max)"), rows)


def speed_gpu() -> str:
    """The kernel of lanes beside XLA on a GPU."""
    measured = record("speed-gpu")
    machine = measured["machine"]
    commands = "\n".join(f"    {command}" for command in machine["command"].split("; "))
    versions = ", ".join(f"{name} {x}" for name, x in machine["versions"].items() if x)
    agreement = "; ".join(
        f"`{row['scenario']}` {100 * row['agree']:.2f} %"
        for row in measured["gpu"]
        if row["program"] == "agreement"
    )
    head = ("scenario", "envs", "kernel, agent-steps/s", "XLA, agent-steps/s", "ratio", "flagged")
    rows = [(f"`{scenario}`", *cells) for _, scenario, *cells in gpu.lines(measured["gpu"])]
    return (
        f"{commands}\n\n{machine['device_kind']}; {versions}. Medians of "
        f"{measured['plan']['runs']} runs after a warm-up. Numbers that agree after each of 8 "
        f"steps of {gpu.COMPARED} environments: {agreement}.\n\n{markdown(head, rows)}"
    )


def speed_kernels() -> str:
    """Forms of the kernel, launched alone on a GPU."""
    measured = record("gpu-kernels")
    counts = sorted({row["envs"] for row in measured["rows"]})
    forms: dict[str, dict[int, dict[str, Any]]] = {}
    for row in measured["rows"]:
        forms.setdefault(row["form"], {})[row["envs"]] = row
    rows = []
    for form, cells in forms.items():
        one = next(iter(cells.values()))
        rates = [
            f"{measured['agents'] * n / cells[n]['ms'] / 1e3:.1f}" if n in cells else "–"
            for n in counts
        ]
        rows.append((form, str(one["registers"]), str(one["stack_bytes"]), *rates))
    sizes = [f"{n:,}" for n in counts]
    head = ("where an environment's numbers are", "registers", "stack, B", *sizes)
    agree, how = min(row["agree"] for row in measured["rows"]), measured["how"]
    return (
        f"{measured['machine']['device_kind']}, `{measured['scenario']}`, M agent-steps/s by "
        f"number of environments. {how[0].upper()}{how[1:]}. At least {100 * agree:.3f} % of "
        f"all numbers agree with those of a CPU.\n\n{markdown(head, rows)}"
    )


def speed_gpu_plan() -> str:
    """Steps planned for an H100."""
    measured = record("gpu-plan")
    head = ("scenario", *gpu_plan.XLA_COLUMNS, *gpu_plan.KERNEL_COLUMNS[1:])
    rows = [
        (f"`{row['scenario']}`", *gpu_plan.xla_cells(row), *gpu_plan.kernel_cells(row)[1:])
        for row in measured["gpu_plan"]
    ]
    versions = ", ".join(f"{name} {x}" for name, x in measured["machine"]["versions"].items() if x)
    return (
        f"    {measured['machine']['command']}\n\n{versions}. Through XLA: launches and copies of "
        "an interval, launches of a substep, and what kernels read and write; agent-steps/s by "
        "3.35 TB/s and 2 µs a launch. The kernel: environments of a warp, registers of a thread, "
        "bytes that it puts aside for lack of more, shared memory of a warp.\n\n"
        + markdown(head, rows)
    )


def speed_scaling() -> str:
    """Growth of the time of a step, from the smallest to the largest size of every sweep."""
    sweeps: dict[str, list[dict[str, Any]]] = {}
    for row in record()["scaling"]:
        sweeps.setdefault(row["sweep"], []).append(row)
    rows = []
    for sweep, points in sweeps.items():
        growth = [p["per_doubling_cpu"] for p in points if p["per_doubling_cpu"] is not None]
        rows.append(
            (
                sweep,
                f"{points[0]['size']} to {points[-1]['size']}",
                f"{1e-3 * points[0]['step_us']['median']:.3g}",
                f"{1e-3 * points[-1]['step_us']['median']:.3g}",
                f"{min(growth):.2f}–{max(growth):.2f}" if growth else "–",
            )
        )
    head = ("what grows", "from, to", "ms per step: smallest", "largest", "CPU time per doubling")
    return markdown(head, rows)


def speed_senders() -> str:
    """What a flow costs under each kind of sender."""
    senders = record()["senders"]
    rows = [
        (
            f"`{row['sender']}`",
            f"{row['busy']:.1f} of {row['slots']}",
            f"{row['step_cpu_us']:.1f}",
            f"{row['cpu_ns_per_busy_flow_substep']:.1f}",
            f"{row['over_first']:.2f}",
            f"{100 * row['skipped']:.1f} %",
        )
        for row in senders["rows"]
    ]
    head = (
        "sender",
        "slots in use",
        "CPU of a step, µs",
        "CPU of a flow in use and substep, ns",
        "over the first",
        "work that skips",
    )
    return markdown(head, rows)


def replays(name: str = "speed") -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Rows of the recorded packets, of one replay, and of many at once."""
    rows = [row for row in record(name)["peers"] if REPLAY in row["name"]]
    packets = next(row for row in rows if row["name"].startswith("packets"))
    one, many = sorted(
        (row for row in rows if row["name"].startswith("replay")), key=lambda row: row["lanes"]
    )
    return packets, one, many


def plot() -> bytes:
    """Speed over the number of environments, and replays beside packets, as PNG."""
    from ecn_marl.render.plots import COLOURS, Page

    page = Page(1, (9.0, 3.4), columns=2, width_ratios=(3, 2))
    left, right = page.axes
    page.figure.patch.set_alpha(0.0)
    for axis in page.axes:
        axis.patch.set_alpha(0.0)
        axis.grid(True, color=GREY, alpha=0.25, linewidth=0.7)
        axis.spines[["left", "bottom"]].set_color(GREY)
        axis.tick_params(which="both", colors=GREY)
    scenarios = list(dict.fromkeys(row["scenario"] for row in record()["environments"]))
    for colour, name in zip(COLOURS, scenarios, strict=False):
        rows = [row for row in record()["environments"] if row["scenario"] == name]
        envs = [row["envs"] for row in rows]
        rates = [row["agent_steps_per_s"] for row in rows]
        label = f"{name} ({rows[0]['agents']} agents)"
        left.plot(envs, [r["median"] for r in rates], "o-", color=colour, label=label, ms=4)
        low, high = [r["min"] for r in rates], [r["max"] for r in rates]
        left.fill_between(envs, low, high, color=colour, alpha=0.2, linewidth=0)
    left.set(xscale="log", yscale="log")
    left.set_xlabel("environments stepped at once", color=GREY)
    title = f"agent-steps per second, {record()['machine']['cores']} cores"
    left.set_title(title, fontsize=10, color=GREY)
    left.legend(fontsize=7.5, frameon=False, labelcolor=GREY)
    names = ("ns-3, packets", "one replay", "64 replays")
    values = [row["sim_ms_per_wall_s"]["median"] for row in replays()]
    bars = right.barh(names[::-1], values[::-1], color=(*COLOURS[:1] * 2, GREY), height=0.6)
    labels = [f"{x:.3g}" for x in values[::-1]]
    right.bar_label(bars, labels, padding=3, fontsize=9, color=GREY)
    right.set(xscale="log", xlim=(1.0, 10 * max(values)))
    right.set_title("simulated ms per second of wall time", fontsize=10, color=GREY)
    return page.png()


def _rate(rate: Mapping[str, float]) -> str:
    """A median with its least and greatest, such as 7.87 k (7.58–8.24 k)."""
    low, high = si(rate["min"]), si(rate["max"])
    if low[-1] == high[-1] and low[-1].isalpha():
        low = low[:-2]
    return f"{si(rate['median'])} ({low}–{high})".replace(" ", NO_BREAK)


def si(x: float) -> str:
    """Three digits, with k or M."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if x >= limit:
            return f"{x / limit:.3g}{unit}"
    return f"{x:.3g}"
