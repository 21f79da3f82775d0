"""The packet simulator behind the interface of `sim.Simulator`: `init`, `collect`, `interval`.

Its state is one of the fluid simulator with the network beside it. So features, rewards, accounts
and metrics are computed by the same functions. It runs on the host: its methods cannot be traced.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from ecn_marl._checks import Flag, check_numbers
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.packets import tables, view
from ecn_marl.packets.arrivals import Arrivals
from ecn_marl.packets.interval import Engine, Interval
from ecn_marl.packets.slots import SLOT
from ecn_marl.sim.config import GO_BACK_N
from ecn_marl.sim.core.delays import Completion
from ecn_marl.sim.core.flow_log import FlowLog
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.core.stats import summarise
from ecn_marl.sim.core.ways import ECMP
from ecn_marl.sim.simulator import Simulator
from ecn_marl.sim.state import PortStats, PortSums, SimParams, SimState


@struct.dataclass
class PacketState(SimState):
    """State of a packet simulation.

    Attributes:
        waiting: flows that wait for a slot.
        engine: the network; None in what is traced.
    """

    waiting: Leaf = 0
    engine: Engine | None = struct.field(pytree_node=False, default=None)


@dataclass(frozen=True)
class PacketSimulator(Simulator):
    """A network packet by packet; settings as of `sim.Simulator`, whose clocks it keeps.

    Ticks are when sources are asked for flows; packets know no clock. Coins of marks are its own.

    Attributes:
        whole_ns: whether the times that packets take are cut to whole nanoseconds, as the HPCC
            simulator has it.

    Raises:
        ValueError: settings that packets do not have, see `refuse`.
    """

    on_host: ClassVar[bool] = True

    whole_ns: Annotated[bool, Flag()] = False

    def __post_init__(self) -> None:
        """Check all fields."""
        super().__post_init__()
        refuse(self)

    @staticmethod
    def of(sim: Simulator, **options: bool) -> PacketSimulator:
        """The packet simulator of the same network, with its own options."""
        shared: dict[str, Any] = {f.name: getattr(sim, f.name) for f in fields(Simulator)}
        return PacketSimulator(**shared | options)

    def init(self, key: jax.Array, params: SimParams) -> PacketState:
        """An empty network at time 0, see `Simulator.init`."""
        check_numbers(params)
        plain = _init(self, key, params)
        seed = int(plain.seed)
        shared = {f.name: getattr(plain, f.name) for f in fields(SimState)}
        return PacketState(
            **shared | {"flow_log": None},  # it grows, so it stands in the engine
            engine=Engine(
                net=tables.network(self, jax.device_get(params), seed, self.whole_ns),
                waiting=Arrivals.none(self.topology.n_levels),
                slots=np.zeros(self.slots, SLOT),
                log=np.full(self.scheduled, np.nan),
            ),
        )

    def collect(
        self,
        state: SimState,
        params: SimParams,
        ecn: Ecn,
        before: Ecn | None = None,
        late_ticks: int = 0,
    ) -> tuple[SimState, PortSums]:
        """Simulate one tuning interval, see `Simulator.collect`. The state given stays as it is."""
        assert isinstance(state, PacketState) and state.engine is not None
        run = Interval(self, state, state.engine, params)
        if before is not None and late_ticks:
            run.set_ecn(before)
            run.advance(late_ticks)
        run.set_ecn(ecn)
        run.advance(run.ticks_left)
        view, sums, engine = run.close()
        return PacketState(**view, engine=engine), sums

    def interval(self, state: SimState, params: SimParams, ecn: Ecn) -> tuple[SimState, PortStats]:
        """Simulate one tuning interval, see `Simulator.interval`."""
        state, sums = self.collect(state, params, ecn)
        return state, _summarise(self, self.traceable(state), params, sums)

    def traceable(self, state: SimState) -> SimState:
        """The state without the network, see `Simulator.traceable`."""
        assert isinstance(state, PacketState)
        bare: SimState = replace(state, engine=None)
        return bare

    def completion(self, state: SimState, params: SimParams) -> Completion:
        """Slowdowns of the measured flows so far, see `delays.completion`."""
        return super().completion(jax.tree.map(jnp.asarray, self.traceable(state)), params)

    def finished(self, state: SimState) -> FlowLog:
        """The flows that have finished, see `Simulator.finished`; all of them find room."""
        assert isinstance(state, PacketState) and state.engine is not None
        return view.log_of(state.engine.ended, self.topology.n_levels)

    def waiting(self, state: SimState, params: SimParams) -> Int[Array, ""]:
        """Flows that have arrived and wait at their hosts for a slot."""
        assert isinstance(state, PacketState)
        return jnp.asarray(state.waiting, jnp.int32)


def refuse(cfg: PacketSimulator) -> None:
    """Raise a ValueError for settings that the packet simulator does not have."""
    known = (
        ("load_balancing", cfg.load_balancing, cfg.load_balancing == ECMP, "ecmp"),
        ("loss_recovery", cfg.loss_recovery, cfg.loss_recovery != GO_BACK_N, "selective or irn"),
        ("failures", cfg.failures, not cfg.failures, "False"),
        ("jitter_us", cfg.jitter_us, cfg.jitter_us == 0.0, "0"),
        ("softness", cfg.softness, cfg.softness == 0.0, "0"),
    )
    for name, value, fits, allowed in known:
        if not fits:
            raise bad_value(name, value, f"{allowed}: packets know nothing else")


_init = jax.jit(Simulator.init, static_argnums=0)
_summarise = jax.jit(summarise, static_argnums=0)
"""Parts of the fluid simulator, on its state."""
