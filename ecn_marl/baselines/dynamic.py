"""Rules that set the thresholds every interval from counters of a switch, without learning."""

from __future__ import annotations

import jax
from jaxtyping import PyTree

from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.core.stats import from_info
from ecn_marl.sim.state import PortStats
from ecn_marl.sim.tuners import parse_tuner

PREFIX = "dynamic:"
"""Prefix of the name of a rule, e.g. `dynamic:pi`."""

Memory = tuple[PyTree, Ecn]
"""State of the tuner, and its thresholds for the next interval."""


class Dynamic:
    """A controller that applies a tuner of `ecn_marl.sim.tuners` to every port.

    It acts where an agent acts: thresholds for an interval follow from the statistics of those
    before it, and at the start of an episode from an idle network.
    """

    def __init__(self, env: PortEnvironment, params: PyTree, setting: str) -> None:
        """Read the setting.

        Args:
            env: functional environment.
            params: its parameters.
            setting: what `parse_tuner` reads, e.g. `pi` or `pi:qref_kb=100`.

        Raises:
            ValueError: a setting that cannot be read or is not allowed.
        """
        self.tuner = parse_tuner(setting, env.sim.topology)
        self.net = params.sim.net
        self.interval_us: float = env.interval_us
        self.idle: PortStats = env.idle_stats()

    def __repr__(self) -> str:
        """One line: the rule."""
        return f"<Dynamic {self.tuner.title}>"

    def init(self) -> Memory:
        """Memory at the start of an episode."""
        return self._next(self.tuner.init(self.net), self.idle)

    def __call__(self, key: jax.Array, obs: jax.Array, memory: Memory) -> Ecn:
        """The thresholds decided after the last interval."""
        return memory[1]

    def observe(self, memory: Memory, info: dict[str, jax.Array]) -> Memory:
        """Decide on thresholds from the statistics of an interval."""
        stats = from_info(info)
        return self._next(memory[0], stats)

    def _next(self, state: PyTree, stats: PortStats) -> Memory:
        return self.tuner.update(state, stats, self.net, self.interval_us)
