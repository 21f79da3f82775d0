"""DAgger: imitates the oracle, which is told the phase of the traffic, with what a port can see.

Ross, Gordon and Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret
Online Learning", AISTATS 2011, Algorithm 3.1. The teacher knows more than the student, as in Chen
et al., "Learning by Cheating", CoRL 2019: while training, the simulator says in which phase every
port is. An update is

    roll out `rollout` intervals in `envs` environments, under the student (at first the teacher)
    ->  the teacher's action for every observation goes into a memory
    ->  `gradient_steps` steps on the cross-entropy of rows drawn from it

Rewards are not learnt from. What is trained sees a port's features alone, so it runs on a switch as
any other learner does. Its gain is a lower bound of what these features allow: a learner that gains
less by rewards is not short of information. It need not be the best: a wrong setting counts the
same wherever it is chosen, though some cost more than others.

Differences from DAgger: the memory forgets its oldest rows, ports take the teacher's action
independently of each other, and the best policy is chosen by its own episodes, as everywhere here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from ecn_marl._checks import Each, Whole, check_value
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.rl import q_learning as ql
from ecn_marl.baselines.rl import replay
from ecn_marl.baselines.rl.distributions import evaluate_actions
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


@dataclass(frozen=True)
class DaggerConfig(check.LearnerSettings):
    """Settings of DAgger, beside those of `LearnerSettings`, of which it has no use for rewards'.

    Attributes:
        teacher: the right action of each phase, its place in the list of settings; empty for a list
            that has one setting for each phase, in their order.
        teacher_decay: chance that a port takes the teacher's action, to the power of the updates so
            far; 0 for the first update alone.
        capacity: rows of the memory, of all ports and environments.
        gradient_steps: gradient steps per update.
        batch: rows of each.
        lr: learning rate.
    """

    envs: int = 8
    rollout: int = 64
    teacher: tuple[int, ...] = ()
    teacher_decay: float = 0.8
    capacity: int = 131_072
    gradient_steps: int = 32
    batch: int = 1024
    lr: float = 1e-3

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        check.at_least_one(self, "capacity", "gradient_steps", "batch")
        check.shares(self, "teacher_decay")
        check.positive(self, "lr")
        check_value("teacher", self.teacher, Each(Whole(low=0)))


@struct.dataclass
class TrainState:
    """Everything that is needed to continue training.

    Attributes:
        actor: parameters of the policy.
        opt: optimiser state.
        memory: rows `(obs, place)` of ports.
        env: environment states, leading axis `envs`.
        obs: observations, `[envs, A, obs_dim]`.
        key: PRNG key.
        updates: updates so far.
    """

    actor: PyTree
    opt: PyTree
    memory: PyTree
    env: PyTree
    obs: Leaf
    key: Leaf
    updates: Leaf


class Dagger(OneNetwork):
    """The algorithm for one environment and configuration; holds no arrays."""

    config_class = DaggerConfig
    config: DaggerConfig

    def __init__(self, env: Environment, config: DaggerConfig) -> None:
        """Set up the network and its optimiser.

        Args:
            env: functional environment of `EcnEnv`'s kind, with the actions `discrete` (it is
                wrapped in `AutoReset`).
            config: settings.

        Raises:
            ValueError: the scenario has no phases, the actions are no list of settings, or
                `teacher` does not name one of it for each phase.
        """
        super().__init__(env, config)
        self.head = ql.discrete_head(env.action)
        if not self.head.scalar:
            raise bad_value("actions", env.action.name, "discrete: the teacher's are a list")
        self.teacher = self.taught(tuple(getattr(env, "phase_names", ())))
        self.net = Mlp(config.hidden, self.head.outputs, 0.1, config.standardise > 0)
        steps = config.anneal_updates * config.gradient_steps
        self.opt = adam(config.lr, config.max_grad_norm, steps)

    def taught(self, phases: tuple[str, ...]) -> tuple[int, ...]:
        """The teacher's action in each phase.

        Args:
            phases: their names.

        Raises:
            ValueError: see `__init__`.
        """
        if len(phases) < 2:
            name = getattr(self.env, "name", self.env)
            raise bad_value("scenario", name, "one with phases, to be told")
        choices = self.head.outputs
        teacher: tuple[int, ...] = self.config.teacher or tuple(range(choices))
        if len(teacher) != len(phases) or max(teacher) >= choices:
            allowed = f"an action below {choices} for each of the phases {', '.join(phases)}"
            raise bad_value("teacher", teacher, allowed)
        return teacher

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """A fresh network, an empty memory, environments in different phases of their episodes."""
        c, env = self.config, self.env
        key, net_key, env_key, phase_key = jax.random.split(key, 4)
        actor = init_network(self.net, net_key, env.obs_dim, env.num_agents, shared=True)
        obs, state, measured = start_measured(
            env, env_key, phase_key, params, c.envs, c.standardise
        )
        if measured is not None:
            actor = standardise(actor, *measured.obs)
        number = jax.ShapeDtypeStruct((), jnp.float32)
        whole = jax.ShapeDtypeStruct((), jnp.int32)
        seen = jax.ShapeDtypeStruct((env.obs_dim,), jnp.float32)
        row = self.row(seen, whole, {"utilisation": number})
        return TrainState(
            actor=actor,
            opt=self.opt.init(actor),
            memory=replay.empty(row, c.capacity),
            env=state,
            obs=obs,
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    def port_places(self, state: PyTree, params: PyTree) -> Int[Array, " ports"]:
        """Which of the teacher's actions is right at each port: that of its phase."""
        return jnp.asarray(self.env.phase(state, params))

    def places(self, state: PyTree, params: PyTree) -> Int[Array, " agents"]:
        """Which of the teacher's actions is right for each agent in the interval to come.

        Args:
            state: state of the environment, without `AutoReset`'s.
            params: its parameters.
        """
        by_port = jax.nn.one_hot(self.port_places(state, params), len(self.teacher))
        # Agents of several ports, which may be in different phases, are in that of most of them.
        by_agent = (
            by_port if self.env.num_agents == len(by_port) else self.env.grouping.mean(by_port)
        )
        return jnp.argmax(by_agent, -1).astype(jnp.int32)

    def row(self, obs: PyTree, place: PyTree, info: Mapping[str, PyTree]) -> tuple[PyTree, ...]:
        """What the memory keeps of a decision.

        Args:
            obs: what the agents saw.
            place: see `places`.
            info: what the interval brought, `info` of the environment.
        """
        return obs, place

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out, ask the teacher, fit the network to its answers."""
        key, roll_key, learn_key = jax.random.split(state.key, 3)
        state, rows, metrics = self._collect(replace(state, key=key), roll_key, params)
        memory, _ = replay.append(state.memory, rows)
        actor, opt, losses = self._learn(state.actor, state.opt, memory, learn_key)
        state = replace(state, actor=actor, opt=opt, memory=memory, updates=state.updates + 1)
        return state, metrics | losses

    def _collect(
        self, state: TrainState, key: jax.Array, params: PyTree
    ) -> tuple[TrainState, PyTree, dict[str, Array]]:
        """Act for `rollout` intervals in all environments; rows are those of the memory."""
        c = self.config
        chance = jnp.float32(c.teacher_decay) ** state.updates

        def step(
            key: jax.Array,
            carry: tuple[PyTree, Array],
            actor: PyTree,
            chance: Array,
            params: PyTree,
        ) -> tuple[PyTree, PyTree]:
            env_state, obs = carry
            act_key, env_key = jax.random.split(key)
            place = self.places(env_state.env, params)
            right = jnp.asarray(self.teacher, jnp.int32)[place]
            own = self.head.mode(apply_network(self.net, actor, obs, True))
            taught = jax.random.bernoulli(act_key, chance, own.shape)
            action = jnp.where(taught, right, own)
            next_obs, env_state, reward, *_, info = self.env.step(
                env_key, env_state, action, params
            )
            means = {name: info[name].mean() for name in ("queue_mean", "utilisation")}
            means |= {"reward": reward.mean(), "agreement": (own == right).mean()}
            return (env_state, next_obs), (self.row(obs, place, info), means)

        shared = (state.actor, chance, params)
        carry = (state.env, state.obs)
        (env_state, obs), (rows, means) = roll(self.env, step, carry, key, c.rollout, *shared)
        # [time, envs, A, ...] to rows; the latest come last, as the memory keeps those.
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), rows)
        metrics = {name: x.mean() for name, x in means.items()} | {"teacher_chance": chance}
        return replace(state, env=env_state, obs=obs), rows, metrics

    def _learn(
        self, actor: PyTree, opt: PyTree, memory: PyTree, key: jax.Array
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """Gradient steps on rows of the memory."""
        c = self.config

        def gradient_step(carry: PyTree, key: jax.Array) -> tuple[PyTree, Array]:
            actor, opt = carry
            loss, grad = jax.value_and_grad(self.loss)(actor, memory, key)
            step, opt = self.opt.update(grad, opt, actor)
            return (jax.tree.map(jnp.add, actor, step), opt), loss

        keys = jax.random.split(key, c.gradient_steps)
        (actor, opt), losses = jax.lax.scan(gradient_step, (actor, opt), keys)
        return actor, opt, {"loss": losses.mean()}

    def loss(self, actor: PyTree, memory: PyTree, key: jax.Array) -> Float[Array, ""]:
        """Cross-entropy of the teacher's actions, in `batch` rows drawn from a memory."""
        obs, place = replay.drawn(memory, key, self.config.batch)
        action = jnp.asarray(self.teacher, jnp.int32)[place]
        log_prob, _ = evaluate_actions(self.head, jnp.asarray(self.net.apply(actor, obs)), action)
        return -log_prob.mean()

    def act(
        self,
        actor: PyTree,
        key: jax.Array,
        obs: Float[Array, "*b agents obs"],
        greedy: bool = False,
    ) -> Array:
        """Actions for observations: the most likely ones, or drawn ones."""
        out = apply_network(self.net, actor, obs, True)
        return self.head.mode(out) if greedy else self.head.sample(key, out)
