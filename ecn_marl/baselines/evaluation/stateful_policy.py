"""Policies with memory, as controllers that decide from the statistics of the ports.

An agent's next thresholds depend on its observations and on the policy's memory: an idle port's
last action (ACC), the state at the last trigger (HAECN). The evaluation loop passes statistics and
rewards of every interval to a controller, which computes observations from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import jax
from jaxtyping import Array, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.envs.features import fill, flatten, push
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.envs.queues import THRESHOLDS
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.core.stats import from_info


class Memory(NamedTuple):
    """Memory of `StatefulPolicy`."""

    policy: PyTree
    """Memory of the policy."""
    history: Array
    """Features of the last k intervals, `[A, k, width]`."""
    ecn: Ecn
    """The thresholds of ports for the next interval, bytes, `[P]` each."""


@runtime_checkable
class Deciding(Protocol):
    """A learner whose policy has a memory."""

    def start(self, num_agents: int) -> PyTree:
        """Memory at the start of an episode."""

    def decide(self, actor: PyTree, memory: PyTree, obs: Array) -> tuple[PyTree, Array]:
        """Memory and actions after observations."""

    def watch(self, memory: PyTree, reward: Array, info: dict[str, Array]) -> PyTree:
        """Memory after the rewards and statistics of an interval."""

    def costs(self, memory: PyTree) -> dict[str, Array]:
        """Costs of the decisions so far, per port and interval."""


@dataclass(frozen=True)
class StatefulPolicy:
    """A trained policy with a memory, as a `StatefulController`.

    Attributes:
        algorithm: the learner.
        actor: its parameters.
        env: environment to act in.

    Raises:
        ValueError: the environment's telemetry alters observations, which are recomputed here.
    """

    algorithm: Deciding
    actor: PyTree
    env: PortEnvironment

    def __post_init__(self) -> None:
        """Check the telemetry."""
        if self.env.telemetry.alters_view:
            allowed = "none that alters observations: policies with a memory see every interval"
            raise bad_value("telemetry", self.env.telemetry, allowed)

    @cached_property
    def params(self) -> PyTree:
        """Parameters of the environment."""
        return self.env.default_params

    @cached_property
    def scale(self) -> Array:
        """Bandwidth of the ports over 25 Gb/s, see `port_scale`."""
        return self.env.port_scale(self.params.sim)

    def init(self) -> Memory:
        """Memory at the start of an episode."""
        env = self.env
        ecn = env.wide(env.initial.scaled(self.scale))
        ports = env.features(env.idle_stats(), ecn, self.params.scale)
        features = env.grouping.mean(ports)
        return self._next(self.algorithm.start(env.num_agents), fill(features, env.feature.history))

    def __call__(self, key: jax.Array, obs: jax.Array, memory: Memory) -> Ecn:
        """The thresholds decided after the last interval."""
        return memory.ecn

    def observe(self, memory: Memory, info: dict[str, jax.Array]) -> Memory:
        """Decide from the statistics of an interval, the `info` of `step_ecn`."""
        env = self.env
        stats = from_info(info)
        prefix = "class_" if env.per_queue else ""
        ecn = Ecn(*(info[prefix + name] for name in THRESHOLDS))
        ports = env.features(stats, ecn, self.params.scale)
        history = push(memory.history, env.grouping.mean(ports), env.feature_share)
        agents = env.grouping.info(info)
        return self._next(self.algorithm.watch(memory.policy, agents["reward"], agents), history)

    def costs(self, memory: Memory) -> dict[str, Array]:
        """Costs of the policy's decisions so far, per port and interval.

        They include the decision after the last interval, which is not applied.
        """
        return self.algorithm.costs(memory.policy)

    def _next(self, policy: PyTree, history: Array) -> Memory:
        policy, action = self.algorithm.decide(self.actor, policy, flatten(history))
        by_port = self.env.grouping.spread(action)
        return Memory(policy, history, self.env.action.decode(by_port, self.scale))
