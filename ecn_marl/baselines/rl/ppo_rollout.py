"""Rollouts of the PPO trainers of thresholds, and the training state that they move on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree

from ecn_marl._types import Leaf
from ecn_marl.baselines.rl import recurrent as rc
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.baselines.rl.value_norm import ValueNorm
from ecn_marl.envs.interface import Environment


@struct.dataclass
class Kept:
    """What a port may keep from the interval before.

    Attributes:
        action: the last actions, `[envs, A, ...]`.
        first: whether an episode has just begun, `[envs]`: there is nothing to keep.
    """

    action: Leaf
    first: Leaf


@struct.dataclass
class TrainState:
    """Everything that is needed to continue training.

    Attributes:
        actor: policy parameters.
        critic: value parameters.
        actor_opt: optimiser state of the policy.
        critic_opt: optimiser state of the value function.
        env: environment states, leading axis `envs`.
        obs: observations, `[envs, A, obs_dim]`.
        key: PRNG key.
        updates: updates so far.
        norm: running averages of the returns.
        kept: what ports may keep; None without `persistence`.
        weights: weights of the size classes in the reward, `[3]`; None without `follow_j`.
        memory: what agents remember; None without `memory`.
    """

    actor: PyTree
    critic: PyTree
    actor_opt: PyTree
    critic_opt: PyTree
    env: PyTree
    obs: Leaf
    key: Leaf
    updates: Leaf
    norm: ValueNorm
    kept: PyTree
    weights: Leaf
    memory: PyTree = None


class Rollout(NamedTuple):
    """Steps of all environments, leaves `[time, envs, A, ...]`.

    `final_obs` precedes a reset. `drawn` is None if the policy chose every action.
    """

    obs: Float[Array, "time envs agents obs"]
    action: Array
    log_prob: Float[Array, "time envs agents"]
    reward: Float[Array, "time envs agents"]
    terminated: Bool[Array, "time envs agents"]
    truncated: Bool[Array, "time envs agents"]
    final_obs: Float[Array, "time envs agents obs"]
    drawn: Bool[Array, "time envs agents"] | None = None

    @property
    def ended(self) -> Bool[Array, "*steps agents"]:
        """Whether an episode ended with the interval."""
        return self.terminated | self.truncated


def collect(
    env: Environment,
    head: Head,
    policy: Callable[..., tuple[Array, Array | None]],
    state: TrainState,
    key: jax.Array,
    params: PyTree,
    steps: int,
    keep: float | Array = 0.0,
) -> tuple[TrainState, Rollout, dict[str, Array]]:
    """Run the policy of a training state in all its environments.

    Args:
        env: auto-resetting environment.
        head: distribution of the actions, from outputs of the policy.
        policy: `(actor, obs [A, obs_dim], memory) -> outputs [A, n], memory`; the memory is
            `[A, units]`, or None.
        state: training state; its `env`, `obs`, `kept` and the policies' memory move on.
        key: PRNG key.
        params: parameters of the environment.
        steps: intervals per environment.
        keep: probability that a port keeps its action, where the state has `kept`.

    Returns:
        State after, the rollout, and means of reward, queue (bytes) and utilisation.
    """

    def step(
        key: jax.Array,
        carry: tuple[PyTree, Array, Kept | None, Array | None],
        actor: PyTree,
        params: PyTree,
        keep: Array,
    ) -> tuple[PyTree, PyTree]:
        env_state, obs, kept, memory = carry
        act_key, env_key = jax.random.split(key)
        out, memory = policy(actor, obs, memory)
        if kept is not None:
            act_key, keep_key = jax.random.split(act_key)
        action, drawn = head.sample(act_key, out), None
        if kept is not None:
            chance = jax.random.uniform(keep_key, (env.num_agents,))
            drawn = kept.first | (chance >= keep)
            among = drawn.reshape(-1, *(1,) * (action.ndim - 1))
            action = jnp.where(among, action, kept.action)
        next_obs, env_state, reward, terminated, truncated, info = env.step(
            env_key, env_state, action, params
        )
        if kept is not None:
            kept = Kept(action, info["episode_done"])
        log_prob = head.log_prob(out, action)
        row = Rollout(
            obs, action, log_prob, reward, terminated, truncated, info["final_obs"], drawn
        )
        # Means here, in the loop: kept for all ports, they would make the rollout larger.
        means = {name: info[name].mean() for name in ("queue_mean", "utilisation")}
        carry = (env_state, next_obs, kept, rc.after_end(memory, row.ended))
        return carry, (row, means | {"reward": reward.mean()})

    remembered = None if state.memory is None else state.memory.actor
    carry = (state.env, state.obs, state.kept, remembered)
    keep = jnp.asarray(keep, jnp.float32)
    (env_state, obs, kept, remembered), (rows, means) = roll(
        env, step, carry, key, steps, state.actor, params, keep
    )
    metrics = {name: x.mean() for name, x in means.items()}
    memory = None if state.memory is None else replace(state.memory, actor=remembered)
    return replace(state, env=env_state, obs=obs, kept=kept, memory=memory), rows, metrics
