"""The simulator: one substep, one tick, one tuning interval.

Three clocks. A *substep* (`dt_us`) moves senders and queues. A *tick* of a few substeps admits and
completes flows and refreshes what changes slowly: ACK load, feedback delays, PFC. A *tuning
interval* of several ticks is the time between two actions of agents; it is one compiled loop.

Everything is a pure function of `(state, params, ecn)`; a `Simulator` only holds settings that fix
shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Int, PyTree

from ecn_marl._checks import check_numbers
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim import feedback as fb
from ecn_marl.sim.config import GO_BACK_N, MAX_TICK, SimConfig, TrafficClass, base_rtt
from ecn_marl.sim.core import (
    arrivals,
    counts,
    delays,
    fifo,
    flags,
    flow_log,
    flowlets,
    pfc,
    recovery,
    slots,
    stats,
    ways,
)
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.failures import NEVER, links_up, reroute, reroute_ways
from ecn_marl.sim.core.queues import Ecn, scaled_ecn
from ecn_marl.sim.core.slots import segment_sum
from ecn_marl.sim.core.substep import substep
from ecn_marl.sim.core.tick import Tick, prepare
from ecn_marl.sim.state import Flows, NetParams, PortStats, PortSums, SimParams, SimState, Totals
from ecn_marl.sim.traffic import tickets
from ecn_marl.sim.traffic.base import program_of
from ecn_marl.sim.traffic.placement import draw_places
from ecn_marl.sim.traffic.sizes import CHUNK, HEADER, PAYLOAD, exact_add
from ecn_marl.sim.units import GBPS, MIB

__all__ = [
    "MAX_TICK",
    "Ecn",
    "PortStats",
    "SimParams",
    "SimState",
    "Simulator",
    "TrafficClass",
    "scaled_ecn",
]

RESERVE = 4 * 1024
"""Buffer that PFC guarantees every ingress, bytes."""


@dataclass(frozen=True)
class Simulator(SimConfig):
    """A network with its senders and traffic; static, hashable, and free of arrays.

    See `SimConfig` for its fields.

    `on_host` is whether `init` and `collect` run on the host, so that they cannot be traced; see
    `ecn_marl.packets`.
    """

    on_host: ClassVar[bool] = False

    def default_params(self, *, traffic: tuple[PyTree, ...] = ()) -> SimParams:
        """Traced parameters: the topology's rates and delays, presets, PFC as switches ship it.

        PFC follows the HPCC simulator's switch: `alpha = 1/8` for links up to the rate of the
        slowest NIC, doubled with every doubling of the rate (or `pfc_alpha`), 4 KB reserve, 3 KB
        hysteresis. Headroom holds three link delays at line rate, as there. Bytes that can arrive
        in a tick, the time between two PFC decisions here, are added in `pfc.police`.

        Args:
            traffic: parameters of the sources in place of their defaults, e.g. a schedule; None for
                a source whose parameters do not matter.

        Raises:
            ValueError: a buffer that the headroom of a switch's ingresses fills: it would pause
                them for ever; or flows whose hosts or paths the network does not have.
        """
        t = self.topology
        port_rate = np.array([p.gbps for p in t.ports]) * GBPS
        nic_rate = np.array(t.nic_gbps) * GBPS
        delay = np.array([p.delay_us for p in t.ports])
        nic_delay = np.array(t.nic_delay_us)
        rate = np.concatenate([nic_rate, port_rate])
        # The logarithm of a doubling may come out just below a whole number.
        doublings = np.maximum(np.floor(np.log2(rate / nic_rate.min()) + 1e-9), 0.0)
        headroom = rate * 3.0 * np.concatenate([nic_delay, delay])
        self.check_buffer(headroom + RESERVE)
        real = np.dtype(jnp.result_type(float))
        net = NetParams(
            port_rate=port_rate.astype(real),
            port_delay=delay.astype(real),
            nic_rate=nic_rate.astype(real),
            nic_delay=nic_delay.astype(real),
            buffer=np.full(t.n_switches, self.buffer_mib * MIB, real),
            pfc_alpha=self._alpha(doublings).astype(real),
            headroom=headroom.astype(real),
            reserve=real.type(RESERVE),
            resume_gap=real.type(3 * 1024),
            ack_bytes=real.type(60.0),
            packet_bytes=real.type(PAYLOAD + HEADER + self.transport.header),
            edge=np.array(t.edge, np.int32),
            routes=t.routes,
            n_paths=t.n_paths,
            last=t.last,
            base_rtt=real.type(base_rtt(t)),
            fail_step=np.full(t.n_ports, NEVER, np.int32) if self.failures else None,
            repair_step=np.full(t.n_ports, NEVER, np.int32) if self.failures else None,
        )
        sources = traffic or tuple(s.default_params() for s in self.traffic)
        if len(sources) != len(self.traffic):
            raise bad_value(
                "traffic", f"{len(sources)} parameters", f"{len(self.traffic)}: one of each source"
            )
        for source, of_source in zip(self.traffic, sources, strict=True):
            if of_source is not None and hasattr(source, "check_params"):
                source.check_params(of_source, t)
        always = (np.int32(0), np.int32(NEVER))
        params = SimParams(net, self.transport.default_params(), sources, always)
        params = jax.tree.map(lambda x: np.asarray(x, real if np.ndim(x) == 0 else None), params)
        return replace(params, window=always)  # substeps stay whole numbers

    def _alpha(self, doublings: np.ndarray) -> np.ndarray:
        """Share of the free buffer that each ingress may take, `[H + P]`."""
        if self.pfc_alpha is not None:
            return np.full_like(doublings, self.pfc_alpha)
        return np.minimum(2.0 ** (doublings - 3.0), 1.0)

    @property
    def program(self) -> Simulator:
        """The simulator without the numbers that only `default_params` reads.

        Its functions are the same, and it equals the program of a simulator with, say, another
        load: compiled code of one serves the other.
        """
        traffic = tuple(program_of(source) for source in self.traffic)
        return replace(self, traffic=traffic, buffer_mib=1.0, pfc_alpha=None)

    def check_buffer(self, set_aside: np.ndarray) -> None:
        """Refuse a buffer without a byte to share.

        Args:
            set_aside: bytes that each ingress keeps for itself, PFC's headroom and reserve,
                `[H + P]`: those of hosts' links first.

        Raises:
            ValueError: `buffer_mib` is not above what a switch sets aside.
        """
        t = self.topology
        per_switch = np.bincount(t.link_switch(), set_aside, t.n_switches + 1)[: t.n_switches]
        needed = per_switch.max() * sum(self.lossless) / MIB
        if self.buffer_mib <= needed:
            allowed = f"more than the PFC headroom and reserves of a switch, {needed:.3g} MiB"
            raise bad_value("buffer_mib", self.buffer_mib, allowed)

    def init(self, key: jax.Array, params: SimParams) -> SimState:
        """An empty network at time 0.

        Args:
            key: PRNG key; fixes traffic, paths and marking coins.
            params: parameters.

        Raises:
            InvalidValue: a parameter out of its range, unless the function is being compiled.
        """
        check_numbers(params)
        t, real = self.topology, jnp.result_type(float)
        keys = jax.random.split(key, len(self.traffic) + 1)
        links = (t.n_hosts + t.n_ports) * self.n_classes
        queues = jnp.zeros((self.n_queues,), real)
        seed = jax.random.bits(keys[-1], (), jnp.uint32)
        return SimState(
            step=jnp.zeros((), jnp.int32),
            seed=seed,
            flows=self.empty_flows(),
            pool=jnp.zeros((2, self.n_queues), real),
            ack_rate=queues,
            nic_acks=jnp.zeros((t.n_hosts,), real),
            echo=fb.empty_echo(self.transport.needs, self.slots, self.n_queues, self.memory, real),
            level=jnp.asarray(params.net.nic_rate, real),
            queue=queues,
            batches=fifo.empty(self.n_queues, real),
            sent=queues,
            paused=jnp.zeros((links,), bool),
            full=jnp.zeros((links,), bool),
            traffic=self._sources(keys, params, seed),
            totals=self._no_totals(),
            fct_log=jnp.full((self.scheduled,), jnp.nan, real) if self.scheduled else None,
            flags=flags.raised(flags.none(), flags.NUMBERS, flags.has_nan(params)),
            crowded=jnp.zeros((), bool),
            pace=None if self.n_classes == 1 else self._full_pace(params),
            flow_log=self._empty_log(real) if self.flow_log else None,
            places=draw_places(seed, self.placement, t.n_hosts) if self.placement else None,
        )

    def empty_flows(self) -> Flows:
        """Free slots, with the fields that tickets, go-back-N and flowlets need."""
        real = jnp.result_type(float)
        transport = self.transport.init(self.slots, real, self.topology.n_levels)
        gaps = recovery.empty(self.slots, real) if self.loss_recovery == GO_BACK_N else None
        flows = life.empty_flows(
            self.slots,
            self.topology.n_levels,
            self.mark_words,
            transport,
            real,
            self.n_tickets > 0,
            (self.n_ways, self.n_ways_back),
            self.coarse // self.fine,
        )
        if self.redraws:
            flows = replace(flows, flowlets=flowlets.empty(self.slots, real))
        return replace(flows, gaps=gaps)

    def _empty_log(self, real: DTypeLike) -> flow_log.FlowLog:
        """A log of finished flows without any."""
        return flow_log.empty(self.flow_log, self.n_ways * self.topology.n_levels, real)

    def _sources(self, keys: jax.Array, params: SimParams, seed: Array) -> tuple[PyTree, ...]:
        """States of the traffic sources at the start."""
        nic = jnp.asarray(params.net.nic_rate)
        states = [
            s.init(k, p, nic, seed)
            # There is one key more than sources: the last one seeded the flows.
            for s, k, p in zip(self.traffic, keys, params.traffic, strict=False)
        ]
        return tickets.report_finished(
            self.traffic, states, params.traffic, nic, None, self.tick_us
        )

    def load(self, state: SimState) -> Int[Array, ""]:
        """Number of slots up to the last one in use, a scalar; 0 where no flow is in progress.

        The larger it is, the longer an interval takes in `ecn_marl.lanes`, so networks of similar
        loads share a vector.
        """
        slots = jnp.arange(1, self.slots + 1)
        return jnp.max(jnp.where(state.flows.stage == life.FREE, 0, slots))

    def _full_pace(self, params: SimParams) -> Array:
        """Pace of empty queues, `[Q]`."""
        return jnp.repeat(jnp.asarray(params.net.port_rate), self.n_classes)

    def _no_totals(self) -> Totals:
        """Counters at the start."""
        zero, count = jnp.zeros((), jnp.result_type(float)), jnp.zeros((), jnp.int32)
        by_class = (jnp.zeros((3,), jnp.int32), jnp.zeros((3,), zero.dtype))
        return Totals(
            offered=(count, zero),
            delivered=(count, zero),
            dropped=(count, zero),
            spilled=zero,
            started=count,
            finished=jnp.zeros((3,), jnp.int32),
            begun=jnp.zeros((3,), jnp.int32),
            measured=jnp.zeros((3,), jnp.int32),
            slowdown=by_class,
            log_slowdown=by_class,
            histogram=jnp.zeros((3 * self.bins,), jnp.int32) if self.bins else None,
            deferred=count,
            deferred_us=(count, zero),
            pauses=count,
            late_feedback=(count, zero),
            flow_ticks=(count, zero),
            flowlets=(count, count) if self.redraws else None,
        )

    def interval(self, state: SimState, params: SimParams, ecn: Ecn) -> tuple[SimState, PortStats]:
        """Simulate one tuning interval under fixed thresholds.

        Args:
            state: state at its start.
            params: parameters.
            ecn: thresholds of every port, `[P]`, or of every port and traffic class, `[P, C]`.

        Returns:
            State at its end, and the ports' statistics over it.
        """
        state, sums = self.collect(state, params, ecn)
        return state, stats.summarise(self, state, params, sums)

    def collect(
        self,
        state: SimState,
        params: SimParams,
        ecn: Ecn,
        before: Ecn | None = None,
        late_ticks: int = 0,
    ) -> tuple[SimState, PortSums]:
        """Simulate one tuning interval, and return the sums behind its statistics.

        Sums of several intervals make statistics of a longer time, see `stats.merge`.

        Args:
            state: state at its start.
            params: parameters.
            ecn: thresholds, `[P]` or `[P, C]`.
            before: thresholds of the first `late_ticks` ticks, of the same shapes.
            late_ticks: ticks after which `ecn` replaces `before`.
        """
        after: tuple[SimState, PortSums] = self._ticks(state, params, ecn, before, late_ticks)
        return after

    @partial(jax.jit, static_argnums=(0, 5), inline=True)
    def _ticks(
        self, state: SimState, params: SimParams, ecn: Ecn, before: Ecn | None, late_ticks: int
    ) -> tuple[SimState, PortSums]:
        """`collect`, traced once for all programs that step the same network."""
        # Parameters may be numpy arrays, which traced numbers cannot index.
        params = jax.tree.map(jnp.asarray, params)

        def step(carry: tuple[SimState, PortSums], _: None) -> tuple[PyTree, None]:
            thresholds = ecn
            if before is not None and late_ticks:
                spent = carry[0].step - state.step
                old_in_force = spent < late_ticks * self.tick_steps
                thresholds = jax.tree.map(
                    lambda old, new: jnp.where(old_in_force, old, new), before, ecn
                )
            return self._tick(*carry, params, thresholds), None

        ticks = self.interval_steps // self.tick_steps
        start = (state, stats.empty_sums(self, state, params))
        (state, sums), _ = jax.lax.scan(step, start, None, length=ticks)
        # Once per interval: a counter that has wrapped stays negative for long.
        wrapped = flags.wrapped((state.step, state.totals))
        state = replace(state, flags=flags.raised(state.flags, flags.COUNTERS, wrapped))
        return state, stats.closed(sums)

    def _tick(
        self, state: SimState, sums: PortSums, params: SimParams, ecn: Ecn
    ) -> tuple[SimState, PortSums]:
        """Admit, run the substeps, complete, and refresh what changes slowly."""
        net, c = params.net, self.n_classes
        state, new, busy = self._admit(state, params)
        # New flows have paths that work.
        if self.failures:
            state = self._reroute(state, net, busy & ~new)
        if self.redraws:
            state = self._redraw(state, net, busy & ~new)
        tick, state = prepare(self, state, params, ecn, busy)
        start = state.flows
        express: Array | float = 0.0
        if self.ack_priority:
            express = jnp.minimum(state.ack_rate.reshape(-1, c).sum(1), net.port_rate)
        sums = replace(
            sums,
            sent=sums.sent + express * self.tick_us,
            paused=sums.paused + pfc.paused_ports(self, state) * self.tick_us,
        )
        no_bytes = jnp.zeros((3,), state.queue.dtype)

        def step(carry: PyTree, _: None) -> tuple[PyTree, None]:
            return self._substep(carry[0], carry[1], carry[2], tick), None

        carry: PyTree = (state, sums, no_bytes)
        # Not unrolled: XLA computed shared parts again for every reader, which was slower.
        (state, sums, slotless), _ = jax.lax.scan(step, carry, None, length=self.tick_steps)
        moved = state.flows
        if any(self.lossless):
            lost = pfc.spilled(self, state.full, slotless[1])
            totals = replace(state.totals, spilled=state.totals.spilled + lost)
            raised = flags.raised(state.flags, flags.BUFFERS, lost > 0)
            state = replace(state, totals=totals, flags=raised)
        state, sums = self._complete(state, sums, params, tick, slotless)
        tick_slots = counts.FlowsOfTick(start, moved, state.flows, new, busy)
        sums = replace(sums, counts=counts.add(self, sums.counts, tick_slots, net))
        return pfc.police(self, state, net), sums

    def _complete(
        self, state: SimState, sums: PortSums, params: SimParams, tick: Tick, slotless: Array
    ) -> tuple[SimState, PortSums]:
        """Complete flows, free their slots, and count the bytes that the tick delivered.

        `slotless` is bytes of released flows that left, bytes dropped, and bytes to be sent again,
        see `substep`.
        """
        net = params.net
        before, totals = state.flows, state.totals
        flows, totals, fct_log = life.finish(
            before, totals, state.step, self.dt_us, state.fct_log, params.window, self.tick_us
        )
        if self.flow_log:
            done = (flows.stage == life.DONE) & (before.stage != life.DONE)
            log = flow_log.append(state.flow_log, flows, done, state.step)
            state = replace(state, flow_log=log)
        if self.accrue:
            queues = delays.Queues(state.step, state.queue, state.pace)
            cost, progress = delays.accrued(self, queues, net, before, flows, tick.busy)
            sums = replace(sums, accrued=sums.accrued + cost, progress=sums.progress + progress)
        traffic = state.traffic
        if self.n_tickets:
            ends = tickets.finished(flows, before, self.n_tickets)
            traffic = tickets.report_finished(
                self.traffic, traffic, params.traffic, net.nic_rate, ends, self.tick_us
            )
        flows, pool = life.release(flows, state.pool, net.packet_bytes, self.queue_bounds)
        # Free slots hold zeros: the masks let `lanes` skip them, see `slots.in_use`.
        arrived = jnp.where(tick.busy, flows.delivered, 0.0)
        share = net.ack_bytes / net.packet_bytes / self.tick_us
        acks = jnp.where(tick.busy, flows.delivered * share, 0.0)
        delivered = arrived.sum() + slotless[0]
        totals = replace(
            totals,
            delivered=exact_add(*totals.delivered, delivered, CHUNK),
            dropped=exact_add(*totals.dropped, slotless[1], CHUNK),
            offered=exact_add(*totals.offered, slotless[2], CHUNK),
            flow_ticks=exact_add(
                *totals.flow_ticks, tick.busy.sum().astype(flows.tail.dtype), CHUNK
            ),
        )
        state = replace(
            state,
            flows=slots.kept(life.counted(flows), before, tick.busy),
            totals=totals,
            fct_log=fct_log,
            traffic=traffic,
            pool=pool,
            ack_rate=self._ack_rate(acks, flows.back),
            nic_acks=segment_sum(acks, flows.dst, self.topology.n_hosts),
        )
        return state, sums

    def _ack_rate(self, acks: Array, back: Array) -> Leaf:
        """ACKs that arrive at each queue, bytes/µs, `[Q]`, from those of each flow, `[F]`."""
        w, n = self.n_ways_back, self.n_queues
        if w == 1:
            return sum(segment_sum(acks, row, n) for row in back)
        used = back[-w:] < n
        per_way = jnp.where(used, acks / jnp.maximum(used.sum(0), 1), 0.0).reshape(-1)
        rows = range(self.topology.n_levels)
        return sum(segment_sum(per_way, ways.level(back, i, w), n) for i in rows)

    def _reroute(self, state: SimState, net: NetParams, used: Array) -> SimState:
        """Move flows off links that are down; see `failures.reroute`."""
        args = (used, net, state.step, state.seed, self.queue_bounds, self.n_classes)
        if self.n_ways == 1:
            moved = reroute(state.flows, *args)
        else:
            moved = reroute_ways(state.flows, *args, self.n_ways_back)
        totals, old, new = state.totals, state.flows, moved.flows
        again = (new.rest_high - old.rest_high) * CHUNK + (new.rest_low - old.rest_low)
        totals = replace(
            totals,
            dropped=exact_add(*totals.dropped, moved.lost.sum(), CHUNK),
            offered=exact_add(*totals.offered, again.sum(), CHUNK),
            delivered=exact_add(*totals.delivered, moved.passed, CHUNK),
        )
        echo = fb.lose(state.echo, moved.lost, net.packet_bytes)
        return replace(state, flows=moved.flows, totals=totals, echo=echo)

    def _redraw(self, state: SimState, net: NetParams, used: Array) -> SimState:
        """Draw paths for flows that have paused; see `flowlets.redraw`."""
        gap_us, bounds = self.flowlet_gap_us, self.queue_bounds
        up = links_up(net, state.step) if self.failures else None
        flows, *events = flowlets.redraw(
            state.flows, used, net, state.seed, gap_us, bounds, self.n_classes, up
        )
        kept = flags.raised(state.flags, flags.WAYS, events[1].any())
        counters = zip(state.totals.flowlets or (), events, strict=True)
        updated = tuple(n + w.sum().astype(jnp.int32) for n, w in counters)
        totals = replace(state.totals, flowlets=updated)
        return replace(state, flows=flows, totals=totals, flags=kept)

    # Methods, not calls of the functions: `speed.stages` leaves these stages out to time them.

    def _admit(self, state: SimState, params: SimParams) -> tuple[SimState, Array, Array]:
        """Move arrivals of this tick into slots, see `arrivals.admit`."""
        return arrivals.admit(self, state, params)

    def _substep(
        self, state: SimState, sums: PortSums, slotless: Array, tick: Tick
    ) -> tuple[SimState, PortSums, Array]:
        """Move senders and queues by `dt_us`."""
        return substep(self, state, sums, slotless, tick)

    def traceable(self, state: SimState) -> SimState:
        """The part of a state that functions which are traced may be given."""
        return state

    def finished(self, state: SimState) -> flow_log.FlowLog:
        """The flows that have finished, if the simulator keeps a log of them (`flow_log`)."""
        log: flow_log.FlowLog = state.flow_log
        return log

    def waiting(self, state: SimState, params: SimParams) -> Int[Array, ""]:
        """Flows that have arrived and wait at their hosts for a slot, see `arrivals.waiting`."""
        return arrivals.waiting(self, state, params)

    def completion(self, state: SimState, params: SimParams) -> delays.Completion:
        """Slowdowns of the measured flows so far, see `delays.completion`."""
        return delays.completion(self, state, params)
