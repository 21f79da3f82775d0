"""The simulator: one substep, one tick, one tuning interval.

Three clocks. A *substep* (`dt_us`) moves senders and queues. A *tick* of a few substeps admits and
completes flows and refreshes what changes slowly: ACK load, feedback delays, PFC. A *tuning
interval* of several ticks is what agents act on; it is one compiled loop.

Everything is a pure function of `(state, params, ecn)`; a `Simulator` only holds what fixes shapes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ecn_marl._errors import bad_value
from ecn_marl.sim import feedback as fb
from ecn_marl.sim import flows as fl
from ecn_marl.sim.queues import Ecn, exact_add, look_up, pfc, segment_sum
from ecn_marl.sim.state import (
    Flows,
    NetParams,
    PortStats,
    PortSums,
    SimParams,
    SimState,
    Totals,
)
from ecn_marl.sim.substep import Tick, advance_clocks, forward, send
from ecn_marl.sim.topology import GBPS, KB, MIB, Topology
from ecn_marl.sim.traffic import CHUNK, HEADER, PAYLOAD, Offer, packet_count, wire_bytes
from ecn_marl.sim.transports import Dcqcn, Transport

__all__ = ["Ecn", "PortStats", "SimParams", "SimState", "Simulator", "scaled_ecn"]

ELEPHANT = 1e6
"""Bytes sent above which a flow counts as an elephant (PET, §4.2.1)."""

MAX_TICK = 32
"""Most substeps per tick: the near part of the delay line of the CNPs has 32 bits."""


@dataclass(frozen=True)
class Simulator:
    """A network with its senders and traffic; static, hashable, and free of arrays.

    Attributes:
        topology: the network.
        transport: the senders.
        traffic: traffic sources, their flows share the slots.
        dt_us: substep, µs.
        tick_steps: substeps per tick.
        interval_steps: substeps per tuning interval, a multiple of `tick_steps`.
        slots: flows in progress at most; further ones wait at their hosts and are counted.
        scheduled: length of the completion-time log (the flows of a `Schedule`), 0 for none.
        bins: bins of the slowdown histogram per size class, 0 for none.
        pfc: pause upstream links when buffers fill; without it full buffers drop.
        ack_priority: ACKs and CNPs ride in a class of their own instead of the data queues.
        count_senders: whether `PortStats.n_senders` counts distinct senders (else it is 0).
        buffer_mib: default shared buffer of each switch, MiB.
        memory_us: how far back feedback other than single marks can reach, µs; longer ones are cut
            to it, and counted.
        softness: width over which the marking curve is rounded, bytes; 0 for RED as it is.
    """

    topology: Topology
    traffic: tuple[Any, ...]
    transport: Transport = field(default_factory=Dcqcn)
    dt_us: float = 1.0
    tick_steps: int = 5
    interval_steps: int = 100
    slots: int = 256
    scheduled: int = 0
    bins: int = 160
    pfc: bool = True
    ack_priority: bool = False
    count_senders: bool = True
    buffer_mib: float = 32.0
    memory_us: float = 256.0
    softness: float = 0.0

    def __post_init__(self) -> None:
        """Check sizes and clocks."""
        if not self.dt_us > 0:
            raise bad_value("dt_us", self.dt_us, "a substep > 0 µs")
        if not 1 <= self.tick_steps <= MAX_TICK:
            raise bad_value("tick_steps", self.tick_steps, f"an integer from 1 to {MAX_TICK}")
        if self.interval_steps < 1 or self.interval_steps % self.tick_steps:
            raise bad_value(
                "interval_steps", self.interval_steps, f"a multiple of tick_steps={self.tick_steps}"
            )
        if self.slots < 1:
            raise bad_value("slots", self.slots, "an integer >= 1")
        if not self.buffer_mib > 0:
            raise bad_value("buffer_mib", self.buffer_mib, "a buffer > 0 MiB")

    @property
    def tick_us(self) -> float:
        """Length of a tick, µs."""
        return self.dt_us * self.tick_steps

    @property
    def interval_us(self) -> float:
        """Length of a tuning interval, µs."""
        return self.dt_us * self.interval_steps

    @property
    def coarse(self) -> int:
        """Substeps per bit of the far part of the feedback delay line."""
        return self.tick_steps * max(1, 20 // self.tick_steps)

    @property
    def memory(self) -> int:
        """Substeps of feedback history."""
        return math.ceil(self.memory_us / self.dt_us)

    def default_params(self, **traffic: Any) -> SimParams:
        """Traced parameters: the topology's rates and delays, presets, PFC as switches ship it.

        PFC follows the HPCC simulator's switch: `alpha = 1/8` for links at the slowest rate,
        doubled with every doubling of the rate, 4 KB reserve, 3 KB hysteresis. Headroom holds three
        link delays at line rate, as there, and what can arrive in one tick, the time between two
        PFC decisions here.

        Args:
            **traffic: `traffic=(...)` to replace the sources' parameters, e.g. with a schedule.
        """
        t = self.topology
        port_rate = np.array([p.gbps for p in t.ports]) * GBPS
        nic_rate = np.array(t.nic_gbps) * GBPS
        delay = np.array([p.delay_us for p in t.ports])
        nic_delay = np.array(t.nic_delay_us)
        rate = np.concatenate([nic_rate, port_rate])
        doublings = np.floor(np.log2(rate / rate.min()) + 1e-9)
        headroom = rate * (3.0 * np.concatenate([nic_delay, delay]) + self.tick_us)
        real = np.dtype(jnp.result_type(float))
        net = NetParams(
            port_rate=port_rate.astype(real),
            port_delay=delay.astype(real),
            nic_rate=nic_rate.astype(real),
            nic_delay=nic_delay.astype(real),
            buffer=np.full(t.n_switches, self.buffer_mib * MIB, real),
            pfc_alpha=np.minimum(2.0 ** (doublings - 3.0), 1.0).astype(real),
            headroom=headroom.astype(real),
            reserve=real.type(4 * 1024),
            resume_gap=real.type(3 * 1024),
            ack_bytes=real.type(60.0),
            packet_bytes=real.type(PAYLOAD + HEADER + self.transport.header),
            edge=np.array(t.edge, np.int32),
            routes=t.routes,
            n_paths=t.n_paths,
            base_rtt=real.type(_base_rtt(t)),
        )
        sources = traffic.get("traffic") or tuple(s.default_params() for s in self.traffic)
        params = SimParams(net, self.transport.default_params(), sources)
        return jax.tree.map(lambda x: np.asarray(x, real if np.ndim(x) == 0 else None), params)

    def init(self, key: jax.Array, params: SimParams) -> SimState:
        """An empty network at time 0.

        Args:
            key: PRNG key; fixes traffic, paths and marking coins.
            params: parameters.
        """
        t, real = self.topology, jnp.result_type(float)
        keys = jax.random.split(key, len(self.traffic) + 1)
        transport = self.transport.init(self.slots, real, t.n_levels)
        zero, none = jnp.zeros((), real), jnp.zeros((), jnp.int32)
        ports, links = jnp.zeros((t.n_ports,), real), t.n_hosts + t.n_ports
        return SimState(
            step=none,
            seed=jax.random.bits(keys[-1], (), jnp.uint32),
            flows=fl.empty_flows(self.slots, t.n_levels, transport, real),
            pool=jnp.zeros((2, t.n_ports), real),
            ack_rate=ports,
            nic_acks=jnp.zeros((t.n_hosts,), real),
            echo=fb.empty_echo(self.transport.needs, self.slots, t.n_ports, self.memory, real),
            level=jnp.asarray(params.net.nic_rate, real),
            queue=ports,
            paused=jnp.zeros((links,), bool),
            full=jnp.zeros((links,), bool),
            traffic=tuple(
                s.init(k, p, jnp.asarray(params.net.nic_rate))
                for s, k, p in zip(self.traffic, keys, params.traffic, strict=False)
            ),
            totals=Totals(
                offered=(none, zero),
                delivered=(none, zero),
                dropped=(none, zero),
                started=none,
                finished=jnp.zeros((3,), jnp.int32),
                slowdown=jnp.zeros((3,), real),
                histogram=jnp.zeros((3, self.bins), jnp.int32),
                deferred=none,
                deferred_us=zero,
                pauses=none,
                late_feedback=none,
            ),
            fct_log=jnp.full((self.scheduled,), jnp.nan, real),
        )

    def interval(self, state: SimState, params: SimParams, ecn: Ecn) -> tuple[SimState, PortStats]:
        """Simulate one tuning interval under fixed thresholds.

        Args:
            state: state at its start.
            params: parameters.
            ecn: thresholds of every port, `[P]`.

        Returns:
            State at its end, and the ports' statistics over it.
        """
        params = jax.tree.map(jnp.asarray, params)
        zero = jnp.zeros_like(state.queue)
        sums = PortSums(zero, zero, zero, zero, zero, zero)

        def one(carry: tuple[SimState, PortSums], _: None) -> tuple[Any, None]:
            return self._tick(*carry, params, ecn), None

        ticks = self.interval_steps // self.tick_steps
        (state, sums), _ = jax.lax.scan(one, (state, sums), None, length=ticks)
        return state, self._stats(state, params, sums)

    def _tick(
        self, state: SimState, sums: PortSums, params: SimParams, ecn: Ecn
    ) -> tuple[SimState, PortSums]:
        """Admit, run the substeps, complete, and refresh what changes slowly."""
        net, bounds = params.net, self.topology.level_bounds
        state = self._admit(state, params)
        tick, state = self._prepare(state, params, ecn)
        express = jnp.minimum(state.ack_rate, net.port_rate) if self.ack_priority else 0.0
        sums = replace(
            sums,
            sent=sums.sent + express * self.tick_us,
            paused=sums.paused + state.paused[self.topology.n_hosts :] * self.tick_us,
        )
        nothing = jnp.zeros((2,), state.queue.dtype)

        def one(carry: Any, _: None) -> tuple[Any, None]:
            return self._substep(carry[0], carry[1], carry[2], tick), None

        carry: Any = (state, sums, nothing)
        (state, sums, gone), _ = jax.lax.scan(one, carry, None, length=self.tick_steps)
        flows, totals = state.flows, state.totals
        if self.pfc:
            held = jnp.where(tick.line.held & (flows.stage == fl.DRAINING), self.tick_us, 0.0)
            flows = replace(flows, tail=flows.tail + held)
        flows, totals, log = fl.finish(flows, totals, state.step, self.dt_us, state.fct_log)
        flows, pool = fl.release(flows, state.pool, net.packet_bytes, bounds)
        acks = flows.delivered * (net.ack_bytes / net.packet_bytes / self.tick_us)
        n_ports, n_hosts = self.topology.n_ports, self.topology.n_hosts
        delivered = flows.delivered.sum() + gone[0]
        totals = replace(
            totals,
            delivered=exact_add(*totals.delivered, delivered, CHUNK),
            dropped=exact_add(*totals.dropped, gone[1], CHUNK),
            offered=exact_add(*totals.offered, gone[1], CHUNK),
        )
        state = replace(
            state,
            flows=replace(flows, delivered=jnp.zeros_like(flows.delivered)),
            totals=totals,
            fct_log=log,
            pool=pool,
            ack_rate=sum(segment_sum(acks, back, n_ports) for back in flows.back),
            nic_acks=segment_sum(acks, flows.dst, n_hosts),
        )
        return self._police(state, net), sums

    def _admit(self, state: SimState, params: SimParams) -> SimState:
        """Move arrivals of this tick into slots; see `flows.admit`."""
        nic = params.net.nic_rate
        offers = [
            source.offer(s, p, nic)
            for source, s, p in zip(self.traffic, state.traffic, params.traffic, strict=True)
        ]
        offer: Offer = jax.tree.map(lambda *x: jnp.concatenate(x), *offers)
        if self.transport.header:
            more = self.transport.header * packet_count(offer.payload)
            offer = replace(offer, wire_low=offer.wire_low + more)
        flows, new, line, taken = fl.admit(
            state.flows,
            params.net,
            offer,
            state.step,
            state.totals.started,
            state.seed,
            self.tick_us,
            self.topology.level_bounds,
        )
        sizes = [o.src.shape[0] for o in offers]
        per_source = jnp.split(taken, np.cumsum(sizes)[:-1])
        traffic = tuple(
            source.advance(s, p, nic, t.sum(), self.tick_us)
            for source, s, p, t in zip(
                self.traffic, state.traffic, params.traffic, per_source, strict=True
            )
        )
        t = state.totals
        late = taken & (offer.start < -1e-3)
        high, low = t.offered
        high = high + jnp.where(taken, offer.wire_high, 0).sum().astype(high.dtype)
        totals = replace(
            t,
            offered=exact_add(high, low, jnp.where(taken, offer.wire_low, 0.0).sum(), CHUNK),
            started=t.started + taken.sum().astype(jnp.int32),
            deferred=t.deferred + late.sum().astype(jnp.int32),
            deferred_us=t.deferred_us - jnp.where(late, offer.start, 0.0).sum(),
        )
        transport = self.transport.start(
            flows.transport, params.transport, new, line, params.net.base_rtt
        )
        return replace(
            state,
            flows=replace(flows, transport=transport),
            echo=fb.restart(state.echo, new, params.net.packet_bytes),
            traffic=traffic,
            totals=totals,
        )

    def _prepare(self, state: SimState, params: SimParams, ecn: Ecn) -> tuple[Tick, SimState]:
        """Capacities and feedback delays that hold for a tick."""
        net, flows, n_hosts = params.net, state.flows, self.topology.n_hosts
        wait = jnp.append(state.queue / net.port_rate, 0.0)
        waits = jnp.stack([wait, wait], -1)
        back_wait = jnp.zeros_like(flows.back_wait)
        if not self.ack_priority:
            back_wait = look_up(waits, flows.back)[..., 0].sum(0)
        found = look_up(waits, self._global_hops(flows))[..., 0].sum(0)
        new = flows.start_step == state.step
        flows = replace(
            flows,
            wait=jnp.where(new, found, flows.wait),
            gate=jnp.where(new, found, flows.gate),
        )
        delay = jnp.round((flows.rtt + back_wait) / self.dt_us - 0.5)
        delay = jnp.maximum(delay, 0.0).astype(jnp.int32)
        phase = state.step % self.coarse
        near, half = self.coarse - phase, self.coarse // 2
        far = (delay - half - near + self.coarse // 2) // self.coarse
        late = flows.late_marks
        turn = phase == 0
        marks = jnp.where(
            turn & ((late & 1) == 1), flows.marks | jnp.uint32(1 << half), flows.marks
        )
        flows = replace(
            flows, marks=marks, late_marks=jnp.where(turn, late >> 1, late), back_wait=back_wait
        )
        express = state.ack_rate if self.ack_priority else jnp.zeros_like(state.ack_rate)
        open_nic, open_port = ~state.paused[:n_hosts], ~state.paused[n_hosts:]
        links = fl.ingress_links(flows, n_hosts, self.topology.level_bounds)
        needs = self.transport.needs
        late = (far > 31) if fb.CNP in needs else jnp.zeros_like(flows.stage, bool)
        if needs - {fb.CNP, fb.PROBE}:
            late = late | (delay >= self.memory)
        n_late = jnp.sum(late & (flows.stage == fl.SENDING)).astype(jnp.int32)
        totals = replace(state.totals, late_feedback=state.totals.late_feedback + n_late)
        hops = self._global_hops(flows)
        rates = jnp.append(net.port_rate, jnp.inf) if fb.TELEMETRY in needs else None
        line = fb.Line(
            delay=jnp.minimum(delay, self.memory - 1) if needs - {fb.CNP} else delay,
            far=jnp.clip(far, 0, 31),
            back_wait=back_wait,
            held=self._blocked(state, hops),
            hops=hops,
            hop_rate=None if rates is None else rates[hops],
            port_rate=net.port_rate,
            packet=net.packet_bytes,
        )
        tick = Tick(
            host_capacity=jnp.maximum(net.nic_rate - state.nic_acks, 0.0) * open_nic,
            port_capacity=jnp.maximum(net.port_rate - express, 0.0) * self.dt_us * open_port,
            ack_bytes=(state.ack_rate - express) * self.dt_us,
            line=line,
            accept=~jnp.append(state.full, False)[links] | (flows.stage == fl.DONE),
            transport=params.transport,
            ecn=ecn,
            net=net,
        )
        return tick, replace(state, flows=flows, totals=totals)

    def _substep(
        self, state: SimState, sums: PortSums, gone: Array, tick: Tick
    ) -> tuple[SimState, PortSums, Array]:
        """Move senders and queues by `dt_us`."""
        dt = self.dt_us
        senders = state.flows.transport
        rate, window = self.transport.rate(senders), self.transport.window(senders)
        room = None if window is None else fb.room(state.echo, window, tick.line.packet)
        sent = send(state.flows, state.level, tick, rate, room, dt)
        bounds = self.topology.level_bounds
        flows, moved = forward(sent.flows, state.pool, sent.give, tick, bounds, self.softness)
        seen = fb.Observed(
            flows=flows,
            give=sent.give,
            rate=rate,
            dropped=moved.dropped,
            out=moved.out,
            log_survival=moved.log_survival,
            wait=moved.wait,
            queue=moved.queue,
            sent=moved.sent,
        )
        echo, flows, heard = fb.listen(
            state.echo, seen, tick.line, state.step, self.transport.needs, dt
        )
        flows = advance_clocks(flows, moved, sent, dt)
        senders = self.transport.update(senders, tick.transport, heard, dt)
        queue = moved.queue
        sums = PortSums(
            queue=sums.queue + queue,
            square=sums.square + queue * queue,
            peak=jnp.maximum(sums.peak, queue),
            sent=sums.sent + moved.sent,
            marked=sums.marked + moved.sent * moved.mark,
            paused=sums.paused,
        )
        state = replace(
            state,
            step=state.step + 1,
            flows=replace(flows, transport=senders),
            echo=echo,
            pool=moved.pool,
            level=sent.level,
            queue=queue,
        )
        return state, sums, gone + jnp.stack([moved.released, moved.dropped.sum()])

    def _blocked(self, state: SimState, hops: Array) -> Array:
        """Flows whose way leads through a paused port: their last byte does not move."""
        stop = jnp.append(state.paused[self.topology.n_hosts :], False)
        return (stop[hops] & (state.flows.backlog > 0)).any(0)

    def _global_hops(self, flows: Flows) -> Array:
        """Port of every flow at every level, `P` for none, `[L, F]`."""
        bounds = np.array(self.topology.level_bounds, np.int32)[:, None]
        here = flows.hop < bounds[1:] - bounds[:-1]
        return jnp.where(here, bounds[:-1] + flows.hop, bounds[-1])

    def _police(self, state: SimState, net: NetParams) -> SimState:
        """Decide, for the next tick, which links pause and which headrooms are full."""
        t = self.topology
        n_links = t.n_hosts + t.n_ports
        used = segment_sum(state.queue, jnp.asarray(t.port_switch()), t.n_switches)
        into = jnp.asarray(t.link_switch())
        brim = jnp.append(used >= net.buffer, False)[into]
        if not self.pfc:
            return replace(state, full=brim)
        links = fl.ingress_links(state.flows, t.n_hosts, t.level_bounds)
        ingress = segment_sum(state.flows.backlog.reshape(-1), links.reshape(-1), n_links)
        kept = net.headroom + net.reserve
        shared = net.buffer - segment_sum(kept, into, t.n_switches)
        pause = pfc(
            ingress,
            used,
            state.paused,
            into,
            jnp.maximum(shared, 0.0),
            net.pfc_alpha,
            net.headroom,
            net.reserve,
            net.resume_gap,
        )
        totals = state.totals
        totals = replace(totals, pauses=totals.pauses + pause.started.astype(jnp.int32))
        return replace(state, paused=pause.paused, full=pause.full | brim, totals=totals)

    def _stats(self, state: SimState, params: SimParams, sums: PortSums) -> PortStats:
        """Turn the interval's sums into statistics, and count flows per port."""
        n, us = self.interval_steps, self.interval_us
        flows, bounds = state.flows, self.topology.level_bounds
        real = state.queue.dtype
        running = (flows.stage == fl.SENDING) & (flows.start_in <= 0)
        live = (running | (flows.stage == fl.DRAINING)).astype(real)
        gone = wire_bytes(flows.payload, params.net.packet_bytes - PAYLOAD) - flows.rest_low
        big = live * (gone - flows.rest_high * CHUNK > ELEPHANT)

        def per_port(values: Array) -> Array:
            spans = zip(flows.hop, bounds[:-1], bounds[1:], strict=True)
            return jnp.concatenate([segment_sum(values, h, b - a) for h, a, b in spans])

        n_flows, n_big = per_port(live), per_port(big)
        return PortStats(
            queue=state.queue,
            queue_mean=sums.queue / n,
            queue_sq=sums.square / n,
            queue_max=sums.peak,
            tx_bytes=sums.sent,
            marked_bytes=sums.marked,
            utilisation=jnp.clip(sums.sent / (params.net.port_rate * us), 0.0, 1.0),
            paused=sums.paused / us,
            n_flows=n_flows,
            n_senders=self._senders(flows, live > 0) if self.count_senders else 0.0 * n_flows,
            n_mice=n_flows - n_big,
            n_elephants=n_big,
        )

    def _senders(self, flows: Flows, live: Array) -> Array:
        """Distinct source hosts of the flows that cross each port, `[P]`."""
        bounds, n_hosts = self.topology.level_bounds, self.topology.n_hosts
        counts = []
        for hop, low, high in zip(flows.hop, bounds[:-1], bounds[1:], strict=True):
            cell = jnp.where(live & (hop < high - low), hop * n_hosts + flows.src, -1)
            size = (high - low) * n_hosts
            seen = (
                jnp.zeros((size,), bool).at[jnp.where(cell < 0, size, cell)].set(True, mode="drop")
            )
            counts.append(seen.reshape(high - low, n_hosts).sum(1))
        return jnp.concatenate(counts).astype(flows.backlog.dtype)


