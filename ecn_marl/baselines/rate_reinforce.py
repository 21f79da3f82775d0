"""REINFORCE for flows that set their own rates: a rival of ADPG.

Williams, "Simple statistical gradient-following algorithms", 1992; Tessler et al. (2021, §7)
compare ADPG with it. No critic: an action is credited with the discounted sum of its flow's later
rewards in the rollout, relative to the mean reward of the scenario, and

    grad G  ~  mean_t [ grad log pi(a_t | o_t) * sum_{s > t} gamma^(s - t - 1) (r_s - mean r) ]

is followed once per rollout, with the sums scaled to mean 0 and standard deviation 1. This is the
gradient of PPO's objective before the policy has changed, so `ppo.policy_loss` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ecn_marl.baselines.rl.optimisers import adam
from ecn_marl.baselines.rl.ppo import Batch, improve, policy_loss
from ecn_marl.baselines.rl.rate_learning import (
    RateConfig,
    Transitions,
    advantages,
    count_tuples,
    equal_rows,
    event_metrics,
    limited_reward,
    start_training,
    training_envs,
    transitions,
)
from ecn_marl.baselines.rl.stochastic_rates import (
    PolicyGradient,
    PolicyState,
    StochasticRates,
    draw_batch,
)
from ecn_marl.baselines.training.settings import at_least_one, not_negative, positive
from ecn_marl.envs.rate.actions import factor_codec
from ecn_marl.envs.rate.env import RateParams


@dataclass(frozen=True)
class ReinforceConfig(RateConfig):
    """Settings of REINFORCE. The paper used another package's and states none.

    Attributes:
        actions: `continuous` (Gaussian) or `discrete`.
        hidden: widths of the hidden layers.
        lr: learning rate of Adam.
        entropy: weight of the entropy bonus.
        rows: events per update, equally many of each scenario.
        max_grad_norm: gradients are scaled down to this norm.
        error_limit: largest error that counts in the reward, in targets; 0 for no limit.
    """

    actions: str = "continuous"
    hidden: tuple[int, ...] = (32, 32)
    lr: float = 1e-3
    entropy: float = 3e-3
    rows: int = 6144
    max_grad_norm: float = 0.5
    error_limit: float = 3.0

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        factor_codec(self.actions)
        at_least_one(self, "rows")
        positive(self, "lr", "max_grad_norm")
        not_negative(self, "entropy", "error_limit")
        count_tuples(self, "hidden")
        equal_rows(self)


class Reinforce(PolicyGradient):
    """The algorithm for one configuration."""

    config_class = ReinforceConfig

    def __init__(self, config: ReinforceConfig) -> None:
        """Make the environments, the policy and its optimiser."""
        super().__init__(config)
        self.envs = training_envs(config, **self.view)
        self.policy = StochasticRates(config.actions, config.hidden)
        self.opt = adam(config.lr, config.max_grad_norm)

    def init(self, key: jax.Array, params: tuple[RateParams, ...]) -> PolicyState:
        """A fresh policy and fresh environments, these spread over their episodes."""
        key, net_key, env_key, phase_key = jax.random.split(key, 4)
        actor = self.policy.init(net_key, self.envs[0].obs_dim)
        return PolicyState(
            actor=actor,
            critic=None,
            actor_opt=self.opt.init(actor),
            critic_opt=None,
            env=start_training(self.envs, params, self.config.envs, env_key, phase_key),
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    def update(
        self, state: PolicyState, params: tuple[RateParams, ...]
    ) -> tuple[PolicyState, dict[str, Array]]:
        """Roll out in all scenarios, and follow the gradient once."""
        c = self.config
        keys = jax.random.split(jax.random.fold_in(state.key, state.updates), 3)
        envs, batches, left_out = self.roll_out(state, keys[0], params)
        scenarios = [transitions(x, limited_reward(x.error, c.error_limit)) for x in batches]
        batch = draw_batch(keys[1], self.policy, state.actor, scenarios, self.credit, c.rows)
        (actor,), (opt,), losses = improve(
            (state.actor,), (state.actor_opt,), ((self.loss, self.opt),), batch, keys[2], 1, 1
        )
        new = replace(state, actor=actor, actor_opt=opt, env=envs, updates=state.updates + 1)
        return new, event_metrics(batches, c.target) | losses | {"events_left_out": left_out}

    def credit(
        self, steps: Transitions
    ) -> tuple[Float[Array, "t envs flows"], Float[Array, "t envs flows"]]:
        """Discounted sums of later rewards, twice: as advantages and as returns."""
        zero = jnp.zeros_like(steps.reward)
        return advantages(steps, zero, zero, self.config.gamma, 1.0)

    def loss(self, actor: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Loss of the policy, and metrics."""
        out = self.policy.outputs(actor, batch.obs)
        # The only gradient step of a batch starts where its ratios are 1, so no clip has an effect.
        return policy_loss(self.policy.head, out, batch, 1.0, self.config.entropy)
