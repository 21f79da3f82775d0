"""Export of a learner of rates to a policy in one file (`rate_policy.py`).

Quantised networks are calibrated on observations of flows in the training scenarios. Trees are
grown on observations under the policy, and then, `ROUNDS` times, also on those under the former
tree, labelled with the policy's actions (DAgger, Ross et al. 2011).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl._checks import check_seed
from ecn_marl._errors import bad_value
from ecn_marl.baselines.exporting.distil import check_depth, grow
from ecn_marl.baselines.exporting.quantise import Layers, dense_arrays, quantise
from ecn_marl.baselines.exporting.rate_policy import RatePolicy, tree
from ecn_marl.baselines.rl.rate_rollout import roll_rates
from ecn_marl.envs.rate.actions import ContinuousFactor
from ecn_marl.envs.rate.env import RateEnv

STEPS = 2000
"""Steps that are recorded of every training environment, from an empty network on."""

ENVS = 4
"""Environments of each training scenario that are recorded."""

ROUNDS = 4
"""Trees whose own events are added for the next one."""

MAX_ROWS = 50_000
"""Largest number of observations of a recording, drawn at random."""


def export_rate_policy(
    trainer: Any, actor: PyTree, *, int8: bool = False, depth: int | None = None, **about: Any
) -> RatePolicy:
    """A policy without JAX.

    Args:
        trainer: learner of rates: `envs`, `default_params`, `act`, and `policy`, its network.
        actor: its parameters.
        int8: quantise it, see `quantise`.
        depth: depth of a tree instead of the network, see `distil`.
        **about: anything else for the header, `algorithm` and `seed` among it.

    Raises:
        ValueError: both forms at once, a depth that is not allowed, or a policy that is no network
            of ReLU layers from observations to a factor (which a tree does not need).
    """
    env = trainer.envs[0]
    if int8 and depth is not None:
        raise bad_value("int8, depth", (int8, depth), "one of both")
    if not isinstance(env.action, ContinuousFactor):
        raise bad_value("actions", env.action.name, f"{ContinuousFactor.name}, to be exported")
    low, high = env.action.low, env.action.high
    limits = ((low + high) / 2.0, (high - low) / 2.0)
    if depth is not None:
        arrays, model = _tree(trainer, actor, depth, about["seed"])
    else:
        layers = _layers(trainer, actor, about["algorithm"])
        model = {"layers": [int(w.shape[-1]) for w, _ in layers], "activation": "relu"}
        arrays = dense_arrays(layers, limits)
        if int8:
            arrays, int8_header = quantise(
                layers, limits, record(trainer, trainer.act, actor, about["seed"])
            )
            model |= int8_header
    form = "tree" if depth is not None else "int8" if int8 else "dense"
    header = {
        "columns": list(env.columns),
        "history": env.history,
        "target": env.target,
        "offset": env.offset,
        "factors": [low, high],
        "model": {"form": form, **model},
        **about,
    }
    return RatePolicy(header, arrays)


def record(trainer: Any, act: Callable[..., Any], actor: PyTree, seed: int) -> np.ndarray:
    """Observations of flows in a learner's training scenarios, `[N, obs]`, at most `MAX_ROWS` rows.

    Args:
        trainer: the learner.
        act: policy of the flows, `(actor, obs) -> action`.
        actor: its parameters.
        seed: seed of the episodes and of which rows are kept.
    """
    check_seed(seed)
    recorded = []
    for i, (env, params) in enumerate(zip(trainer.envs, trainer.default_params, strict=True)):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), i), ENVS)
        valid, obs = jax.device_get(_recorder(env, act)(actor, keys, params))
        recorded.append(obs[valid])
    rows = np.concatenate(recorded)
    if len(rows) > MAX_ROWS:
        rows = rows[np.random.default_rng(seed).choice(len(rows), MAX_ROWS, replace=False)]
    return rows


# A tree is recorded `ROUNDS` times with other leaves; the program is compiled once.
@lru_cache(maxsize=16)
def _recorder(env: RateEnv, act: Callable[..., Any]) -> Callable[..., Any]:
    """Which flows acted, `[steps, envs, flows]`, and observations `[steps, envs, flows, obs]`."""

    def acting(actor: PyTree, key: jax.Array, obs: Array) -> Array:
        del key  # greedy
        action: Array = act(actor, obs)
        return action

    @jax.jit
    def roll(actor: PyTree, keys: jax.Array, params: PyTree) -> tuple[Array, Array]:
        _, state = jax.vmap(env.reset, (0, None))(keys, params)
        _, rows = roll_rates(env, acting, state, keys[0], STEPS, params, actor)
        return rows.valid, rows.obs

    return roll


def _tree(
    trainer: Any, actor: PyTree, depth: int, seed: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A tree, and its fields of the header."""
    check_depth(depth)
    policy = jax.jit(trainer.act)
    obs = record(trainer, trainer.act, actor, seed)
    for i in range(ROUNDS + 1):
        factor = np.asarray(policy(actor, jnp.asarray(obs)))
        arrays = grow(obs, factor, depth)
        if i < ROUNDS:
            obs = np.concatenate([obs, record(trainer, _tree_act, arrays, seed + i + 1)])
    error = np.abs(tree(np, arrays, obs) - factor).astype(np.float64)
    return arrays, {
        "depth": depth,
        "mean_difference": float(error.mean()),
        "largest_difference": float(error.max()),
        "observations": len(obs),
    }


def _tree_act(arrays: PyTree, obs: Array) -> Array:
    """A tree as a policy of flows."""
    return jnp.asarray(tree(jnp, arrays, obs))


def _layers(trainer: object, actor: PyTree, algorithm: str) -> Layers:
    """Weights and biases of the network; biases are 0 where it has none."""
    from ecn_marl.baselines.adpg import Policy

    if not isinstance(getattr(trainer, "policy", None), Policy):
        allowed = "adpg, whose policy is a network of ReLU layers (or export a tree)"
        raise bad_value("algorithm", algorithm, allowed)
    layers = jax.device_get(actor["params"])
    pairs = []
    for i in range(len(layers)):
        weight = np.asarray(layers[f"Dense_{i}"]["kernel"])
        pairs.append((weight, np.zeros(weight.shape[-1], np.float32)))
    return pairs
