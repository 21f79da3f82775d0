"""One tuning interval: sources draw flows, packets move, and a state of `sim` comes out."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.errors import BrokenInvariant
from ecn_marl.packets import view
from ecn_marl.packets.arrivals import Arrivals, Sources, arrivals_of, draw, reported
from ecn_marl.packets.engine import NEEDS_EVENTS, UP_TO_DATE
from ecn_marl.packets.records import PS_PER_US, Network, with_more_events, with_more_packets
from ecn_marl.packets.slots import PLACE, SLOT, advance
from ecn_marl.sim.core import flags
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.simulator import Simulator
from ecn_marl.sim.state import PortSums, SimParams, SimState, Totals
from ecn_marl.sim.traffic.sizes import CHUNK
from ecn_marl.sim.traffic.tickets import TIME_UNIT, Finished

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
        ended: flows that have finished, by intervals, if the simulator keeps a log of them.
    """

    net: Network
    waiting: Arrivals
    slots: np.ndarray
    log: np.ndarray
    ended: tuple[view.Ended, ...] = ()


class Interval:
    """An interval in the course of its simulation; what it is given stays as it is.

    Attributes:
        net: the network now.
        ticks_left: ticks until its end.
    """

    def __init__(self, cfg: Simulator, state: SimState, engine: Engine, params: SimParams) -> None:
        self._cfg, self._params, self._first_step = cfg, params, int(state.step)
        self.net, self._times, self._ended = engine.net.copy(), engine.log.copy(), engine.ended
        self._before = cfg.traceable(state)
        # Flows are numbered as they are drawn, those that wait among them.
        started = state.totals.started + cfg.waiting(state, params)
        totals = replace(state.totals, started=started)
        self._sources = Sources(
            state.step, state.seed, state.traffic, totals, state.flags, state.places
        )
        self._empty = view.start_of_interval(cfg, self._before, params)
        view.clear_counters(self.net)
        ticks, levels = cfg.interval_steps // cfg.tick_steps, cfg.topology.n_levels
        self._log = (
            np.zeros((ticks, cfg.slots), SLOT),
            np.zeros((ticks, cfg.slots, levels), np.int32),
            np.zeros((ticks, cfg.n_queues), np.float32),
        )
        self._place = np.zeros(1, PLACE)
        length = round(cfg.tick_us * PS_PER_US)
        self._place["length"], self._place["steps"] = length, cfg.tick_steps
        self._place["start"] = self._first_step // cfg.tick_steps * length
        self._arrivals = engine.waiting
        if not cfg.n_tickets:
            self._draw(0, ticks)

    @property
    def ticks_left(self) -> int:
        """Ticks until the end of the interval."""
        return len(self._log[0]) - int(self._place["tick"][0])

    def set_ecn(self, ecn: Ecn) -> None:
        """Put thresholds in force."""
        for i, values in enumerate((ecn.kmin, ecn.kmax, ecn.pmax)):
            rows = np.asarray(values, np.float64)
            self.net.ecn[:, :, i] = rows[:, None] if rows.ndim == 1 else rows

    def advance(self, ticks: int) -> None:
        """Simulate so many ticks more, one by one if the sources wait for flows to end."""
        first = int(self._place["tick"][0])
        if not self._cfg.n_tickets:
            self._run(first + ticks)
            return
        for tick in range(first, first + ticks):
            self._draw(tick, 1)
            self._run(tick + 1)
            self._report(tick)

    def _run(self, last: int) -> None:
        """Simulate up to a tick."""
        self._place["last"] = last
        while (status := advance(self.net, *self._arrivals, self._place, self._log)) != UP_TO_DATE:
            if status == NEEDS_EVENTS:
                self.net = with_more_events(self.net)
                continue
            n = len(self.net.packets)
            if 2 * n > MOST_PACKETS:
                reason = "its queues grow without end"
                raise BrokenInvariant(f"more than {n} packets are in the network: {reason}")
            self.net = with_more_packets(self.net)

    def _draw(self, tick: int, ticks: int) -> None:
        """Ask the sources for the flows of some ticks."""
        cfg = self._cfg
        step = self._first_step + tick * cfg.tick_steps
        self._sources, drawn = draw(cfg, ticks, self._sources, self._params)
        new = arrivals_of(cfg, jax.device_get(drawn), step, int(self.net.rules["header"][0]))
        new.rows["tick"] += tick
        self._arrivals = self._arrivals.since(int(self._place["at"][0])).then(new)
        self._place["at"] = 0
        if len(self._arrivals.rows) > MOST_WAITING:
            allowed = f"a load that leaves at most {MOST_WAITING} flows without a slot"
            raise bad_value("traffic", f"{len(self._arrivals.rows)} waiting flows", allowed)

    def _report(self, tick: int) -> None:
        """Tell the sources which flows have finished in a tick."""
        slots, n = self._log[0][tick], self._cfg.n_tickets
        done = slots[slots["done"] & (slots["ticket"] >= 0)]
        ended, ago = np.zeros(n, bool), np.zeros(n, np.float32)
        ended[done["ticket"]] = True
        ago[done["ticket"]] = done["ago"]
        ends = Finished(ended, ago)
        self._sources = reported(self._cfg, self._sources, self._params, ends)

    def close(self) -> tuple[dict[str, Any], PortSums, Engine]:
        """Fields of the state at the end, the sums of the interval, and what stands beside."""
        cfg, net = self._cfg, self.net
        slots, hops, queues = self._log
        step = self._first_step + (np.arange(len(slots)) + 1) * cfg.tick_steps
        ticks = view.Ticks(view.columns(cfg, slots, hops), queues, step.astype(np.int32))
        totals, fct_log, *accrued = view.completed(
            cfg, self._sources.totals, ticks, self._before.fct_log, self._params
        )
        self._note_times()
        if cfg.flow_log:
            self._ended = (*self._ended, view.ended(slots, hops, step))
        left = self._arrivals.since(int(self._place["at"][0]))
        totals, raised = jax.device_get((totals, self._sources.flags))
        state = {f.name: getattr(self._before, f.name) for f in fields(SimState)} | {
            "step": ticks.step[-1],
            "flows": view.flows_of(self._before.flows, slots[-1], net.hop),
            "queue": queues[-1],
            "traffic": self._sources.traffic,
            "totals": self._totals(totals, len(left.rows)),
            "fct_log": fct_log,
            "flags": self._flags(int(raised)),
            "crowded": np.bool_(self._place["crowded"][0]),
            "paused": self._paused(),
            "waiting": np.int32(len(left.rows)),
        }
        engine = Engine(net, left, slots[-1], self._times, self._ended)
        return state, view.port_sums(cfg, net, self._empty, accrued), engine

    def _note_times(self) -> None:
        """Log the completion times of scheduled flows; exact, as the log of `sim` is not."""
        if len(self._times):
            slots = self._log[0]
            listed = slots[slots["done"] & (slots["flow_id"] >= 0)]
            self._times[listed["flow_id"]] = listed["fct"]

    def _flags(self, raised: int) -> np.uint32:
        """Structures of fixed size that were too small."""
        crowded, spilled = self._place["was_crowded"][0], self.net.clock["spilled"][0] > 0
        return np.uint32(raised | int(crowded) << flags.SLOTS | int(spilled) << flags.BUFFERS)

    def _paused(self) -> np.ndarray:
        """Which links are paused, per class, `[(H + P) C]`."""
        lanes = self.net.lanes["paused"].reshape(-1, self._cfg.n_classes + 1)
        return np.ascontiguousarray(lanes[:, :-1].reshape(-1))

    def _totals(self, totals: Totals, waiting: int) -> Totals:
        """Counters, those of the network itself exact."""
        clock = self.net.clock[0]

        def pair(value: Any, unit: float) -> tuple[np.int32, np.float32]:
            high, low = divmod(float(value), unit)
            return np.int32(high), np.float32(low)

        return replace(
            totals,
            started=np.int32(totals.started - waiting),
            offered=pair(clock["offered"], CHUNK),
            delivered=pair(clock["delivered"], CHUNK),
            dropped=pair(clock["dropped"], CHUNK),
            spilled=np.float32(clock["spilled"]),
            pauses=np.int32(clock["pauses"]),
            deferred=np.int32(clock["deferred"]),
            deferred_us=pair(clock["deferred_ps"] / PS_PER_US, TIME_UNIT),
        )
