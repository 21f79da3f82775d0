"""Q-learning: settings, n-step returns, double-Q targets, and a Q-network that learns from them.

DQN: Mnih et al., Nature 2015. Double Q: van Hasselt et al., AAAI 2016. `ddqn`, `haecn` and
`rate_dqn` learn by `QLearner`; the first two have the settings of `QConfig`.

Actions may have several components (`multidiscrete`: Kmin, gap, Pmax). Then Q(s, a) is the sum of
one value per component, so that the best action is the best entry of each. With a single component
(`discrete`) that is the Q-network of ACC and HAECN, with one output per entry of their template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.rl import replay
from ecn_marl.baselines.rl.distributions import Head, head_for
from ecn_marl.baselines.rl.networks import (
    Mlp,
    Polynomials,
    apply_network,
    init_network,
    standardise,
)
from ecn_marl.baselines.rl.optimisers import adam
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.environments import Measured, Moments


@dataclass(frozen=True)
class QConfig(check.LearnerSettings):
    """Settings that the Q-learners of ports have, beside those of `LearnerSettings`.

    The offset of rewards is subtracted before they are scaled.

    Attributes:
        gradient_steps: gradient steps per update.
        batch: rows that each agent draws from its memory per gradient step.
        lr: learning rate.
        n_step: steps of a return before it is bootstrapped.
        target_every: gradient steps between copies to the target network.
        polyak: the target network is a moving average of the parameters over `target_every`
            gradient steps instead, and trained policies act by it (Polyak & Juditsky 1992;
            Lillicrap et al. 2016). Which of two settings of about the same value is best changes
            with every step; the average does not go along.
        reward_offset: subtracted from the rewards that are learnt from. Values then start near
            their final level, instead of first climbing to offset / (1 - gamma). The best action
            stays the same, as no episode terminates (Naik et al. 2024, "Reward Centering").
        centre: intervals of random actions at the start, whose mean reward is subtracted in place
            of `reward_offset`; 0 for `reward_offset`. Between scenarios the right level differs by
            more than what actions change, so a fixed number fits only one.
        shared: one network for all agents, or one each. Memories are one each in both cases.
        ordinal: degree of the polynomials that values are, in the place of a setting among the
            choices, see `networks.Polynomials`; 0 for a value of its own for each setting.
        epsilon: chance of a random action at first.
        epsilon_decay: factor of that chance at every update.
        epsilon_min: smallest chance.
    """

    rollout: int = 8
    gradient_steps: int = 8
    batch: int = 64
    lr: float = 1e-3
    n_step: int = 1
    target_every: int = 50
    polyak: bool = False
    reward_offset: float = 0.0
    centre: int = 0
    shared: bool = True
    ordinal: int = 0
    epsilon: float = 1.0
    epsilon_decay: float = 0.98
    epsilon_min: float = 0.02

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        check.at_least_one(self, "gradient_steps", "batch", "n_step", "target_every")
        check.exploration(self)
        check.positive(self, "lr")
        check.not_negative(self, "centre", "ordinal")
        if self.centre and self.reward_offset:
            allowed = "0 with `centre`, which measures the offset"
            raise bad_value("reward_offset", self.reward_offset, allowed)

    def network(self, head: Head) -> Mlp:
        """A Q-network for the actions of a head."""
        ordinal = Polynomials(tuple(head.sizes), self.ordinal) if self.ordinal else None
        standardised = self.standardise > 0
        return Mlp(self.hidden, head.outputs, 0.1, standardised, ordinal=ordinal)

    @property
    def start_intervals(self) -> int:
        """Intervals of random actions before training."""
        return max(self.standardise, self.centre)

    def use(self, measured: Measured | None) -> tuple[Moments | None, Array]:
        """Moments that networks standardise by (None for unscaled ones), and the offset."""
        offset = measured.reward if measured and self.centre else jnp.float32(self.reward_offset)
        return (measured.obs if measured and self.standardise else None), offset


class Step(NamedTuple):
    """A step of every agent, leaves `[..., A, ...]`; with an axis of time in front, a rollout."""

    obs: Leaf
    """Observation."""
    action: Leaf
    """Action."""
    reward: Leaf
    """Reward that is learnt from."""
    terminated: Leaf
    """Whether the step ended the episode for good."""
    truncated: Leaf
    """Whether it was cut off there."""
    next_obs: Leaf
    """The observation that followed; at the end of an episode its final one."""
    kept: Leaf
    """Whether the action has to be kept there."""


class Transition(NamedTuple):
    """One agent's experience, leaves `[..., A, ...]`."""

    obs: Leaf
    """Observation in which the agent acted."""
    action: Leaf
    """Its action."""
    reward: Leaf
    """Discounted sum of the rewards up to `next_obs`."""
    discount: Leaf
    """Factor of the value of `next_obs`; 0 after termination."""
    next_obs: Leaf
    """Observation after the last step of the return."""
    last_action: Leaf
    """Its action in the interval before `next_obs`."""
    kept: Leaf
    """Whether it had to keep that action (an idle port)."""
    score: Leaf
    """Reward of the action's own interval; large ones are replayed more often."""
    origin: Leaf
    """Agent whose experience this is."""