def _base_rtt(topology: Topology) -> float:
    """Longest round trip of a full packet through empty queues, µs, ACKs without size.

    Propagation both ways and a store-and-forward time of 1000 B at every hop, NIC included, as the
    HPCC simulator computes the base RTT that its windows are sized for.
    """
    t = topology
    delay = np.append([p.delay_us for p in t.ports], 0.0)
    stored = np.append([PAYLOAD / (p.gbps * GBPS) for p in t.ports], 0.0)
    nic_delay, nic_rate = np.array(t.nic_delay_us), np.array(t.nic_gbps) * GBPS
    way = (2.0 * delay + stored)[t.routes].sum(-1).max(-1)
    first = 2.0 * nic_delay + PAYLOAD / nic_rate
    edge = np.array(t.edge)
    from_edge = np.array([first[edge == e].max(initial=0.0) for e in range(way.shape[0])])
    return float((way + from_edge[:, None]).max())


def scaled_ecn(
    net: NetParams, kmin_kb: float, kmax_kb: float, pmax: float, base_gbps: float = 25.0
) -> Ecn:
    """The same setting on every port, thresholds scaled with the link rate.

    Args:
        net: the network.
        kmin_kb: threshold where marking starts on a port of `base_gbps`, KB.
        kmax_kb: threshold above which all is marked on a port of `base_gbps`, KB.
        pmax: marking probability at `kmax`.
        base_gbps: rate the thresholds are for, Gb/s.

    Returns:
        Thresholds of all ports, `[P]`.

    Raises:
        ValueError: not `0 <= kmin < kmax` or not `0 < pmax <= 1`.
    """
    if not 0 <= kmin_kb < kmax_kb:
        raise bad_value("kmin, kmax", (kmin_kb, kmax_kb), "0 <= kmin < kmax, in KB")
    if not 0 < pmax <= 1:
        raise bad_value("pmax", pmax, "a probability in (0, 1]")
    scale = jnp.asarray(net.port_rate) / (base_gbps * GBPS)
    return Ecn(kmin_kb * KB * scale, kmax_kb * KB * scale, jnp.full_like(scale, pmax))
