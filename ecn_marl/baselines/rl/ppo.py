"""What all learners with PPO's objective share: the clipped loss, gradient steps, their data.

Schulman et al., "Proximal Policy Optimization Algorithms", 2017: the clipped objective is its
Eq. 7, the gradient steps of an update those of its Algorithm 1. Arrays of a rollout have the axes
`[time, envs, A, ...]`, those of a minibatch `[rows, A, ...]`.

The learners of thresholds are in `ppo_trainer`; `improve` and `policy_loss` also serve those of
rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from ecn_marl.baselines.rl.distributions import Head, evaluate_actions

LOG_RATIO_MAX = 20.0
"""Log-ratios of probabilities are clipped to this; it is far outside of any `clip`."""


class Batch(NamedTuple):
    """Training data, leaves `[time, envs, A, ...]` or `[rows, A, ...]`.

    `value` is the critic's output at the time of the rollout, for losses that need it. `drawn` says
    which actions the policy chose, where others were kept from the decision before; None if all.
    `ended` and `memory` are those of sequences, see `recurrent.sequences`; None without a memory.
    """

    obs: Array
    action: Array
    log_prob: Array
    advantage: Array
    target: Array
    value: Array | None = None
    drawn: Array | None = None
    ended: PyTree = None
    memory: PyTree = None


def explained_variance(target: Array, value: Array) -> Array:
    """Share of the variance of returns that values explain: 1 is perfect, 0 a constant."""
    # Returns that are all equal have no variance: 0 / 0.
    return 1.0 - jnp.var(target - value) / jnp.maximum(jnp.var(target), 1e-12)


def policy_loss(
    head: Head,
    out: Array,
    batch: Batch,
    clip: float | Array,
    entropy: float | Array,
    shared: bool = True,
) -> tuple[Array, dict[str, Array]]:
    """Clipped surrogate objective and entropy bonus, and their metrics.

    Args:
        head: distribution of the actions.
        out: outputs of the policy, `[rows, A, n]`.
        batch: leaves `[rows, A, ...]`; advantages are normalised here, over the minibatch. Actions
            that were not drawn count for nothing.
        clip: epsilon.
        entropy: weight of the entropy bonus.
        shared: whether agents share a policy. Else advantages are normalised for each agent, and
            losses are summed over agents, so that no agent's gradient depends on another.
    """
    log_prob, action_entropy = evaluate_actions(head, out, batch.action)
    # A narrow policy can make an action e^100 times as likely: its ratio would be inf, and the
    # gradient of the branch that `minimum` does not take 0 * inf.
    change = jnp.clip(log_prob - batch.log_prob, -LOG_RATIO_MAX, LOG_RATIO_MAX)
    ratio = jnp.exp(change)
    axis, drawn = None if shared else 0, batch.drawn
    centred = batch.advantage - _mean(batch.advantage, axis, drawn)
    # Where all advantages are equal their deviation is 0.
    advantage = centred / (jnp.sqrt(_mean(centred**2, axis, drawn)) + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
    loss = -over_agents(gain + entropy * action_entropy, shared, drawn)
    return loss, {
        "policy_loss": -_mean(gain, None, drawn),
        "entropy": _mean(action_entropy, None, drawn),
        # Never negative, unlike the mean of `-change` (Schulman, "Approximating KL divergence").
        "kl": _mean(ratio - 1.0 - change, None, drawn),
        "clipped": _mean(jnp.abs(ratio - 1.0) > clip, None, drawn),
    }


def over_agents(
    x: Float[Array, "rows agents"], shared: bool, where: Array | None = None
) -> Float[Array, ""]:
    """Mean over rows and agents, or, for agents with parameters of their own, the sum of means."""
    return _mean(x, None, where) if shared else _mean(x, 0, where).sum()


def _mean(x: Array, axis: int | None, where: Array | None) -> Array:
    """Mean over an axis of the entries chosen; 0 if none is."""
    if where is None:
        return x.mean(axis)
    return (x * where).sum(axis) / jnp.maximum(where.sum(axis), 1)


LossFunction = Callable[[PyTree, Any], tuple[Array, dict[str, Array]]]
"""`(parameters, minibatch) -> loss, metrics`."""

Rule = tuple[LossFunction, optax.GradientTransformation]
"""Loss and optimiser of a network."""


def improve(
    networks: tuple[PyTree, ...],
    optimisers: tuple[PyTree, ...],
    rules: tuple[Rule, ...],
    batch: Any,
    key: jax.Array,
    epochs: int,
    minibatches: int,
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...], dict[str, Array]]:
    """Several passes of minibatch gradient steps over a rollout.

    Args:
        networks: parameters of each network.
        optimisers: their optimisers' states.
        rules: loss and optimiser of each network.
        batch: data; leaves `[time, envs, ...]`.
        key: PRNG key of the shuffles.
        epochs: passes.
        minibatches: gradient steps per pass, for each network.

    Returns:
        Networks and optimiser states after, and means of the metrics.
    """
    total = math.prod(jax.tree.leaves(batch)[0].shape[:2])
    flat = jax.tree.map(lambda x: x.reshape(total, *x.shape[2:]), batch)

    def gradient_step(carry: PyTree, rows: Array) -> tuple[PyTree, dict[str, Array]]:
        minibatch = jax.tree.map(lambda x: x[rows], flat)
        updated = []
        logged: dict[str, Array] = {}
        for net, opt, (loss, transform) in zip(*carry, rules, strict=True):
            (_, aux), grad = jax.value_and_grad(loss, has_aux=True)(net, minibatch)
            step, opt = transform.update(grad, opt, net)
            updated.append((optax.apply_updates(net, step), opt))
            logged |= aux
        nets, opts = zip(*updated, strict=True)
        return (tuple(nets), tuple(opts)), logged

    def epoch(carry: PyTree, key: jax.Array) -> tuple[PyTree, dict[str, Array]]:
        rows = jax.random.permutation(key, total).reshape(minibatches, -1)
        return jax.lax.scan(gradient_step, carry, rows)

    keys = jax.random.split(key, epochs)
    (networks, optimisers), logged = jax.lax.scan(epoch, (networks, optimisers), keys)
    return networks, optimisers, {name: x.mean() for name, x in logged.items()}


def improve_both(
    state: PyTree,
    rules: tuple[Rule, Rule],
    batch: Any,
    key: jax.Array,
    epochs: int,
    minibatches: int,
) -> tuple[PyTree, dict[str, Array]]:
    """`improve` for a training state with an actor and a critic, whose `updates` goes up by one.

    Args:
        state: has `actor`, `critic`, `actor_opt`, `critic_opt` and `updates`.
        rules: those of the actor and of the critic.
        batch: data; leaves `[time, envs, ...]`.
        key: PRNG key of the shuffles.
        epochs: passes.
        minibatches: gradient steps per pass.

    Returns:
        State after, and means of the metrics.
    """
    networks, optimisers = (state.actor, state.critic), (state.actor_opt, state.critic_opt)
    networks, optimisers, losses = improve(
        networks, optimisers, rules, batch, key, epochs, minibatches
    )
    (actor, critic), (actor_opt, critic_opt) = networks, optimisers
    return replace(
        state,
        actor=actor,
        critic=critic,
        actor_opt=actor_opt,
        critic_opt=critic_opt,
        updates=state.updates + 1,
    ), losses