def transition_shapes(obs_dim: int, action: tuple[int, ...]) -> Transition:
    """Shapes of one agent's transition.

    Args:
        obs_dim: length of an observation.
        action: shape of an action.
    """
    obs = jax.ShapeDtypeStruct((obs_dim,), jnp.float32)
    real, index = (jax.ShapeDtypeStruct((), kind) for kind in (jnp.float32, jnp.int32))
    acted = jax.ShapeDtypeStruct(action, jnp.int32)
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    return Transition(obs, acted, real, real, obs, acted, flag, real, index)


def discrete_head(codec: object) -> Head:
    """The components of an action codec.

    Raises:
        ValueError: its actions are continuous.
    """
    head = head_for(codec)
    if not head.sizes:
        raise bad_value("actions", getattr(codec, "name", codec), "discrete or multidiscrete")
    return head


def action_values(head: Head, q: Float[Array, "*b outputs"], action: Array) -> Float[Array, "*b"]:
    """Q of actions: the sum over their components.

    Args:
        head: components of an action.
        q: outputs of the network.
        action: indices, `[*b]` if `head.scalar`, else `[*b, components]`.
    """
    index = action[..., None] if head.scalar else action
    offset = np.concatenate(([0], np.cumsum(head.sizes)[:-1]))
    return jnp.take_along_axis(q, index + offset, axis=-1).sum(-1)


def double_q_target(
    head: Head,
    reward: Float[Array, "*b"],
    discount: Float[Array, "*b"],
    next_q: Float[Array, "*b outputs"],
    next_target_q: Float[Array, "*b outputs"],
    kept: Bool[Array, "*b"],
    last_action: Array,
) -> Float[Array, "*b"]:
    """The target r + gamma Q'(s', argmax_a Q(s', a)) (van Hasselt et al. 2016; ACC, Eq. 3).

    Where an agent has to keep its action in s', the target takes Q' of that action. With the best
    action instead, a setting that lasts would be valued for a single interval.

    Args:
        head: components of an action.
        reward: r.
        discount: gamma, 0 where nothing follows.
        next_q: Q(s', .) of the network that learns; it chooses.
        next_target_q: Q'(s', .) of the target network; it gives the value of the choice. With
            `next_q` the same, this is the target of plain DQN.
        kept: whether there is no choice in s'.
        last_action: the action that is kept then.
    """
    action = choose(kept, last_action, head.mode(next_q))
    return reward + discount * action_values(head, next_target_q, action)


def n_step(
    reward: Float[Array, "time ..."],
    terminated: Bool[Array, "time ..."],
    truncated: Bool[Array, "time ..."],
    gamma: float,
    n: int,
) -> tuple[Float[Array, "time ..."], Float[Array, "time ..."], Int[Array, "time ..."]]:
    """Returns of up to `n` steps of a rollout that may hold several episodes.

    A window ends early where its episode ends and where the rollout ends; it is then a return of
    fewer steps. A truncated step is still followed by the value of its final observation.

    Args:
        reward: reward of each step.
        terminated: whether the step ended the episode for good.
        truncated: whether it was cut off there.
        gamma: discount per step.
        n: steps of a full window.

    Returns:
        Sums of discounted rewards; the discount of what follows (0 after termination); and the
        step whose next observation follows.
    """
    time = reward.shape[0]
    start = jnp.arange(time).reshape(-1, *[1] * (reward.ndim - 1))
    total, last = reward, jnp.broadcast_to(start, reward.shape)
    ended = terminated | truncated
    going = ~ended
    for k in range(1, n):
        # Steps beyond the rollout repeat its last one; `going` leaves them out.
        step = jnp.minimum(np.arange(time) + k, time - 1)
        going = going & (start + k < time)
        total = total + gamma**k * jnp.where(going, reward[step], 0.0)
        last = jnp.where(going, start + k, last)
        going = going & ~ended[step]
    follows = 1.0 - jnp.take_along_axis(terminated.astype(reward.dtype), last, axis=0)
    return total, gamma ** (last - start + 1).astype(reward.dtype) * follows, last


