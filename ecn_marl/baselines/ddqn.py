"""DDQN: every port learns the values of its settings, the algorithm of ACC; and C-ACC.

ACC: "Automatic ECN Tuning for High-Speed Datacenter Networks" (SIGCOMM'21), §3.4, Algorithm 1, §4.
Each agent has a Q-network over its own observations, shared or its own, and a memory of its own; a
global memory exchanges experience between them. An update is

    roll out `rollout` intervals in `envs` environments, exploring, idle ports keeping their setting
    ->  into the local memories  ->  now and then: exchange with the global memory
    ->  `gradient_steps` times: draw from the local memories, large rewards first, double-Q (Eq. 3)

and is one compiled function; the memories stay on the device. A port that is about to be idle
cannot choose, so the target takes the value of the setting that it keeps, not that of the best one;
ACC does not say so. Use it with `reward="acc"` (the step-shaped D(L)), `features="acc"` (k = 3) and
`actions="discrete"`, as ACC has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.evaluation.scoring import Greedy
from ecn_marl.baselines.evaluation.stateful_policy import StatefulPolicy
from ecn_marl.baselines.rl import gating, replay
from ecn_marl.baselines.rl import q_learning as ql
from ecn_marl.baselines.rl.gating import Gate
from ecn_marl.baselines.rl.networks import Mlp, network_flops, one_agent
from ecn_marl.baselines.rl.q_learning import QLearner, QState, Transition
from ecn_marl.baselines.rl.replay import Ring
from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.baselines.rl.tiers import Tiers, port_tiers
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.environments import run_randomly, start_environments
from ecn_marl.baselines.training.trainer import Network, Trainer
from ecn_marl.envs.interface import Environment, PortEnvironment
from ecn_marl.wrappers import AutoReset

FLOAT_BYTES = 4


@dataclass(frozen=True)
class DDQNConfig:
    """Settings of DDQN.

    ACC states the structure of its algorithm but none of its numbers (network, rates, discount,
    exploration, memories). Values without a source are not ACC's.

    Attributes:
        envs: environments stepped at once.
        rollout: intervals per environment and update.
        gradient_steps: gradient steps per update.
        batch: rows that each agent draws from its memory per gradient step.
        lr: learning rate.
        anneal_updates: updates over which `lr` falls to `optimisers.FINAL_RATE` of its value; 0 for
            a rate that does not fall.
        gamma: discount per tuning interval, as for IPPO.
        n_step: steps of a return before it is bootstrapped (ACC, Eq. 3: 1).
        target_every: gradient steps between copies to the target network (ACC's n; HAECN: 20).
        reward_offset: subtracted from the rewards that are learnt from. Values then start near
            their final level, instead of first climbing to offset / (1 - gamma). The best action
            stays the same, as no episode terminates (Naik et al. 2024, "Reward Centering").
        reward_scale: factor of the rewards after that, see `PPOConfig`.
        max_grad_norm: gradients are scaled down to this norm.
        hidden: widths of the hidden layers.
        standardise: intervals of random actions at the start, by which networks standardise their
            features, see `networks.standardise`; 0 for unscaled features.
        shared: one network for all agents, as when ACC installs one model offline, or one each, as
            when its switches train on online. Memories are one each in both cases.
        epsilon: chance of a random action at first.
        epsilon_decay: factor of that chance at every update (ACC, §4.3: exponential decay).
        epsilon_min: smallest chance.
        local_capacity: rows of each agent's memory.
        global_capacity: rows of the global memory.
        exchange_every: updates between exchanges. ACC's interval is "several seconds" of network
            time; training in a simulator is shorter than that.
        to_global: rows that each agent gives in an exchange, as a fraction of its memory.
        to_local: rows that each agent gets in an exchange, as a fraction of its memory.
        priority: exponent of the preference for large rewards (ACC, §4.3, without a formula); 0
            draws uniformly. See `replay.sampling_table`.
        correction: exponent of the weights that correct the bias of that preference. 1 corrects all
            of it; else values overestimate noisy rewards.
        idle_gating: idle ports keep their setting without an inference (ACC, §4.2).
        idle_intervals: intervals without a change of the reward that make a port idle (ACC: 3).
        idle_tolerance: changes of the reward up to this are none (ACC does not say).
    """

    envs: int = 64
    rollout: int = 8
    gradient_steps: int = 8
    batch: int = 64
    lr: float = 1e-3
    anneal_updates: int = 0
    gamma: float = 0.95
    n_step: int = 1
    target_every: int = 50
    reward_offset: float = 0.0
    reward_scale: float = 1.0
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (64, 64)
    standardise: int = 0
    shared: bool = True
    epsilon: float = 1.0
    epsilon_decay: float = 0.98
    epsilon_min: float = 0.02
    local_capacity: int = 8192
    global_capacity: int = 65536
    exchange_every: int = 10
    to_global: float = 0.05
    to_local: float = 0.05
    priority: float = 0.6
    correction: float = 1.0
    idle_gating: bool = True
    idle_intervals: int = 3
    idle_tolerance: float = 1e-3

    def __post_init__(self) -> None:
        """Check all settings."""
        counts = ("envs", "rollout", "gradient_steps", "batch", "n_step", "target_every")
        sizes = ("local_capacity", "global_capacity", "exchange_every", "idle_intervals")
        check.at_least_one(self, *counts, *sizes)
        shares = ("gamma", "epsilon", "epsilon_min", "to_global", "to_local", "correction")
        check.shares(self, *shares)
        check.positive(self, "lr", "reward_scale")
        check.positive(self, "max_grad_norm", infinite=True)
        check.widths(self, "hidden")
        if not 0.0 < self.epsilon_decay <= 1.0:
            raise bad_value("epsilon_decay", self.epsilon_decay, "a number in (0, 1]")
        check.not_negative(self, "priority", "idle_tolerance", "standardise", "anneal_updates")

    @property
    def steps_per_update(self) -> int:
        """Environment steps (tuning intervals) per update."""
        return self.envs * self.rollout


@struct.dataclass
class PolicyMemory:
    """Memory of the greedy policy, and its costs so far.

    Attributes:
        gate: idle ports, `[A]`.
        inferences: decisions that took an inference, over all ports.
        decisions: all decisions.
    """

    gate: Gate
    inferences: Leaf
    decisions: Leaf


@struct.dataclass
class TrainState:
    """Everything that is needed to continue training.

    Attributes:
        q: Q-network, target network, optimiser.
        local: memories of the agents, leaves `[A, local_capacity, ...]`.
        shared: the global memory.
        gate: idle ports, leaves `[envs, A]`.
        env: environment states, leading axis `envs`.
        obs: observations, `[envs, A, obs_dim]`.
        key: PRNG key.
        updates: updates so far.
    """

    q: QState
    local: Ring
    shared: Ring
    gate: Gate
    env: PyTree
    obs: Leaf
    key: Leaf
    updates: Leaf

    @property
    def actor(self) -> PyTree:
        """Parameters that a policy needs."""
        return self.q.params


class DDQN(Trainer):
    """The algorithm for one environment and configuration; holds no arrays."""

    config_class = DDQNConfig

    per_env = ("env", "obs", "gate")
    """Fields of the training state with an axis of environments."""

    def __init__(self, env: Environment, config: DDQNConfig) -> None:
        """Set up the network.

        Args:
            env: functional environment with discrete actions (it is wrapped in `AutoReset`).
            config: settings.

        Raises:
            ValueError: its actions are continuous.
        """
        self.env = AutoReset(env)
        self.config = config
        self.head = ql.discrete_head(env.action)
        self.learner = QLearner(
            Mlp(config.hidden, self.head.outputs, 0.1, config.standardise > 0),
            self.head,
            rate=config.lr,
            anneal_steps=config.anneal_updates * config.gradient_steps,
            max_grad_norm=config.max_grad_norm,
            target_every=config.target_every,
            shared=config.shared,
        )
        self.row = ql.transition_shapes(env.obs_dim, env.action.shape)
        self.up = round(config.to_global * config.local_capacity)
        self.down = round(config.to_local * config.local_capacity)

    @property
    def flops(self) -> int:
        """Floating-point operations of one inference."""
        return network_flops(self.config.hidden, self.env.obs_dim, self.head.outputs)

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """A fresh network, empty memories and fresh environments, in different phases (as IPPO)."""
        c, env = self.config, self.env
        key, q_key, env_key, phase_key = jax.random.split(key, 4)
        obs, state = start_environments(env, env_key, phase_key, params, c.envs)
        moments = None
        if c.standardise:
            random_key = jax.random.fold_in(env_key, 0)
            (state, obs), mean, std = run_randomly(
                env, random_key, params, (state, obs), c.standardise
            )
            moments = (mean, std)
        local = replay.empty(self.row, c.local_capacity)
        return TrainState(
            q=self.learner.init(q_key, env.obs_dim, env.num_agents, moments),
            local=replay.copies(local, env.num_agents),
            shared=replay.empty(self.row, c.global_capacity),
            gate=replay.copies(self._first_gate(env.num_agents), c.envs),
            env=state,
            obs=obs,
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    def _first_gate(self, num_agents: int) -> Gate:
        action = jnp.zeros((num_agents, *self.env.action.shape), jnp.int32)
        return gating.first_gate(action, num_agents)

    def act(
        self,
        actor: PyTree,
        key: jax.Array,
        obs: Float[Array, "*b agents obs"],
        greedy: bool = False,
    ) -> Array:
        """Actions for observations: the best ones, or those of training's last exploration."""
        q = self.learner.values(actor, obs)
        best = self.head.mode(q)
        if greedy:
            return best
        exploring, random_action = ql.explore(key, self.head, q, self.config.epsilon_min)
        return ql.choose(exploring, random_action, best)

    def network(self, actor: PyTree) -> Network | None:
        """The policy, to be exported, without idle gating."""
        return Network(self.head, actor)

    def exchanged_bytes(self, env: PortEnvironment, rows: Sequence[Mapping[str, Any]]) -> float:
        """Bytes of the exchanges of memories while training."""
        columns = ("exchanged_up_bytes", "exchanged_down_bytes")
        total = sum(float(np.mean(row[column])) for row in rows for column in columns)
        return float(total / rows[-1]["steps"] * 1e6 / env.interval_us)

    def start(self, num_agents: int) -> PolicyMemory:
        """Memory of the greedy policy at the start of an episode."""
        zero = jnp.zeros((), jnp.int32)
        return PolicyMemory(self._first_gate(num_agents), zero, zero)

    def decide(
        self, actor: PyTree, memory: PolicyMemory, obs: Float[Array, "agents obs"]
    ) -> tuple[PolicyMemory, Array]:
        """Actions of the greedy policy: idle ports keep theirs, the others take the best ones."""
        gate = memory.gate
        best = self.head.mode(self.learner.values(actor, obs))
        action = ql.choose(gate.idle, gate.action, best)
        busy = jnp.sum(~gate.idle, dtype=jnp.int32)
        return PolicyMemory(
            replace(gate, action=action),
            memory.inferences + busy,
            memory.decisions + gate.idle.shape[-1],
        ), action

    def watch(
        self, memory: PolicyMemory, reward: Float[Array, " agents"], info: dict[str, Array]
    ) -> PolicyMemory:
        """Memory of the policy after an interval."""
        return replace(memory, gate=self._watch(memory.gate, memory.gate.action, reward, info))

    def costs(self, memory: PolicyMemory) -> dict[str, Array]:
        """Inferences and floating-point operations per decision so far."""
        share = memory.inferences / jnp.maximum(memory.decisions, 1)
        return {"inferences_per_decision": share, "flops_per_decision": self.flops * share}

    def modules(self, actor: PyTree) -> dict[str, tuple[nn.Module, PyTree]]:
        """Networks and the parameters that one port needs, to measure their cost."""
        return {"policy": (self.learner.net, one_agent(actor, self.config.shared))}

    def controller(self, actor: PyTree, env: PortEnvironment) -> Any:
        """The greedy policy for evaluation in `env`, with idle gating if that is on."""
        return StatefulPolicy(self, actor, env)

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out, store, exchange, learn.

        Args:
            state: training state.
            params: parameters of the environment.

        Returns:
            New state, and the update's metrics.
        """
        key, roll_key, exchange_key, learn_key = jax.random.split(state.key, 4)
        state = replace(state, key=key)
        state, rows, metrics = self._collect(state, roll_key, params)
        local, lost = jax.vmap(replay.append)(state.local, rows)
        state, moved = self._exchange(replace(state, local=local), exchange_key)
        q, losses = self._learn(state.q, learn_key, state.local)
        metrics["overwritten"] = lost.sum() + moved.pop("overwritten")
        state = replace(state, q=q, updates=state.updates + 1)
        return state, metrics | moved | losses | self._memory(state)

    def _collect(
        self, state: TrainState, key: jax.Array, params: PyTree
    ) -> tuple[TrainState, Transition, dict[str, Array]]:
        """Act for `rollout` intervals in all environments; rows are `[A, rollout * envs, ...]`."""
        c = self.config
        chance = ql.epsilon(c.epsilon, c.epsilon_decay, c.epsilon_min, state.updates)

        def step(
            key: jax.Array,
            carry: tuple[PyTree, Array, Gate],
            actor: PyTree,
            chance: Array,
            params: PyTree,
        ) -> tuple[PyTree, PyTree]:
            env_state, obs, gate = carry
            act_key, env_key = jax.random.split(key)
            q = self.learner.values(actor, obs)
            exploring, random_action = ql.explore(act_key, self.head, q, chance)
            action = ql.choose(gate.idle, gate.action, self.head.mode(q))
            # A random setting takes no inference, so idle ports explore as well.
            action = ql.choose(exploring, random_action, action)
            next_obs, env_state, reward, terminated, truncated, info = self.env.step(
                env_key, env_state, action, params
            )
            means = {
                "reward": reward.mean(),
                "queue_mean": info["queue_mean"].mean(),
                "utilisation": info["utilisation"].mean(),
                "inferences_saved": gate.idle.mean(),
            }
            gate = self._watch(gate, action, reward, info)
            learnt_reward = c.reward_scale * (reward - c.reward_offset)
            step = (obs, action, learnt_reward, terminated, truncated, info["final_obs"], gate.idle)
            done = info["episode_done"]
            first = self._first_gate(reward.shape[-1])
            gate = jax.tree.map(lambda a, b: ql.choose(done, a, b), first, gate)
            return (env_state, next_obs, gate), (step, means)

        carry = (state.env, state.obs, state.gate)
        shared = (state.q.params, chance, params)
        (env_state, obs, gate), (steps, means) = roll(
            self.env, step, carry, key, c.rollout, *shared
        )
        metrics = {name: x.mean() for name, x in means.items()} | {"epsilon": chance}
        metrics["flops_per_decision"] = self.flops * (1.0 - metrics["inferences_saved"])
        next_state = replace(state, env=env_state, obs=obs, gate=gate)
        return next_state, ql.transitions(steps, c.gamma, c.n_step), metrics

    def _watch(self, gate: Gate, action: Array, reward: Array, info: dict[str, Array]) -> Gate:
        """Which ports are idle next; none if `info` has no queues and thresholds."""
        c = self.config
        if not (c.idle_gating and "queue" in info and "kmin" in info):
            return gate
        idle_inputs = (info["queue"], info["kmin"], c.idle_tolerance, c.idle_intervals)
        return gating.watch(gate, action, reward, *idle_inputs)

    def _exchange(self, state: TrainState, key: jax.Array) -> tuple[TrainState, dict[str, Array]]:
        """Exchange with the global memory if it is time."""
        c = self.config
        row_bytes = replay.row_bytes(self.row)
        zero = jnp.zeros((), jnp.int32)

        def exchange(local: Ring, shared: Ring) -> tuple[Ring, Ring, replay.Moved]:
            return replay.exchange(key, local, shared, self.up, self.down)

        def skip(local: Ring, shared: Ring) -> tuple[Ring, Ring, replay.Moved]:
            return local, shared, replay.Moved(zero, zero, zero, zero)

        due = (state.updates + 1) % c.exchange_every == 0
        local, shared, moved = jax.lax.cond(due, exchange, skip, state.local, state.shared)
        return replace(state, local=local, shared=shared), {
            "exchanged_up_bytes": moved.up.astype(jnp.float32) * row_bytes,
            "exchanged_down_bytes": moved.down.astype(jnp.float32) * row_bytes,
            "overwritten": moved.lost_up + moved.lost_down,
        }

    def _memory(self, state: TrainState) -> dict[str, Array]:
        """Size of the memories, how full they are, and the share of rows from other agents."""
        c, row_bytes, agents = self.config, replay.row_bytes(self.row), self.env.num_agents
        slots = jnp.arange(c.local_capacity)
        filled = slots < state.local.size[:, None]
        foreign = state.local.rows.origin != jnp.arange(agents)[:, None]
        return {
            "local_replay_bytes": jnp.float32(row_bytes * c.local_capacity * agents),
            "global_replay_bytes": jnp.float32(row_bytes * c.global_capacity),
            "local_filled": state.local.size.mean() / c.local_capacity,
            "global_filled": state.shared.size / c.global_capacity,
            "foreign": jnp.sum(filled & foreign) / jnp.maximum(jnp.sum(filled), 1),
        }

    def _learn(self, q: QState, key: jax.Array, local: Ring) -> tuple[QState, dict[str, Array]]:
        """Several gradient steps on rows that the agents draw from their memories."""
        c = self.config
        table = jax.vmap(replay.sampling_table, (0, 0, None))(
            local.rows.score, local.size, c.priority
        )

        def step(q: QState, key: jax.Array) -> tuple[QState, dict[str, Array]]:
            rows, weight = replay.draw_each(key, local, table, c.batch, c.correction)
            return self.learner.learn(q, rows, weight)

        q, metrics = jax.lax.scan(step, q, jax.random.split(key, c.gradient_steps))
        return q, {name: x.mean() for name, x in metrics.items()}


class CentralACC(DDQN):
    """C-ACC: one agent that observes the whole network and sets one action per tier of switches.

    ACC's authors compare with it (Fig. 14). It is DDQN in the view of `Tiers`: one Q-network, one
    memory. The exchange would only copy the agent's own rows, so it is left out.
    """

    def __init__(self, env: PortEnvironment, config: DDQNConfig) -> None:
        """Set up the network.

        Args:
            env: functional environment with discrete actions. Its `tiers`, one per port, are those
                of its topology if it names none.
            config: settings; `shared`, the exchange and idle gating have no effect here.

        Raises:
            ValueError: its actions are continuous.
        """
        single = replace(config, shared=True, idle_gating=False, to_global=0.0, to_local=0.0)
        super().__init__(central_view(env), replace(single, global_capacity=1))

    def view(self, env: PortEnvironment) -> Tiers:
        """The environment of this algorithm's single agent."""
        return central_view(env)

    def costs(self, memory: PolicyMemory) -> dict[str, Array]:
        """Costs so far per port and interval: one inference makes the decisions of all ports."""
        ports = len(self.env.tier)
        return {name: cost / ports for name, cost in super().costs(memory).items()}

    def network(self, actor: PyTree) -> Network | None:
        """None: the network takes the observations of all ports at once."""
        return None

    def exchanged_bytes(self, env: PortEnvironment, rows: Sequence[Mapping[str, object]]) -> float:
        """Bytes that ports send to the centre (features of an interval) and get (a setting)."""
        numbers = env.num_agents * (env.feature.width + 3)
        return float(numbers * FLOAT_BYTES * 1e6 / env.interval_us)

    def controller(self, actor: PyTree, env: PortEnvironment) -> Any:
        """The greedy policy for evaluation in `env`, whose agents are ports."""
        return Central(self, actor, central_view(env))


class Central(Greedy):
    """The greedy policy of C-ACC on all ports; one inference makes all their decisions."""

    def __init__(self, algorithm: CentralACC, actor: PyTree, view: Tiers) -> None:
        """Keep the view as well."""
        super().__init__(algorithm, actor)
        self.view = view

    def __call__(self, key: jax.Array, obs: jax.Array) -> Array:
        """Actions of all ports."""
        summary = self.view.summary(obs)
        return self.view.to_ports(self.algorithm.act(self.actor, key, summary, greedy=True))

    def costs(self) -> dict[str, float]:
        """Costs of a decision for one port: its share of an inference."""
        ports = len(self.view.tier)
        return {name: cost / ports for name, cost in super().costs().items()}


def central_view(env: PortEnvironment) -> Tiers:
    """The environment of a central controller."""
    tier = getattr(env, "tiers", None)
    return Tiers(env, tuple(port_tiers(env.sim.topology) if tier is None else tier))
