"""Settings from outside the package: environment variables, cores, and the trial's program.

No other module of the package reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path

from ecn_marl.lanes.errors import InvalidValue

GPU = "LANES_GPU"
"""Environment variable: `1` uses the kernel on NVIDIA GPUs, `0` does not, and `auto`, the default,
goes by the trial."""

CACHE = "XDG_CACHE_HOME"
"""Environment variable: the user's folder for caches, `~/.cache` if it is not set or empty."""

FOLDER = "jax_lanes"
"""Folder for verdicts of trials, in the user's cache folder."""

_program = ""


def gpu_mode() -> str:
    """Whether GPUs run the kernel: the environment variable's `0`, `1` or `auto`.

    Raises:
        InvalidValue: the variable has another value.
    """
    mode = os.environ.get(GPU, "auto")
    if mode not in ("0", "1", "auto"):
        raise InvalidValue(GPU, mode, "0, 1 or auto")
    return mode


def cache_folder() -> Path:
    """Folder of files that outlive the process; it need not exist."""
    return Path(os.environ.get(CACHE) or "~/.cache").expanduser() / FOLDER


def cores() -> int:
    """Cores that this process may use."""
    # Containers and batch systems often allow fewer cores than the machine has; not every system
    # tells.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_trial_program(name: str) -> None:
    """Name the program that a trial on a GPU runs, see `trial`.

    Args:
        name: `module:function`; the function takes nothing and returns a `trial.TrialProgram`.
            It is imported only for a trial. Empty for none: GPUs then run XLA, unless the
            environment variable says otherwise.
    """
    global _program
    _program = name


def trial_program() -> str:
    """The name set last, or an empty string."""
    return _program
