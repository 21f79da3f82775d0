"""Runs cases in processes of their own: a compiled program keeps about one core busy."""

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
    """What a case yielded, and how long it took, s: by the clock, and of processors."""

    case: Case
    outcome: Outcome
    seconds: float
    cpu_seconds: float


def run_cases(
    chosen: list[Case],
    workers: int = WORKERS,
    show: Callable[[float, str], None] | None = None,
) -> list[Finished]:
    """Run cases and keep their order.

    Args:
        chosen: cases of the registry. A single one runs in this process, as do all with one worker.
        workers: processes.
        show: called with the number of cases done and the last one's name.
    """
    done: dict[str, Finished] = {}

    def take(case: Case, outcome: Outcome, seconds: float, cpu: float) -> None:
        done[case.name] = Finished(case, outcome, seconds, cpu)
        if show:
            show(len(done), case.name)

    if workers == 1 or len(chosen) == 1:
        for case in chosen:
            take(case, *_timed(case))
    else:
        by_name = {case.name: case for case in chosen}
        groups: dict[str, list[Case]] = {}
        for case in chosen:
            groups.setdefault(case.program or case.name, []).append(case)
        longest_first = sorted(groups.values(), key=lambda group: -sum(c.cost for c in group))
        with ProcessPoolExecutor(workers, get_context("spawn"), _on_cpu) as pool:
            waiting = [pool.submit(_named, [c.name for c in group]) for group in longest_first]
            try:
                for future in as_completed(waiting):
                    for name, outcome, seconds, cpu in future.result():
                        take(by_name[name], outcome, seconds, cpu)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [done[case.name] for case in chosen]


def _on_cpu() -> None:
    """Two processes share no accelerator; the comparisons are meant for a CPU."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _named(names: list[str]) -> list[tuple[str, Outcome, float, float]]:
    """Run the cases of these names (cases themselves need not be picklable)."""
    from ecn_marl.validation.registry import cases

    known = {case.name: case for case in cases()}
    return [(name, *_timed(known[name])) for name in names]


def _timed(case: Case) -> tuple[Outcome, float, float]:
    start, busy = time.perf_counter(), time.process_time()
    outcome = case.run()
    return outcome, time.perf_counter() - start, time.process_time() - busy
