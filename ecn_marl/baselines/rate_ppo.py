"""PPO for flows that set their own rates: a rival of ADPG.

Tessler et al. (2021, §7 and C.2) train PPO on the reward of `envs.rate.env`, with Gaussian and with
discrete actions, and find that it fails. All flows share one actor and one critic, and the input of
both is the flow's own observation. An update is

    roll out (`rate_learning.roll_scenarios`)  ->  GAE from event to event of a flow
    ->  equally many events of each scenario  ->  `epochs` passes of clipped policy and value loss

on as many environment steps as an update of ADPG takes. Flows sample actions in training and take
the most likely one in evaluation.

The reward has a long tail: see `rate_learning.limited_reward`. `error_limit=0` is the paper's raw
reward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.rl.networks import Mlp, init_network
from ecn_marl.baselines.rl.optimisers import adam
from ecn_marl.baselines.rl.ppo import Batch, explained_variance, improve_both, policy_loss
from ecn_marl.baselines.rl.rate_learning import (
    RateConfig,
    Transitions,
    advantages,
    count_tuples,
    equal_rows,
    event_metrics,
    limited_reward,
    squash,
    start_training,
    training_envs,
    transitions,
)
from ecn_marl.baselines.rl.rate_rollout import Events
from ecn_marl.baselines.rl.stochastic_rates import (
    PolicyGradient,
    PolicyState,
    StochasticRates,
    draw_batch,
)
from ecn_marl.baselines.training.settings import at_least_one, not_negative, positive, shares
from ecn_marl.envs.rate.actions import factor_codec
from ecn_marl.envs.rate.env import RateParams


@dataclass(frozen=True)
class RatePPOConfig(RateConfig):
    """Settings of PPO. The paper used another package's and states none.

    Attributes:
        actions: `continuous` (Gaussian) or `discrete`.
        hidden: widths of the hidden layers of actor and critic.
        actor_lr: learning rate of the policy.
        critic_lr: learning rate of the value function.
        gae_lambda: decay of the advantage estimate.
        clip: epsilon of the clipped objective.
        entropy: weight of the entropy bonus.
        epochs: passes over an update's rows.
        minibatches: gradient steps per pass.
        rows: events per update, equally many of each scenario.
        max_grad_norm: gradients are scaled down to this norm.
        error_limit: largest error that counts in the reward, in targets; 0 for no limit.
    """

    actions: str = "continuous"
    hidden: tuple[int, ...] = (32, 32)
    actor_lr: float = 5e-4
    critic_lr: float = 1e-3
    gae_lambda: float = 0.9
    clip: float = 0.2
    entropy: float = 3e-3
    epochs: int = 2
    minibatches: int = 4
    rows: int = 6144
    max_grad_norm: float = 0.5
    error_limit: float = 3.0

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        factor_codec(self.actions)
        at_least_one(self, "epochs", "minibatches", "rows")
        positive(self, "actor_lr", "critic_lr", "clip", "max_grad_norm")
        not_negative(self, "entropy", "error_limit")
        shares(self, "gae_lambda")
        count_tuples(self, "hidden")
        equal_rows(self)
        if self.rows % self.minibatches:
            allowed = f"a multiple of {self.minibatches}, the number of minibatches"
            raise bad_value("rows", self.rows, allowed)


class RatePPO(PolicyGradient):
    """The algorithm for one configuration."""

    config_class = RatePPOConfig

    def __init__(self, config: RatePPOConfig) -> None:
        """Make the environments, the networks and their optimisers."""
        super().__init__(config)
        self.envs = training_envs(config, **self.view)
        self.policy = self.make_policy()
        self.critic = Mlp(config.hidden, 1)
        self.actor_opt = adam(config.actor_lr, config.max_grad_norm)
        self.critic_opt = adam(config.critic_lr, config.max_grad_norm)

    def make_policy(self) -> StochasticRates:
        """The policy."""
        return StochasticRates(self.config.actions, self.config.hidden)

    def value(self, critic: PyTree, obs: Float[Array, "*b obs"]) -> Float[Array, "*b"]:
        """Value of observations, relative to the mean reward."""
        return jnp.asarray(self.critic.apply(critic, squash(self.policy.features(obs))))[..., 0]

    def reward(self, events: Events) -> Float[Array, "t envs flows"]:
        """Reward at each event, in units of the squared target."""
        return limited_reward(events.error, self.config.error_limit)

    def init(self, key: jax.Array, params: tuple[RateParams, ...]) -> PolicyState:
        """Fresh networks and environments, these spread over their episodes."""
        key, actor_key, critic_key, env_key, phase_key = jax.random.split(key, 5)
        features = self.policy.features(jnp.zeros((self.envs[0].obs_dim,))).shape[-1]
        actor = self.policy.init(actor_key, features)
        critic = init_network(self.critic, critic_key, features, 1, shared=True)
        return PolicyState(
            actor=actor,
            critic=critic,
            actor_opt=self.actor_opt.init(actor),
            critic_opt=self.critic_opt.init(critic),
            env=start_training(self.envs, params, self.config.envs, env_key, phase_key),
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    def update(
        self, state: PolicyState, params: tuple[RateParams, ...]
    ) -> tuple[PolicyState, dict[str, Array]]:
        """Roll out in all scenarios, estimate advantages, improve policy and value function."""
        c = self.config
        keys = jax.random.split(jax.random.fold_in(state.key, state.updates), 3)
        envs, batches, left_out = self.roll_out(state, keys[0], params)

        def estimate(steps: Transitions) -> tuple[Array, Array]:
            value, next_value = (self.value(state.critic, x) for x in (steps.obs, steps.next_obs))
            return advantages(steps, value, next_value, c.gamma, c.gae_lambda)

        scenarios = [transitions(events, self.reward(events)) for events in batches]
        batch = draw_batch(keys[1], self.policy, state.actor, scenarios, estimate, c.rows)
        new, losses = improve_both(
            replace(state, env=envs),
            ((self.policy_loss, self.actor_opt), (self.value_loss, self.critic_opt)),
            batch,
            keys[2],
            c.epochs,
            c.minibatches,
        )
        metrics = event_metrics(batches, c.target) | losses
        metrics["paid"] = jnp.stack([steps.mean_reward for steps in scenarios]).mean()
        # A return is the advantage plus the critic's value, that before the update.
        value = batch.target - batch.advantage
        metrics["explained_variance"] = explained_variance(batch.target, value)
        return new, metrics | {"events_left_out": left_out}

    def policy_loss(self, actor: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Clipped surrogate objective and entropy bonus, see `ppo.policy_loss`."""
        out = self.policy.outputs(actor, batch.obs)
        return policy_loss(self.policy.head, out, batch, self.config.clip, self.config.entropy)

    def value_loss(self, critic: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Squared error of the value function."""
        loss = 0.5 * jnp.mean((self.value(critic, batch.obs) - batch.target) ** 2)
        return loss, {"value_loss": loss}
