"""HAECN: a small network decides whether a setting still fits, a large one finds a new setting.

HAECN: "Hierarchical Automatic ECN Tuning with Ultra-low Overhead in Datacenter Networks", §3,
Algorithm 1. Every interval the decision module, a light DQN, observes the state S of its port and
S_saved, the state in which the setting in force was chosen. If it triggers, the policy generator, a
six-layer DDQN, chooses a setting for S, and S becomes S_saved; else the setting stays. An update is

    roll out `rollout` intervals in `envs` environments, both modules exploring
    ->  into the memories of both modules
    ->  `gradient_steps` times: DQN for the decision, DDQN for the policy (Algorithm 1, line 14)

and is one compiled function. Both modules learn by `rl.q_learning.QLearner`, as DDQN does. Where
the paper is silent or contradicts itself:

* Text and Algorithm 1 store a transition only if it was triggered. From those alone the decision
  module could not learn when not to trigger, so it learns from every interval here.
* The policy generator's target (line 14) assumes that it chooses anew in the next interval. A
  setting that lasts for fifty intervals would be valued for one. Here it learns from every interval
  as well. Where the decision module does not trigger, the target takes Q of the setting that stays.
  `HAECNConfig(every_interval=False)` is the paper to the letter.
* The penalty enters the decision module's reward only, r - alpha * trigger (Eq. 2). The policy
  generator learns from r.
* At the start of an episode there is no setting to keep: the first interval always triggers.
* S_saved, S and the history k: see `ecn_marl.envs.features` (`features="haecn"`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._memory import tree_bytes
from ecn_marl._types import Leaf
from ecn_marl.baselines.evaluation.episodes import StatefulController
from ecn_marl.baselines.evaluation.stateful_policy import StatefulPolicy
from ecn_marl.baselines.rl import q_learning as ql
from ecn_marl.baselines.rl import replay
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.networks import Applied, Mlp, network_flops, one_agent
from ecn_marl.baselines.rl.q_learning import QLearner, QState, Step, Transition
from ecn_marl.baselines.rl.replay import Ring
from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.environments import start_measured
from ecn_marl.baselines.training.trainer import Trainer
from ecn_marl.envs.interface import Environment, PortEnvironment
from ecn_marl.wrappers import AutoReset

TRIGGER = Head(sizes=(2,), scalar=True)
"""The decision module's actions: 0 keeps the setting, 1 triggers the policy generator."""


@dataclass(frozen=True)
class HAECNConfig(ql.QConfig):
    """Settings of HAECN, beside those of `QConfig`; those of its Table 1, where it states them.

    Table 1: batches of 64, a learning rate of 0.005 for both modules (the optimiser is not stated),
    a discount of 0.98, a target network copied every 20 steps, a price of 0.05. Returns have one
    step (Algorithm 1, line 14). The policy generator has six layers, of widths that are not stated,
    as are exploration and memories. The paper's agents share nothing (`shared=False`).

    Attributes:
        trigger_penalty: alpha, subtracted from the reward for a trigger (Table 1: 0.05).
        decision_hidden: hidden layers of the decision module; "lightweight", not stated.
        every_interval: the policy generator learns from every interval, and values a setting for as
            long as it stays; else it learns from triggered ones only, as in the paper.
        capacity: rows of each memory of an agent; not stated.
    """

    lr: float = 5e-3
    gamma: float = 0.98
    target_every: int = 20
    hidden: tuple[int, ...] = (64, 64, 64, 64, 64)
    trigger_penalty: float = 0.05
    decision_hidden: tuple[int, ...] = (16,)
    every_interval: bool = True
    capacity: int = 8192

    def __post_init__(self) -> None:
        """Check all settings."""
        object.__setattr__(self, "decision_hidden", tuple(self.decision_hidden))
        super().__post_init__()
        check.at_least_one(self, "capacity")
        check.widths(self, "decision_hidden")
        check.not_negative(self, "trigger_penalty")


