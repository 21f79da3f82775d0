"""SAC: off-policy actor and critics for continuous thresholds, with a bonus for entropy.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, Algorithm 1. Every port is a
learner of its own with its own reward, and all ports share networks and a replay memory. Needs
`actions="box"`. An update is

    act for `rollout` intervals in `envs` environments, and store what every port has seen
    ->  `gradient_steps` times: draw `batch` rows; fit both critics to the soft target (Eqs. 5, 6);
        improve the actor on the lower of the two (Eq. 9); move the temperature so that the policy
        keeps its entropy (Eq. 18); let the target critics follow

An action is the tanh of a Gaussian draw (their Appendix C), the greedy one that of its mean.

Differences from the paper: returns may have several steps (`n_step`, of the behaviour at the time,
uncorrected), and layers have tanh in place of ReLU, as in the other learners here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.rl import q_learning as ql
from ecn_marl.baselines.rl import replay
from ecn_marl.baselines.rl.distributions import gaussian
from ecn_marl.baselines.rl.networks import (
    Mlp,
    apply_network,
    init_network,
    standardise,
)
from ecn_marl.baselines.rl.one_network import OneNetwork
from ecn_marl.baselines.rl.optimisers import adam
from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.environments import start_measured
from ecn_marl.envs.interface import Environment

CRITICS = 2
"""The target is the lower of their values, which keeps errors from being preferred."""


@dataclass(frozen=True)
class SACConfig(check.LearnerSettings):
    """Settings of SAC, beside those of `LearnerSettings`.

    They are those of the paper where it has them (Appendix D), but for `gamma`.

    Attributes:
        gradient_steps: gradient steps per update.
        batch: rows drawn per gradient step.
        capacity: rows of the memory. A row is one port's interval.
        lr: learning rate of actor, critics and temperature.
        n_step: steps of a return before it is bootstrapped.
        tau: share of the critics that their targets take over at every gradient step.
        entropy: entropy that the policy keeps, for each component of an action, nats.
        temperature: weight of the entropy at the start.
    """

    envs: int = 8
    gradient_steps: int = 32
    batch: int = 256
    capacity: int = 131_072
    lr: float = 3e-4
    n_step: int = 1
    tau: float = 0.005
    entropy: float = -1.0
    temperature: float = 0.1

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        check.at_least_one(self, "gradient_steps", "batch", "capacity", "n_step")
        check.shares(self, "tau")
        check.positive(self, "lr", "temperature", "tau")
        if not math.isfinite(self.entropy):
            raise bad_value("entropy", self.entropy, "a finite number")


class Row(NamedTuple):
    """What one port has seen, leaves `[..., ...]`."""

    obs: Leaf
    action: Leaf
    reward: Leaf
    """Discounted sum of the rewards up to `next_obs`."""
    discount: Leaf
    """Factor of the value of `next_obs`; 0 after termination."""
    next_obs: Leaf


@struct.dataclass
class TrainState:
    """Everything that is needed to continue training.

    Attributes:
        actor: policy parameters.
        critics: parameters of the critics, leading axis `CRITICS`.
        targets: parameters of their targets.
        log_temperature: logarithm of the weight of the entropy.
        opt: optimiser states of actor, critics and temperature.
        memory: the replay memory.
        env: environment states, leading axis `envs`.
        obs: observations, `[envs, A, obs_dim]`.
        key: PRNG key.
        updates: updates so far.
    """

    actor: PyTree
    critics: PyTree
    targets: PyTree
    log_temperature: Leaf
    opt: PyTree
    memory: replay.Ring
    env: PyTree
    obs: Leaf
    key: Leaf
    updates: Leaf


def squashed(
    key: jax.Array, out: Float[Array, "*b n"]
) -> tuple[Float[Array, "*b dim"], Float[Array, "*b"]]:
    """The tanh of a Gaussian draw, and its log-density (Appendix C, Eq. 26).

    Args:
        key: PRNG key.
        out: outputs of the actor: means and raw deviations, see `distributions.gaussian`.
    """
    mean, log_std = gaussian(out)
    noise = jax.random.normal(key, mean.shape)
    before = mean + jnp.exp(log_std) * noise
    density = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    # log(1 - tanh(x)^2), which rounds to log 0 for large x.
    slope = 2.0 * (math.log(2.0) - before - jax.nn.softplus(-2.0 * before))
    return jnp.tanh(before), (density - slope).sum(-1)


class SAC(OneNetwork):
    """The algorithm for one environment and configuration; holds no arrays."""

    config_class = SACConfig
    config: SACConfig

    def __init__(self, env: Environment, config: SACConfig) -> None:
        """Set up networks and optimisers.

        Args:
            env: functional environment with continuous actions (it is wrapped in `AutoReset`).
            config: settings.

        Raises:
            ValueError: its actions are discrete.
        """
        super().__init__(env, config)
        if not self.head.dim:
            raise bad_value("actions", getattr(env.action, "name", env.action), "box")
        c = config
        self.net = Mlp(c.hidden, self.head.outputs, 0.01, c.standardise > 0)
        self.critic = Mlp(c.hidden, 1, standardised=c.standardise > 0)
        self.opt = adam(c.lr, c.max_grad_norm, c.anneal_updates * c.gradient_steps)

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """Fresh networks, an empty memory, and environments in different phases."""
        c, env, dim = self.config, self.env, self.head.dim
        key, actor_key, critic_key, env_key, phase_key = jax.random.split(key, 5)
        actor = init_network(self.net, actor_key, env.obs_dim, 1, True)
        critics = init_network(self.critic, critic_key, env.obs_dim + dim, CRITICS, False)
        obs, state, measured = start_measured(
            env, env_key, phase_key, params, c.envs, c.standardise
        )
        if measured is not None:
            mean, std = measured.obs
            actor = standardise(actor, mean, std)
            # Actions have a scale already.
            padded = jnp.pad(mean, (0, dim)), jnp.pad(std, (0, dim), constant_values=1.0)
            critics = standardise(critics, *padded)
        log_temperature = jnp.log(jnp.float32(c.temperature))
        number = jax.ShapeDtypeStruct((), jnp.float32)
        seen, acted = (jax.ShapeDtypeStruct((n,), jnp.float32) for n in (env.obs_dim, dim))
        memory = replay.empty(Row(seen, acted, number, number, seen), c.capacity)
        learnt = (actor, critics, log_temperature)
        return TrainState(
            *(actor, critics, critics, log_temperature),
            opt=tuple(self.opt.init(x) for x in learnt),
            memory=memory,
            env=state,
            obs=obs,
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Act, store, learn."""
        c = self.config
        key, roll_key, learn_key = jax.random.split(state.key, 3)
        state, rows, metrics = self.collect(replace(state, key=key), roll_key, params)
        memory, lost = replay.append(state.memory, rows)
        metrics["overwritten"] = lost
        state = replace(state, memory=memory, updates=state.updates + 1)

        def step(state: TrainState, key: jax.Array) -> tuple[TrainState, dict[str, Array]]:
            draw_key, step_key = jax.random.split(key)
            return self.gradient_step(
                state, step_key, replay.drawn(state.memory, draw_key, c.batch)
            )

        state, losses = jax.lax.scan(step, state, jax.random.split(learn_key, c.gradient_steps))
        return state, metrics | {name: x.mean() for name, x in losses.items()}

    def collect(
        self, state: TrainState, key: jax.Array, params: PyTree
    ) -> tuple[TrainState, Row, dict[str, Array]]:
        """Act for `rollout` intervals in all environments; rows `[time * envs * A, ...]`."""
        c = self.config

        def step(
            key: jax.Array, carry: tuple[PyTree, Array], actor: PyTree, params: PyTree
        ) -> tuple[PyTree, PyTree]:
            env_state, obs = carry
            act_key, env_key = jax.random.split(key)
            action = self.act(actor, act_key, obs)
            next_obs, env_state, reward, terminated, truncated, info = self.env.step(
                env_key, env_state, action, params
            )
            means = {name: info[name].mean() for name in ("queue_mean", "utilisation")}
            row = (obs, action, reward, terminated, truncated, info["final_obs"])
            return (env_state, next_obs), (row, means | {"reward": reward.mean()})

        carry = (state.env, state.obs)
        (env_state, obs), (rows, means) = roll(
            self.env, step, carry, key, c.rollout, state.actor, params
        )
        seen, action, reward, terminated, truncated, after = rows
        total, discount, last = ql.n_step(
            c.reward_scale * reward, terminated, truncated, c.gamma, c.n_step
        )
        after = jnp.take_along_axis(after, last[..., None], axis=0)
        stored = Row(seen, action, total, discount, after)
        stored = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), stored)
        metrics = {name: x.mean() for name, x in means.items()}
        return replace(state, env=env_state, obs=obs), stored, metrics

    def gradient_step(
        self, state: TrainState, key: jax.Array, rows: Row
    ) -> tuple[TrainState, dict[str, Array]]:
        """One step of critics, actor and temperature.

        Args:
            state: training state.
            key: PRNG key.
            rows: a minibatch, leaves `[batch, ...]`.

        Returns:
            State after, and losses.
        """
        next_key, own_key = jax.random.split(key)
        target = self.target(state, next_key, rows)
        temperature = jnp.exp(state.log_temperature)

        def critic_loss(critics: PyTree) -> tuple[Array, Array]:
            q = self.values(critics, rows.obs, rows.action)
            return 0.5 * ((q - target) ** 2).mean(-1).sum(), q.mean()

        def actor_loss(actor: PyTree) -> tuple[Array, Array]:
            action, log_prob = squashed(own_key, self._outputs(actor, rows.obs))
            q = self.values(state.critics, rows.obs, action).min(0)
            return (temperature * log_prob - q).mean(), log_prob.mean()

        (c_loss, q), c_grad = jax.value_and_grad(critic_loss, has_aux=True)(state.critics)
        (a_loss, log_prob), a_grad = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
        # The gradient of -log(temperature) (log_prob + wanted entropy).
        t_grad = -(log_prob + self.config.entropy * self.head.dim)
        learnt = (state.actor, state.critics, state.log_temperature)
        stepped = [
            self.opt.update(grad, opt, net)
            for grad, opt, net in zip((a_grad, c_grad, t_grad), state.opt, learnt, strict=True)
        ]
        actor, critics, log_temperature = (
            optax.apply_updates(net, step) for net, (step, _) in zip(learnt, stepped, strict=True)
        )
        state = replace(
            state,
            actor=actor,
            critics=critics,
            targets=optax.incremental_update(critics, state.targets, self.config.tau),
            log_temperature=log_temperature,
            opt=tuple(opt for _, opt in stepped),
        )
        metrics = {"critic_loss": c_loss, "policy_loss": a_loss, "q_mean": q}
        return state, metrics | {"entropy": -log_prob, "temperature": temperature}

    def target(self, state: TrainState, key: jax.Array, rows: Row) -> Float[Array, " batch"]:
        """Soft target r + gamma (min Q'(s', a') - temperature log pi(a' | s')), Eqs. 3 and 6."""
        action, log_prob = squashed(key, self._outputs(state.actor, rows.next_obs))
        value = self.values(state.targets, rows.next_obs, action).min(0)
        soft = value - jnp.exp(state.log_temperature) * log_prob
        target: Array = rows.reward + rows.discount * soft
        return target

    def values(
        self, critics: PyTree, obs: Float[Array, "batch obs"], action: Float[Array, "batch dim"]
    ) -> Float[Array, "critics batch"]:
        """Values of actions, by each of the critics."""
        both = jnp.concatenate((obs, action), -1)
        return jnp.asarray(jax.vmap(self.critic.apply, (0, None))(critics, both))[..., 0]

    def act(
        self,
        actor: PyTree,
        key: jax.Array,
        obs: Float[Array, "*b agents obs"],
        greedy: bool = False,
    ) -> Array:
        """Actions for observations: drawn, or the tanh of the means."""
        out = self._outputs(actor, obs)
        return jnp.tanh(gaussian(out)[0]) if greedy else squashed(key, out)[0]

    def _outputs(self, actor: PyTree, obs: Array) -> Array:
        return apply_network(self.net, actor, obs, True)
