"""What wrappers, trainers and evaluation ask of a functional environment.

`Environment` is the least: wrappers, trainers and rollouts use nothing else. Evaluation needs a
`MeasuredEnvironment`. `PortEnvironment` has what rules, searches and reports read of an environment
whose agents are switch ports, see `EcnEnv`. An environment has these members; it need not be
derived from one of the classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl.envs.actions import ActionCodec, EcnSetting
from ecn_marl.envs.agents import Agents
from ecn_marl.envs.features import FeatureScale, FeatureSet
from ecn_marl.envs.rewards import Reward
from ecn_marl.envs.telemetry import Telemetry
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.simulator import PortStats, SimParams, Simulator

StepResult = tuple[Array, PyTree, Array, Array, Array, dict[str, PyTree]]
"""`obs [A, obs_dim], state, reward [A], terminated [A], truncated [A], info` of a step."""


@runtime_checkable
class Environment(Protocol):
    """A functional multi-agent environment: hashable, with pure functions and no state of its own.

    State and parameters are pytrees of its own kinds. Trainers need `steps` in the state, the
    steps so far, and `max_steps` in the parameters. Steps whose `info` has `queue_mean` and
    `utilisation`, `[A]` each, can be trained on; DDQN's `idle_gating` reads `queue` and `kmin`.
    An optional member `load(state)` says how busy an environment is, see `EcnEnv.load`.

    Attributes:
        num_agents: number of agents A.
        obs_dim: length of an agent's observation.
        action: what an agent can set: an object with `shape`, of one agent's action, and with `n`
            or `nvec` if actions are discrete. Random actions (`standardise`) need its
            `sample(key, num_agents)`.
    """

    def reset(self, key: jax.Array, params: PyTree, /) -> tuple[Array, PyTree]:
        """Start an episode: observations `[A, obs_dim]`, and the state."""

    # `isinstance` looks for the members outside of this block. It would evaluate properties
    # (`default_params` computes arrays), and from Python 3.12 on it does not see what a wrapper's
    # `__getattr__` forwards.
    if TYPE_CHECKING:

        @property
        def num_agents(self) -> int:
            """Number of agents A."""

        @property
        def obs_dim(self) -> int:
            """Length of an agent's observation."""

        @property
        def action(self) -> Any:
            """What an agent can set."""

        def step(
            self, key: jax.Array, state: PyTree, action: Array, params: PyTree, /
        ) -> StepResult:
            """One step of all agents, actions `[A, *action.shape]`."""

        def __hash__(self) -> int:
            """Environments are static arguments of compiled functions."""


@runtime_checkable
class MeasuredEnvironment(Environment, Protocol):
    """An environment that sums up its episodes, for evaluation and `EpisodeStatistics`."""

    if TYPE_CHECKING:

        def episode_metrics(self, state: PyTree, params: PyTree, /) -> dict[str, Array]:
            """Metrics of the episode so far; a table needs those of `EcnEnv.episode_metrics`."""


@runtime_checkable
class PortEnvironment(MeasuredEnvironment, Protocol):
    """An environment whose agents are switch ports that set ECN thresholds.

    `EcnEnv` and its wrappers are such environments; `EcnEnv` documents the members. Most functions
    use a few of them, so that an environment with these few serves as well.
    """

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Scenario it was made from."""

        @property
        def sim(self) -> Simulator:
            """The simulator."""

        @property
        def feature(self) -> FeatureSet:
            """What an agent sees."""

        @property
        def feature_share(self) -> np.ndarray | None:
            """Share of a new observation in what agents see of each column, `[width]` or None."""

        @property
        def action(self) -> ActionCodec:
            """What an agent can set."""

        @property
        def reward(self) -> Reward:
            """What an agent earns."""

        @property
        def initial(self) -> EcnSetting:
            """Thresholds at the start of an episode."""

        @property
        def horizon(self) -> int:
            """Default number of intervals in an episode."""

        @property
        def telemetry(self) -> Telemetry:
            """Delay, period and precision of observations and actions."""

        @property
        def agent_kind(self) -> str:
            """`port` or `switch`."""

        @property
        def agents(self) -> tuple[str, ...]:
            """Names of the agents."""

        @property
        def grouping(self) -> Agents:
            """Which ports each agent has, see `agents`."""

        @property
        def per_queue(self) -> bool:
            """Whether each queue of a port has thresholds of its own, see `queues`."""

        @property
        def width(self) -> int:
            """Number of features of one interval."""

        @property
        def interval_us(self) -> float:
            """Length of a tuning interval, µs."""

        @property
        def state_dim(self) -> int:
            """Length of the global state."""

        @property
        def phase_names(self) -> tuple[str, ...]:
            """Names of the phases of its traffic; `all` alone if it has none."""

        @property
        def port_groups(self) -> tuple[str, ...]:
            """Group of every port, length P."""

        @property
        def default_params(self) -> PyTree:
            """Parameters of the scenario as registered."""

        def load(self, state: PyTree, /) -> Array:
            """How busy it is, in flow slots."""

        def step_ecn(
            self, key: jax.Array, state: PyTree, ecn: Ecn, params: PyTree, /
        ) -> StepResult:
            """Like `step`, with thresholds and `info` of ports (bytes, `[P]` each)."""

        def phase(self, state: PyTree, params: PyTree, /) -> Array:
            """Index of the phase that every port is in, `[P]`."""

        def global_state(self, state: PyTree, params: PyTree, /) -> Array:
            """The global state, `[state_dim]`."""

        def port_scale(self, sim: SimParams, /) -> Array:
            """Link rate of every port over 25 Gb/s, `[A]`."""

        def static_ecn(self, setting: str, params: PyTree, /) -> Ecn:
            """Thresholds of a static setting on every port, bytes."""

        def features(self, stats: PortStats, ecn: Ecn, scale: FeatureScale, /) -> Array:
            """Features of an interval, `[P, width]`."""

        def wide(self, ecn: Ecn, /) -> Ecn:
            """Thresholds as it has them: `[P]`, or `[P, C]` with `per_queue`."""

        def idle_stats(self) -> PortStats:
            """Statistics of an interval without traffic."""

        def port_info(self, number: int, /) -> dict[str, str | float]:
            """Switch, peer, rate (Gb/s) and kind of a port."""
