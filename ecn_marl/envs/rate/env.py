"""The functional environment: every flow is an agent that sets its own rate.

A flow's agent acts when its RTT packet is back, and only then: agents are driven by events, as on a
NIC (Tessler et al., "Reinforcement Learning for Datacenter Congestion Control", 2021; ADPG). A step
is a tick of the simulator, shorter than a round trip. After it `RateState.acts` says which flows
act next; the actions of all others are ignored. Everything is an array with a leading axis of flow
slots; `reset` and `step` are pure and work under `jit`, `vmap` and `scan`.

An agent knows its own rate and its own RTTs, nothing else. With the inflation I (RTT over that of
an empty network) its reward is

    r = -(target - x)^2,    x = max(I - offset, 0) * sqrt(rate / line rate).

All flows that share a bottleneck see about the same I, so x = target for all of them only where
their rates are equal: N flows of a saturated link have 1/N each, and I = offset + target * sqrt(N)
(Proposition 1 there). The text has offset 0, its published code 1.5. With 0 and a target of 0.064,
fewer than 244 flows could not fill a link, for I is at least 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._checks import NOT_NEGATIVE, POSITIVE, Whole, check_numbers
from ecn_marl._flags import FLAGGED
from ecn_marl._types import Leaf
from ecn_marl.envs.rate.actions import Factor
from ecn_marl.envs.rate.monitor import MONITORED, Monitor, empty_monitor, watch
from ecn_marl.envs.settings import parse_ecn, port_scale
from ecn_marl.envs.spaces import Box, Space, of_agents
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.simulator import Ecn, SimParams, SimState, Simulator
from ecn_marl.sim.state import PortSums
from ecn_marl.sim.transports import RateAgent
from ecn_marl.sim.transports.rate_agent import RateAgentState

MOST_IN_LANES = 512
"""Flows up to which environments run in `lanes`; with more, XLA alone fills its vectors."""

# numpy, because jnp would start JAX's backend at import.
CHANGE = float(np.log(1.2))
"""Unit of changes of rate in observations: the largest factor, as a logarithm."""

COLUMNS = ("change", "error", "rate", "inflation", *MONITORED)
"""Possible columns of an observation of an event.

change:    logarithm of the rate over that at the event before, in units of `CHANGE`
error:     x / target - 1, see above; -1 below the offset
rate:      rate over that of the NIC
inflation: RTT over that of an empty network

