"""The kernel of `ecn_marl.lanes` beside XLA on this machine's GPU: results, rates, training.

XLA takes up to a minute to compile a program for a GPU. So each program has a process of its own.
All compile at once, and one at a time is timed. A fault of one harms no other.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ecn_marl.lanes.settings import GPU

FORMS = {"kernel": "1", "XLA": "0"}
"""How a batch runs, and the value of `LANES_GPU` that says so."""

COUNTS = (1024, 4096, 16384, 65536)
"""Environments stepped at once."""

COMPARED = 4096
"""Environments whose results are compared."""

SECONDS = 300.0
"""Longest time of all programs together, s; what is not done by then is reported as such."""


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
    found = []
    for scenario in scenarios:
        found.append(Job("agreement", scenario, COMPARED))
        for form in FORMS:
            found += [Job("environments", scenario, n, form) for n in counts]
    if train is not None:
        found += [Job(f"train {train}", scenarios[0], n, form) for n in counts[:2] for form in FORMS]
    return found


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
        A row per program: the job's attributes, and either `agree` (share of equal numbers) or a
        row of `programs.env_row`, or `failed`, the last line on its standard error.
    """
    ends = time.monotonic() + seconds
    with TemporaryDirectory() as folder:
        lock = str(Path(folder) / "lock")
        started = [(job, _start(job, lock, runs)) for job in todo]
        rows = []
        for job, process in started:
            row = asdict(job) | _result(process, ends - time.monotonic())
            show(json.dumps(row))
            rows.append(row)
    return rows


def _start(job: Job, lock: str, runs: int) -> subprocess.Popen[str]:
    # Processes share the GPU's memory: none takes three quarters of it at once.
    variables = {GPU: FORMS[job.form], "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = (sys.executable, "-m", "ecn_marl.speed.gpu", json.dumps(asdict(job)), lock, str(runs))
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | variables, stdout=pipe, stderr=pipe, text=True)


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
def alone(lock: str) -> Iterator[None]:
    """Wait until no other process holds the lock, and hold it."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(job: Job, lock: str, runs: int) -> dict[str, Any]:
    """Compile one program, then run it alone."""
    from ecn_marl.envs.registry import make
    from ecn_marl.lanes.trial import agreement, forms
    from ecn_marl.speed import programs, trial
    from ecn_marl.speed.timing import Plan

    env, plan = make(job.scenario), Plan(runs, target_s=0.5)
    if job.program == "agreement":
        program = trial.environments(job.scenario, job.envs)
        by_xla, by_kernel = forms(program)
        with alone(lock):
            return {"agree": agreement(program, by_xla, by_kernel)[0]}
    if job.program == "environments":
        measured = programs.time_env(env, job.envs, 1, plan, alone(lock))
        return programs.env_row(job.scenario, env, job.envs, measured)
    learner = job.program.removeprefix("train ")
    measured, per_update = programs.time_training(learner, env, job.envs, plan, alone(lock))
    return programs.training_row(job.scenario, learner, env, job.envs, measured, per_update)


if __name__ == "__main__":
    print(json.dumps(run(Job(**json.loads(sys.argv[1])), sys.argv[2], int(sys.argv[3]))))
