"""Evaluation in several processes, an episode at a time each: for environments on the host.

An episode of packets keeps one core busy, and compiled batches do not help it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import PyTree

from ecn_marl.baselines.evaluation.episodes import BATCH, Evaluation, evaluate, evaluation_keys
from ecn_marl.baselines.evaluation.traces import TRACE, episode_of, stacked

if TYPE_CHECKING:
    from ecn_marl.experiments.policies import Arena, Named


@dataclass(frozen=True, eq=False)
class Task:
    """The episodes of a policy.

    Attributes:
        arena: scenario and options.
        policy: the policy.
        episodes: number of episodes.
        seed: which tuning episodes.
        controller: the controller; None where processes are to make it from the name.
        traced: whether flows and intervals are traced.
    """

    arena: Arena
    policy: Named
    episodes: int
    seed: int
    controller: Any = None
    traced: bool = False


@contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """So many processes; None for a single one, which is this one."""
    if workers == 1:
        yield None
        return
    # `fork` would copy JAX without its threads, and the first computation would hang.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield pool


def in_processes(
    pool: ProcessPoolExecutor,
    task: Task,
    progress: Callable[[int], None],
    keep: Callable[[int, dict[str, Any]], None] | None = None,
) -> Evaluation:
    """Evaluate a policy; the result is that of `evaluate`.

    Args:
        pool: the processes.
        task: what to run.
        progress: called with the number of episodes done.
        keep: called after every `BATCH` episodes of a traced task with the number of the first, and
            their metrics.
    """
    parts: list[dict[str, np.ndarray]] = []
    batch: list[dict[str, Any]] = []
    for done, part in enumerate(pool.map(partial(_episode, task), range(task.episodes)), 1):
        batch.append(part)
        progress(done)
        if len(batch) < BATCH and done < task.episodes:
            continue
        each = [x.pop(TRACE) for x in batch] if task.traced else []
        parts.append({n: np.concatenate([x[n] for x in batch]) for n in batch[0]})
        if keep is not None:
            keep(done - len(batch), parts[-1] | {TRACE: stacked(each)})
        batch = []
    return Evaluation(
        task.policy.name, {n: np.concatenate([x[n] for x in parts]) for n in parts[0]}
    )


_MADE: dict[str, tuple[Any, Any]] = {}
"""Environment and controller of the policy that a process runs, made once."""


def _episode(task: Task, i: int) -> dict[str, Any]:
    """Metrics of an episode, and its trace."""
    name = task.policy.name
    if name not in _MADE:
        _MADE.clear()
        controller = task.controller
        if controller is None:
            controller = task.arena.controller(task.policy)
        _MADE[name] = task.arena.env(task.policy), controller
    env, controller = _MADE[name]
    keys = evaluation_keys(task.seed, task.episodes)[i : i + 1]
    traced: list[Any] = []

    def keep(first: int, env: Any, params: PyTree, metrics: dict[str, Any]) -> None:
        traced.append(episode_of(metrics[TRACE], 0))

    evaluation = evaluate(
        env,
        env.default_params,
        controller,
        name=name,
        episodes=1,
        keys=keys,
        keep=keep if task.traced else None,
    )
    return evaluation.episodes | ({TRACE: traced[0]} if traced else {})
