"""The kernel of `ecn_marl.lanes` beside XLA on this machine's GPU: results, rates, training.

XLA takes up to a minute to compile a program for a GPU. So each program has a process of its own.
All compile at once, and one at a time is timed. A fault of one harms no other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from rich.table import Column, Table

from ecn_marl._errors import bad_value
from ecn_marl.lanes.compat import on_cuda
from ecn_marl.lanes.settings import GPU
from ecn_marl.render.tables import DASH, compact, percent, plain_table

FORMS = {"kernel": "1", "XLA": "0"}
"""How a batch runs, and the value of `LANES_GPU` that says so."""

COUNTS = (1024, 4096, 16384, 65536)
"""Environments stepped at once."""

COMPARED = 1024
"""Environments whose results are compared."""

SECONDS = 900.0
"""Longest time of all programs together, s; what is not done by then is reported as such."""

COMMAND = (sys.executable, "-m", "ecn_marl.speed.gpu")


@dataclass(frozen=True)
class Job:
    """One program.

    Attributes:
        program: `agreement` (of the kernel's results with XLA's), `environments`, or `train` and a
            learner.
        scenario: name of the scenario.
        envs: environments stepped at once.
        form: a key of `FORMS`; `agreement` runs both.
    """

    program: str
    scenario: str
    envs: int
    form: str = "kernel"


def jobs(scenarios: Sequence[str], counts: Sequence[int], train: str | None) -> list[Job]:
    """Agreement, rates by number of environments, and training, of every scenario."""
    programs = ["environments", *([f"train {train}"] if train is not None else [])]
    return [Job("agreement", scenario, COMPARED) for scenario in scenarios] + [
        Job(program, scenario, n, form)
        for program in programs
        for scenario in scenarios
        for n in counts
        for form in FORMS
    ]


def check_gpu() -> None:
    """Raise a ValueError if this machine has no NVIDIA GPU that JAX can use."""
    if not on_cuda():
        devices = ", ".join(sorted({d.device_kind for d in jax.devices()}))
        raise bad_value("--gpu", devices, "an NVIDIA GPU, and jax[cuda12] or jax[cuda13]")


def measure(
    todo: Sequence[Job], show: Callable[[str], None], seconds: float = SECONDS, runs: int = 5
) -> list[dict[str, Any]]:
    """Run programs, each in a process of its own.

    Args:
        todo: the programs.
        show: called with each program that is done.
        seconds: longest time of all together.
        runs: timed runs of each.

    Returns:
        A row per program: the job's attributes, and `agree` (share of equal numbers), or the row
        of `programs`, or `failed`, the last line on its standard error.
    """
    ends, rows = time.monotonic() + seconds, []
    for job, process in [(job, _start(job, runs)) for job in todo]:
        row = _result(process, ends - time.monotonic()) | asdict(job)
        show(f"{job.program}, {job.scenario}, {job.envs} environments, {job.form}: {_said(row)}")
        rows.append(row)
    return rows


def _said(row: dict[str, Any]) -> str:
    """What came out, in a few words."""
    if "failed" in row:
        return f"failed ({row['failed']})"
    if "agree" in row:
        return percent(row["agree"], 2)
    return f"{compact(row['agent_steps_per_s']['median'])} agent-steps/s"


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """What was measured: a line for each number of environments, the kernel beside XLA."""
    found = plain_table(
        "GPU: the kernel of lanes beside XLA, agent-steps/s",
        [Column(name, no_wrap=True) for name in ("program", "scenario")],
        ["envs", "kernel", "XLA", "ratio", "flagged"],
    )
    for line in lines(rows):
        found.add_row(*line)
    agreement = [r for r in rows if r["program"] == "agreement"]
    shares = "; ".join(f"{r['scenario']} {_said(r)}" for r in agreement)
    found.caption = (
        f"numbers of {COMPARED:,} environments that agree after each of 8 steps: {shares}\n"
        "flagged: share of the environments in which a structure of fixed size was too small"
    )
    return found


def lines(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Cells: program, scenario, environments, kernel, XLA, ratio of both, flagged environments."""
    pairs: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["program"] != "agreement":
            key = (row["program"], row["scenario"], row["envs"])
            pairs.setdefault(key, {})[row["form"]] = row
    found = []
    for (program, scenario, envs), forms in pairs.items():
        medians = [forms.get(f, {}).get("agent_steps_per_s", {}).get("median") for f in FORMS]
        cells = [DASH if m is None else compact(m) for m in medians]
        ratio = DASH if None in medians else f"{medians[0] / medians[1]:.1f}"
        flagged = [r["flagged"]["any"] for r in forms.values() if "flagged" in r]
        share = percent(max(flagged), 2) if flagged else DASH
        found.append((program, scenario, f"{envs:,}", *cells, ratio, share))
    return found


def _start(job: Job, runs: int) -> subprocess.Popen[str]:
    # Processes share the GPU's memory: none takes three quarters of it at once.
    variables = {GPU: FORMS[job.form], "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = (*COMMAND, json.dumps(asdict(job)), str(runs))
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=os.environ | variables, stdout=pipe, stderr=pipe, text=True
    )


def _result(process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    """What a process printed last, or why there is nothing."""
    try:
        out, errors = process.communicate(timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"failed": "out of time"}
    if process.returncode:
        return {"failed": (errors.strip().splitlines() or [f"status {process.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process of this machine is within this context."""
    import fcntl  # not under Windows, where JAX knows no GPU either

    with open(Path(tempfile.gettempdir()) / "ecn-marl-gpu.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(job: Job, runs: int) -> dict[str, Any]:
    """Compile one program, then run it alone."""
    from ecn_marl.envs.registry import make
    from ecn_marl.lanes.trial import agreement, forms
    from ecn_marl.speed import programs, trial
    from ecn_marl.speed.timing import Plan

    env, plan = make(job.scenario), Plan(runs, target_s=0.3)
    if job.program == "agreement":
        program = trial.environments(job.scenario, job.envs)
        by_xla, by_kernel = forms(program)
        with alone():
            return {"agree": agreement(program, by_xla, by_kernel)[0]}
    if job.program == "environments":
        measured = programs.time_env(env, job.envs, 1, plan, alone())
        return programs.env_row(job.scenario, env, job.envs, measured)
    learner = job.program.removeprefix("train ")
    measured, per_update = programs.time_training(learner, env, job.envs, plan, alone())
    return programs.training_row(job.scenario, learner, env, job.envs, measured, per_update)


if __name__ == "__main__":
    print(json.dumps(run(Job(**json.loads(sys.argv[1])), int(sys.argv[2]))))
