"""Domain randomisation: every episode has its own network, drawn from ranges.

A policy trained under one set of senders and links loses to static settings under others. Here
every reset draws link rates, propagation delays, the load and constants of the senders. The draw is
a few factors, which the state holds. The parameters of an episode are those of the scenario times
its factors. So trainers, which give all environments the same parameters, work unchanged.

    env = Randomised(make("restore-serve-v0"), ranges_of({"delay": (0.2, 1.0), "load": 1.5}))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._checks import POSITIVE, Each
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._types import Leaf
from ecn_marl.envs.interface import PortEnvironment, StepResult
from ecn_marl.sim.config import base_rtt
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.link_options import with_links
from ecn_marl.sim.network.topology import GBPS, Topology
from ecn_marl.sim.simulator import RESERVE
from ecn_marl.sim.transports import Dcqcn
from ecn_marl.wrappers.forwarding import Forwarding

SENDERS = ("ai", "hai", "g", "increase_us", "decrease_us", "alpha_us")
"""Constants of the senders that are scaled, each by a factor of its own."""

LOADS = ("load", "per_us", "fill")
"""Parameters of traffic sources that are scaled with the load."""

KINDS = ("rate", "delay", "load", *SENDERS)
"""Kinds of factors: `rate` (of links and NICs, and of the senders' increases), `delay` (of all
links, so of the round trip), `load`, and constants of the senders."""

Ranges = tuple[tuple[str, float, float], ...]
"""Kinds, and the lowest and highest factor of each, hashable."""


def ranges_of(factors: Mapping[str, Any]) -> Ranges:
    """Ranges from factors: `{"load": 2.0}` is from half to twice the load.

    Args:
        factors: by kind, a factor f for the range 1/f to f, or a range `(lowest, highest)`. Delays
            can only shrink, because the delay lines of feedback have the length of the topology's.

    Raises:
        ValueError: unknown kind, a range that is not 0 < lowest <= highest, or delays above 1.
    """
    ranges = []
    for kind, limits in factors.items():
        if kind not in KINDS:
            raise unknown_name("what to randomise", kind, KINDS)
        ends = (1.0 / limits, limits) if POSITIVE.fits(limits) else limits
        if not Each(POSITIVE, 2).fits(ends) or ends[0] > ends[1]:
            raise bad_value(f"range of {kind}", limits, "a factor >= 1, or 0 < lowest <= highest")
        low, high = ends
        if kind == "delay" and high > 1.0:
            raise bad_value("range of delay", limits, "factors up to 1, those of the topology")
        ranges.append((kind, float(low), float(high)))
    return tuple(ranges)


def draw(key: jax.Array, ranges: Ranges) -> Float[Array, " kinds"]:
    """Factors, each uniform in its logarithm, in the order of the ranges."""
    low, high = (jnp.log(jnp.asarray([r[i] for r in ranges], jnp.float32)) for i in (1, 2))
    return jnp.exp(jax.random.uniform(key, (len(ranges),), jnp.float32, low, high))


@cache
def _propagation(topology: Topology) -> float:
    """Share of propagation in the base round trip; the rest is the time to store a packet."""
    return 1.0 - base_rtt(with_links(topology, delay_us=0.0)) / base_rtt(topology)


def scaled(
    params: PyTree, factors: Float[Array, " kinds"], ranges: Ranges, topology: Topology
) -> PyTree:
    """Parameters times factors.

    PFC's headroom and the base round trip follow rates and delays, as in
    `Simulator.default_params`; the latter exactly if one path has the longest propagation and the
    slowest links.

    Args:
        params: `EnvParams` of the scenario.
        factors: from `draw`.
        ranges: their kinds.
        topology: the scenario's network.
    """
    by = {kind: factors[i] for i, (kind, _, _) in enumerate(ranges)}
    sim = params.sim
    net, senders, traffic = sim.net, sim.transport, sim.traffic
    rate, delay = by.get("rate"), by.get("delay")
    if rate is not None:
        net = _times(net, rate, ("port_rate", "nic_rate"))
        senders = _times(senders, rate, ("ai", "hai"))
        params = replace(params, scale=_times(params.scale, rate, ("port_scale",)))
    if delay is not None:
        net = _times(net, delay, ("port_delay", "nic_delay"))
    if rate is not None or delay is not None:
        faster, longer = (jnp.float32(1.0) if x is None else x for x in (rate, delay))
        share = _propagation(topology)
        net = _times(net, faster * longer, ("headroom",))
        net = _times(net, share * longer + (1.0 - share) / faster, ("base_rtt",))
    if "load" in by:
        traffic = _times(traffic, by["load"], LOADS)
    for name in SENDERS:
        if name in by:
            senders = _times(senders, by[name], (name,))
    return replace(params, sim=replace(sim, net=net, transport=senders, traffic=traffic))


def _times(tree: PyTree, factor: Array, names: tuple[str, ...]) -> PyTree:
    """Parameters whose fields of these names are multiplied by a factor, at any depth.

    Senders of several classes are a tuple, and the bursts of phases are a part of their source's.
    """
    if type(tree) is tuple:
        return tuple(_times(part, factor, names) for part in tree)
    if not is_dataclass(tree) or isinstance(tree, type):
        return tree
    changed = {
        f.name: jnp.asarray(part, jnp.float32) * factor
        if f.name in names
        else _times(part, factor, names)
        for f in fields(tree)
        for part in (getattr(tree, f.name),)
    }
    return replace(tree, **changed)


def _field_names(tree: PyTree) -> set[str]:
    """Names of the fields of parameters, at any depth."""
    if type(tree) is tuple:
        return {name for part in tree for name in _field_names(part)}
    if not is_dataclass(tree):
        return set()
    own = {f.name for f in fields(tree)}
    return own.union(*(_field_names(getattr(tree, name)) for name in own))


@struct.dataclass
class RandomisedState:
    """State of `Randomised`.

    Attributes:
        env: state of the wrapped environment.
        factors: factors of this episode, `[kinds]`.
        steps: intervals so far; trainers set it to start in the middle of an episode.
    """

    env: PyTree
    factors: Leaf
    steps: Leaf

    @property
    def sim(self) -> PyTree:
        """State of the network."""
        return self.env.sim

    @property
    def ecn(self) -> Ecn:
        """Thresholds in force, see `EnvState`."""
        return cast(Ecn, self.env.ecn)

    @property
    def history(self) -> Leaf:
        """What ports have shown, see `EnvState`."""
        return self.env.history


@dataclass(frozen=True)
class Randomised(Forwarding):
    """The wrapped environment with parameters that are drawn at every reset.

    The wrapper has every attribute of the wrapped environment.

    Attributes:
        env: functional environment (without auto-reset).
        ranges: from `ranges_of`.
    """

    env: PortEnvironment
    ranges: Ranges

    def __post_init__(self) -> None:
        """Check that the environment has the parameters to draw."""
        if not self.ranges:
            raise bad_value("ranges", self.ranges, "at least one range")
        sim = self.env.default_params.sim
        self._check_buffer(np.asarray(sim.net.headroom))
        for kind, _, _ in self.ranges:
            tree, names = (sim.traffic, LOADS) if kind == "load" else (sim.transport, (kind,))
            if kind not in ("rate", "delay") and not _field_names(tree) & set(names):
                raise bad_value("what to randomise", kind, f"something that {self.env.name} has")
        self._check_clock()

    def _check_buffer(self, headroom: np.ndarray) -> None:
        """Check that the largest headroom drawn leaves a buffer to share."""
        highest = {kind: high for kind, _, high in self.ranges}
        factor = highest.get("rate", 1.0) * highest.get("delay", 1.0)
        self.env.sim.check_buffer(headroom * factor + RESERVE)

    def _check_clock(self) -> None:
        """Check that the substep fits the senders' timers at the ends of the ranges."""
        senders = self.env.sim.transport
        for member in getattr(senders, "members", (senders,)):
            if isinstance(member, Dcqcn):
                self._check_timers(member)

    def _check_timers(self, senders: Dcqcn) -> None:
        """Check the timers of the senders of a class."""
        sim = self.env.sim
        # Fast links, a large g and short timers need the shortest substep.
        extremes = {kind: high if kind in ("rate", "g") else low for kind, low, high in self.ranges}
        constants = senders.default_params()
        drawn = {x: float(getattr(constants, x)) * extremes[x] for x in SENDERS if x in extremes}
        extreme = replace(senders, overrides=tuple({**dict(senders.overrides), **drawn}.items()))
        bound = extreme.bound_dt(max(sim.topology.nic_gbps) * GBPS * extremes.get("rate", 1.0))
        # A substep that equals the bound must pass in spite of rounding.
        if sim.dt_us > bound.dt_us * (1.0 + 1e-6):
            allowed = f"at most {bound.dt_us:.3g} us at the ends of the ranges drawn ({bound.why})"
            raise bad_value("dt_us", sim.dt_us, allowed)

    # Cached, so that it is one object, as `EcnEnv.program` is.
    @cached_property
    def program(self) -> Randomised:
        """The wrapped environment's `program` with the same draws: faces compile this one."""
        program = copy(self)
        # Not `replace`: its checks read numbers, such as the buffer, that a program has not.
        object.__setattr__(program, "env", cast(Any, self.env).program)
        return program

    @property
    def load(self) -> Callable[[RandomisedState], Array]:
        """How busy an environment is; see `EcnEnv.load`."""
        return lambda state: self.env.load(state.env)

    def reset(self, key: jax.Array, params: PyTree) -> tuple[Array, RandomisedState]:
        """Draw parameters and start an episode; see the wrapped environment."""
        draw_key, env_key = jax.random.split(key)
        factors = draw(draw_key, self.ranges)
        obs, state = self.env.reset(env_key, self._scaled(params, factors))
        return obs, RandomisedState(state, factors, state.steps)

    def _scaled(self, params: PyTree, factors: Array) -> PyTree:
        """Parameters of the episode with these factors."""
        return scaled(params, factors, self.ranges, self.env.sim.topology)

    def reset_info(self, state: RandomisedState, params: PyTree) -> dict[str, Array]:
        """Infos of a reset; see `EcnEnv.reset_info`."""
        known: dict[str, Array] = cast(Any, self.env).reset_info(
            state.env, self._scaled(params, state.factors)
        )
        return known

    def step(
        self, key: jax.Array, state: RandomisedState, action: Array, params: PyTree
    ) -> tuple[Array, RandomisedState, Array, Array, Array, dict[str, Array]]:
        """One step under the parameters of the episode; see the wrapped environment."""
        return self._step(self.env.step, key, state, action, params)

    def step_ecn(self, key: jax.Array, state: RandomisedState, ecn: Ecn, params: PyTree) -> PyTree:
        """Like `step`, with thresholds instead of actions."""
        return self._step(self.env.step_ecn, key, state, ecn, params)

    def _step(
        self,
        step: Callable[..., StepResult],
        key: jax.Array,
        state: RandomisedState,
        action: Array | Ecn,
        params: PyTree,
    ) -> PyTree:
        episode_params = self._scaled(params, state.factors)
        inner = replace(state.env, steps=state.steps)
        obs, inner, *rest = step(key, inner, action, episode_params)
        return obs, RandomisedState(inner, state.factors, inner.steps), *rest

    def phase(self, state: RandomisedState, params: PyTree) -> Array:
        """Phase of every port; see `EcnEnv.phase`."""
        episode_params = self._scaled(params, state.factors)
        return self.env.phase(state.env, episode_params)

    def global_state(self, state: RandomisedState, params: PyTree) -> Float[Array, " state"]:
        """Features of the last interval of all ports; see `EcnEnv.global_state`."""
        return self.env.global_state(state.env, params)

    def episode_metrics(self, state: RandomisedState, params: PyTree) -> dict[str, Array]:
        """Metrics of the episode so far; see `EcnEnv.episode_metrics`."""
        episode_params = self._scaled(params, state.factors)
        return self.env.episode_metrics(state.env, episode_params)
