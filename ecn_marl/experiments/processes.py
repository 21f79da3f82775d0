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

from ecn_marl.baselines.evaluation.episodes import Evaluation, evaluate, evaluation_keys

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
    """

    arena: Arena
    policy: Named
    episodes: int
    seed: int
    controller: Any = None


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
    pool: ProcessPoolExecutor, task: Task, progress: Callable[[int], None]
) -> Evaluation:
    """Evaluate a policy; the result is that of `evaluate`.

    Args:
        pool: the processes.
        task: what to run.
        progress: called with the number of episodes done.
    """
    parts = []
    for part in pool.map(partial(_episode, task), range(task.episodes)):
        parts.append(part)
        progress(len(parts))
    return Evaluation(
        task.policy.name, {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}
    )


_MADE: dict[str, tuple[Any, Any]] = {}
"""Environment and controller of the policy that a process runs, made once."""


def _episode(task: Task, i: int) -> dict[str, np.ndarray]:
    """Metrics of an episode."""
    name = task.policy.name
    if name not in _MADE:
        _MADE.clear()
        controller = task.controller
        if controller is None:
            controller = task.arena.controller(task.policy)
        _MADE[name] = task.arena.env(task.policy), controller
    env, controller = _MADE[name]
    keys = evaluation_keys(task.seed, task.episodes)[i : i + 1]
    params = env.default_params
    return evaluate(env, params, controller, name=name, episodes=1, keys=keys).episodes