@struct.dataclass
class Saved:
    """The setting in force at every port, leaves `[..., A]`.

    Attributes:
        obs: S_saved, `[..., A, obs_dim]`.
        action: the setting chosen then, `[..., A, *action.shape]`.
        first: whether no setting was chosen yet.
    """

    obs: Leaf
    action: Leaf
    first: Leaf


@struct.dataclass
class PolicyMemory:
    """Memory of the greedy policy, and its costs so far.

    Attributes:
        saved: the settings in force, leaves `[A, ...]`.
        triggers: decisions that ran the policy generator, over all ports.
        decisions: all decisions.
    """

    saved: Saved
    triggers: Leaf
    decisions: Leaf


@struct.dataclass
class TrainState:
    """Everything that is needed to continue training.

    Attributes:
        decision: the decision module: networks and optimiser.
        policy: the policy generator: networks and optimiser.
        intervals: memories of the decision module, leaves `[A, capacity, ...]`.
        settings: memories of the policy generator, leaves `[A, capacity, ...]`.
        saved: the settings in force, leaves `[envs, A, ...]`.
        env: environment states, leading axis `envs`.
        obs: observations, `[envs, A, obs_dim]`.
        key: PRNG key.
        updates: updates so far.
        offset: subtracted from rewards before they are learnt from.
    """

    decision: QState
    policy: QState
    intervals: Ring
    settings: Ring
    saved: Saved
    env: PyTree
    obs: Leaf
    key: Leaf
    updates: Leaf
    offset: Leaf

    @property
    def actor(self) -> dict[str, Any]:
        """Parameters that a policy needs."""
        return {"decision": self.decision.acting, "policy": self.policy.acting}


