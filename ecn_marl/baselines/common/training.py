"""The training loop around a compiled update: progress, logs, checkpoints, honest stops."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.baselines.common.checkpoint import Checkpoints

METRICS = "metrics.jsonl"


@runtime_checkable
class Algorithm(Protocol):
    """What the loop needs of an algorithm."""

    config: Any

    def init(self, key: jax.Array, params: Any) -> Any:
        """A fresh training state."""

    def update(self, state: Any, params: Any) -> tuple[Any, dict[str, jax.Array]]:
        """One update and its metrics."""


class TrainingDiverged(RuntimeError):
    """A metric of training is not finite."""


@dataclass(frozen=True)
class TrainResult:
    """Result of `train`.

    Attributes:
        state: final training state; with several seeds, leaves have a leading axis of seeds.
        metrics: one row per update, as written to `metrics.jsonl`.
    """

    state: Any
    metrics: list[dict[str, Any]]


def compiled_update(
    algorithm: Algorithm, updates: int = 1, seeds: int = 1
) -> Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]:
    """Several updates in one compiled call that reuses the memory of the state it is given.

    Args:
        algorithm: the algorithm.
        updates: updates per call; metrics get a leading axis of this length.
        seeds: independent learners trained at once; above 1, leaves of the state have a leading
            axis of seeds, and metrics a second one.
    """

    @partial(jax.jit, donate_argnums=0)
    def run(state: Any, params: Any) -> tuple[Any, dict[str, jax.Array]]:
        def one(state: Any, _: None) -> tuple[Any, dict[str, jax.Array]]:
            if seeds == 1:
                return algorithm.update(state, params)
            return jax.vmap(algorithm.update, (0, None))(state, params)

        return jax.lax.scan(one, state, None, length=updates)

    return run


def initial_state(algorithm: Algorithm, params: Any, seed: int, seeds: int = 1) -> Any:
    """A fresh training state; with several seeds those of `seed`, `seed + 1`, … stacked."""
    if seeds == 1:
        return jax.jit(algorithm.init)(jax.random.key(seed), params)
    keys = jax.vmap(jax.random.key)(seed + jnp.arange(seeds))
    return jax.jit(jax.vmap(algorithm.init, (0, None)))(keys, params)


def train(
    algorithm: Algorithm,
    params: Any,
    *,
    steps: int,
    seed: int = 0,
    seeds: int = 1,
    out: str | Path | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    updates_per_call: int = 1,
) -> TrainResult:
    """Train until at least `steps` environment steps have been made.

    Args:
        algorithm: the algorithm.
        params: parameters of its environment.
        steps: environment steps (tuning intervals, summed over environments) per seed.
        seed: first seed.
        seeds: number of seeds trained at once.
        out: folder for `metrics.jsonl` and checkpoints; nothing is written if None.
        progress: called with every row of metrics.
        updates_per_call: updates per compiled call; a checkpoint can be made between calls.

    Returns:
        Final state and metrics.

    Raises:
        ValueError: `steps` or `seeds` below 1.
        TrainingDiverged: a metric is NaN or infinite; the state before is saved if `out` is given.
    """
    for name, value in (("steps", steps), ("seeds", seeds)):
        if value < 1:
            raise bad_value(name, value, "an integer >= 1")
    per_update = int(algorithm.config.steps_per_update)
    calls = -(-steps // (per_update * updates_per_call))
    state = initial_state(algorithm, params, seed, seeds)
    run = compiled_update(algorithm, updates_per_call, seeds)
    checkpoints = None if out is None else Checkpoints(out)
    log = None if out is None else open(Path(out) / METRICS, "w")  # noqa: SIM115
    rows: list[dict[str, Any]] = []
    began, done = time.perf_counter(), 0
    try:
        for _ in range(calls):
            state, metrics = run(state, params)
            values = jax.device_get(metrics)
            for i in range(updates_per_call):
                done += per_update
                row: dict[str, Any] = {"update": len(rows) + 1, "steps": done}
                row |= {k: np.asarray(v[i]).tolist() for k, v in sorted(values.items())}
                row["seconds"] = round(time.perf_counter() - began, 3)
                row["steps_per_second"] = round(done * seeds / max(row["seconds"], 1e-9), 1)
                rows.append(row)
                if log is not None:
                    log.write(json.dumps(row) + "\n")
                    log.flush()
                _check(row, seed)
                if progress is not None:
                    progress(row)
    finally:
        if log is not None:
            log.close()
        if checkpoints is not None:
            # A call that was interrupted has given its memory away: what was saved before remains.
            if not any(x.is_deleted() for x in jax.tree.leaves(state)):
                checkpoints.save(len(rows), state)
            checkpoints.close()
    return TrainResult(state, rows)


def _check(row: dict[str, Any], seed: int) -> None:
    for name, value in row.items():
        finite = np.isfinite(np.atleast_1d(np.asarray(value, np.float64)))
        if not finite.all():
            which = seed + int(np.argmin(finite))
            raise TrainingDiverged(
                f"{name} = {value} at update {row['update']} of seed {which}: training stopped"
            )