def transitions(
    steps: Sequence[Array],
    gamma: float,
    n: int,
) -> Transition:
    """Rows of a rollout for the memory of each agent.

    Args:
        steps: a `Step`, or a tuple of its leaves, `[time, envs, A, ...]`.
        gamma: discount per step.
        n: steps of a return, see `n_step`.

    Returns:
        Rows, leaves `[A, time * envs, ...]`, the oldest first.
    """
    obs, action, reward, terminated, truncated, next_obs, kept = steps
    total, discount, last = n_step(reward, terminated, truncated, gamma, n)

    def at_end(x: Array) -> Array:
        return jnp.take_along_axis(x, last.reshape(last.shape + (1,) * (x.ndim - 3)), axis=0)

    end_obs, end_action, end_kept = at_end(next_obs), at_end(action), at_end(kept)
    origin = jnp.broadcast_to(jnp.arange(reward.shape[-1], dtype=jnp.int32), reward.shape)
    rows = Transition(obs, action, total, discount, end_obs, end_action, end_kept, reward, origin)

    def by_agent(x: Array) -> Array:
        x = jnp.moveaxis(x, 2, 0)
        return x.reshape(x.shape[0], -1, *x.shape[3:])

    memories: Transition = jax.tree.map(by_agent, rows)
    return memories


@struct.dataclass
class QState:
    """A Q-network that learns.

    Attributes:
        params: its parameters; with one network per agent, leaves have a leading axis A.
        target: parameters of the target network.
        opt: optimiser state.
        steps: gradient steps so far.
        polyak: whether the target is an average that policies act by.
    """

    params: PyTree
    target: PyTree
    opt: PyTree
    steps: Leaf
    polyak: bool = struct.field(pytree_node=False, default=False)

    @property
    def acting(self) -> PyTree:
        """Parameters of the policy."""
        return self.target if self.polyak else self.params


