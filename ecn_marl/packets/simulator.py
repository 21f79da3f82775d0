"""The packet simulator behind the interface of `sim.Simulator`: `init`, `collect`, `interval`.

Its state is one of the fluid simulator with the network beside it. So features, rewards, accounts
and metrics are computed by the same functions. It runs on the host: its methods cannot be traced.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from ecn_marl._checks import Flag, check_numbers
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.errors import BrokenInvariant
from ecn_marl.packets import engine, tables, view
from ecn_marl.packets.arrivals import Arrivals, Sources, arrivals_of, draw, reported
from ecn_marl.packets.records import PS_PER_US, Network, with_more_events, with_more_packets
from ecn_marl.packets.slots import LATE, SLOT, close_tick, place
from ecn_marl.sim import flags
from ecn_marl.sim.config import GO_BACK_N
from ecn_marl.sim.delays import Completion
from ecn_marl.sim.queues import Ecn
from ecn_marl.sim.simulator import Simulator
from ecn_marl.sim.sizes import CHUNK
from ecn_marl.sim.state import PortStats, PortSums, SimParams, SimState, Totals
from ecn_marl.sim.stats import summarise
from ecn_marl.sim.tickets import TIME_UNIT, Finished
from ecn_marl.sim.ways import ECMP

MOST_PACKETS = 2**23
"""Packets in the network at most: 8 GB of data, and 350 MB of tables."""

MOST_WAITING = 2**20
"""Flows that wait for a slot at most."""


class Engine(NamedTuple):
    """What the packet simulator has beside the state of the fluid simulator.

    Attributes:
        net: all tables.
        waiting: flows that have begun, and have no slot yet.
        slots: slots at the end of the last tick, `slots.SLOT`, `[F]`.
        log: completion times of scheduled flows, µs, NaN if unfinished, float64 `[N]`.
        deferred: flows that had to wait for a slot.
        deferred_us: for how long, µs.
    """

    net: Network
    waiting: Arrivals
    slots: np.ndarray
    log: np.ndarray
    deferred: int = 0
    deferred_us: float = 0.0


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
        shared = {f.name: getattr(sim, f.name) for f in fields(Simulator)}
        return PacketSimulator(**shared, **options)

    def init(self, key: jax.Array, params: SimParams) -> PacketState:
        """An empty network at time 0, see `Simulator.init`."""
        check_numbers(params)
        plain = jax.device_get(_init(self, key, params))
        seed = int(plain.seed)
        return PacketState(
            **{f.name: getattr(plain, f.name) for f in fields(SimState)},
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
        run = _Interval(self, state, params)
        if before is not None and late_ticks:
            run.set_ecn(before)
        else:
            run.set_ecn(ecn)
        ticks = self.interval_steps // self.tick_steps
        for tick in range(ticks):
            if tick == late_ticks and tick:
                run.set_ecn(ecn)
            run.tick(tick)
        return run.close()

    def interval(self, state: SimState, params: SimParams, ecn: Ecn) -> tuple[SimState, Any]:
        """Simulate one tuning interval, see `Simulator.interval`."""
        state, sums = self.collect(state, params, ecn)
        return state, _summarise(self, self.traceable(state), params, sums)

    def traceable(self, state: SimState) -> SimState:
        """The state without the network, see `Simulator.traceable`."""
        bare: SimState = state.replace(engine=None)
        return bare

    def completion(self, state: SimState, params: SimParams) -> Completion:
        """Slowdowns of the measured flows so far, see `delays.completion`."""
        return super().completion(jax.tree.map(jnp.asarray, self.traceable(state)), params)

    def waiting(self, state: SimState, params: SimParams) -> Int[Array, ""]:
        """Flows that have arrived and wait at their hosts for a slot."""
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


@partial(jax.jit, static_argnums=0)
def _init(cfg: PacketSimulator, key: jax.Array, params: SimParams) -> SimState:
    """The state of the fluid simulator at time 0."""
    return Simulator.init(cfg, key, params)


@partial(jax.jit, static_argnums=0)
def _summarise(
    cfg: PacketSimulator, state: SimState, params: SimParams, sums: PortSums
) -> PortStats:
    return summarise(cfg, state, params, sums)


class _Interval:
    """One tuning interval."""

    def __init__(self, cfg: PacketSimulator, state: PacketState, params: SimParams) -> None:
        assert state.engine is not None
        self.cfg, self.params, self.old = cfg, params, state
        self.net, self.engine = state.engine.net.copy(), state.engine
        self.plain = replace(state, engine=None)
        # Flows are numbered as they are drawn, those that wait among them.
        started = state.totals.started + state.waiting
        totals = replace(state.totals, started=started)
        self.drawing = Sources(state.step, state.seed, state.traffic, totals, state.flags)
        self.empty = view.start_of_interval(cfg, self.plain, params)
        view.clear_counters(self.net)
        ticks, levels = cfg.interval_steps // cfg.tick_steps, cfg.topology.n_levels
        self.slots = np.zeros((ticks, cfg.slots), SLOT)
        self.hops = np.zeros((ticks, cfg.slots, levels), np.int32)
        self.queues = np.zeros((ticks, cfg.n_queues), np.float32)
        self.arrivals, self.at = state.engine.waiting, 0
        self.deferred, self.deferred_us = state.engine.deferred, state.engine.deferred_us
        self.log = state.engine.log.copy()
        self.first_step = int(state.step)
        self.crowded = False
        if not cfg.n_tickets:
            self._draw(ticks, 0)

    def set_ecn(self, ecn: Ecn) -> None:
        """Put thresholds in force."""
        for i, values in enumerate((ecn.kmin, ecn.kmax, ecn.pmax)):
            rows = np.asarray(values, np.float64)
            self.net.ecn[:, :, i] = rows[:, None] if rows.ndim == 1 else rows

    def _draw(self, ticks: int, tick: int) -> None:
        """Ask the sources for the flows of some ticks, from number `tick` on."""
        cfg = self.cfg
        step = self.first_step + tick * cfg.tick_steps
        self.drawing, drawn = draw(cfg, ticks, self.drawing, self.params)
        new = arrivals_of(cfg, jax.device_get(drawn), step, int(self.net.rules["header"][0]))
        new.rows["tick"] += tick
        self.arrivals = (
            self.arrivals.since(self.at).then(new) if self.at else (self.arrivals.then(new))
        )
        self.at = 0
        if len(self.arrivals.rows) > MOST_WAITING:
            allowed = f"a load that leaves at most {MOST_WAITING} flows without a slot"
            raise bad_value("traffic", f"{len(self.arrivals.rows)} waiting flows", allowed)

    def tick(self, tick: int) -> None:
        """Begin the flows of a tick, move packets, and note what has finished."""
        cfg = self.cfg
        if cfg.n_tickets:
            self._draw(1, tick)
        tick_ps = round(cfg.tick_us * PS_PER_US)
        begin = (self.first_step // cfg.tick_steps + tick) * tick_ps
        before = self.at
        # Every flow that begins is an event.
        while len(self.net.heap) < 2 * cfg.slots + self.net.clock["events"][0]:
            self.net = with_more_events(self.net)
        self.at = place(self.net, *self.arrivals, before, tick, begin)
        late = begin - self.arrivals.rows["start"][before : self.at]
        waited = late[late > LATE]
        self.deferred += len(waited)
        self.deferred_us += float(waited.sum()) / PS_PER_US
        rows = self.arrivals.rows
        self.crowded = self.at < len(rows) and bool(rows["tick"][self.at] <= tick)
        while (status := engine.run(self.net, begin + tick_ps)) != engine.UP_TO_DATE:
            self._grow(status)
        close_tick(self.net, begin + tick_ps, self.slots[tick], self.queues[tick])
        self.hops[tick] = self.net.hop
        self._note_finished(tick)

    def _grow(self, status: int) -> None:
        """Make a full table larger."""
        if status == engine.NEEDS_EVENTS:
            self.net = with_more_events(self.net)
            return
        if 2 * len(self.net.packets) > MOST_PACKETS:
            raise BrokenInvariant(
                f"more than {len(self.net.packets)} packets are in the network: its queues grow "
                "without end"
            )
        self.net = with_more_packets(self.net)

    def _note_finished(self, tick: int) -> None:
        """Log what has finished in a tick, and tell the sources of it before the next."""
        slots = self.slots[tick]
        n = self.cfg.n_tickets
        if not n and not len(self.log):
            return
        done = slots[slots["done"] & (slots["stage"] > 0)]
        listed = done[done["flow_id"] >= 0]
        if len(self.log):
            self.log[listed["flow_id"]] = listed["fct"]
        if n:
            with_ticket = done[done["ticket"] >= 0]
            ended, ago = np.zeros(n, bool), np.zeros(n, np.float32)
            ended[with_ticket["ticket"]] = True
            ago[with_ticket["ticket"]] = with_ticket["ago"]
            self.drawing = reported(self.cfg, self.drawing, self.params, Finished(ended, ago))

    def close(self) -> tuple[PacketState, PortSums]:
        """State at the end, and the sums of the interval."""
        cfg, net, clock = self.cfg, self.net, self.net.clock[0]
        ticks = len(self.slots)
        step = self.first_step + (np.arange(ticks, dtype=np.int32) + 1) * cfg.tick_steps
        seen = view.Ticks(
            view.columns(cfg, self.slots, self.hops), self.queues, step.astype(np.int32)
        )
        totals, log, *accrued = view.completed(
            cfg, self.drawing.totals, seen, self.plain.fct_log, self.params
        )
        totals, raised = jax.device_get((totals, self.drawing.flags))
        left = self.arrivals.since(self.at)
        waiting = len(left.rows)
        last = self.slots[-1]
        state = replace(
            self.plain,
            step=step[-1],
            flows=view.flows_of(self.plain.flows, last, net.hop),
            queue=self.queues[-1],
            traffic=self.drawing.traffic,
            totals=self._totals(totals, waiting),
            fct_log=log,
            flags=self._flags(int(raised), clock["spilled"] > 0),
            crowded=np.bool_(self.crowded),
            paused=self._paused(),
            waiting=np.int32(waiting),
            engine=Engine(net, left, last, self.log, self.deferred, self.deferred_us),
        )
        return state, view.port_sums(cfg, net, self.empty, accrued)

    def _flags(self, raised: int, spilled: bool) -> np.uint32:
        """Structures of fixed size that were too small."""
        return np.uint32(raised | self.crowded << flags.SLOTS | int(spilled) << flags.BUFFERS)

    def _paused(self) -> np.ndarray:
        """Which links are paused, per class, `[(H + P) C]`."""
        lanes = self.net.lanes["paused"].reshape(-1, self.cfg.n_classes + 1)
        return np.ascontiguousarray(lanes[:, :-1].reshape(-1))

    def _totals(self, totals: Totals, waiting: int) -> Totals:
        """Counters of the network itself, exact."""
        clock = self.net.clock[0]

        def pair(value: float, unit: float) -> tuple[Any, Any]:
            high, low = divmod(value, unit)
            return np.int32(high), np.float32(low)

        return replace(
            totals,
            started=np.int32(totals.started - waiting),
            offered=pair(int(clock["offered"]), CHUNK),
            delivered=pair(int(clock["delivered"]), CHUNK),
            dropped=pair(int(clock["dropped"]), CHUNK),
            spilled=np.float32(clock["spilled"]),
            pauses=np.int32(clock["pauses"]),
            deferred=np.int32(self.deferred),
            deferred_us=pair(self.deferred_us, TIME_UNIT),
        )
