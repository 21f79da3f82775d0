"""XLA's flag that halves the time to compile, where the installed jaxlib has it."""

from __future__ import annotations

import os
import re
from importlib.metadata import version

FLAG = "--xla_cpu_use_fusion_emitters=false"
"""XLA's older way to make loops out of operations: half the compile time, programs as fast."""

LAST = (0, 11, 0)
"""The last jaxlib that knows the flag. Later ones abort the process at a flag they do not know."""


def has_flag(jaxlib: str) -> bool:
    """Whether this version of jaxlib knows `FLAG`: such as `0.12.0.1`."""
    return tuple(int(part) for part in re.findall(r"\d+", jaxlib)[:3]) <= LAST


def compile_quickly() -> bool:
    """Sets `FLAG` unless XLA_FLAGS is set; to be called before JAX is imported.

    Returns:
        Whether programs may be compiled without most passes: not where XLA_FLAGS asks otherwise.
    """
    if "XLA_FLAGS" not in os.environ:
        if has_flag(version("jaxlib")):
            os.environ["XLA_FLAGS"] = FLAG
        return True
    return FLAG in os.environ["XLA_FLAGS"]
