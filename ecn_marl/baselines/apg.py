"""APG: the gradient of the reward through the simulator itself, over short horizons.

Policy and problem are those of ADPG. ADPG assumes that dx/da, the effect of a flow's action on the
quantity in its reward, is constant. Here it comes from reverse-mode differentiation of the steps of
`envs.rate.env`, and includes effects on other flows and on later events:

    grad of  mean over events of log(1 + error^2),    error = x / target - 1.

The logarithm has its minimum where the reward has its maximum, and its slope does not grow with the
error. As in SHAC (Xu et al., "Accelerated Policy Learning with Parallel Differentiable Simulation",
ICLR 2022) the gradient is cut every `horizon` steps and environments go on from there. There is no
critic, so later rewards do not enter.

The derivative leaves out: the times at which packets come back, which comparisons decide; a higher
rate for a flow at the line rate; the drops of a full buffer, where the queue, and with it the RTT,
no longer depends on any rate; an RTT below the offset. `docs/adpg.md` says what that costs.

Gradients that are not finite are counted (`lost_gradients`) and left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.adpg import ADPGState, Deterministic, Policy
from ecn_marl.baselines.rl.optimisers import adam
from ecn_marl.baselines.rl.rate_learning import (
    RateConfig,
    count_tuples,
    event_metrics,
    training_envs,
)
from ecn_marl.baselines.rl.rate_rollout import Events, restarted
from ecn_marl.baselines.training.settings import at_least_one, positive, shares
from ecn_marl.envs.rate.env import RateEnv, RateParams, RateState
from ecn_marl.envs.rate.scenarios import SENDERS


@dataclass(frozen=True)
class APGConfig(RateConfig):
    """Settings of APG; `gamma` and `events` of `RateConfig` are not used.

    Attributes:
        hidden: widths of the hidden layers.
        lr: learning rate of Adam.
        max_grad_norm: gradients are scaled down to this norm.
        horizon: steps that a gradient goes back over, a divisor of `rollout`.
        share: rate that flows start at, of the line rate. At 1 rates are clipped from the start,
            where the gradient for a higher rate is zero.
    """

    hidden: tuple[int, ...] = (12, 12)
    lr: float = 0.003
    max_grad_norm: float = 0.5
    horizon: int = 64
    share: float = 0.5

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        at_least_one(self, "horizon")
        positive(self, "lr", "max_grad_norm", "share")
        shares(self, "share")
        count_tuples(self, "hidden")
        if self.rollout % self.horizon:
            allowed = f"a divisor of rollout = {self.rollout}"
            raise bad_value("horizon", self.horizon, allowed)


class APG(Deterministic):
    """The algorithm for one configuration."""

    config_class = APGConfig

    def __init__(self, config: APGConfig) -> None:
        """Make the environments and the policy."""
        super().__init__(config)
        self.envs = training_envs(config, transport=f"{SENDERS},share={config.share}")
        self.policy = Policy(config.hidden)
        self.optimiser = adam(config.lr, config.max_grad_norm)

    def update(
        self, state: ADPGState, params: tuple[RateParams, ...]
    ) -> tuple[ADPGState, dict[str, Array]]:
        """Roll out in all scenarios, and follow the gradient once."""
        key = jax.random.fold_in(state.key, state.updates)
        grads, states_after, rollouts, lost = [], [], [], jnp.zeros((), jnp.int32)
        for i, (env, p) in enumerate(zip(self.envs, params, strict=True)):
            grad, (final, events) = self.gradients(env, state.actor, state.env[i], p)
            grad, n_lost = mean_of_finite(grad)
            grads.append(grad)
            rollouts.append(events)
            lost = lost + n_lost
            states_after.append(restarted(env, final, jax.random.fold_in(key, i), p))
        mean = jax.tree.map(lambda *x: jnp.stack(x).mean(0), *grads)
        new = self.descend(state, mean, tuple(states_after))
        logged = {"gradient": optax.global_norm(mean), "lost_gradients": lost}
        return new, event_metrics(rollouts, self.config.target) | logged

    def gradients(
        self, env: RateEnv, actor: PyTree, state: RateState, params: RateParams
    ) -> tuple[PyTree, tuple[RateState, Events]]:
        """Gradient of each environment's loss, a leading axis of environments.

        Args:
            env: the environment.
            actor: parameters of the policy.
            state: states, leading axis E.
            params: parameters of the environment.

        Returns:
            Gradients; states after, and events in order of time `[steps, E, F]`.
        """
        windows = self.config.rollout // self.config.horizon

        def environment_gradient(state: RateState) -> tuple[PyTree, tuple[RateState, Events]]:
            def window(state: RateState, _: None) -> tuple[RateState, tuple[PyTree, Events]]:
                grad, (state, rows) = jax.grad(self.loss, 1, has_aux=True)(
                    env, actor, state, params
                )
                return state, (grad, rows)

            state, (grad, rows) = jax.lax.scan(window, state, None, length=windows)
            rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
            return jax.tree.map(lambda g: g.mean(0), grad), (state, rows)

        grads, (state, rows) = jax.vmap(environment_gradient)(state)
        return grads, (state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows))

    def loss(
        self, env: RateEnv, actor: PyTree, state: RateState, params: RateParams
    ) -> tuple[Array, tuple[RateState, Events]]:
        """Mean cost over the events of one environment's window; its state after; its events."""

        # Values inside a step are recomputed for the gradient, not stored for all steps.
        @jax.checkpoint
        def step(state: RateState, _: None) -> tuple[RateState, tuple[Events, PyTree]]:
            obs = env.observe(state)
            action = self.act(actor, obs)
            row = Events(state.acts, obs, action, state.x / params.target - 1.0)
            state, _sums = env.advance(state, action, params)
            return state, (row, (state.acts, state.x / params.target - 1.0))

        state, (rows, (acts, error)) = jax.lax.scan(step, state, None, length=self.config.horizon)
        cost = jnp.where(acts, jnp.log1p(error**2), 0.0).sum()
        return cost / jnp.maximum(acts.sum(), 1), (state, jax.lax.stop_gradient(rows))


def mean_of_finite(grads: PyTree) -> tuple[PyTree, Array]:
    """Mean of the gradients that are finite in all entries; and how many are not.

    Args:
        grads: leaves `[E, ...]`.
    """
    finite = jnp.stack(
        [jnp.isfinite(g).reshape(g.shape[0], -1).all(1) for g in jax.tree.leaves(grads)]
    ).all(0)
    n = jnp.maximum(finite.sum(), 1)

    def mean(g: Array) -> Array:
        # Replaced, not multiplied by 0, as 0 times NaN is NaN.
        mask = finite.reshape(-1, *(1,) * (g.ndim - 1))
        return jnp.where(mask, g, 0.0).sum(0) / n

    return jax.tree.map(mean, grads), (~finite).sum().astype(jnp.int32)