class QLearner:
    """A Q-network, its target network and its optimiser; holds no arrays."""

    def __init__(
        self,
        net: nn.Module,
        head: Head,
        *,
        rate: float,
        anneal_steps: int = 0,
        max_grad_norm: float,
        target_every: int,
        shared: bool,
        double: bool = True,
        polyak: bool = False,
    ) -> None:
        """Set up.

        Args:
            net: the network, `head.outputs` wide.
            head: components of an action.
            rate: learning rate at the start.
            anneal_steps: gradient steps over which it falls, see `optimisers.adam`.
            max_grad_norm: gradients of each network are scaled down to this norm.
            target_every: gradient steps between copies to the target network.
            shared: one network for all agents, or one each.
            double: double-Q targets, else those of plain DQN.
            polyak: whether the target is an average instead, see `QConfig`.
        """
        self.net, self.head, self.shared, self.double = net, head, shared, double
        self.target_every, self.polyak = target_every, polyak
        self.opt = adam(rate, max_grad_norm, anneal_steps, shared)

    def init(
        self,
        key: jax.Array,
        features: int,
        num_agents: int,
        moments: tuple[Array, Array] | None = None,
    ) -> QState:
        """A fresh network, which is also the target.

        Args:
            key: PRNG key.
            features: width of its input.
            num_agents: number of agents A.
            moments: mean and standard deviation of every feature, by which a standardised network
                centres and scales them; None for other networks.
        """
        params = init_network(self.net, key, features, num_agents, self.shared)
        if moments is not None:
            params = standardise(params, *moments)
        target = jax.tree.map(jnp.copy, params)  # a copy: the same buffer cannot be donated twice
        return QState(params, target, self.opt.init(params), jnp.zeros((), jnp.int32), self.polyak)

    def values(
        self, params: PyTree, obs: Float[Array, "*b agents features"]
    ) -> Float[Array, "*b agents outputs"]:
        """Q of all actions."""
        return apply_network(self.net, params, obs, self.shared)

    def loss(
        self, params: PyTree, target: PyTree, batch: Transition, weight: Float[Array, "rows agents"]
    ) -> tuple[Array, dict[str, Array]]:
        """Weighted squared error to the target (ACC, Eq. 5), and its metrics.

        Args:
            params: parameters that learn.
            target: parameters of the target network.
            batch: leaves `[rows, A, ...]`.
            weight: weight of each row.
        """
        q = action_values(self.head, self.values(params, batch.obs), batch.action)
        next_target_q = self.values(target, batch.next_obs)
        next_q = self.values(params, batch.next_obs) if self.double else next_target_q
        kept_action = (batch.kept, batch.last_action)
        y = double_q_target(
            self.head, batch.reward, batch.discount, next_q, next_target_q, *kept_action
        )
        error = q - jax.lax.stop_gradient(y)
        agent_loss = jnp.mean(weight * error**2, axis=0)
        # With a network per agent the sum keeps each gradient independent of the number of agents.
        total = agent_loss.mean() if self.shared else agent_loss.sum()
        return total, {"loss": agent_loss.mean(), "q_mean": q.mean(), "q_max": q.max()}

    def learn(
        self, state: QState, batch: Transition, weight: Float[Array, "rows agents"]
    ) -> tuple[QState, dict[str, Array]]:
        """One gradient step, and a new target network when it is due."""
        grad, metrics = jax.grad(self.loss, has_aux=True)(state.params, state.target, batch, weight)
        step, opt = self.opt.update(grad, state.opt, state.params)
        params = optax.apply_updates(state.params, step)
        steps = state.steps + 1
        due = steps % self.target_every == 0

        def follow(new: Array, old: Array) -> Array:
            average = old + (new - old) / self.target_every
            return average if self.polyak else jnp.where(due, new, old)

        target = jax.tree.map(follow, params, state.target)
        return QState(params, target, opt, steps, self.polyak), metrics

    def learn_from(
        self,
        state: QState,
        key: jax.Array,
        memory: replay.Ring,
        *,
        batch: int,
        gradient_steps: int,
        priority: float = 0.0,
        correction: float = 0.0,
    ) -> tuple[QState, dict[str, Array]]:
        """Several gradient steps on rows that every agent draws from its own memory.

        Args:
            state: the network.
            key: PRNG key of the draws.
            memory: a ring per agent, leaves with a leading axis A.
            batch: rows that each agent draws per gradient step.
            gradient_steps: number of gradient steps.
            priority: exponent of the preference for large scores, see `replay.sampling_table`.
            correction: exponent of the weights that undo it, see `replay.draw`.

        Returns:
            The network after, and means of the metrics.
        """
        # Made once for all steps: the memory does not change between them.
        table = jax.vmap(replay.sampling_table, (0, 0, None))(
            memory.rows.score, memory.size, priority
        )

        def step(state: QState, key: jax.Array) -> tuple[QState, dict[str, Array]]:
            return self.learn(state, *replay.draw_each(key, memory, table, batch, correction))

        state, metrics = jax.lax.scan(step, state, jax.random.split(key, gradient_steps))
        return state, {name: x.mean() for name, x in metrics.items()}


def epsilon(start: float, decay: float, least: float, updates: Int[Array, ""]) -> Float[Array, ""]:
    """Chance of a random action, shrinking by `decay` with every update down to `least`."""
    return jnp.maximum(start * jnp.float32(decay) ** updates, least)


def explore(
    key: jax.Array, head: Head, q: Float[Array, "*b outputs"], chance: Float[Array, ""] | float
) -> tuple[Bool[Array, "*b"], Array]:
    """Mask of the agents that act at random, and uniformly random actions for all."""
    mask_key, action_key = jax.random.split(key)
    shape = q.shape[:-1] if head.scalar else (*q.shape[:-1], len(head.sizes))
    top = np.asarray(head.sizes[0] if head.scalar else head.sizes, np.int32)
    return (
        jax.random.bernoulli(mask_key, chance, q.shape[:-1]),
        jax.random.randint(action_key, shape, 0, top, jnp.int32),
    )


def choose(mask: Bool[Array, "*b"], yes: Array, no: Array) -> Array:
    """`yes` where the mask holds, for actions with or without an axis of components."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (yes.ndim - mask.ndim)), yes, no)
