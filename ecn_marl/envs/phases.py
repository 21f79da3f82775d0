"""Traffic phases: an environment whose demand switches within an episode.

A phase is a set of traffic parameters, a propagation delay and a weight of utilisation against
delay. Each lasts for the same number of tuning intervals. Every cycle visits all phases once, in an
order drawn from the episode's seed, so that an agent cannot infer the phase from the time. Episodes
of whole cycles hold equal shares of all phases.

Queues, rates and flows in progress carry over from phase to phase. Sources restart at the start of
a phase: otherwise an arrival drawn in a phase of low load would delay the traffic of a busy one. A
source whose flows still wait for a slot offers no new ones, and restarts when the last of them has
a slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from ecn_marl._checks import TEXT, Each, Real, Whole, check
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.envs.ecn import EcnEnv, EnvParams, EnvState, PhaseEcn, Step
from ecn_marl.envs.rewards import RewardParams
from ecn_marl.sim.config import SOURCE
from ecn_marl.sim.jobs import Timeline
from ecn_marl.sim.queues import Ecn
from ecn_marl.sim.random import Stream, hash_bits
from ecn_marl.sim.simulator import SimParams, SimState
from ecn_marl.sim.tickets import tickets_of
from ecn_marl.sim.traffic import Offer, Source, program_of


@dataclass(frozen=True)
class Phase:
    """Settings of a phase; those that are not given are the scenario's.

    Attributes:
        name: its name in reports.
        traffic: sources of the same kinds and widths as the scenario's; empty for the scenario's.
        delay_us: one-way propagation delay of every link, at most the topology's.
        utilisation_weight: w of the reward during the phase.
    """

    name: Annotated[str, TEXT]
    traffic: Annotated[tuple[Source, ...], Each(SOURCE)] = ()
    delay_us: Annotated[float | None, Real(low=0.0, high=1e6, unit="µs", none=True)] = None
    utilisation_weight: Annotated[float | None, Real(low=0.0, high=1.0, none=True)] = None

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)


@struct.dataclass
class StoppableState:
    """State of a `Stoppable`.

    Attributes:
        source: state of the source itself.
        stop: µs from now until it stops, `inf` if it goes on.
        phase: index of the phase whose parameters it has.
    """

    source: PyTree
    stop: Leaf
    phase: Leaf

    @property
    def clock(self) -> PyTree:
        """The clock of a source with a timeline."""
        return self.source.clock


@dataclass(frozen=True)
class Stoppable:
    """A source that can be stopped: flows that begin later are not offered.

    Attributes:
        source: the source, an open-loop one.
    """

    source: Source

    def __post_init__(self) -> None:
        """Refuse sources whose flows follow from earlier ones: they cannot stop at a given time."""
        if tickets_of(self.source):
            kind = type(self.source).__name__
            reason = (
                "what a closed loop has in the network would report to the one that starts anew"
            )
            allowed = f"open-loop sources where there are phases: {reason}"
            raise bad_value("traffic", kind, allowed)

    @property
    def width(self) -> int | str:
        """Flows offered per tick."""
        width: int | str = getattr(self.source, "width", 1)
        return width

    @property
    def timeline(self) -> Timeline | None:
        """Timeline of the source, None without."""
        timeline: Timeline | None = getattr(self.source, "timeline", None)
        return timeline

    def program(self) -> Stoppable:
        """The same around the `program` of the source."""
        return Stoppable(program_of(self.source))

    def default_params(self) -> PyTree:
        """Parameters of the source."""
        return self.source.default_params()

    def init(
        self, key: jax.Array, params: PyTree, nic_rate: Array, episode: Array
    ) -> StoppableState:
        """A fresh process that goes on."""
        inner = self.source.init(key, params, nic_rate, episode)
        return StoppableState(inner, jnp.float32(jnp.inf), jnp.zeros((), jnp.int32))

    def offer(self, state: StoppableState, params: PyTree, nic_rate: Array) -> Offer:
        """The next flows of the source, those before its stop."""
        offered: Offer = self.source.offer(state.source, params, nic_rate)
        return replace(offered, valid=offered.valid & (offered.start < state.stop))

    def advance(
        self, state: StoppableState, params: PyTree, nic_rate: Array, taken: Array, elapsed: float
    ) -> StoppableState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        inner = self.source.advance(state.source, params, nic_rate, taken, elapsed)
        return replace(state, source=inner, stop=state.stop - elapsed)

    def waits(self, state: StoppableState, params: PyTree, nic_rate: Array) -> Array:
        """Whether flows from before its stop have no slot yet."""
        # Flows that begin from now on do not wait; the next phase draws others.
        stopped = replace(state, stop=jnp.minimum(state.stop, 0.0))
        return self.offer(stopped, params, nic_rate).valid.any()


@struct.dataclass
class PhasedParams(EnvParams):
    """Parameters of an episode with phases.

    Attributes:
        vary: `(sim, reward)` with a leading axis of phases on the leaves that differ between
            phases, and None for those that do not.
        phase_steps: tuning intervals per phase.
    """

    vary: PyTree
    phase_steps: Annotated[Leaf, Whole(low=1)]


@dataclass(frozen=True, repr=False)
class PhasedEnv(EcnEnv):
    """`EcnEnv` with phases; the same interface.

    Attributes:
        phases: the phases.
        phase_steps: default number of tuning intervals per phase.
    """

    phases: tuple[Phase, ...] = ()
    phase_steps: int = 50

    def __post_init__(self) -> None:
        """Check the phases against the network and its sources."""
        if not self.phases:
            raise bad_value("phases", self.phases, "at least one phase")
        if self.phase_steps < 1:
            raise bad_value("phase_steps", self.phase_steps, "an integer >= 1")
        sources = [getattr(s, "source", s) for s in self.sim.traffic]

        def kinds(traffic: Iterable[Source]) -> list[tuple[type, object]]:
            return [(type(s), getattr(s, "width", None)) for s in traffic]

        longest = min(p.delay_us for p in self.sim.topology.ports)
        for phase in self.phases:
            if phase.traffic and kinds(phase.traffic) != kinds(sources):
                allowed = "sources of the kinds and widths of the scenario's"
                raise bad_value(f"traffic of phase {phase.name}", phase.traffic, allowed)
            if phase.delay_us is not None and not 0.0 < phase.delay_us <= longest:
                allowed = f"a delay above 0 and up to the topology's {longest:g} µs"
                raise bad_value(f"delay_us of phase {phase.name}", phase.delay_us, allowed)
        # `dataclasses.replace` runs this again, with sources that are wrapped already.
        if not all(isinstance(source, Stoppable) for source in self.sim.traffic):
            stoppable = tuple(Stoppable(source) for source in self.sim.traffic)
            object.__setattr__(self, "sim", replace(self.sim, traffic=stoppable))

    @property
    def default_params(self) -> PhasedParams:
        """Parameters of the scenario as registered; outside `vary`, those of the first phase."""
        with jax.ensure_compile_time_eval():  # what differs is compared, so it must be known
            base = super().default_params
            per_phase = [self._during(phase, base) for phase in self.phases]
            vary = jax.tree.map(_stack, *per_phase)
        return PhasedParams(
            sim=per_phase[0][0],
            reward=per_phase[0][1],
            scale=base.scale,
            max_steps=base.max_steps,
            vary=vary,
            phase_steps=np.int32(self.phase_steps),
        )

    def _during(self, phase: Phase, base: EnvParams) -> tuple[SimParams, RewardParams]:
        """Network, traffic and reward of a phase."""
        sim, reward = base.sim, base.reward
        if phase.traffic:
            sim = replace(sim, traffic=tuple(s.default_params() for s in phase.traffic))
        if phase.delay_us is not None:
            net = sim.net
            delays = {
                name: np.full_like(getattr(net, name), phase.delay_us)
                for name in ("port_delay", "nic_delay")
            }
            sim = replace(sim, net=replace(net, **delays))
        if phase.utilisation_weight is not None:
            options = dict(self.reward_options) | {"utilisation_weight": phase.utilisation_weight}
            reward = RewardParams.create(**options)
        return sim, reward

    @property
    def phase_names(self) -> tuple[str, ...]:
        """Names of the phases."""
        return tuple(phase.name for phase in self.phases)

    def phase(self, state: EnvState, params: PyTree) -> Int[Array, " ports"]:
        """Index of the phase that the next tuning interval belongs to, the same for all ports."""
        n = len(self.phases)
        slot = state.steps // params.phase_steps
        # Sorting random bits gives a random order. It follows from the seed and the cycle, so the
        # state need not hold it.
        draws = hash_bits(state.sim.seed, slot // n * n + jnp.arange(n), Stream.PHASE_ORDER)
        phase_index = jnp.argsort(draws)[slot % n].astype(jnp.int32)
        return jnp.broadcast_to(phase_index, (self.sim.topology.n_ports,))

    def at(self, params: PyTree, phase: Int[Array, ""]) -> PhasedParams:
        """The parameters that hold during a phase."""

        def pick(fixed: object, varied: object) -> PyTree:
            return fixed if varied is None else jnp.asarray(varied)[phase]

        sim, reward = jax.tree.map(pick, (params.sim, params.reward), params.vary)
        phase_params: PhasedParams = replace(params, sim=sim, reward=reward)
        return phase_params

    def reset(
        self, key: jax.Array, params: EnvParams
    ) -> tuple[Float[Array, "agents obs"], EnvState]:
        """Start an episode in the first phase of its order; see `EcnEnv.reset`."""
        # The order of phases follows from a seed that the first reset draws.
        _, state = super().reset(key, params)
        first = self.phase(state, params)[0]
        obs, state = super().reset(key, self.at(params, first))
        traffic = tuple(replace(source, phase=first) for source in state.sim.traffic)
        return obs, replace(state, sim=replace(state.sim, traffic=traffic))

    def step_ecn(self, key: jax.Array, state: EnvState, ecn: Ecn, params: EnvParams) -> Step:
        """A tuning interval of the current phase; see `EcnEnv.step_ecn`.

        Args:
            key: unused.
            state: state of the episode.
            ecn: thresholds, `[A]` each, or a `PhaseEcn`.
            params: parameters.
        """
        phase_index = self.phase(state, params)
        if isinstance(ecn, PhaseEcn):
            ecn = ecn.during(phase_index)
        state, phase_params = self._change_phase(state, params, phase_index[0])
        return super().step_ecn(key, state, ecn, phase_params)

    def accounts(self, sim: SimState, params: PyTree) -> dict[str, Array]:
        """Counts of the flows; see `EcnEnv.accounts`.

        Flows that wait are those of the phase that their source is in.
        """
        phase_params = (self.at(params, source.phase).sim.traffic for source in sim.traffic)
        traffic = tuple(constants[i] for i, constants in enumerate(phase_params))
        return super().accounts(sim, replace(params, sim=replace(params.sim, traffic=traffic)))

    def _change_phase(
        self, state: EnvState, params: PyTree, phase_index: Int[Array, ""]
    ) -> tuple[EnvState, PhasedParams]:
        """State and parameters of the interval: sources change to the current phase.

        A source whose flows wait for a slot keeps the parameters of its phase until they have one.
        """
        phase_params = self.at(params, phase_index)
        slot = state.steps // phase_params.phase_steps
        begins = state.steps % phase_params.phase_steps == 0
        # The number of the slot, not of the phase: a phase that comes again has other traffic.
        root = jax.random.fold_in(jax.random.key(state.sim.seed), slot)
        nic = jnp.asarray(phase_params.sim.net.nic_rate)
        keys = jax.random.split(root, len(self.sim.traffic))
        states, constants = [], []
        new_traffic = phase_params.sim.traffic
        sources = zip(self.sim.traffic, keys, state.sim.traffic, new_traffic, strict=True)
        for i, (source, key, old_state, new_params) in enumerate(sources):
            old_params = self.at(params, old_state.phase).sim.traffic[i]
            assert isinstance(source, Stoppable)  # see `__post_init__`
            # A source that could not restart when the phase began tries again in every interval.
            due = begins | (old_state.stop <= 0)
            starts = due & ~source.waits(old_state, old_params, nic)
            fresh = replace(source.init(key, new_params, nic, state.sim.seed), phase=phase_index)
            # A source that still waits keeps its earlier stop, else it would offer flows from after
            # it.
            stop = jnp.where(due, jnp.minimum(old_state.stop, 0.0), old_state.stop)
            stopped = replace(old_state, stop=stop)
            either = partial(jax.tree.map, lambda a, b, go=starts: jnp.where(go, a, b))
            states.append(either(fresh, stopped))
            constants.append(either(new_params, old_params))
        state = replace(state, sim=replace(state.sim, traffic=tuple(states)))
        return state, replace(phase_params, sim=replace(phase_params.sim, traffic=tuple(constants)))


def _stack(*leaves: PyTree) -> np.ndarray | None:
    """Leaves of all phases as one array, None if they are the same.

    Size tables of different lengths are padded with their last point, which does not change them.
    """
    arrays = [np.asarray(x) for x in leaves]
    if len({x.shape for x in arrays}) > 1:
        longest = max(len(x) for x in arrays)
        arrays = [np.pad(x, (0, longest - len(x)), mode="edge") for x in arrays]
    elif all(np.array_equal(x, arrays[0]) for x in arrays):
        return None
    return np.stack(arrays)
