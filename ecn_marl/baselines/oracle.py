"""Reference policies: settings found by search, the oracle, the simple rule, and chance.

    static:best     one setting on all ports for the whole episode
    static:ports    one setting for each group of ports (`env.port_groups`) for the whole episode
    oracle          one setting for each traffic phase, on all ports, switched inside the run
    oracle:ports    one setting for each traffic phase and group of ports
    rule            deep thresholds while few flows begin at a port, shallow ones otherwise
    random          uniformly random actions

`baselines.search` finds these settings on tuning episodes. The oracle knows the phase and when it
ends, which no agent does. Queues and rates carry over from phase to phase, as they do for every
policy. It bounds settings that are constant in a phase, not every conceivable policy. Without
phases the oracles are the static settings.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.envs.episode import PhaseEcn
from ecn_marl.envs.interface import Environment, PortEnvironment
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import KB

BEST, PORTS, ORACLE, ORACLE_PORTS = "static:best", "static:ports", "oracle", "oracle:ports"
RULE, RANDOM = "rule", "random"
"""Names of these policies, where the name of a run is also allowed."""

RULES = {
    BEST: "best static",
    PORTS: "best static per group",
    ORACLE: "oracle",
    ORACLE_PORTS: "oracle per group",
    RULE: "rule",
    RANDOM: "random",
}
"""Policies of this module by name, and their titles."""

SEARCHED = (BEST, PORTS, ORACLE, ORACLE_PORTS, RULE)
"""Policies whose settings a search must find."""

CHOICES = "oracle:choices"
"""`oracle:ports` of a short list of settings, which teaches the generalist; no policy by name."""

NEEDS: dict[str, dict[str, Any]] = {RULE: {"counts": ("flows_begun",)}}
"""Options of `ecn_marl.make` that a policy needs: counters that it reads."""

MEMORY = 0.3
"""Share of its memory that the rule keeps from one interval to the next."""

ALL = "all"
"""Name that stands for all phases, or all groups of ports."""

COUNT_US = 100.0
"""Time unit of the rule's limit, a number of flows, µs."""


def phase_names(env: Environment) -> tuple[str, ...]:
    """Names of an environment's phases; a single one if it has none."""
    names = getattr(env, "phase_names", None)
    if names is None:
        names = tuple(phase.name for phase in getattr(env, "phases", ()))
    return tuple(names) or ("all",)


def port_groups(env: Environment) -> tuple[str, ...]:
    """Name of every port's group, `[P]`; all are in one if the environment names none."""
    agents = getattr(env, "grouping", None)
    ports = env.num_agents if agents is None else len(agents.of_port)
    groups = tuple(getattr(env, "port_groups", ()) or ("all",) * ports)
    if len(groups) != ports:
        raise bad_value("port_groups", groups, f"one name for each of {ports} ports")
    return groups


def group_names(env: Environment) -> tuple[str, ...]:
    """Names of the groups of ports, each once, in the order of the ports."""
    return tuple(dict.fromkeys(port_groups(env)))


class Settings:
    """A controller with one setting for each phase and group of ports."""

    def __init__(self, env: PortEnvironment, params: PyTree, settings: Array | np.ndarray) -> None:
        """Scale the settings to the ports.

        Args:
            env: functional environment.
            params: its parameters.
            settings: Kmin and Kmax (KB at 25 Gb/s) and Pmax, `[phases, groups, 3]`; may be traced.

        Raises:
            ValueError: not a setting for each phase and group.
        """
        names, phases = group_names(env), phase_names(env)
        if settings.shape != (len(phases), len(names), 3):
            allowed = f"({len(phases)}, {len(names)}, 3): phases, groups of ports, setting"
            raise bad_value("settings shape", tuple(settings.shape), allowed)
        scale = env.port_scale(params.sim)
        group = np.asarray([names.index(name) for name in port_groups(env)])
        by_port = jnp.asarray(settings, jnp.float32)[:, group]
        kmin, kmax = (by_port[..., i] * KB * scale for i in (0, 1))
        if len(phases) == 1:
            self.ecn = Ecn(kmin=kmin[0], kmax=kmax[0], pmax=by_port[0, :, 2])
        else:
            self.ecn = PhaseEcn(kmin=kmin, kmax=kmax, pmax=by_port[..., 2])

    def __call__(self, key: jax.Array, obs: jax.Array) -> Ecn:
        """The thresholds for all phases; the environment takes those of the current one."""
        return self.ecn


