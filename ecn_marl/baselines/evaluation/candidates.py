"""Episodes under many candidates for a policy's settings: one program, in batches of one size."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl import lanes
from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController, roll_out
from ecn_marl.envs.interface import PortEnvironment

Build = Callable[[Array], Controller | StatefulController]
"""`candidate -> controller`; candidates are traced."""


class Candidates:
    """Runs pairs of an episode and a candidate.

    Attributes:
        batch: episodes run at once.
        runs: episodes simulated so far.
    """

    def __init__(
        self,
        env: PortEnvironment,
        params: PyTree,
        build: Build,
        *,
        batch: int,
        keep: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Set up the program; it is compiled when it first runs.

        Args:
            env: functional environment (without auto-reset).
            params: its parameters; `max_steps` is the length of an episode.
            build: `candidate (traced array) -> controller`.
            batch: episodes run at once, at most.
            keep: whether a metric is wanted, by its name.
        """
        self.batch, self.runs = batch, 0

        @lanes.mapped
        def episode(key: jax.Array, candidate: jax.Array) -> dict[str, jax.Array]:
            state, _, _ = roll_out(env, params, build(candidate), key)
            metrics = env.episode_metrics(state, params)
            return {name: x for name, x in metrics.items() if keep(name)}

        self._run = jax.jit(jax.vmap(episode))

    def __call__(
        self,
        keys: jax.Array,
        candidates: np.ndarray,
        progress: Callable[[], None] | None = None,
    ) -> dict[str, np.ndarray]:
        """Metrics of `EcnEnv.episode_metrics`, `[n, ...]` each.

        Args:
            keys: keys of the episodes, `[n]`.
            candidates: the candidate of each, `[n, ...]`.
            progress: called after every batch.
        """
        n, rows = len(candidates), np.asarray(candidates, np.float32)
        size, parts = min(self.batch, n), []
        for start in range(0, n, size):
            chosen = np.arange(start, min(start + size, n))
            # A short last batch is filled up: another size would be compiled anew.
            index = np.resize(chosen, size)
            metrics = jax.device_get(self._run(keys[index], rows[index]))
            parts.append({name: x[: len(chosen)] for name, x in metrics.items()})
            self.runs += len(chosen)
            if progress is not None:
                progress()
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
