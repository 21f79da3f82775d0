"""IPPO: every port is its own PPO learner (de Witt et al. 2020), the algorithm of PET.

PET: "Multi-Agent Reinforcement Learning-Based Automatic ECN Tuning", §4.3, Algorithm 1. Each agent
has an actor and a critic over its own observations; their parameters are shared between agents, as
when one pre-trained model is installed on every switch, or one set each. An update is

    roll out `rollout` intervals in `envs` environments  ->  GAE (Eqs. 9, 10)
    ->  `epochs` passes of clipped policy loss (Eq. 11) and squared value loss (Eq. 12)

and is one compiled function. Episodes only end by their horizon; such a truncated step is
bootstrapped from the value of its final observation.

PET trains twice (§4.4). Offline, one model is trained on generated or recorded traffic:
`IPPOConfig(shared=True)` in any scenario. It is then installed on every switch, and each port goes
on training its own copy on its own traffic: `IPPOConfig(shared=False, pretrained=RUN)`. The network
may be another one than that of the run. Agents that do not share parameters share nothing:
advantages, gradients and optimisers are per port.

With the features `pet` and the reward `pet` this is PET; the features `pet-no-incast` and
`pet-no-mice` are the ablations of its §5.5.7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ecn_marl.baselines.rl.distributions import Head, head_for
from ecn_marl.baselines.rl.gae import gae
from ecn_marl.baselines.rl.networks import (
    Mlp,
    apply_network,
    init_network,
    network_flops,
    one_agent,
    standardise,
)
from ecn_marl.baselines.rl.ppo import (
    Batch,
    PPOConfig,
    TrainState,
    clip_range,
    collect,
    explained_variance,
    improve,
    optimiser,
    over_agents,
    policy_loss,
)
from ecn_marl.baselines.training.environments import run_randomly, start_environments
from ecn_marl.baselines.training.trainer import Network, Trainer
from ecn_marl.envs.interface import Environment
from ecn_marl.wrappers import AutoReset


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
            from; empty to start from scratch.
    """

    pretrained: str = ""


class IPPO(Trainer):
    """The algorithm for one environment and configuration."""

    config_class = IPPOConfig

    def __init__(
        self, env: Environment, config: IPPOConfig, start: tuple[PyTree, Any] | None = None
    ) -> None:
        """Set up networks and optimisers.

        Args:
            env: functional environment (it is wrapped in `AutoReset`).
            config: settings.
            start: parameters of an actor and a critic without an axis of agents, which every agent
                starts from; drawn at random if None.
        """
        self.env = AutoReset(env)
        self.config = config
        self.start = start
        self.head: Head = head_for(env.action)
        self.actor = Mlp(config.hidden, self.head.outputs, 0.01, config.standardise > 0)
        self.critic = Mlp(config.hidden, 1, standardised=config.standardise > 0)
        self.actor_opt = optimiser(config, config.actor_lr, config.shared)
        self.critic_opt = optimiser(config, config.critic_lr, config.shared)

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """Fresh networks (or those to start from), optimisers and environments."""
        c, env = self.config, self.env
        key, actor_key, critic_key, env_key, phase_key = jax.random.split(key, 5)
        shape = (env.obs_dim, env.num_agents, c.shared)
        actor = init_network(self.actor, actor_key, *shape)
        critic = init_network(self.critic, critic_key, *shape)
        obs, state = start_environments(env, env_key, phase_key, params, c.envs)
        if c.standardise:
            random_key = jax.random.fold_in(env_key, 0)
            (state, obs), *moments = run_randomly(
                env, random_key, params, (state, obs), c.standardise
            )
            actor, critic = standardise(actor, *moments), standardise(critic, *moments)
        if self.start is not None:
            actor, critic = jax.tree.map(
                lambda new, old: jnp.broadcast_to(jnp.asarray(old), new.shape),
                (actor, critic),
                self.start,
            )
        return TrainState(
            actor=actor,
            critic=critic,
            actor_opt=self.actor_opt.init(actor),
            critic_opt=self.critic_opt.init(critic),
            env=state,
            obs=obs,
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    @property
    def flops(self) -> int:
        """Floating-point operations of one inference."""
        return network_flops(self.config.hidden, self.env.obs_dim, self.head.outputs)

    def modules(self, actor: PyTree) -> dict[str, tuple[nn.Module, PyTree]]:
        """The network and the parameters that one port needs, to measure their cost."""
        return {"policy": (self.actor, one_agent(actor, self.config.shared))}

    def network(self, actor: PyTree) -> Network:
        """The policy, to be exported."""
        return Network(self.head, actor)

    def act(
        self,
        actor: PyTree,
        key: jax.Array,
        obs: Float[Array, "*b agents obs"],
        greedy: bool = False,
    ) -> Array:
        """Actions for observations, sampled or the most likely ones."""
        out = apply_network(self.actor, actor, obs, self.config.shared)
        return self.head.mode(out) if greedy else self.head.sample(key, out)

    def value(
        self, critic: PyTree, obs: Float[Array, "*b agents obs"]
    ) -> Float[Array, "*b agents"]:
        """Value of observations."""
        return apply_network(self.critic, critic, obs, self.config.shared)[..., 0]

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out, estimate advantages, improve policy and value function.

        Args:
            state: training state.
            params: parameters of the environment.

        Returns:
            New state, and the update's metrics.
        """
        c = self.config
        key, roll_key, learn_key = jax.random.split(state.key, 3)

        def policy(actor: PyTree, obs: Array) -> Array:
            return apply_network(self.actor, actor, obs, c.shared)

        state, rollout, metrics = collect(
            self.env, self.head, policy, replace(state, key=key), roll_key, params, c.rollout
        )
        value = self.value(state.critic, rollout.obs)
        next_value = self.value(state.critic, rollout.final_obs)
        advantage, target = gae(
            c.reward_scale * rollout.reward,
            value,
            next_value,
            rollout.terminated,
            rollout.truncated,
            c.gamma,
            c.gae_lambda,
        )
        batch = Batch(rollout.obs, rollout.action, rollout.log_prob, advantage, target)
        clip = clip_range(c, state.updates)
        (actor, critic), (actor_opt, critic_opt), losses = improve(
            (state.actor, state.critic),
            (state.actor_opt, state.critic_opt),
            (
                (lambda net, minibatch: self.policy_loss(net, minibatch, clip), self.actor_opt),
                (self.value_loss, self.critic_opt),
            ),
            batch,
            learn_key,
            c.epochs,
            c.minibatches,
        )
        metrics |= losses | {"clip": clip, "explained_variance": explained_variance(target, value)}
        return replace(
            state,
            actor=actor,
            critic=critic,
            actor_opt=actor_opt,
            critic_opt=critic_opt,
            updates=state.updates + 1,
        ), metrics

    def policy_loss(
        self, actor: PyTree, batch: Batch, clip: float | Array
    ) -> tuple[Array, dict[str, Array]]:
        """Clipped surrogate objective (Eq. 11) and entropy bonus; see `ppo.policy_loss`."""
        c = self.config
        out = apply_network(self.actor, actor, batch.obs, c.shared)
        return policy_loss(self.head, out, batch, clip, c.entropy, c.shared)

    def value_loss(self, critic: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Squared error of the value function (Eq. 12)."""
        error = 0.5 * (self.value(critic, batch.obs) - batch.target) ** 2
        return over_agents(error, self.config.shared), {"value_loss": error.mean()}
