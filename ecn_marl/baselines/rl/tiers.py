"""One agent for a whole network: one setting per tier of switches, the same on all its ports.

ACC's authors compare with a central controller, C-ACC: it sees the network and sets the same
thresholds on all switches of a tier, as the joint choice of all ports would be too large (their
Fig. 14). How it sums up what it sees is not given. Here its observation holds, for each tier, the
mean and the largest value of every feature over the tier's ports, and its reward is the mean over
all ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecn_marl.baselines.rl.q_learning import discrete_head
from ecn_marl.sim.topology import Topology


def port_tiers(topology: Topology) -> tuple[int, ...]:
    """Tier of every port's switch: 0 next to hosts, 1 next to tier 0, and so on."""
    tier = {p.switch: 0 for p in topology.ports if p.peer in topology.hosts}
    found = set(tier)
    for level in range(1, topology.n_switches + 1):
        found = {p.switch for p in topology.ports if p.peer in found} - set(tier)
        tier |= dict.fromkeys(found, level)
    return tuple(tier[p.switch] for p in topology.ports)


@dataclass(frozen=True)
class TierAction:
    """A setting for each tier: the components of all of them, one after the other.

    Attributes:
        sizes: number of choices of each component of one setting.
        tiers: number of tiers.
    """

    sizes: tuple[int, ...]
    tiers: int

    @property
    def nvec(self) -> tuple[int, ...]:
        """Number of choices of each component."""
        return self.sizes * self.tiers

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the action."""
        return (len(self.nvec),)


@dataclass(frozen=True)
class Tiers:
    """A multi-agent environment as its central controller sees it; functional and hashable.

    Attributes:
        env: the environment, its actions discrete.
        tier: tier of each of its agents.
    """

    env: Any
    tier: tuple[int, ...]

    def __getattr__(self, name: str) -> Any:
        """Attributes of the wrapped environment."""
        if name.startswith("__") or name in ("env", "tier"):
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def num_agents(self) -> int:
        """One."""
        return 1

    @property
    def tiers(self) -> int:
        """Number of tiers G."""
        return max(self.tier) + 1

    @property
    def obs_dim(self) -> int:
        """Length of the observation: mean and maximum of every feature in every tier."""
        return 2 * self.tiers * int(self.env.obs_dim)

    @property
    def action(self) -> TierAction:
        """A setting for each tier."""
        return TierAction(discrete_head(self.env.action).sizes, self.tiers)

    def summary(self, obs: Float[Array, "*b ports features"]) -> Float[Array, "*b 1 obs"]:
        """What the controller sees, from what every port sees."""
        tier = np.asarray(self.tier)
        parts = []
        for i in range(self.tiers):
            ports = obs[..., np.flatnonzero(tier == i), :]
            parts += [ports.mean(-2), ports.max(-2)]
        return jnp.concatenate(parts, -1)[..., None, :]

    def spread(self, action: Array) -> Array:
        """Actions of all ports, from the controller's `[*b, 1, components]`."""
        head = discrete_head(self.env.action)
        each = action.reshape(*action.shape[:-2], self.tiers, len(head.sizes))
        ports = each[..., np.asarray(self.tier), :]
        return ports[..., 0] if head.scalar else ports

    def reset(self, key: jax.Array, params: Any) -> tuple[Float[Array, "1 obs"], Any]:
        """Start an episode; see the wrapped environment."""
        obs, state = self.env.reset(key, params)
        return self.summary(obs), state

    def step(self, key: jax.Array, state: Any, action: Array, params: Any) -> Any:
        """One step; see the wrapped environment. `info` has means over the ports, `[1]`."""
        obs, state, reward, terminated, truncated, info = self.env.step(
            key, state, self.spread(action), params
        )
        means = {name: info[name].mean(keepdims=True) for name in ("queue_mean", "utilisation")}
        return (
            self.summary(obs),
            state,
            reward.mean(keepdims=True),
            terminated.all(keepdims=True),
            truncated.all(keepdims=True),
            means,
        )
