r"""Aurora: PPO on statistics of a flow's last monitor intervals. A rival of ADPG.

Jay et al., "A Deep Reinforcement Learning Perspective on Internet Congestion Control", ICML 2019.
A flow observes latency gradient, latency ratio and send ratio of its last ten monitor intervals
(`envs.rate.monitor`). Its action is a number a, which changes its rate x to

    x (1 + alpha a)  if a >= 0,  else  x / (1 - alpha a),    alpha = 0.025.

The reward is 10 throughput (packets/s) - 1000 latency (s) - 2000 loss. In these units the first
term outweighs the others by four orders of magnitude or more on a link of 100 Gb/s. The reward here
has the balance of the terms on a possible Internet path of 300 packets/s and 50 ms:

    r = throughput / line rate - 0.02 RTT / RTT of an empty network - 0.7 loss.

With its own throughput as reward, a flow has no reason to leave capacity to others. There is no
target as in ADPG. The method is made for a single agent and is applied to many here (Tessler et al.
2021, C.1, where all runs end in packet loss). The learner is `rate_ppo.RatePPO`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value
from ecn_marl.baselines.rate_ppo import RatePPO, RatePPOConfig
from ecn_marl.baselines.rl.rate_rollout import Events
from ecn_marl.baselines.rl.stochastic_rates import StochasticRates
from ecn_marl.baselines.training.settings import at_least_one, not_negative, positive

INPUTS = ("latency_gradient", "latency_ratio", "send_ratio")
"""Columns of an interval that are inputs of the policy."""

REWARD_TERMS = ("throughput", "inflation", "loss")
"""Columns of an interval that enter the reward."""


@dataclass(frozen=True)
class AuroraConfig(RatePPOConfig):
    """Settings of Aurora: those of PPO, and its own.

    Attributes:
        intervals: monitor intervals in an observation.
        alpha: relative change of the rate for a = 1.
        latency_weight: weight of the RTT over that of an empty network.
        loss_weight: weight of the share of lost bytes.
        error_limit: 0; the reward has no error term.
    """

    error_limit: float = 0.0
    intervals: int = 10
    alpha: float = 0.025
    latency_weight: float = 0.02
    loss_weight: float = 0.7

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        at_least_one(self, "intervals")
        positive(self, "alpha")
        not_negative(self, "latency_weight", "loss_weight")
        for name, value in (("actions", "continuous"), ("error_limit", 0.0)):
            if getattr(self, name) != value:
                raise bad_value(name, getattr(self, name), f"{value!r}: Aurora has no other")


@dataclass(frozen=True)
class AuroraPolicy(StochasticRates):
    """A Gaussian over a; its inputs are the columns `INPUTS` of each interval.

    Attributes:
        alpha: relative change of the rate for a = 1.
    """

    alpha: float = 0.025

    def features(self, obs: Float[Array, "*b obs"]) -> Float[Array, "*b features"]:
        """The columns `INPUTS`; latency ratio and send ratio less 1."""
        rows = obs.reshape(*obs.shape[:-1], -1, len(INPUTS) + len(REWARD_TERMS))[..., : len(INPUTS)]
        begun = rows[..., 1:2] > 0.0  # intervals before the first are all 0
        excess = jnp.where(begun, rows - jnp.array([0.0, 1.0, 1.0]), 0.0)
        return excess.reshape(*obs.shape[:-1], -1)

    def action(self, choice: Array) -> Array:
        """The factor for a."""
        a = self.alpha * choice[..., 0]
        return jnp.where(a >= 0.0, 1.0 + jnp.abs(a), 1.0 / (1.0 + jnp.abs(a)))

    def choice(self, action: Array) -> Array:
        """Inverse of `action`."""
        a = jnp.where(action >= 1.0, action - 1.0, 1.0 - 1.0 / action)
        return (a / self.alpha)[..., None]


class Aurora(RatePPO):
    """The algorithm for one configuration."""

    config_class = AuroraConfig

    @property
    def view(self) -> dict[str, Any]:
        """Options of `make_rate` for actions and observations."""
        return {"columns": (*INPUTS, *REWARD_TERMS), "history": self.config.intervals}

    def make_policy(self) -> StochasticRates:
        """The policy."""
        return AuroraPolicy("continuous", self.config.hidden, self.config.alpha)

    def reward(self, events: Events) -> Float[Array, "t envs flows"]:
        """Reward for the interval that ended at each event, see the module."""
        c = self.config
        throughput, inflation, loss = (events.obs[..., i] for i in range(-len(REWARD_TERMS), 0))
        return throughput - c.latency_weight * inflation - c.loss_weight * loss
