r"""ADPG: the analytic deterministic policy gradient, for flows that set their own rates.

Tessler et al., "Reinforcement Learning for Datacenter Congestion Control", 2021, §6. Every flow has
the same deterministic policy pi over what it saw of its last round trips, and the gain to maximise
is the mean reward G = lim 1/T sum_t r_t with r = -(target - x)^2, see `envs.rate.env`. What changes
r when an action changes is known but for one factor:

    dr/da = 2 (target - x) dx/da,    x = inflation * sqrt(rate share).

A larger rate makes sqrt(rate) larger and no queue shorter, so dx/da > 0. ADPG takes this factor for
a constant (Claim 2) and follows

    grad G  ~  mean_t [ grad_theta pi_theta(o_t) * mean_{s >= t} gamma^(s - t) (target - x_s) ]

along the events of each flow: no value function, no noise, no other flow's data. The approximation
is that one constant, which makes it exact in sign only where a flow alone decides; the discount
says how long an action matters. Our reconstruction, for the stored text lost its formulas: the
discounted mean, and the penalty on changes of mind, are those of the published code.

    roll out (`rate_rollout.roll_rates`)  ->  sort by flow (`keyed`)  ->  one step of Adam

The policy is a network without biases: an error of 0 twice in a row with no change of rate gives
no change of rate, so the point where x = target is a fixed point whatever the weights are, for any
number of flows. It is trained on 4, 8 and 32 senders to one receiver and meets 8192 later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.common.rate_rollout import Events, keyed, restarted, roll_rates
from ecn_marl.baselines.common.settings import at_least_one, not_negative, positive, shares
from ecn_marl.envs.rate.env import RateEnv, RateParams
from ecn_marl.envs.rate.scenarios import make_rate


@dataclass(frozen=True)
class ADPGConfig:
    """Settings of ADPG. Widths, learning rate, clip, discount and scenarios are the paper's code's.

    Attributes:
        senders: many-to-one scenarios that are trained on at once, by number of flows.
        envs: environments of each.
        rollout: steps of every environment per update.
        events: events of each flow that an update looks at; later ones of a rollout are left out.
        hidden: widths of the hidden layers.
        lr: learning rate of Adam.
        clip: largest entry of a gradient.
        gamma: discount from event to event.
        steadiness: weight of the penalty on differences between a flow's actions.
        target: target of the reward.
        offset: inflation that costs nothing.
        episode_us: time after which an environment starts anew, at line rate, µs.
        buffer_mib: buffer in training, MiB. Small, for a full buffer makes round trips rare.
    """

    senders: tuple[int, ...] = (4, 8, 32)
    envs: int = 8
    rollout: int = 256
    events: int = 64
    hidden: tuple[int, ...] = (12, 12)
    lr: float = 0.01
    clip: float = 0.5
    gamma: float = 0.99
    steadiness: float = 1.0
    target: float = 0.064
    offset: float = 1.5
    episode_us: float = 20_000.0
    buffer_mib: float = 1.0

    def __post_init__(self) -> None:
        """Check all settings."""
        at_least_one(self, "envs", "rollout", "events")
        positive(self, "clip", infinite=True)
        positive(self, "lr", "target", "episode_us", "buffer_mib")
        not_negative(self, "steadiness", "offset")
        shares(self, "gamma")
        for name in ("senders", "hidden"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise bad_value(name, values, "integers >= 1, at least one")

    @property
    def steps_per_update(self) -> int:
        """Environment steps per update."""
        return len(self.senders) * self.envs * self.rollout


@struct.dataclass
class ADPGState:
    """Training state: policy, optimiser, environments of each scenario, key, updates so far."""

    actor: Any
    opt: Any
    env: tuple[Any, ...]
    key: Leaf
    updates: Leaf


class Policy(nn.Module):
    """ReLU layers without biases, and tanh: the change of rate in [-1, 1].

    Attributes:
        hidden: widths of the hidden layers.
    """

    hidden: Sequence[int]

    @nn.compact
    def __call__(self, obs: Float[Array, "*b obs"]) -> Float[Array, "*b"]:
        """Evaluate the network."""
        x = obs
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, use_bias=False)(x))
        return jnp.tanh(nn.Dense(1, use_bias=False)(x))[..., 0]


class ADPG:
    """The algorithm for one configuration."""

    def __init__(self, config: ADPGConfig) -> None:
        """Make the environments and the policy."""
        self.config = config
        self.envs: tuple[RateEnv, ...] = tuple(
            make_rate(
                f"many-to-one-{n}-v0",
                target=config.target,
                offset=config.offset,
                duration_us=config.episode_us,
                warm_up_us=0.0,
                buffer_mib=config.buffer_mib,
            )
            for n in config.senders
        )
        self.policy = Policy(config.hidden)
        self.optimiser = optax.chain(optax.clip(config.clip), optax.adam(config.lr))

    @property
    def default_params(self) -> tuple[RateParams, ...]:
        """Parameters of all environments."""
        return tuple(env.default_params for env in self.envs)

    def act(self, actor: Any, obs: Float[Array, "*b obs"]) -> Float[Array, "*b"]:
        """Factors of the rates, from 0.8 to 1.2."""
        return 1.0 + 0.2 * jnp.asarray(self.policy.apply(actor, obs))

    def init(self, key: jax.Array, params: tuple[RateParams, ...]) -> ADPGState:
        """A fresh policy and fresh environments, spread over their episodes."""
        key, net_key, env_key, phase_key = jax.random.split(key, 4)
        actor = self.policy.init(net_key, jnp.zeros((self.envs[0].obs_dim,)))
        states = []
        for i, (env, p) in enumerate(zip(self.envs, params, strict=True)):
            keys = jax.random.split(jax.random.fold_in(env_key, i), self.config.envs)
            _, state = jax.vmap(env.reset, (0, None))(keys, p)
            phase = jax.random.randint(
                jax.random.fold_in(phase_key, i), (self.config.envs,), 0, p.max_steps
            )
            states.append(replace(state, steps=phase))
        return ADPGState(
            actor=actor,
            opt=self.optimiser.init(actor),
            env=tuple(states),
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    def update(
        self, state: ADPGState, params: tuple[RateParams, ...]
    ) -> tuple[ADPGState, dict[str, Array]]:
        """Roll out in all scenarios, and follow the gradient once.

        Args:
            state: training state.
            params: parameters of each scenario's environment.

        Returns:
            New state, and the update's metrics.
        """
        c, key = self.config, jax.random.fold_in(state.key, state.updates)
        states, batches, left_out = [], [], jnp.zeros((), jnp.int32)
        for i, (env, p) in enumerate(zip(self.envs, params, strict=True)):
            roll_key, reset_key = jax.random.split(jax.random.fold_in(key, i))
            then, rows = roll_rates(
                env,
                lambda a, _, o: self.act(a, o),
                state.env[i],
                roll_key,
                c.rollout,
                p,
                state.actor,
            )
            events, more = keyed(rows, c.events)
            batches.append(events)
            left_out = left_out + more
            states.append(restarted(env, then, reset_key, p))
        grads, metrics = jax.grad(self.loss, has_aux=True)(state.actor, batches)
        change, opt = self.optimiser.update(grads, state.opt, state.actor)
        new = replace(
            state,
            actor=optax.apply_updates(state.actor, change),
            opt=opt,
            env=tuple(states),
            updates=state.updates + 1,
        )
        return new, metrics | {"events_left_out": left_out}

    def loss(self, actor: Any, batches: list[Events]) -> tuple[Array, dict[str, Array]]:
        """Mean over scenarios of what ADPG descends; its gradient is minus the estimate above."""
        found = [self._loss(actor, events) for events in batches]
        metrics = jax.tree.map(lambda *x: jnp.stack(x).mean(), *(m for _, m in found))
        return jnp.stack([loss for loss, _ in found]).mean(), metrics

    def _loss(self, actor: Any, events: Events) -> tuple[Array, dict[str, Array]]:
        """That of one scenario. Errors are in units of the target."""
        here = events.valid.astype(jnp.float32)
        n = jnp.maximum(here.sum(), 1.0)
        change = jnp.asarray(self.policy.apply(actor, events.obs))
        ahead = later_mean(events.error, here, self.config.gamma)
        follow = (here * change * ahead).sum() / n
        both = here[1:] * here[:-1]
        swing = (both * (change[1:] - change[:-1]) ** 2).sum() / jnp.maximum(both.sum(), 1.0)
        metrics = {
            "error": (here * events.error).sum() / n,
            "reward": -(here * (self.config.target * events.error) ** 2).sum() / n,
            "swing": swing,
            "events": here.sum(),
        }
        return follow + self.config.steadiness * swing, metrics


def later_mean(
    values: Float[Array, "t *b"], here: Float[Array, "t *b"], gamma: float
) -> Float[Array, "t *b"]:
    """Discounted mean of each flow's values from an event on, 0 where there is none.

    Args:
        values: values by event, the time first.
        here: 1 where there is an event, 0 elsewhere.
        gamma: discount from event to event.
    """
    t = values.shape[0]
    ahead = jnp.arange(t)[None] - jnp.arange(t)[:, None]
    weight = jnp.where(ahead >= 0, gamma ** jnp.maximum(ahead, 0), 0.0)
    total = jnp.tensordot(weight, here * values, 1)
    return total / jnp.maximum(jnp.tensordot(weight, here, 1), 1e-6)