The others are those of `monitor`.
"""


@struct.dataclass
class RateParams:
    """Traced parameters of an episode.

    Attributes:
        sim: network, senders, traffic.
        target: desired x; a larger target means longer queues.
        offset: inflation that costs nothing.
        max_steps: steps in an episode; it is truncated there.
    """

    sim: SimParams
    target: Annotated[Leaf, POSITIVE]
    offset: Annotated[Leaf, NOT_NEGATIVE]
    max_steps: Annotated[Leaf, Whole(low=1)]


@struct.dataclass
class RateState:
    """State of an episode; leaves `[F]` unless noted.

    Attributes:
        sim: state of the network.
        acts: flows that act next: their RTT packets came back in the last step.
        x: see the module, at the last event.
        last: rate at the last event, bytes/µs.
        history: observations of the last k events, latest last, `[F, k, columns]`.
        steps: steps so far, a scalar.
        monitor: counters for the columns of `monitor`; None if no such column is used.
    """

    sim: SimState
    acts: Leaf
    x: Leaf
    last: Leaf
    history: Leaf
    steps: Leaf
    monitor: Monitor | None = None


Step = tuple[
    Float[Array, "flows obs"],
    RateState,
    Float[Array, " flows"],
    Bool[Array, " flows"],
    Bool[Array, " flows"],
    dict[str, Array],
]
"""`obs, state, reward, terminated, truncated, info` of a step."""


@dataclass(frozen=True)
class RateEnv:
    """Multi-agent rate control; static and hashable, parameters and state are passed in.

    Attributes:
        name: scenario it was made from.
        sim: the simulator; its senders are `RateAgent`, its tuning interval is a step.
        action: what an agent can set.
        columns: what an agent sees of each event, of `COLUMNS`.
        history: number k of events that it sees.
        target: default target of the reward.
        offset: default inflation that costs nothing.
        horizon: default number of steps in an episode.
        ecn: ECN setting of all ports, KB at 25 Gb/s; rate agents do not look at marks.
    """

    name: str
    sim: Simulator
    action: Factor
    columns: tuple[str, ...]
    history: int
    target: float
    offset: float
    horizon: int
    ecn: str

    def __repr__(self) -> str:
        """One line: scenario, agents, what they see and set."""
        return (
            f"<{type(self).__name__} {self.name}: {self.num_agents} flow slots on "
            f"{self.sim.topology.name}, {self.history} events of {len(self.columns)} numbers, "
            f"{self.action.name} actions, {self.horizon} steps of {self.step_us:g} µs>"
        )

    @property
    def num_agents(self) -> int:
        """Number of agents F, the flow slots."""
        return self.sim.slots

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents: `flow_0`, `flow_1`, …."""
        return tuple(f"flow_{i}" for i in range(self.num_agents))

    @property
    def obs_dim(self) -> int:
        """Length of an observation."""
        return self.history * len(self.columns)

    def observation_space(self, params: RateParams | None = None) -> Space:
        """Space of what `reset` and `step` return, `[F, obs_dim]`; the same for all parameters."""
        return Box(-np.inf, np.inf, (self.num_agents, self.obs_dim))

    def action_space(self, params: RateParams | None = None) -> Space:
        """Space of what `step` takes, `[F]`; the same for all parameters."""
        return of_agents(self.action.gymnasium_space(), self.num_agents)

    @property
    def program(self) -> RateEnv:
        """What compiled code depends on: all of the environment."""
        return self

    @property
    def step_us(self) -> float:
        """Length of a step, µs."""
        return self.sim.interval_us

    @property
    def transport(self) -> RateAgent:
        """The senders."""
        assert isinstance(self.sim.transport, RateAgent)
        return self.sim.transport

    @property
    def default_params(self) -> RateParams:
        """Parameters of the scenario as registered."""
        return RateParams(
            sim=self.sim.default_params(),
            target=np.float32(self.target),
            offset=np.float32(self.offset),
            max_steps=np.int32(self.horizon),
        )

    def thresholds(self, params: SimParams) -> Ecn:
        """ECN thresholds of all ports, bytes, `[P]`."""
        return thresholds(self.ecn, params)

    @property
    def monitored(self) -> bool:
        """Whether agents see monitor intervals."""
        return any(name in MONITORED for name in self.columns)

    def load(self, state: RateState) -> Int[Array, ""]:
        """How busy an environment is, in flow slots; see `Simulator.load`."""
        return self.sim.load(state.sim)

    def reset(
        self, key: jax.Array, params: RateParams
    ) -> tuple[Float[Array, "flows obs"], RateState]:
        """Start an episode with an empty network; no flow acts yet.

        Args:
            key: PRNG key; fixes the whole episode for given actions.
            params: parameters.

        Returns:
            Observations `[F, obs_dim]`, all 0, and the state.

        Raises:
            InvalidValue: a parameter out of its range, unless the function is being compiled.
        """
        check_numbers(params)
        n = self.num_agents
        zero = jnp.zeros((n,), jnp.float32)
        state = RateState(
            sim=self.sim.init(key, params.sim),
            acts=jnp.zeros((n,), bool),
            x=zero,
            last=zero,
            history=jnp.zeros((n, self.history, len(self.columns)), jnp.float32),
            steps=jnp.zeros((), jnp.int32),
            monitor=empty_monitor(n) if self.monitored else None,
        )
        return self.observe(state), state

    def reset_info(self, state: RateState, params: RateParams) -> dict[str, Array]:
        """What the faces return as infos of a reset: `acts` of every flow."""
        del params
        return {"acts": state.acts}

    def step(self, key: jax.Array, state: RateState, action: Array, params: RateParams) -> Step:
        """Apply the actions of the flows whose turn it is, then run the network for a tick.

        Args:
            key: unused (an episode's randomness is in its state); part of the usual signature.
            state: state of the episode.
            action: an action for every flow, `[F]`; read where `state.acts`.
            params: parameters.

        Returns:
            `obs [F, obs_dim], state, reward [F], terminated [F], truncated [F], info`. Rewards are
            0 where it is not a flow's turn, and observations do not change there. Episodes only end
            by their horizon. `info` has per-flow arrays `[F]`: `acts`, `rate` (over that of the
            NIC), `inflation` and `x` of the last event, and of the flow's last port in this step
            `utilisation` (ACKs included) and `queue_us`; and the episode's `flags`, see
            `sim.core.flags`.
        """
        del key
        next_state, sums = self.advance(state, action, params)
        reward = jnp.where(next_state.acts, -((params.target - next_state.x) ** 2), 0.0)
        terminated = jnp.zeros((self.num_agents,), bool)
        truncated = jnp.broadcast_to(next_state.steps >= params.max_steps, terminated.shape)
        info = self._info(next_state, sums, params.sim)
        return self.observe(next_state), next_state, reward, terminated, truncated, info

    def advance(
        self, state: RateState, action: Array, params: RateParams
    ) -> tuple[RateState, PortSums]:
        """A step without rewards; also returns the sums of the ports' statistics over it."""
        begin = self._act(state, self.action.factor(action), params)
        sim, sums = self.sim.collect(begin, params.sim, self.thresholds(params.sim))
        return self._take_in(state, begin, sim, params), sums

    def _act(self, state: RateState, factor: Array, params: RateParams) -> SimState:
        """The network with the rates of those whose turn it is multiplied."""
        flows = state.sim.flows
        senders = self.transport.multiply(flows.transport, params.sim.transport, factor, state.acts)
        return replace(state.sim, flows=replace(flows, transport=senders))

    def _take_in(
        self, state: RateState, begin: SimState, sim: SimState, params: RateParams
    ) -> RateState:
        """Find the flows whose RTT packet came back between `begin` and `sim`; observe for them."""
        before: RateAgentState = begin.flows.transport
        senders: RateAgentState = sim.flows.transport
        fresh = senders.rounds == 0
        running = sim.flows.stage == life.SENDING
        # A new flow in the slot changes the count as well, but no packet of it is back.
        acts = running & (senders.rounds != before.rounds) & ~fresh
        share = senders.rate / jnp.maximum(senders.line, 1e-6)
        # A rate is 0 only before a flow's start. The derivative of the root is infinite there.
        root = jnp.sqrt(jnp.maximum(share, 1e-12))
        x = jnp.maximum(senders.inflation - params.offset, 0.0) * root
        last = jnp.where(fresh, senders.rate, state.last)
        values = {
            "change": jnp.log(jnp.maximum(senders.rate, 1e-6) / jnp.maximum(last, 1e-6)) / CHANGE,
            "error": x / params.target - 1.0,
            "rate": share,
            "inflation": senders.inflation,
        }
        monitor = state.monitor
        if monitor is not None:
            monitor, intervals = watch(monitor, begin, sim, acts, self.step_us)
            values |= intervals
        row = jnp.stack([values[name] for name in self.columns], -1)
        moved = jnp.concatenate([state.history[:, 1:], row[:, None]], 1)
        history = jnp.where(acts[:, None, None], moved, state.history)
        return RateState(
            sim=sim,
            acts=acts,
            x=jnp.where(acts, x, jnp.where(fresh, 0.0, state.x)),
            last=jnp.where(acts, senders.rate, last),
            history=jnp.where(fresh[:, None, None], 0.0, history),
            steps=state.steps + 1,
            monitor=monitor,
        )

    def observe(self, state: RateState) -> Float[Array, "flows obs"]:
        """Observations of all agents, `[F, obs_dim]`."""
        return jnp.asarray(state.history).reshape(self.num_agents, self.obs_dim)

    def _info(self, state: RateState, sums: PortSums, params: SimParams) -> dict[str, Array]:
        """`info` of a step: state of every flow, and of the last port on its path."""
        senders, rate = state.sim.flows.transport, jnp.asarray(params.net.port_rate)
        port = jnp.asarray(params.net.last)[state.sim.flows.dst]
        queue_us = sums.queue / (self.sim.interval_steps * rate)
        return {
            "acts": state.acts,
            "rate": senders.rate / jnp.maximum(senders.line, 1e-6),
            "inflation": senders.inflation,
            "x": state.x,
            "utilisation": (sums.sent / (rate * self.step_us))[port],
            "queue_us": queue_us[port],
            # The episode's, the same for all flows.
            FLAGGED: jnp.broadcast_to(state.sim.flags, port.shape).astype(queue_us.dtype),
        }


def thresholds(setting: str, params: SimParams) -> Ecn:
    """A static ECN setting on all ports, bytes, `[P]`; see `envs.settings.parse_ecn`."""
    return parse_ecn(setting).scaled(port_scale(params))
