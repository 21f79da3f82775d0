"""DDQN: every port learns the values of its settings, the algorithm of ACC.

ACC: "Automatic ECN Tuning for High-Speed Datacenter Networks" (SIGCOMM'21), §3.4, Algorithm 1, §4.
Each agent has a Q-network over its own observations, shared or its own, and a memory of its own; a
global memory exchanges experience between them. An update is

    roll out `rollout` intervals in `envs` environments, exploring, idle ports keeping their setting
    ->  into the local memories  ->  now and then: exchange with the global memory
    ->  `gradient_steps` times: draw from the local memories, large rewards first, double-Q (Eq. 3)

and is one compiled function; the memories stay on the device. Use it with `reward="acc"` (the
step-shaped D(L)), `features="acc"` (k = 3) and `actions="discrete"`, as ACC has them.

What ACC leaves open, and differences from it:

* An agent is a port; ACC's is a switch, which decides for one queue after the other (§4.2).
* Algorithm 1 takes a gradient step per interval. Here several follow a rollout in many
  environments.
* A port that is about to be idle cannot choose, so the target takes the value of the setting that
  it keeps, not that of the best one.
* ACC prefers large rewards (§4.3) without a formula: see `rl.replay.sampling_table`. Weights
  correct the bias of that (Schaul et al. 2016).
* What idle means exactly (§4.2): see `rl.gating`. Idle ports explore, too.

`c_acc` is the central controller that ACC is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._memory import tree_bytes
from ecn_marl._types import Leaf
from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController
from ecn_marl.baselines.evaluation.stateful_policy import StatefulPolicy
from ecn_marl.baselines.rl import gating, replay
from ecn_marl.baselines.rl import q_learning as ql
from ecn_marl.baselines.rl.gating import Gate
from ecn_marl.baselines.rl.networks import Applied, network_flops, one_agent, plain
from ecn_marl.baselines.rl.q_learning import QLearner, QState, Step, Transition
from ecn_marl.baselines.rl.replay import Ring
from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.environments import start_measured
from ecn_marl.baselines.training.trainer import Network, Trainer
from ecn_marl.envs.interface import Environment, PortEnvironment
from ecn_marl.wrappers import AutoReset


@dataclass(frozen=True)
class DDQNConfig(ql.QConfig):
    """Settings of DDQN, beside those of `QConfig`.

    ACC states the structure of its algorithm but none of its numbers (network, rates, discount,
    exploration, memories). It has returns of one step (Eq. 3), copies the network to the target
    every n steps (n is not stated), lets the chance of a random action decay exponentially (§4.3),
    and installs one model offline (`shared`), which every switch then trains on its own. `gamma` is
    that of IPPO.

    Attributes:
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
        persistence: chance that a port has to keep its setting for another interval while it
            trains, whether that was chosen or random. A setting is then worth what it brings while
            it lasts. Without `idle_gating`, which keeps settings, too.
    """

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
    persistence: float = 0.0

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        sizes = ("local_capacity", "global_capacity", "exchange_every", "idle_intervals")
        check.at_least_one(self, *sizes)
        check.shares(self, "to_global", "to_local", "correction")
        check.not_negative(self, "priority", "idle_tolerance")
        if not 0.0 <= self.persistence < 1.0:
            raise bad_value("persistence", self.persistence, "a number in [0, 1)")
        if self.idle_gating and self.persistence:
            raise bad_value("persistence", self.persistence, "0 with idle_gating")


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
        offset: subtracted from rewards before they are learnt from.
    """

    q: QState
    local: Ring
    shared: Ring
    gate: Gate
    env: PyTree
    obs: Leaf
    key: Leaf
    updates: Leaf
    offset: Leaf

    @property
    def actor(self) -> PyTree:
        """Parameters that a policy needs."""
        return self.q.acting


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
        self.net = config.network(self.head)
        self.learner = QLearner(
            self.net,
            self.head,
            rate=config.lr,
            anneal_steps=config.anneal_updates * config.gradient_steps,
            max_grad_norm=config.max_grad_norm,
            target_every=config.target_every,
            polyak=config.polyak,
            shared=config.shared,
        )
        self.row = ql.transition_shapes(env.obs_dim, env.action.shape)
        self.up = round(config.to_global * config.local_capacity)
        self.down = round(config.to_local * config.local_capacity)

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """A fresh network, empty memories and fresh environments, in different phases (as IPPO)."""
        c, env = self.config, self.env
        key, q_key, env_key, phase_key = jax.random.split(key, 4)
        obs, state, measured = start_measured(
            env, env_key, phase_key, params, c.envs, c.start_intervals
        )
        moments, offset = c.use(measured)
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
            offset=offset,
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

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out, store, exchange, learn."""
        c = self.config
        key, roll_key, exchange_key, learn_key = jax.random.split(state.key, 4)
        state = replace(state, key=key)
        state, rows, metrics = self._collect(state, roll_key, params)
        local, lost = jax.vmap(replay.append)(state.local, rows)
        state, moved = self._exchange(replace(state, local=local), exchange_key)
        q, losses = self.learner.learn_from(
            state.q,
            learn_key,
            state.local,
            batch=c.batch,
            gradient_steps=c.gradient_steps,
            priority=c.priority,
            correction=c.correction,
        )
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
            offset: Array,
            params: PyTree,
        ) -> tuple[PyTree, PyTree]:
            env_state, obs, gate = carry
            act_key, keep_key, env_key = jax.random.split(key, 3)
            q = self.learner.values(actor, obs)
            exploring, random_action = ql.explore(act_key, self.head, q, chance)
            # A random setting takes no inference, so idle ports explore as well.
            exploring &= ~gate.idle | c.idle_gating
            action = ql.choose(gate.idle, gate.action, self.head.mode(q))
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
            # From here on `gate` says which ports keep their action in the next interval.
            gate = self._watch(gate, action, reward, info)
            if c.persistence:
                keep = jax.random.bernoulli(keep_key, c.persistence, gate.idle.shape)
                gate = replace(gate, action=action, idle=keep)
            learnt_reward = c.reward_scale * (reward - offset)
            row = Step(
                obs, action, learnt_reward, terminated, truncated, info["final_obs"], gate.idle
            )
            done = info["episode_done"]
            first = self._first_gate(reward.shape[-1])
            gate = jax.tree.map(lambda a, b: ql.choose(done, a, b), first, gate)
            return (env_state, next_obs, gate), (row, means)

        carry = (state.env, state.obs, state.gate)
        shared = (state.q.params, chance, state.offset, params)
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
        row_bytes = tree_bytes(self.row)
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
        c, row_bytes, agents = self.config, tree_bytes(self.row), self.env.num_agents
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

    def controller(self, actor: PyTree, env: PortEnvironment) -> Controller | StatefulController:
        """The greedy policy for evaluation in `env`, with idle gating if that is on."""
        return StatefulPolicy(self, actor, env)

    def network(self, actor: PyTree) -> Network | None:
        """The policy, to be exported, without idle gating."""
        return Network(self.head, plain(self.net, actor))

    def modules(self, actor: PyTree) -> dict[str, tuple[Applied, PyTree]]:
        """Networks and the parameters that one port needs, to measure their cost."""
        return {"policy": (self.learner.net, one_agent(actor, self.config.shared))}

    @property
    def flops(self) -> int:
        """Floating-point operations of one inference."""
        return network_flops(self.config.hidden, self.env.obs_dim, self.head.outputs)

    def exchanged_bytes(self, env: PortEnvironment, rows: Sequence[Mapping[str, Any]]) -> float:
        """Bytes of the exchanges of memories while training."""
        columns = ("exchanged_up_bytes", "exchanged_down_bytes")
        total = sum(float(np.mean(row[column])) for row in rows for column in columns)
        return float(total / rows[-1]["steps"] * 1e6 / env.interval_us)
