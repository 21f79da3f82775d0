"""Run cases in several processes, because a compiled program keeps only about one core busy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from ecn_marl.validation.lines import Case, Outcome

WORKERS = 2


@dataclass(frozen=True)
class Finished:
    """The outcome of a case, and its wall-clock and processor time, s."""

    case: Case
    outcome: Outcome
    seconds: float
    cpu_seconds: float


def run_cases(
    selected: list[Case],
    workers: int = WORKERS,
    show: Callable[[float, str], None] | None = None,
) -> list[Finished]:
    """Run cases and keep their order.

    Args:
        selected: cases of the registry. A single one runs in this process; so do all cases if there
            is one worker.
        workers: processes.
        show: called with the number of cases done and the last one's name.
    """
    finished: dict[str, Finished] = {}

    def take(case: Case, outcome: Outcome, seconds: float, cpu: float) -> None:
        finished[case.name] = Finished(case, outcome, seconds, cpu)
        if show:
            show(len(finished), case.name)

    if workers == 1 or len(selected) == 1:
        for case in selected:
            take(case, *_timed(case))
    else:
        by_name = {case.name: case for case in selected}
        groups: dict[str, list[Case]] = {}
        for case in selected:
            groups.setdefault(case.program or case.name, []).append(case)
        longest_first = sorted(groups.values(), key=lambda group: -sum(c.cost for c in group))
        # `fork` would copy JAX without its threads, and the first computation would hang.
        with ProcessPoolExecutor(workers, get_context("spawn"), _on_cpu) as pool:
            waiting = [pool.submit(_run_named, [c.name for c in group]) for group in longest_first]
            try:
                for future in as_completed(waiting):
                    for name, outcome, seconds, cpu in future.result():
                        take(by_name[name], outcome, seconds, cpu)
            except BaseException:  # leaving the block would wait for all cases that are left
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [finished[case.name] for case in selected]


def _on_cpu() -> None:
    """Select the CPU: processes cannot share an accelerator."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _run_named(names: list[str]) -> list[tuple[str, Outcome, float, float]]:
    """Run the cases of these names (cases themselves need not be picklable)."""
    from ecn_marl.validation.registry import cases

    by_name = {case.name: case for case in cases()}
    return [(name, *_timed(by_name[name])) for name in names]


def _timed(case: Case) -> tuple[Outcome, float, float]:
    start, busy = time.perf_counter(), time.process_time()
    outcome = case.run()
    return outcome, time.perf_counter() - start, time.process_time() - busy
