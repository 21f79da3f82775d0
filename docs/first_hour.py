"""Measures the first hour of a new user, from the wheel: the table of docs/first-hour.md.

    python docs/first_hour.py            # print the table
    python docs/first_hour.py --write    # also into docs/first-hour.md

Builds the wheel, makes an empty virtual environment in a temporary folder, and runs every command
of `STEPS` there, each in a new process and without a compilation cache. Needs the package `build`.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "first-hour.md"
START, END = "<!-- measured -->\n", "<!-- end of measured -->\n"

INSTALL = "pip install ecn_marl-*.whl"


class Step(NamedTuple):
    """A line of the table.

    Attributes:
        title: what is done.
        command: how, in a shell, in the folder of the virtual environment.
        leaves: file that is there afterwards, empty if there is none.
    """

    title: str
    command: str
    leaves: str = ""


STEPS = (
    Step("Empty environment", "python3 -m venv .venv && . .venv/bin/activate"),
    Step("Install", INSTALL),
    Step("Examples", "ecn-marl examples examples", "examples/own/calm.py"),
    Step(
        "First step",
        'python -c "import ecn_marl; env = ecn_marl.parallel_env(); env.reset(seed=0); '
        'env.step({a: env.action_space(a).sample() for a in env.agents}); print(repr(env))"',
    ),
    Step(
        "First curve",
        "ecn-marl train ippo --scenario websearch-v0 --steps 20000 --out runs/first",
        "runs/first/learning_curve.png",
    ),
    Step("First comparison", "ecn-marl eval runs/first static:secn1 random --episodes 8"),
    Step(
        "First film",
        "ecn-marl play static:secn1 --beside runs/first --out both.html",
        "both.html",
    ),
    Step(
        "A film of a policy that ships, in another scenario",
        "ecn-marl play pretrained:restore-serve-mappo --scenario moving-tenants-v0 "
        "--out moving.gif",
        "moving.gif",
    ),
    Step(
        "Training on a reward of your own",
        "ecn-marl train ippo --import examples/own/calm.py --reward calm "
        "--scenario websearch-v0 --steps 20000 --out runs/calm",
        "runs/calm/learning_curve.png",
    ),
    Step(
        "An algorithm of your own in `bench`",
        "ecn-marl bench websearch-star-v0 --import examples/own/linear.py "
        "--algorithms linear,ippo,SECN1,random --steps 20000 --seeds 2 --episodes 16 "
        "--search-episodes 8 --out runs/bench",
        "runs/bench/results.json",
    ),
)


class Measured(NamedTuple):
    """Seconds of a command: by the clock, and of processors (user and system)."""

    wall: float
    cpu: float


def measure(command: str, folder: Path, environment: dict[str, str]) -> Measured:
    """Run a command in a shell.

    Raises:
        RuntimeError: it failed; the message has its output.
    """

    def used() -> float:  # of all children: a command starts processes of its own
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before, start = used(), time.perf_counter()
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    wall = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{command}\n{done.stdout}\n{done.stderr}")
    print(f"{wall:7.1f} s  {command}\n{done.stdout[-1500:]}", file=sys.stderr)
    return Measured(wall, used() - before)


def machine() -> str:
    """What it was measured on, in a sentence."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    cores, allowed, load = os.cpu_count(), len(os.sched_getaffinity(0)), os.getloadavg()[0]
    shared = ": other jobs shared it, and the clock is longer for it" if load > 0.5 else ""
    return (
        f"On an {model}, {allowed} of its {cores} cores used, Python {platform.python_version()}; "
        f"load {load:.1f} before the first command{shared}. Packages came from a mirror on the "
        "same machine"
    )


def run_steps() -> list[Measured]:
    """Build the wheel and run all steps in a temporary folder."""
    times = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        # A new user has none of these, and JAX_… may name a compilation cache.
        removed = ("PYTHONPATH", "VIRTUAL_ENV", "XLA_FLAGS")
        users = {k: v for k, v in os.environ.items() if k not in removed and k[:4] != "JAX_"}
        # As if the virtual environment were activated: every command has a shell of its own.
        active = users | {"PATH": f"{folder / '.venv' / 'bin'}:{users['PATH']}"}
        for step in STEPS:
            times.append(measure(step.command, folder, active))
            if step.leaves and not (folder / step.leaves).is_file():
                raise RuntimeError(f"{step.command}: no {step.leaves}")
    return times


def table(times: list[Measured], where: str) -> str:
    """The table in Markdown, with the machine below."""
    lines = ["| | clock | processor | command |", "| --- | ---: | ---: | --- |"]
    for step, step_times in zip(STEPS, times, strict=True):
        command = step.command.replace("|", "\\|")
        cells = " | ".join(f"{s:.0f} s" if s >= 9.95 else f"{s:.1f} s" for s in step_times)
        lines.append(f"| {step.title} | {cells} | `{command}` |")
    total = Measured(*(sum(column) for column in zip(*times, strict=True)))
    lines.append(f"| All | {total.wall / 60:.1f} min | {total.cpu / 60:.1f} min | |")
    return "\n".join([*lines, "", f"{where}.", ""])


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/first-hour.md, too")
    args = parser.parse_args()
    where = machine()  # before the steps, whose own load would count
    text = table(run_steps(), where)
    print(text)
    if args.write:
        before, old_text = PAGE.read_text().split(START)
        PAGE.write_text(before + START + text + END + old_text.split(END)[1])


if __name__ == "__main__":
    main()
