"""Timed runs of a compiled program: warm-up, repetitions, summaries, rates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.stages
import numpy as np
from jaxtyping import PyTree

from ecn_marl._errors import bad_value
from ecn_marl.parallelism import Jitted

MIN_RUNS = 5
"""Fewer runs say little about the spread."""

TARGET_S = 1.0
"""Approximate length of a timed run, unless the number of steps is given, s."""


@dataclass(frozen=True)
class Plan:
    """How programs are timed.

    Attributes:
        runs: timed runs after the warm-up.
        steps: steps of a run; None for as many as take about `target_s`.
        target_s: length of a run, s.
    """

    runs: int = MIN_RUNS
    steps: int | None = None
    target_s: float = TARGET_S

    def __post_init__(self) -> None:
        """Check numbers."""
        if self.runs < MIN_RUNS:
            raise bad_value("runs", self.runs, f"an integer >= {MIN_RUNS}")
        if self.steps is not None and self.steps < 1:
            raise bad_value("steps", self.steps, "an integer >= 1")
        if not self.target_s > 0:
            raise bad_value("target_s", self.target_s, "a number > 0")


@dataclass(frozen=True)
class Timing:
    """Timed runs.

    Attributes:
        steps: steps of every run.
        wall_s: wall time of each run, s.
        cpu_s: CPU time of the process in each run, all threads together, s.
    """

    steps: int
    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    def rate(self, per_step: float = 1.0) -> dict[str, float]:
        """Rate per second of what occurs `per_step` times a step, summarised over runs."""
        return summarise([per_step * self.steps / s for s in self.wall_s])

    @property
    def step_cpu_s(self) -> float:
        """Median CPU time of a step, s; other processes affect it less than wall time."""
        return float(np.median(self.cpu_s)) / self.steps

    @property
    def least_cpu_s(self) -> float:
        """Least CPU time of a step, s, of the run that other processes disturbed least."""
        return max(min(self.cpu_s), 1e-9) / self.steps  # a coarse clock may not have moved

    @property
    def least_s(self) -> float:
        """Least wall time of a step, s."""
        return min(self.wall_s) / self.steps

    @property
    def cores_used(self) -> dict[str, float]:
        """CPU time over wall time, summarised over runs."""
        return summarise([c / w for c, w in zip(self.cpu_s, self.wall_s, strict=True)])


def summarise(values: list[float]) -> dict[str, float]:
    """`median`, `min`, `max` and `iqr` (interquartile range) of some numbers."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {
        "median": float(middle),
        "min": float(np.min(values)),
        "max": float(np.max(values)),
        "iqr": float(high - low),
    }


def measure(advance: Callable[[int], None], plan: Plan) -> Timing:
    """Time a program that continues from its last state.

    The warm-up moves the state away from its start, where nothing happens yet, and finds the number
    of steps of a run.

    Args:
        advance: `advance(n)` makes n steps and returns when they are done.
        plan: numbers of steps and runs.
    """
    steps = plan.steps or _calibrate(advance, plan.target_s)
    advance(steps)
    return repeat(advance, steps, plan.runs)


def repeat(advance: Callable[[int], None], steps: int, runs: int) -> Timing:
    """Timed runs of `steps` each, without a warm-up."""
    wall, cpu = [], []
    for _ in range(runs):
        began, used = time.perf_counter(), time.process_time()
        advance(steps)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    return Timing(steps, tuple(wall), tuple(cpu))


def interleaved(advances: Mapping[str, Callable[[int], None]], plan: Plan) -> dict[str, Timing]:
    """Time several programs to compare them: repeatedly one run of each in turn.

    So other load on the machine affects all programs alike.

    Args:
        advances: programs by name, see `measure`.
        plan: numbers of steps and runs.
    """
    steps = {name: plan.steps or _calibrate(f, plan.target_s) for name, f in advances.items()}
    runs: dict[str, list[Timing]] = {name: [] for name in advances}
    for _ in range(plan.runs):
        for name, advance in advances.items():
            runs[name].append(repeat(advance, steps[name], 1))
    timings = {}
    for name, parts in runs.items():
        wall = tuple(part.wall_s[0] for part in parts)
        timings[name] = Timing(steps[name], wall, tuple(part.cpu_s[0] for part in parts))
    return timings


def _calibrate(advance: Callable[[int], None], target_s: float) -> int:
    """Steps that take about `target_s`; at least one."""
    steps, seconds = 1, 0.0
    while True:
        began = time.perf_counter()
        advance(steps)
        seconds = max(time.perf_counter() - began, 1e-9)
        if seconds >= 0.2 * target_s or steps >= 2**20:  # the bound ends programs without work
            return max(1, math.ceil(steps * target_s / seconds))
        # At most tenfold: steps take longer as networks fill, so a short run predicts too many.
        steps = math.ceil(steps * min(10.0, 0.4 * target_s / seconds + 1.0))


@dataclass(frozen=True)
class Compiled:
    """A compiled program and the time to make it.

    Attributes:
        call: the program.
        trace_s: time to trace and lower it, s.
        compile_s: time of XLA's compilation, s.
    """

    call: jax.stages.Compiled
    trace_s: float
    compile_s: float

    @property
    def costs(self) -> dict[str, float]:
        """XLA's cost analysis of the optimised program; bodies of loops count once.

        Returns:
            `flops`, `transcendentals` and `bytes` (read and written by its fused operations), NaN
            where the backend does not state them.
        """
        analysis: Any = self.call.cost_analysis() or {}
        analysis = analysis[0] if isinstance(analysis, list) else analysis
        names = {"flops": "flops", "transcendentals": "transcendentals", "bytes": "bytes accessed"}
        return {name: float(analysis.get(key, math.nan)) for name, key in names.items()}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of arguments, of results outside of arguments' memory, and of temporaries."""
        m: Any = self.call.memory_analysis()
        if m is None:
            return {}
        return {
            "arguments": int(m.argument_size_in_bytes),
            "results": int(m.output_size_in_bytes - m.alias_size_in_bytes),
            "temporaries": int(m.temp_size_in_bytes),
        }


def compiled(jitted: Jitted, *args: PyTree) -> Compiled:
    """Compile a jitted function for arguments of these shapes and types."""
    # Apart, because lanes compile while the program is lowered, and XLA afterwards.
    began = time.perf_counter()
    lowered = jitted.lower(*args)
    middle = time.perf_counter()
    return Compiled(lowered.compile(), middle - began, time.perf_counter() - middle)
