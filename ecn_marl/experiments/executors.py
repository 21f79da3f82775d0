"""Who runs the tasks of a comparison: this process, several of this machine, or a cluster.

A task is the training of a learner (`trainings.train_all`), the scores of a scenario or a paper's
cell (`engine.score_all`), a trial of a search (`tune`), or an episode on packets: that keeps one
core busy, and compiled batches do not help it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value
from ecn_marl._imports import import_extension, imported
from ecn_marl._lock import BEAT, DEAD
from ecn_marl.baselines.evaluation.episodes import BATCH, Evaluation, evaluate
from ecn_marl.baselines.evaluation.traces import TRACE, episode_of, stacked
from ecn_marl.envs.registry import is_packets
from ecn_marl.errors import FolderInUse

if TYPE_CHECKING:
    from ecn_marl.experiments.policies import Arena, Named
    from ecn_marl.experiments.recording import Keep


T = TypeVar("T")

RAY, SLURM = "ray", "slurm"
"""Kinds of clusters."""

ALLOWED = "a number of processes, ray:ADDRESS[,cpus=N,gpus=N] or slurm:[NAME=VALUE,...]"

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
    """

    name: str
    build: Build
    keys: jax.Array


def of_arena(arena: Arena, policy: str | Named, controller: Any = None) -> Built:
    """Environment and controller of a policy in an arena.

    Args:
        arena: scenario and options.
        policy: the policy.
        controller: the controller; None where it is to be made from the name.
    """
    return arena.env(policy), arena.controller(policy) if controller is None else controller


def check_workers(workers: int | str, backend: str) -> None:
    """Check who runs episodes; the fluid runs in one process.

    Args:
        workers: see `executor`.
        backend: what simulates the network.

    Raises:
        ValueError: nothing that `executor` takes, or more than this process where packets are not
            simulated.
    """
    parse_workers(workers)
    if not is_packets(backend) and workers != 1:
        allowed = "1 without packets: the fluid runs episodes in batches"
        raise bad_value("workers", workers, allowed)


def parse_workers(workers: int | str) -> tuple[str, str, dict[str, float | str]]:
    """Read `workers`, see `executor`: `ray:HOST:PORT,gpus=0.5` is `("ray", "HOST:PORT", {...})`.

    Raises:
        ValueError: it is none of these.
    """
    if not isinstance(workers, str):
        check_value("workers", workers, Whole(low=1))
        return "", "", {}
    kind, _, rest = workers.partition(":")
    first, *others = rest.split(",")
    address = "" if "=" in first else first
    pairs = [part.split("=", 1) for part in ((first, *others) if "=" in first else others)]
    if kind not in (RAY, SLURM) or any(len(pair) < 2 or not all(pair) for pair in pairs):
        raise bad_value("workers", workers, ALLOWED)
    if kind == SLURM and address:
        raise bad_value("workers", workers, ALLOWED)
    return kind, address, {name: _number(value) for name, value in pairs}


def _number(text: str) -> float | str:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


@contextmanager
def executor(workers: int | str) -> Iterator[Executor | None]:
    """What runs tasks beside this process.

    Whatever it is, it imports first what `--import` has imported here, and a task that fails with
    an error of its own fails with the same error here.

    Args:
        workers: number of processes of this machine; `ray:ADDRESS` for a Ray cluster, `ray:local`
            for one of this machine alone, with `,cpus=1,gpus=0` for what a task takes of it; or
            `slurm:NAME=VALUE,…` for jobs of SLURM, with parameters of `submitit.AutoExecutor`.

    Yields:
        The executor; None for a single process, which is this one.

    Raises:
        ValueError: nothing of this kind, or a package or a cluster that is not there.
    """
    kind, address, options = parse_workers(workers)
    if workers == 1:
        yield None
    elif kind:
        # Here, not above: clusters need packages of extras.
        from ecn_marl.experiments import clusters

        open_ = clusters.on_ray if kind == RAY else clusters.on_slurm
        with open_(address, options) as pool:
            yield pool
    else:
        assert isinstance(workers, int)
        # `fork` would copy JAX without its threads, and the first computation would hang.
        with ProcessPoolExecutor(workers, get_context("spawn"), _import, (imported(),)) as pool:
            yield pool


def once_free(fn: Callable[..., T], /, *args: Any) -> T:
    """The result of a function that needs a folder, once no other process works there.

    A task that begins again may find the lock of a node that was lost: it is stale after `DEAD`.

    Raises:
        FolderInUse: another process still works there.
    """
    end = time.monotonic() + DEAD + BEAT
    while True:
        try:
            return fn(*args)
        except FolderInUse:
            if time.monotonic() > end:
                raise
        time.sleep(BEAT / 4)


def _import(names: Sequence[str]) -> None:
    for name in names:
        import_extension(name)


def run_episodes(
    pool: Executor | None,
    task: Task,
    built: Built,
    progress: Callable[[int], None] | None = None,
    keep: Keep | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate a policy, here or in the processes of a pool.

    Args:
        pool: what runs the episodes, one at a time; None for this process.
        task: what to run.
        built: environment and controller, as the task builds them.
        progress: called with the number of episodes done.
        keep: see `evaluate`; flows and intervals are traced then.
        **options: further arguments of `evaluate`, which a pool does without.
    """
    env, controller = built
    if pool is None:
        return evaluate(
            env,
            env.default_params,
            controller,
            name=task.name,
            episodes=len(task.keys),
            keys=task.keys,
            progress=progress,
            keep=keep,
            **options,
        )
    parts: list[dict[str, np.ndarray]] = []
    batch: list[dict[str, Any]] = []
    words = np.asarray(jax.random.key_data(task.keys))
    run = partial(_episode, task.name, task.build, keep is not None)
    for done, part in enumerate(pool.map(run, words), 1):
        batch.append(part)
        if progress is not None:
            progress(done)
        if len(batch) < BATCH and done < len(words):
            continue
        each = [] if keep is None else [x.pop(TRACE) for x in batch]
        parts.append({n: np.concatenate([x[n] for x in batch]) for n in batch[0]})
        if keep is not None:
            metrics = parts[-1] | {TRACE: stacked(each)}
            keep(done - len(batch), env, env.default_params, metrics)
        batch = []
    return Evaluation(task.name, {n: np.concatenate([x[n] for x in parts]) for n in parts[0]})


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
