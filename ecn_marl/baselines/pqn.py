"""PQN: Q-learning from rollouts, without a replay memory or a target network; and its VDN form.

PQN: Gallici et al., "Simplifying Deep Temporal Difference Learning", ICLR 2025, Algorithm 1 and
§4. Many environments act by epsilon-greedy. The network is fitted to lambda-returns of the rollout,
in several passes of minibatches, and then the data are gone. Layer normalisation keeps that stable
where DQN needs a target network. An update is

    roll out `rollout` intervals in `envs` environments  ->  returns Q(lambda) (their Eq. 15)
    ->  `epochs` passes of gradient steps on the squared error

Agents are independent by default, and share a network. With `team=True` it is VDN (Sunehag et al.
2018, "Value-Decomposition Networks"): the value of all actions together is the mean of the agents'
values, and is fitted to the return of their mean reward. So an agent is paid for what its setting
does to others. The greedy policy is the same for both: every agent takes its own best action.

With `memory` the network has a GRU, as in the paper's recurrent form (§4): returns and gradients
run through whole rollouts.

Differences from PQN: the layers have tanh in place of ReLU, the optimiser is Adam in place of
RAdam, and the chance of a random action falls exponentially, all as in the other learners here.
VDN has a sum in place of the mean, which is another scale of the same values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.rl import q_learning as ql
from ecn_marl.baselines.rl import recurrent as rc
from ecn_marl.baselines.rl.gae import gae
from ecn_marl.baselines.rl.networks import (
    Mlp,
    apply_network,
    standardise,
)
from ecn_marl.baselines.rl.one_network import OneNetwork
from ecn_marl.baselines.rl.optimisers import adam
from ecn_marl.baselines.rl.ppo import explained_variance, improve, over_agents
from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.environments import start_measured
from ecn_marl.envs.interface import Environment


@dataclass(frozen=True)
class PQNConfig(check.LearnerSettings):
    """Settings of PQN, beside those of `LearnerSettings`.

    Defaults of `gae_lambda`, `epochs` and `lr` are in the paper's range.

    Attributes:
        epochs: passes over a rollout.
        minibatches: gradient steps per pass.
        lr: learning rate.
        gae_lambda: lambda of the returns; 0 for one step, 1 for all rewards of the rollout.
        team: whether agents learn the team's value, the mean of theirs (VDN).
        shared: one network for all agents, or one each.
        epsilon: chance of a random action at first.
        epsilon_decay: factor of that chance at every update.
        epsilon_min: smallest chance.
        memory: units of a GRU between the hidden layers and the values, see `recurrent`; 0 for
            none. Minibatches are made of whole rollouts, so `envs` is a multiple of `minibatches`.
    """

    epochs: int = 2
    minibatches: int = 8
    lr: float = 5e-4
    gae_lambda: float = 0.65
    team: bool = False
    shared: bool = True
    epsilon: float = 1.0
    epsilon_decay: float = 0.98
    epsilon_min: float = 0.02
    memory: int = 0

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        check.at_least_one(self, "epochs", "minibatches")
        check.not_negative(self, "memory")
        check.shares(self, "gae_lambda")
        check.exploration(self)
        check.positive(self, "lr")
        if (self.envs * self.rollout) % self.minibatches:
            allowed = f"a divisor of envs * rollout = {self.envs * self.rollout}"
            raise bad_value("minibatches", self.minibatches, allowed)
        rc.check_memory(self)


@struct.dataclass
class TrainState:
    """Everything that is needed to continue training.

    Attributes:
        actor: parameters of the Q-network.
        opt: optimiser state.
        env: environment states, leading axis `envs`.
        obs: observations, `[envs, A, obs_dim]`.
        key: PRNG key.
        updates: updates so far.
        memory: what agents remember, `[envs, A, units]`; None without `memory`.
    """

    actor: PyTree
    opt: PyTree
    env: PyTree
    obs: Leaf
    key: Leaf
    updates: Leaf
    memory: PyTree = None


class Steps(NamedTuple):
    """Steps of all environments, leaves `[time, envs, A, ...]`; `final_obs` precedes a reset."""

    obs: Float[Array, "time envs agents obs"]
    action: Array
    reward: Float[Array, "time envs agents"]
    terminated: Bool[Array, "time envs agents"]
    truncated: Bool[Array, "time envs agents"]
    final_obs: Float[Array, "time envs agents obs"]

    @property
    def ended(self) -> Bool[Array, "*steps agents"]:
        """Whether an episode ended with the interval."""
        return self.terminated | self.truncated


class Batch(NamedTuple):
    """Training data, leaves `[time, envs, ...]` or `[rows, ...]`; a team's target has no agents.

    `ended` and `memory` are those of sequences, see `recurrent.sequences`; None without a memory.
    """

    obs: Array
    action: Array
    target: Array
    ended: PyTree = None
    memory: PyTree = None


class PQN(OneNetwork):
    """The algorithm for one environment and configuration; holds no arrays."""

    config_class = PQNConfig
    per_env = ("env", "obs", "memory")

    config: PQNConfig

    def __init__(self, env: Environment, config: PQNConfig) -> None:
        """Set up the network and its optimiser.

        Args:
            env: functional environment with discrete actions (it is wrapped in `AutoReset`).
            config: settings.

        Raises:
            ValueError: its actions are continuous.
        """
        super().__init__(env, config)
        self.head = ql.discrete_head(env.action)
        args = (self.head.outputs, 0.1, config.standardise > 0)
        self.net: Mlp | rc.Recurrent
        if config.memory:
            self.net = rc.Recurrent(config.hidden, config.memory, *args, normalised=True)
        else:
            self.net = Mlp(config.hidden, *args, normalised=True)
        steps = config.anneal_updates * config.epochs * config.minibatches
        self.opt = adam(config.lr, config.max_grad_norm, steps, config.shared)

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """A fresh network, and fresh environments in different phases of their episodes."""
        c, env = self.config, self.env
        key, net_key, env_key, phase_key = jax.random.split(key, 4)
        actor = rc.init_agents(self.net, net_key, env.obs_dim, env.num_agents, c.shared)
        obs, state, measured = start_measured(
            env, env_key, phase_key, params, c.envs, c.standardise
        )
        if measured is not None:
            actor = standardise(actor, *measured.obs)
        start = jnp.zeros((), jnp.int32)
        memory = jnp.zeros((c.envs, env.num_agents, c.memory)) if c.memory else None
        return TrainState(actor, self.opt.init(actor), state, obs, key, start, memory)

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out, and fit the network to the returns."""
        c = self.config
        key, roll_key, learn_key = jax.random.split(state.key, 3)
        memory = state.memory
        state, steps, metrics = self.roll_out(replace(state, key=key), roll_key, params)
        q, next_q = self.both_values(state.actor, steps, memory)
        target = self.returns(q, next_q, steps)
        before = self.chosen(q, steps.action)
        metrics["explained_variance"] = explained_variance(target, before)
        batch = Batch(steps.obs, steps.action, target)
        if memory is not None:
            batch = rc.sequences(batch, memory, steps.ended)
        (actor,), (opt,), losses = improve(
            (state.actor,),
            (state.opt,),
            ((self.loss, self.opt),),
            batch,
            learn_key,
            c.epochs,
            c.minibatches,
        )
        return replace(state, actor=actor, opt=opt, updates=state.updates + 1), metrics | losses

    def roll_out(
        self, state: TrainState, key: jax.Array, params: PyTree
    ) -> tuple[TrainState, Steps, dict[str, Array]]:
        """Act by epsilon-greedy for `rollout` intervals in all environments."""
        c = self.config
        chance = ql.epsilon(c.epsilon, c.epsilon_decay, c.epsilon_min, state.updates)

        def step(
            key: jax.Array,
            carry: tuple[PyTree, Array, Array | None],
            actor: PyTree,
            chance: Array,
            params: PyTree,
        ) -> tuple[PyTree, PyTree]:
            env_state, obs, memory = carry
            act_key, env_key = jax.random.split(key)
            q, memory = rc.respond(self.net, actor, obs, memory, c.shared)
            action = self._explored(act_key, q, chance)
            next_obs, env_state, reward, terminated, truncated, info = self.env.step(
                env_key, env_state, action, params
            )
            row = Steps(obs, action, reward, terminated, truncated, info["final_obs"])
            means = {name: info[name].mean() for name in ("queue_mean", "utilisation")}
            carry = (env_state, next_obs, rc.after_end(memory, row.ended))
            return carry, (row, means | {"reward": reward.mean()})

        shared = (state.actor, chance, params)
        carry = (state.env, state.obs, state.memory)
        (env_state, obs, memory), (rows, means) = roll(
            self.env, step, carry, key, c.rollout, *shared
        )
        metrics = {name: x.mean() for name, x in means.items()} | {"epsilon": chance}
        return replace(state, env=env_state, obs=obs, memory=memory), rows, metrics

    def both_values(
        self, actor: PyTree, steps: Steps, memory: Array | None = None
    ) -> tuple[Float[Array, "time envs agents n"], Float[Array, "time envs agents n"]]:
        """Values of all actions in a rollout's observations, and in those after.

        Args:
            actor: parameters of the network.
            steps: the rollout.
            memory: memories before it; None without a memory.
        """
        if memory is None or not isinstance(self.net, rc.Recurrent):
            return self.values(actor, steps.obs), self.values(actor, steps.final_obs)
        shared = self.config.shared
        q, after = rc.unroll(self.net, actor, steps.obs, memory, steps.ended, shared)
        return q, rc.respond(self.net, actor, steps.final_obs, after, shared)[0]

    def returns(self, q: Array, next_q: Array, steps: Steps) -> Float[Array, "time envs *agents"]:
        """Returns Q(lambda) of a rollout, `[time, envs, A]`, or of the team, `[time, envs]`.

        Of the step t it is r + gamma (lambda R(t + 1) + (1 - lambda) max Q(s(t + 1), .)). At the
        end of an episode or of the rollout, max Q stands alone; it is 0 after termination.

        Args:
            q: values of all actions in the rollout's observations, see `both_values`.
            next_q: those in the observations after.
            steps: the rollout.
        """
        c = self.config
        best, next_best = (self.chosen(x, self.head.mode(x)) for x in (q, next_q))
        reward, terminated, truncated = steps.reward, steps.terminated, steps.truncated
        if c.team:  # all agents' episodes end together
            reward, terminated, truncated = reward.mean(-1), terminated.all(-1), truncated.all(-1)
        ends = (terminated, truncated)
        return gae(c.reward_scale * reward, best, next_best, *ends, c.gamma, c.gae_lambda)[1]

    def chosen(
        self, q: Float[Array, "*b agents n"], action: Array
    ) -> Float[Array, "*b agents"] | Float[Array, "*b"]:
        """Values of actions, of every agent or of the team."""
        values = ql.action_values(self.head, q, action)
        return values.mean(-1) if self.config.team else values

    def loss(self, actor: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Half the squared error of the values of the actions taken."""
        if isinstance(self.net, rc.Recurrent):
            batch = rc.by_time(batch)
            args = (batch.obs, batch.memory, batch.ended, self.config.shared)
            q, _ = rc.unroll(self.net, actor, *args)
            q, batch = q.reshape(-1, *q.shape[2:]), rc.steps_of(batch)
        else:
            q = self.values(actor, batch.obs)
        value = self.chosen(q, batch.action)
        error = 0.5 * (value - batch.target) ** 2
        loss = error.mean() if self.config.team else over_agents(error, self.config.shared)
        return loss, {"loss": error.mean(), "q_mean": value.mean()}

    def values(self, actor: PyTree, obs: Float[Array, "*b agents obs"]) -> Array:
        """Values of all actions, `[*b, A, n]`, of a network without a memory.

        Raises:
            ValueError: the network has a memory, so that observations alone do not tell them.
        """
        if self.config.memory:
            raise rc.needs_memory(self.config.memory)
        return apply_network(self.net, actor, obs, self.config.shared)

    def act(
        self,
        actor: PyTree,
        key: jax.Array,
        obs: Float[Array, "*b agents obs"],
        greedy: bool = False,
    ) -> Array:
        """Actions for observations: the best ones, or those of training's last exploration.

        Raises:
            ValueError: see `values`.
        """
        q = self.values(actor, obs)
        return self.head.mode(q) if greedy else self._explored(key, q, self.config.epsilon_min)

    def _explored(self, key: jax.Array, q: Array, chance: float | Array) -> Array:
        """The best actions, and with some chance random ones."""
        exploring, random_action = ql.explore(key, self.head, q, chance)
        return ql.choose(exploring, random_action, self.head.mode(q))
