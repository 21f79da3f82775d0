"""What this package takes from outside: environment variables, cores, and the trial's program.

No other module of the package reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path

from ecn_marl.lanes.errors import InvalidValue

GPU = "LANES_GPU"
"""Environment variable: `1` uses the kernel on NVIDIA GPUs, `0` does not, `auto` (as if it were not
set) goes by the trial."""

CACHE = "XDG_CACHE_HOME"
"""Environment variable: the user's folder for caches, `~/.cache` if it is not set or empty."""

FOLDER = "jax_lanes"
"""Folder in the user's cache folder that verdicts of trials are kept in."""

_program = ""


def gpu_mode() -> str:
    """Whether GPUs run the kernel: `0`, `1` or `auto`, as the environment says.

    Raises:
        InvalidValue: the variable is something else.
    """
    mode = os.environ.get(GPU, "auto")
    if mode not in ("0", "1", "auto"):
        raise InvalidValue(GPU, mode, "0, 1 or auto")
    return mode


def cache_folder() -> Path:
    """Folder of what is kept between processes; it need not exist."""
    return Path(os.environ.get(CACHE) or "~/.cache").expanduser() / FOLDER


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_trial_program(name: str) -> None:
    """Name the program that a trial on a GPU runs, see `trial`.

    Args:
        name: `module:function`; the function takes nothing and returns a `trial.TrialProgram`.
            Nothing is imported before a trial. Empty for none: then GPUs run XLA unless the
            environment says otherwise.
    """
    global _program
    _program = name


def trial_program() -> str:
    """The name that was given last, or an empty string."""
    return _program
