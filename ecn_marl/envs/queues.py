"""Thresholds for each queue of a port (PET, §4.5.2): `make(per_queue=True)`.

Where ports have several queues, one per traffic class, PET's agent gets "information from all
queues by constructing a matrix representation", generates "the output information matrix specific
to each queue", and its reward is made of information "from all queues" together. So here

    observes   a row of all features for each queue, one after the other
    sets       Kmin, Kmax and Pmax of each queue: the action has the components of all of them
    earns      what its port earns, all queues together, as without this option

Rows have queue, time mean of the queue, rates and thresholds of their own queue. What a port counts
by its table of flows (incast degree, mice), its largest queue and its pauses are the port's, the
same in every row. Without the option a port's queues share its thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ecn_marl._checks import Whole, check_value
from ecn_marl.envs.actions import ActionCodec
from ecn_marl.envs.settings import EcnSetting
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.state import PortStats

THRESHOLDS = ("kmin", "kmax", "pmax")
"""Fields of `Ecn`, and entries of `info`."""


@dataclass(frozen=True)
class PerQueue(ActionCodec):
    """An action of another codec for each queue of a port, one after the other.

    Attributes:
        codec: the codec of one queue.
        queues: number of queues of a port, C.
    """

    codec: ActionCodec
    queues: int

    def __post_init__(self) -> None:
        """Take names and number of the components from the codec."""
        check_value("queues", self.queues, Whole(low=2))
        one = self.codec.components or ("setting",)
        components = tuple(f"{name} of queue {q}" for q in range(self.queues) for name in one)
        about = {"name": self.codec.name, "components": components, "dtype": self.codec.dtype}
        for name, value in about.items():
            object.__setattr__(self, name, value)

    @property
    def nvec(self) -> tuple[int, ...]:
        """Number of choices of every component; codecs of real numbers have none."""
        codec = self.codec
        one = attrgetter("nvec")(codec) if codec.components else (attrgetter("n")(codec),)
        return tuple(one) * self.queues

    def decode(self, action: Array, port_scale: Float[Array, " ports"]) -> Ecn:
        """ECN settings of all queues, bytes, `[P, C]`; values out of range are clipped."""
        ports, queues = action.shape[0], self.queues
        rows = action.reshape(ports * queues, *self.codec.shape)
        ecn = self.codec.decode(rows, jnp.repeat(port_scale, queues))
        return Ecn(*(getattr(ecn, name).reshape(ports, queues) for name in THRESHOLDS))

    def sample(self, key: PRNGKeyArray, num_agents: int) -> Array:
        """Uniformly random actions of all agents."""
        return self.codec.sample(key, num_agents * self.queues).reshape(num_agents, *self.shape)

    def encode(self, kmin_kb: float, kmax_kb: float, pmax: float) -> np.ndarray:
        """One agent's action that has the setting nearest to this one in all queues."""
        one = self.codec.encode(kmin_kb, kmax_kb, pmax)
        return np.tile(one.reshape(-1), self.queues)

    def describe(self, action: object) -> EcnSetting:
        """The setting of the first queue; see `ActionCodec.describe`."""
        batch = self.check([action], 1)
        return self.codec.describe(batch.reshape(self.queues, *self.codec.shape)[0])

    def gymnasium_space(self) -> Any:
        """A new gymnasium space of one agent's actions."""
        from gymnasium import spaces

        one = self.codec.gymnasium_space()
        if isinstance(one, spaces.Box):
            low, high = (np.tile(x, self.queues) for x in (one.low, one.high))
            return spaces.Box(low, high, dtype=one.dtype)
        return spaces.MultiDiscrete(np.asarray(self.nvec))

    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = (np.tile(np.reshape(x, -1), self.queues) for x in self.codec._limits())
        return low, high


def of_queue(stats: PortStats, queue: int) -> PortStats:
    """Statistics of one queue of every port, as far as queues are counted apart, see above."""
    sent = stats.class_tx_bytes[:, queue]
    # What was sent is at least a byte: an idle port shows 0, not 0 / 0.
    share = sent / jnp.maximum(stats.tx_bytes, 1.0)
    return replace(
        stats,
        queue=stats.class_queue[:, queue],
        queue_mean=stats.class_queue_mean[:, queue],
        tx_bytes=sent,
        marked_bytes=stats.class_marked_bytes[:, queue],
        utilisation=stats.utilisation * share,
    )


def for_queues(ecn: Ecn, queues: int) -> Ecn:
    """Thresholds of every queue, `[P, C]`, from those of queues or of ports, `[P]`."""

    def wide(x: Array) -> Array:
        return x if x.ndim == 2 else jnp.repeat(x[:, None], queues, axis=1)

    return Ecn(*(wide(jnp.asarray(getattr(ecn, name))) for name in THRESHOLDS))


def for_ports(ecn: Ecn) -> Ecn:
    """Thresholds of every port, `[P]`: its own, or the mean of its queues."""
    return Ecn(*(x if x.ndim == 1 else x.mean(1) for x in (ecn.kmin, ecn.kmax, ecn.pmax)))
