"""IPPO: every port is its own PPO learner (de Witt et al. 2020), the algorithm of PET.

PET: "Multi-Agent Reinforcement Learning-Based Automatic ECN Tuning", §4.3, Algorithm 1. Each agent
has an actor and a critic over its own observations; their parameters are shared between agents, as
when one pre-trained model is installed on every switch, or one set each. An update is

    roll out `rollout` intervals in `envs` environments  ->  GAE (Eqs. 9, 10)
    ->  `epochs` passes of clipped policy loss (Eq. 11) and squared value loss (Eq. 12)

and is one compiled function, `rl.ppo_trainer.PPOTrainer.update`, as MAPPO takes the same. Episodes
only end by their horizon; such a truncated step is bootstrapped from the value of
its final observation.

PET trains twice (§4.4). Offline, one model is trained on generated or recorded traffic:
`IPPOConfig(shared=True)` in any scenario. It is then installed on every switch, and each port goes
on training its own copy on its own traffic: `IPPOConfig(shared=False, pretrained=RUN)`. The network
may be another one than that of the run. Agents that do not share parameters share nothing:
advantages, gradients and optimisers are per port.

Differences from PET:

* An agent is a port, not a switch.
* The critic is fitted to the advantage plus the old value, not to the sum of all later rewards
  (Eq. 12); `critic_lambda=1` is that.
* The policy's loss has an entropy bonus, and gradients are clipped by their norm.
* `gae_lambda` is 0.9, not 0.01; `IPPOConfig` says why.

With the features `pet` and the reward `pet` this is PET; the features `pet-no-incast` and
`pet-no-mice` are the ablations of its §5.5.7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.rl import recurrent as rc
from ecn_marl.baselines.rl.networks import apply_network
from ecn_marl.baselines.rl.ppo import Batch
from ecn_marl.baselines.rl.ppo_config import PPOConfig
from ecn_marl.baselines.rl.ppo_rollout import Rollout, TrainState
from ecn_marl.baselines.rl.ppo_trainer import PPOTrainer
from ecn_marl.envs.interface import Environment


@dataclass(frozen=True)
class IPPOConfig(PPOConfig):
    """Settings of IPPO. Defaults are those of PET (§5.2, Table 2), but for `gae_lambda`.

    From PET: the learning rates 4e-4 and 1e-3, the clip of 0.2 and its decay by 0.99 every 50
    updates (Eq. 13, where the symbol of Eq. 11 stands for the rate of exploration). PET states
    neither the discount nor the widths of its networks. A threshold acts on the queue for some ten
    intervals, which the discount here reflects.

    PET prints a "GAE coefficient" of 0.01. Taken as lambda it makes learners myopic: a high
    threshold raises the utilisation of this interval and the queue of the next ones, and on
    `websearch-v0` agents then settle near (60 KB, 3.8 MB, 0.35) and earn 0.7805 where SECN1 earns
    0.7790 and 0.9 leads to 0.8001. `IPPOConfig(gae_lambda=0.01)` is PET to the letter.

    Attributes:
        pretrained: folder of a run of ippo with shared parameters, whose networks training starts
            from, or of dagger, whose policy it does, with a fresh critic; empty to start from
            scratch.
    """

    pretrained: str = ""

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        if not self.shared and (self.value_norm or self.follow_j):
            name = "value_norm" if self.value_norm else "follow_j"
            allowed = "False with shared=False: agents with parameters of their own share nothing"
            raise bad_value(name, True, allowed)


class IPPO(PPOTrainer):
    """The algorithm for one environment and configuration; its actor is that of `PPOTrainer`."""

    config_class: ClassVar[type[PPOConfig]] = IPPOConfig

    def __init__(
        self, env: Environment, config: PPOConfig, start: tuple[PyTree, PyTree | None] | None = None
    ) -> None:
        """Set up networks and optimisers.

        Args:
            env: functional environment (it is wrapped in `AutoReset`).
            config: settings.
            start: parameters of an actor and a critic without an axis of agents, which every agent
                starts from; drawn at random if None, the critic's alone if that is None.
        """
        super().__init__(env, config)
        self.start = start
        self.critic = self.agent_network(1)

    def init_critic(self, key: jax.Array) -> PyTree:
        """Parameters of the critic, of one or, if they do not share them, of every agent."""
        return self.init_agents(self.critic, key)

    def critic_units(self) -> int:
        """Units of the critic's memory: as many as the policy's, as it sees no more."""
        return self.config.memory

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """Fresh networks (or those to start from), optimisers and environments."""
        state = super().init(key, params)
        if self.start is None:
            return state
        # Standardisation is part of the networks to start from, so it comes from their run, too.
        fresh = (state.actor, state.critic)
        actor, critic = (
            new
            if old is None
            else jax.tree.map(lambda x, y: jnp.broadcast_to(jnp.asarray(y), x.shape), new, old)
            for new, old in zip(fresh, self.start, strict=True)
        )
        return replace(
            state,
            actor=actor,
            critic=critic,
            actor_opt=self.actor_opt.init(actor),
            critic_opt=self.critic_opt.init(critic),
        )

    def value(
        self, critic: PyTree, obs: Float[Array, "*b agents obs"]
    ) -> Float[Array, "*b agents"]:
        """Value of observations."""
        return apply_network(self.critic, critic, obs, self.config.shared)[..., 0]

    def judge(
        self, critic: PyTree, rollout: Rollout, memory: rc.Memories | None
    ) -> tuple[Array, Array, rc.Memories | None]:
        """`PPOTrainer.judge`; a critic with a memory goes through the rollout in order."""
        if memory is None or not isinstance(self.critic, rc.Recurrent):
            return super().judge(critic, rollout, memory)
        net, shared, ended = self.critic, self.config.shared, rollout.ended
        value, after = rc.unroll(net, critic, rollout.obs, memory.critic, ended, shared)
        next_value, _ = rc.respond(net, critic, rollout.final_obs, after, shared)
        memory = replace(memory, critic=rc.after_end(after[-1], ended[-1]))
        return value[..., 0], next_value[..., 0], memory

    def values(self, critic: PyTree, batch: Batch) -> Float[Array, "rows agents"]:
        """`PPOTrainer.values`; a critic with a memory goes through the sequences in order."""
        if not isinstance(self.critic, rc.Recurrent):
            return super().values(critic, batch)
        batch = rc.by_time(batch)
        args = (batch.obs, batch.memory.critic, batch.ended, self.config.shared)
        value, _ = rc.unroll(self.critic, critic, *args)
        return value.reshape(-1, value.shape[2])
