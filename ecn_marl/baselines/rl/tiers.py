"""One agent for a whole network: one setting per tier of switches, the same on all its ports.

ACC's authors compare with a central controller, C-ACC. It observes the network and sets the same
thresholds on all switches of a tier, as the joint choice of all ports would be too large (their
Fig. 14). They do not say how it summarises the network. Here its observation holds, for each tier,
the mean and the largest value of every feature over the tier's ports. Its reward is the mean over
all ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ecn_marl.baselines.rl.q_learning import discrete_head
from ecn_marl.envs.interface import Environment
from ecn_marl.sim.network.topology import Topology


def port_tiers(topology: Topology) -> tuple[int, ...]:
    """Tier of every port's switch: 0 next to hosts, 1 next to tier 0, and so on."""
    tier = {p.switch: 0 for p in topology.ports if p.peer in topology.hosts}
    level_switches = set(tier)
    for level in range(1, topology.n_switches + 1):
        level_switches = {p.switch for p in topology.ports if p.peer in level_switches} - set(tier)
        tier |= dict.fromkeys(level_switches, level)
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

    def sample(self, key: jax.Array, num_agents: int) -> Int[Array, "agents components"]:
        """Uniformly random choices."""
        nvec = np.asarray(self.nvec, np.int32)
        return jax.random.randint(key, (num_agents, nvec.size), 0, nvec, jnp.int32)


@dataclass(frozen=True)
class Tiers:
    """The single-agent view of a central controller on an environment; functional and hashable.

    Attributes:
        env: the environment, its actions discrete.
        tier: tier of each of its agents.
    """

    env: Environment
    tier: tuple[int, ...]

    def __getattr__(self, name: str) -> Any:
        """Attributes of the wrapped environment."""
        # Copying and unpickling look names up before `env` is set, which would recurse for ever.
        if name.startswith("__") or name in ("env", "tier"):
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def num_agents(self) -> int:
        """One, the controller."""
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
        """The controller's observation, from those of all ports."""
        tier = np.asarray(self.tier)
        moments = []
        for i in range(self.tiers):
            ports = obs[..., np.flatnonzero(tier == i), :]
            moments += [ports.mean(-2), ports.max(-2)]
        return jnp.concatenate(moments, -1)[..., None, :]

    def to_ports(self, action: Array) -> Array:
        """Actions of all ports, from the controller's `[*b, 1, components]`."""
        head = discrete_head(self.env.action)
        by_tier = action.reshape(*action.shape[:-2], self.tiers, len(head.sizes))
        ports = by_tier[..., np.asarray(self.tier), :]
        return ports[..., 0] if head.scalar else ports

    def reset(self, key: jax.Array, params: PyTree) -> tuple[Float[Array, "1 obs"], PyTree]:
        """Start an episode; see the wrapped environment."""
        obs, state = self.env.reset(key, params)
        return self.summary(obs), state

    def step(self, key: jax.Array, state: PyTree, action: Array, params: PyTree) -> PyTree:
        """One step; see the wrapped environment. `info` has means over the ports, `[1]`."""
        obs, state, reward, terminated, truncated, info = self.env.step(
            key, state, self.to_ports(action), params
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