def labelled(name: str, settings: np.ndarray, env: Environment) -> dict[str, Any]:
    """Settings of a policy of `SEARCHED`, whole and with their names, for JSON.

    Args:
        name: the policy.
        settings: its settings, see `search.SearchResult`.
        env: environment that has its phases and groups of ports.

    Returns:
        Of the rule `deep` and `shallow`, `[kmin KB, kmax KB, pmax]` at 25 Gb/s, and `limit`, flows
        per 100 µs. Of others `[kmin, kmax, pmax]` by phase and group of ports: `all` where they are
        the same in all phases, or at all ports.
    """
    values = np.asarray(settings, np.float64)
    if name == RULE:
        deep, shallow = values[:3].tolist(), values[3:6].tolist()
        return {"deep": deep, "shallow": shallow, "limit": float(values[6])}
    phases, groups = phase_names(env), group_names(env)
    if (values == values[:1]).all():
        values, phases = values[:1], (ALL,)
    if (values == values[:, :1]).all():
        values, groups = values[:, :1], (ALL,)
    return {
        phase: {group: values[i, j].tolist() for j, group in enumerate(groups)}
        for i, phase in enumerate(phases)
    }


@struct.dataclass
class RuleSettings:
    """Settings of the rule; leaves may be traced.

    Attributes:
        deep: Kmin and Kmax (KB at 25 Gb/s) and Pmax while few flows begin, `[3]`.
        shallow: the same while many flows begin, `[3]`.
        limit: flows per 100 µs above which the rule is shallow; below 0 it always is.
    """

    deep: Leaf
    shallow: Leaf
    limit: Leaf


class Rule:
    """A controller with memory: deep thresholds while few flows begin at a port, else shallow.

    Each port keeps a decaying mean m of the flows that began there, m <- 0.3 m + 0.7 n with n the
    flows of the last interval per 100 µs, and is shallow while m is above the limit. A switch needs
    only a counter of flows for it.
    """

    def __init__(self, env: PortEnvironment, params: PyTree, settings: RuleSettings) -> None:
        """Scale the settings to the ports.

        Args:
            env: functional environment whose `info` has `flows_begun`, `[A]` per interval.
            params: its parameters.
            settings: the settings.
        """
        scale = env.port_scale(params.sim)
        self.none = jnp.zeros_like(scale)
        self.per_count = COUNT_US / float(env.interval_us)
        self.limit = settings.limit
        self.deep, self.shallow = (
            Ecn(kmin=x[0] * KB * scale, kmax=x[1] * KB * scale, pmax=x[2] * jnp.ones_like(scale))
            for x in (jnp.asarray(s, jnp.float32) for s in (settings.deep, settings.shallow))
        )

    def init(self) -> Float[Array, " agents"]:
        """Memory at the start of an episode: no flow began."""
        return self.none

    def __call__(self, key: jax.Array, obs: jax.Array, memory: Float[Array, " agents"]) -> Ecn:
        """The thresholds for the decaying mean of flows so far."""
        busy = memory > self.limit
        chosen: Ecn = jax.tree.map(lambda a, b: jnp.where(busy, a, b), self.shallow, self.deep)
        return chosen

    def observe(
        self, memory: Float[Array, " agents"], info: dict[str, jax.Array]
    ) -> Float[Array, " agents"]:
        """Count the flows that began in an interval.

        Raises:
            ValueError: the environment does not count them.
        """
        if "flows_begun" not in info:
            raise bad_value("info", sorted(info), "one with flows_begun, which the rule counts")
        begun = info["flows_begun"].astype(jnp.float32) * self.per_count
        return MEMORY * memory + (1.0 - MEMORY) * begun


class Random:
    """A controller that draws every action uniformly, as an untrained learner does."""

    def __init__(self, env: Environment) -> None:
        """Remember the actions of the environment."""
        self.codec, self.agents = env.action, env.num_agents

    def __call__(self, key: jax.Array, obs: jax.Array) -> jax.Array:
        """Random actions, `[A, ...]`."""
        return jnp.asarray(self.codec.sample(key, self.agents))