class HAECN(Trainer):
    """The algorithm for one environment and configuration; holds no arrays."""

    config_class = HAECNConfig

    per_env = ("env", "obs", "saved")
    """Fields of the training state with an axis of environments."""

    def __init__(self, env: Environment, config: HAECNConfig) -> None:
        """Set up both modules.

        Args:
            env: functional environment with discrete actions (it is wrapped in `AutoReset`).
            config: settings.

        Raises:
            ValueError: its actions are continuous.
        """
        self.env = AutoReset(env)
        self.config = c = config
        self.head = ql.discrete_head(env.action)
        common: dict[str, Any] = {
            "rate": c.lr,
            "anneal_steps": c.anneal_updates * c.gradient_steps,
            "max_grad_norm": c.max_grad_norm,
            "target_every": c.target_every,
            "polyak": c.polyak,
            "shared": c.shared,
        }
        small = Mlp(c.decision_hidden, TRIGGER.outputs, 0.1, c.standardise > 0)
        self.decision = QLearner(small, TRIGGER, double=False, **common)
        self.policy = QLearner(c.network(self.head), self.head, double=True, **common)
        self.decision_row = ql.transition_shapes(2 * env.obs_dim, ())
        self.policy_row = ql.transition_shapes(env.obs_dim, env.action.shape)

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """Fresh modules, empty memories and fresh environments, in different phases (as IPPO)."""
        c, env = self.config, self.env
        key, decision_key, policy_key, env_key, phase_key = jax.random.split(key, 5)
        obs, state, measured = start_measured(
            env, env_key, phase_key, params, c.envs, c.start_intervals
        )
        moments, offset = c.use(measured)
        pair_moments = None
        if moments is not None:
            mean, std = moments
            pair_moments = (jnp.tile(mean, 2), jnp.tile(std, 2))  # of S and S_saved
        intervals = replay.empty(self.decision_row, c.capacity)
        settings = replay.empty(self.policy_row, c.capacity)
        return TrainState(
            decision=self.decision.init(
                decision_key, 2 * env.obs_dim, env.num_agents, pair_moments
            ),
            policy=self.policy.init(policy_key, env.obs_dim, env.num_agents, moments),
            intervals=replay.copies(intervals, env.num_agents),
            settings=replay.copies(settings, env.num_agents),
            saved=replay.copies(self._nothing_saved(env.num_agents), c.envs),
            env=state,
            obs=obs,
            key=key,
            updates=jnp.zeros((), jnp.int32),
            offset=offset,
        )

    def _nothing_saved(self, num_agents: int) -> Saved:
        obs = jnp.zeros((num_agents, self.env.obs_dim), jnp.float32)
        action = jnp.zeros((num_agents, *self.env.action.shape), jnp.int32)
        return Saved(obs, action, jnp.ones((num_agents,), bool))

    def _act(
        self,
        actor: PyTree,
        saved: Saved,
        obs: Float[Array, "*b agents obs"],
        key: jax.Array,
        chance: Float[Array, ""] | float,
    ) -> tuple[Saved, Array, Array]:
        """Settings in force, triggers, and observations of the decision module."""
        trigger_key, setting_key = jax.random.split(key)
        decision_obs = jnp.concatenate([obs, saved.obs], -1)
        q = self.decision.values(actor["decision"], decision_obs)
        exploring, random_action = ql.explore(trigger_key, TRIGGER, q, chance)
        trigger = saved.first | (jnp.where(exploring, random_action, TRIGGER.mode(q)) == 1)
        q = self.policy.values(actor["policy"], obs)
        exploring, random_action = ql.explore(setting_key, self.head, q, chance)
        setting = ql.choose(exploring, random_action, self.head.mode(q))
        in_force = Saved(
            obs=jnp.where(trigger[..., None], obs, saved.obs),
            action=ql.choose(trigger, setting, saved.action),
            first=jnp.zeros_like(saved.first),
        )
        return in_force, trigger, decision_obs

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out, store, learn."""
        c = self.config
        key, roll_key, decision_key, policy_key = jax.random.split(state.key, 4)
        state = replace(state, key=key)
        state, (intervals, settings, trigger), metrics = self._collect(state, roll_key, params)
        intervals_ring, intervals_lost = jax.vmap(replay.append)(state.intervals, intervals)
        keep = trigger | c.every_interval
        settings_ring, settings_lost = jax.vmap(replay.append)(state.settings, settings, keep)
        steps = {"batch": c.batch, "gradient_steps": c.gradient_steps}
        decision, decision_losses = self.decision.learn_from(
            state.decision, decision_key, intervals_ring, **steps
        )
        policy, policy_losses = self.policy.learn_from(
            state.policy, policy_key, settings_ring, **steps
        )
        metrics |= {f"decision_{name}": x for name, x in decision_losses.items()} | policy_losses
        rows = (self.decision_row, self.policy_row)
        memory_bytes = sum(tree_bytes(row) for row in rows) * c.capacity
        metrics["local_replay_bytes"] = jnp.float32(memory_bytes * self.env.num_agents)
        metrics["overwritten"] = intervals_lost.sum() + settings_lost.sum()
        return replace(
            state,
            decision=decision,
            policy=policy,
            intervals=intervals_ring,
            settings=settings_ring,
            updates=state.updates + 1,
        ), metrics

    def _collect(
        self, state: TrainState, key: jax.Array, params: PyTree
    ) -> tuple[TrainState, tuple[Transition, Transition, Array], dict[str, Array]]:
        """Act for `rollout` intervals in all environments.

        Returns:
            State; rows of the decision module and of the policy generator, `[A, rollout * envs,
            ...]`, and which of the latter were triggered; metrics.
        """
        c = self.config
        chance = ql.epsilon(c.epsilon, c.epsilon_decay, c.epsilon_min, state.updates)

        def step(
            key: jax.Array,
            carry: tuple[PyTree, Array, Saved],
            actor: PyTree,
            chance: Array,
            offset: Array,
            params: PyTree,
        ) -> tuple[PyTree, PyTree]:
            env_state, obs, saved = carry
            act_key, env_key = jax.random.split(key)
            saved, trigger, decision_obs = self._act(actor, saved, obs, act_key, chance)
            next_obs, env_state, reward, terminated, truncated, info = self.env.step(
                env_key, env_state, saved.action, params
            )
            last = info["final_obs"]
            next_decision_obs = jnp.concatenate([last, saved.obs], -1)
            penalised = reward - c.trigger_penalty * trigger
            ends = (terminated, truncated)
            base, scale = offset, c.reward_scale
            # Whether the decision module would keep the setting next, exploration aside.
            quiet = TRIGGER.mode(self.decision.values(actor["decision"], next_decision_obs)) == 0
            # The decision module itself always has the choice.
            free = jnp.zeros_like(quiet)
            decision_row = Step(
                decision_obs,
                trigger.astype(jnp.int32),
                scale * (penalised - base),
                *ends,
                next_decision_obs,
                free,
            )
            kept = quiet & c.every_interval
            row = Step(obs, saved.action, scale * (reward - base), *ends, last, kept)
            metrics = {
                "reward": reward.mean(),
                "reward_after_penalty": penalised.mean(),
                "queue_mean": info["queue_mean"].mean(),
                "utilisation": info["utilisation"].mean(),
                "triggered": trigger.mean(),
            }
            saved = replace(saved, first=saved.first | info["episode_done"])
            return (env_state, next_obs, saved), ((decision_row, row, trigger), metrics)

        carry = (state.env, state.obs, state.saved)
        shared = (state.actor, chance, state.offset, params)
        (env_state, obs, saved), (rows, metrics) = roll(
            self.env, step, carry, key, c.rollout, *shared
        )
        intervals = ql.transitions(rows[0], c.gamma, c.n_step)
        settings = ql.transitions(rows[1], c.gamma, c.n_step)
        trigger = jnp.moveaxis(rows[2], 2, 0).reshape(self.env.num_agents, -1)
        means = {name: x.mean() for name, x in metrics.items()} | {"epsilon": chance}
        means |= self._costs(means.pop("triggered"))
        next_state = replace(state, env=env_state, obs=obs, saved=saved)
        return next_state, (intervals, settings, trigger), means

    def start(self, num_agents: int) -> PolicyMemory:
        """Memory of the greedy policy at the start of an episode."""
        zero = jnp.zeros((), jnp.int32)
        return PolicyMemory(self._nothing_saved(num_agents), zero, zero)

    def decide(
        self, actor: PyTree, memory: PolicyMemory, obs: Float[Array, "agents obs"]
    ) -> tuple[PolicyMemory, Array]:
        """Actions of the greedy policy; ports without a trigger keep theirs."""
        # Without exploration the key has no effect.
        saved, trigger, _ = self._act(actor, memory.saved, obs, jax.random.key(0), 0.0)
        triggers = memory.triggers + trigger.sum(dtype=jnp.int32)
        memory = PolicyMemory(saved, triggers, memory.decisions + trigger.shape[-1])
        return memory, saved.action

    def watch(
        self, memory: PolicyMemory, reward: Float[Array, " agents"], info: dict[str, Array]
    ) -> PolicyMemory:
        """Memory of the policy after an interval: the same."""
        del reward, info
        return memory

    def costs(self, memory: PolicyMemory) -> dict[str, Array]:
        """Triggers, inferences and floating-point operations per decision so far."""
        share = memory.triggers / jnp.maximum(memory.decisions, 1)
        return self._costs(share)

    def _costs(self, share: Array) -> dict[str, Array]:
        """Costs per decision where `share` of them trigger."""
        small, large = self.flops
        return {
            "activation_frequency": share,
            "inferences_per_decision": 1.0 + share,
            "flops_per_decision": small + large * share,
        }

    def controller(self, actor: PyTree, env: PortEnvironment) -> StatefulController:
        """The greedy policy for evaluation in `env`."""
        return StatefulPolicy(self, actor, env)

    def modules(self, actor: PyTree) -> dict[str, tuple[Applied, PyTree]]:
        """Networks and the parameters that one port needs, to measure their cost."""
        nets = {"decision": self.decision.net, "policy": self.policy.net}
        return {k: (net, one_agent(actor[k], self.config.shared)) for k, net in nets.items()}

    @property
    def flops(self) -> tuple[int, int]:
        """Floating-point operations of an inference of the decision and of the policy module."""
        c, obs = self.config, self.env.obs_dim
        return (
            network_flops(c.decision_hidden, 2 * obs, TRIGGER.outputs),
            network_flops(c.hidden, obs, self.head.outputs),
        )
