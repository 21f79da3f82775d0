"""Evaluation in several processes, an episode at a time each: for environments on the host.

An episode of packets keeps one core busy, and compiled batches do not help it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value
from ecn_marl._imports import import_extension, imported
from ecn_marl.baselines.evaluation.episodes import BATCH, Evaluation, evaluate
from ecn_marl.baselines.evaluation.traces import TRACE, episode_of, stacked
from ecn_marl.envs.registry import is_packets

if TYPE_CHECKING:
    from ecn_marl.experiments.policies import Arena, Named
    from ecn_marl.experiments.recording import Keep


Built = tuple[Any, Any]
"""An environment, and the controller that acts in it."""

Build = Callable[[], Built]
"""Makes them."""


@dataclass(frozen=True, eq=False)
class Task:
    """The episodes of a policy.

    Attributes:
        name: name of the policy; tasks of a pool that differ have different names.
        build: makes environment and controller, in each process once; a function that pickles.
        keys: keys of the episodes.
        traced: whether flows and intervals are traced.
    """

    name: str
    build: Build
    keys: jax.Array
    traced: bool = False


def of_arena(arena: Arena, policy: str | Named, controller: Any = None) -> Built:
    """Environment and controller of a policy in an arena.

    Args:
        arena: scenario and options.
        policy: the policy.
        controller: the controller; None where it is to be made from the name.
    """
    return arena.env(policy), arena.controller(policy) if controller is None else controller


def check_workers(workers: int, backend: str) -> None:
    """Check a number of processes; the fluid runs in one.

    Raises:
        ValueError: no whole number from 1, or several where packets are not simulated.
    """
    check_value("workers", workers, Whole(low=1))
    if not is_packets(backend) and workers > 1:
        allowed = "1 without packets: the fluid runs episodes in batches"
        raise bad_value("workers", workers, allowed)


@contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """So many processes; None for a single one, which is this one.

    They import what `--import` has imported here.
    """
    if workers == 1:
        yield None
        return
    # `fork` would copy JAX without its threads, and the first computation would hang.
    with ProcessPoolExecutor(workers, get_context("spawn"), _import, (imported(),)) as pool:
        yield pool


def _import(names: Sequence[str]) -> None:
    for name in names:
        import_extension(name)


def in_processes(
    pool: ProcessPoolExecutor,
    task: Task,
    progress: Callable[[int], None] | None = None,
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
    words = np.asarray(jax.random.key_data(task.keys))
    run = partial(_episode, task.name, task.build, task.traced)
    for done, part in enumerate(pool.map(run, words), 1):
        batch.append(part)
        if progress is not None:
            progress(done)
        if len(batch) < BATCH and done < len(words):
            continue
        each = [x.pop(TRACE) for x in batch] if task.traced else []
        parts.append({n: np.concatenate([x[n] for x in batch]) for n in batch[0]})
        if keep is not None:
            keep(done - len(batch), parts[-1] | {TRACE: stacked(each)})
        batch = []
    return Evaluation(task.name, {n: np.concatenate([x[n] for x in parts]) for n in parts[0]})


def with_env(keep: Keep, env: Any, first: int, metrics: dict[str, Any]) -> None:
    """Hand the metrics of a batch to what keeps them."""
    keep(first, env, env.default_params, metrics)


_MADE: dict[str, Built] = {}
"""Environment and controller of the policy that a process runs, made once."""


def _episode(name: str, build: Build, trace: bool, words: np.ndarray) -> dict[str, Any]:
    """Metrics of the episode of a key, and its trace."""
    if name not in _MADE:
        _MADE.clear()
        _MADE[name] = build()
    env, controller = _MADE[name]
    traced: list[Any] = []

    def keep(first: int, env: Any, params: PyTree, metrics: dict[str, Any]) -> None:
        traced.append(episode_of(metrics[TRACE], 0))

    evaluation = evaluate(
        env,
        env.default_params,
        controller,
        name=name,
        episodes=1,
        keys=jax.random.wrap_key_data(jnp.asarray(words[None])),
        keep=keep if trace else None,
    )
    return evaluation.episodes | ({TRACE: traced[0]} if trace else {})
