"""Who acts: every switch egress port (`port`), or every switch for all of its ports (`switch`).

PET: "each switch acts as an agent of RL" (§4.1.2), whose state is one tuple of six numbers (eq. 2),
whose action is one triple of thresholds (eq. 4) and whose reward has one utilisation and one queue
(eq. 6-8). The tuple is collected "from the local port" (§4.2). How the ports of a switch become one
tuple, one triple and one reward is not stated. Here an agent that is a switch

    observes   the mean over its ports of every feature: the tuple stays one, whatever their number
    sets       one setting at 25 Gb/s for all its ports; each has it in proportion to its rate
    earns      the mean over its ports of their rewards

The simulator, thresholds (`Ecn`), statistics and episode metrics are always those of ports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.sim.network.topology import Topology

PORT, SWITCH = "port", "switch"
"""Kinds of agents."""

KINDS = (PORT, SWITCH)
"""What `make(agents=...)` takes."""


@dataclass(frozen=True)
class Agents:
    """The agents of a network, and which ports each has; hashable.

    Attributes:
        kind: `port` or `switch`.
        of_port: agent of every port, length P.
    """

    kind: str
    of_port: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of agents A."""
        return max(self.of_port) + 1

    @property
    def names(self) -> tuple[str, ...]:
        """Their names: `port_0`, `port_1`, … or `switch_0`, `switch_1`, …."""
        return tuple(f"{self.kind}_{i}" for i in range(self.n))

    def ports(self, agent: int) -> tuple[int, ...]:
        """Ports of an agent, numbers in `topology.ports`."""
        return tuple(int(p) for p in np.flatnonzero(np.asarray(self.of_port) == agent))

    @cached_property
    def _members(self) -> tuple[np.ndarray, np.ndarray]:
        """Ports of every agent, filled up to the largest number of them, and which are there."""
        rows = [self.ports(agent) for agent in range(self.n)]
        longest = max(map(len, rows))
        ports = np.array([row + row[:1] * (longest - len(row)) for row in rows], np.int32)
        present = np.arange(longest) < np.array([[len(row)] for row in rows])
        return ports, present

    def mean(self, x: Float[Array, "ports *s"]) -> Float[Array, "agents *s"]:
        """Means over every agent's ports; agents that are ports have their own."""
        if self.kind == PORT:
            return x
        ports, present = self._members
        there = present.reshape(*present.shape, *(1,) * (x.ndim - 1))
        total: Array = jnp.where(there, x[ports], 0.0).sum(1)
        return total / present.sum(1).astype(np.float32).reshape(-1, *there.shape[2:])

    def spread(self, x: Array) -> Array:
        """What every port has of its agent, `[A, ...]` to `[P, ...]`."""
        return x if self.kind == PORT else x[np.asarray(self.of_port)]

    def info(self, info: Mapping[str, Array], same: Collection[str] = ()) -> dict[str, Array]:
        """`info` of the agents, from that of the ports: means over an agent's ports.

        Args:
            info: arrays `[P, ...]` by name.
            same: entries that are the same for all ports, so that a mean could only round.
        """
        if self.kind == PORT:
            return dict(info)
        first = self._members[0][:, 0]
        return {name: x[first] if name in same else self.mean(x) for name, x in info.items()}


def agents_of(kind: str, topology: Topology) -> Agents:
    """The agents of a network.

    Args:
        kind: `port` or `switch`. Switches are in the order of their first ports; those without a
            port do not act.
        topology: the network.

    Raises:
        ValueError: another kind.
    """
    if kind not in KINDS:
        raise unknown_name("kind of agents", kind, KINDS)
    if kind == PORT:
        return Agents(PORT, tuple(range(topology.n_ports)))
    number: dict[str, int] = {}
    return Agents(SWITCH, tuple(number.setdefault(p.switch, len(number)) for p in topology.ports))


def check_ports_act(env: Any, what: str) -> None:
    """Refuse environments whose agents are not ports.

    Args:
        env: an environment; one without `agent_kind` has agents of its own.
        what: what needs ports, for the message.

    Raises:
        ValueError: its agents are switches.
    """
    kind = getattr(env, "agent_kind", PORT)
    if kind != PORT:
        raise bad_value("agents", kind, f"{PORT!r} for {what}")
