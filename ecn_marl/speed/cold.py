"""Cold starts of the PettingZoo face: first reset and step of a process, then its speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from ecn_marl.envs.registry import make
from ecn_marl.render.tables import number, plain_table
from ecn_marl.speed import first_step
from ecn_marl.speed.timing import summarise

NEVER_CACHED = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
"""Switches off the compilation cache, so that JAX in the new process compiles everything."""


def measure(
    scenarios: tuple[str, ...], runs: int, show: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Start `parallel_env` in new processes, one after the other.

    Args:
        scenarios: names of scenarios; each process knows the built-in ones only.
        runs: processes per scenario, and timed runs in each.
        show: called with the next measurement.

    Returns:
        A row per scenario, each number summarised over the processes (see `timing.summarise`):
        `import_s`, `reset_s`, `step_s`, `first_s` (from the start of Python to the end of the first
        step), `first_cpu_s` (all threads), and `steps_per_s`, `frames_per_s`, `steps_per_cpu_s`,
        `frames_per_cpu_s` of the median run of each process.

    Raises:
        ValueError: an unknown scenario.
    """
    for name in scenarios:
        make(name)  # an unknown name fails here, before anything is measured
    rows = []
    for name in scenarios:
        times = []
        for i in range(runs):
            show(f"{name}, cold start {i + 1} of {runs}")
            times.append(_start(name, runs))
        columns = {
            key: summarise([process_times[key] for process_times in times]) for key in times[0]
        }
        rows.append({"scenario": name, "processes": runs} | columns)
    return rows


def _start(scenario: str, runs: int) -> dict[str, float]:
    """Times of one new process."""
    script = Path(first_step.__file__)
    began = time.time()  # time of day: other clocks cannot be compared between processes
    process = subprocess.run(
        # -P keeps the script's folder out of sys.path: its `machine.py` could hide another module.
        [sys.executable, "-P", str(script), scenario, str(runs)],
        env=os.environ | NEVER_CACHED,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    output = json.loads(process.stdout.splitlines()[-1])  # libraries may print lines before it
    times = {
        "import_s": output["imported"] - began,
        "reset_s": output["reset"] - output["imported"],
        "step_s": output["stepped"] - output["reset"],
        "first_s": output["stepped"] - began,
        "first_cpu_s": output["cpu_s"],
    }
    for unit in ("steps", "frames"):
        wall, cpu = zip(*output[unit], strict=True)
        times[f"{unit}_per_s"] = summarise(list(wall))["median"]
        times[f"{unit}_per_cpu_s"] = summarise(list(cpu))["median"]
    return times


def table(rows: list[dict[str, Any]]) -> Table:
    """A table of what `measure` returns."""
    names = ["import\ns", "reset\ns", "step\ns", "together\ns", "min–max", "CPU\ns"]
    names += ["steps/s", "min–max", "per\nCPU s", "frames/s", "per\nCPU s"]
    title, scenario = "parallel_env() from a cold start", Column("scenario", no_wrap=True)
    cold_table = plain_table(title, [scenario], names, padding=(0, 1, 0, 0))
    for row in rows:
        first, steps = row["first_s"], row["steps_per_s"]
        cold_table.add_row(
            row["scenario"],
            *[number(row[name]["median"], 1) for name in ("import_s", "reset_s", "step_s")],
            number(first["median"], 1),
            f"{first['min']:.1f}–{first['max']:.1f}",
            number(row["first_cpu_s"]["median"], 1),
            number(steps["median"], 0),
            f"{steps['min']:.0f}–{steps['max']:.0f}",
            *[number(row[n]["median"], 0) for n in ("steps_per_cpu_s", "frames_per_s")],
            number(row["frames_per_cpu_s"]["median"], 0),
        )
    cold_table.caption = (
        "new processes without a compilation cache; together: from the start of Python to the end "
        "of the first step;\nthen runs of "
        f"{first_step.STEPS} steps, actions drawn beforehand, and of {first_step.FRAMES} frames "
        "(render_mode='rgb_array')"
    )
    return cold_table
