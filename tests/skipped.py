"""One line at the end: what to install to run the tests that were skipped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

EXTRAS = {
    "benchmarl": "benchmarl",
    "jaxmarl": "jaxmarl",
    "ray": "rllib",
    "stable_baselines3": "sb3",
    "submitit": "slurm",
    "supersuit": "supersuit",
    "torch": "torchrl",
    "torchrl": "torchrl",
    "dec_pomdp_diagnostics": "audit",
    "wandb": "wandb",
    "ipykernel": "notebooks",
    "nbclient": "notebooks",
    "numba": "packets",
    "mkdocs": "docs",
    "mkdocstrings": "docs",
    "yaml": "docs",
}
"""Modules that tests import if they are there, and the extra that brings each."""

WITHOUT_BRIDGE = {"docs", "notebooks", "packets"}
"""Extras that can be installed beside everything else."""

PROGRAMS = {
    "ffmpeg": "ffmpeg",
    "chromium": "chromium or chrome",
    "xvfb-run": "xvfb-run and Tk",
    "ptxas": "ptxas",
    "git": "git",
}
"""What the reason of a skipped test names, and what to install."""

ELSEWHERE = ("run by the test above",)
"""Reasons of tests that run all the same, in a process of another test."""


def line(reasons: Iterable[str]) -> str:
    """What is missing, most tests first; empty if nothing is. `reasons`: one of each test."""
    extras: Counter[str] = Counter()
    programs: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for reason in reasons:
        module = re.search(r"could not import '(\w+)|extra (\w+) is not installed", reason)
        name = module and (EXTRAS.get(module[1]) or module[2])
        program = next((p for p in PROGRAMS if re.search(rf"\b{p}\b", reason)), None)
        if reason.removeprefix("Skipped: ") in ELSEWHERE:
            continue
        if name in WITHOUT_BRIDGE:
            programs[f"the extra {name}"] += 1
        elif name:
            extras[name] += 1
        elif program:
            programs[PROGRAMS[program]] += 1
        else:
            others[reason.removeprefix("Skipped: ")] += 1
    parts = []
    if programs:
        parts.append(f"install {_listed(programs)}")
    if extras:
        parts.append(f"run `make bridges` for the extras {_listed(extras)}")
    if others:
        parts.append(f"see why: {_listed(others)}")
    return "To run the skipped tests: " + "; ".join(parts) if parts else ""


def _listed(names: Counter[str]) -> str:
    return ", ".join(f"{name} ({n})" for name, n in names.most_common())
