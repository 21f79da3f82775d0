"""Score a policy of any framework beside static thresholds, on held-out episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from rich.console import Console

from ecn_marl.baselines.evaluation.episodes import (
    Controller,
    Evaluation,
    StatefulController,
    evaluate,
    evaluation_keys,
)
from ecn_marl.baselines.static import Static
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.render.tables import evaluation_tables
from ecn_marl.wrappers.batch import check_batches, compiled

Policy = Callable[[np.ndarray], Any]
"""Observations `[N, A, obs_dim]` of N networks -> actions `[N, A, ...]`, both numpy."""


def evaluate_policy(
    core: EcnEnv, policy: Policy, *, name: str = "policy", episodes: int = 16, seed: int = 0
) -> Evaluation:
    """Run a policy that JAX cannot trace (PyTorch, numpy) for a batch of whole episodes.

    Episodes are those of `baselines.evaluation.episodes`: equal seeds give equal traffic.

    Args:
        core: the functional environment.
        policy: the policy.
        name: label of the result.
        episodes: number of episodes, all in one batch.
        seed: seed of the episodes.

    Raises:
        ValueError: an environment that cannot be traced.
    """
    check_batches(core)
    # `roll_out` resets with this half of an episode's key, so the traffic is the same.
    keys = jax.vmap(lambda key: jax.random.split(key)[0])(evaluation_keys(seed, episodes))
    reset, step, _ = compiled(core.program)
    params = core.default_params
    steps = np.full(episodes, core.horizon, np.int32)
    obs, state = reset(jax.random.key_data(keys), params, steps)
    for _ in range(core.horizon):
        action = np.asarray(policy(np.array(obs))).reshape(episodes, -1, *core.action.shape)
        obs, state, *_ = step(state, action.astype(core.action.dtype), params, steps)
    metrics = jax.jit(jax.vmap(core.episode_metrics, (0, None)))(state, params)
    return Evaluation(name, jax.device_get(metrics))


def compare(
    core: EcnEnv,
    policy: Policy,
    *,
    name: str,
    episodes: int = 16,
    seed: int = 0,
    allow_flagged: bool = False,
) -> dict[str, Any]:
    """A policy beside random choices, SECN1 and SECN2.

    Args:
        core: the functional environment.
        policy: see `evaluate_policy`.
        name: label of the policy.
        episodes: number of episodes.
        seed: seed of the episodes.
        allow_flagged: see `completion.summarise`.

    Returns:
        What `render.tables.evaluation_tables` shows; `policies` has a summary of each.
    """
    defaults = core.default_params
    controllers: dict[str, Controller | StatefulController] = {
        "random": lambda key, obs: core.action.sample(key, core.num_agents),
        "SECN1": Static(core, defaults, "secn1"),
        "SECN2": Static(core, defaults, "secn2"),
    }
    rows = [evaluate_policy(core, policy, name=name, episodes=episodes, seed=seed)]
    rows += [
        evaluate(core, defaults, controller, name=label, episodes=episodes, seed=seed)
        for label, controller in controllers.items()
    ]
    return {
        "scenario": core.name,
        "episodes": episodes,
        "seed": seed,
        "policies": [row.summary(allow_flagged) for row in rows],
    }


def show(result: Mapping[str, object]) -> None:
    """Print what `compare` returned."""
    console = Console()
    for table in evaluation_tables(result, str, console.width):
        console.print(table)
