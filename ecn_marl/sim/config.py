"""Static, hashable description of a simulation; it fixes all shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated

import numpy as np

from ecn_marl._checks import TEXT, Each, Flag, Kind, Real, Whole, check
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._memory import check_memory
from ecn_marl.sim.clocks import MAX_TICK, check_dt
from ecn_marl.sim.core.paths import ALONE, IDEALS
from ecn_marl.sim.core.ways import BALANCINGS, ECMP, FLOWLET, SPRAY
from ecn_marl.sim.feedback import ACKS, CNP, FIELD, TELEMETRY, cnp
from ecn_marl.sim.network.topology import GBPS, Topology
from ecn_marl.sim.state import COUNTS
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.placement import check_placement
from ecn_marl.sim.traffic.schedules import Schedule
from ecn_marl.sim.traffic.sizes import PAYLOAD
from ecn_marl.sim.traffic.sizing import with_widths
from ecn_marl.sim.traffic.tickets import tickets_of
from ecn_marl.sim.transports import Dcqcn, Mixed, Transport, with_window

SELECTIVE, GO_BACK_N, IRN = "selective", "go-back-n", "irn"
RECOVERIES = (SELECTIVE, GO_BACK_N, IRN)
"""Ways to recover from losses."""

NETWORK = Kind((Topology,), "a Topology, see `sim.network.topology`")
SOURCE = Kind(("offer",), "a traffic source, e.g. Poisson(load=0.6)")


@dataclass(frozen=True)
class TrafficClass:
    """A traffic class: a queue of its own at every port, served by deficit-weighted round robin.

    Attributes:
        name: its name.
        transport: senders of its flows.
        weight: share of a port's bandwidth among the classes that have something to send.
        lossless: whether PFC protects it; otherwise its queue drops beyond `alpha` times the free
            buffer of the switch.
        alpha: dynamic threshold of a class that is not lossless.
    """

    name: str
    transport: Transport
    weight: Annotated[float, Real(above=0.0)] = 1.0
    lossless: Annotated[bool, Flag()] = True
    alpha: Annotated[float, Real(above=0.0, infinite=True)] = 1.0

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)


@dataclass(frozen=True)
class SimConfig:
    """Network, senders, traffic and clocks.

    Attributes:
        topology: the network.
        traffic: traffic sources, their flows share the slots.
        transport: the senders (those of `classes`, if there are any).
        dt_us: substep, µs; at most what the senders tolerate, see `clocks.longest_dt_us`.
        tick_steps: substeps per tick.
        interval_steps: substeps per tuning interval, a multiple of `tick_steps`.
        slots: flows in progress at most; further ones wait at their hosts and are counted.
        scheduled: length of the completion-time log (the flows of all `Schedule`s, in the order of
            the sources), 0 for none.
        bins: bins of the slowdown histogram per size class, 0 for none.
        pfc: pause upstream links when buffers fill; without it full buffers drop.
        loss_recovery: which bytes are sent again after a loss, one of `RECOVERIES`, see
            `sim.core.recovery`.
        load_balancing: what chooses among equal-cost paths, one of `BALANCINGS`: each flow once,
            each flowlet (see `sim.core.flowlets`), or each packet (see `sim.core.ways`).
        flowlet_gap_us: pause between two packets of a flow after which it is a new flowlet, µs.
        ack_priority: ACKs and CNPs ride in a class of their own instead of the data queues.
        accrue: whether `PortStats.accrued` and `progress` are kept (else they are None).
        accrue_whole: whether every port on a flow's way accounts for the whole of it there, and not
            for a share.
        accrue_powers: how the cost of a flow grows with its slowdown, by size class, see
            `delays.bent`; empty for the slowdown itself.
        counts: which of `state.COUNTS` the ports count, in any order; the others are None in
            `PortStats`, and cost nothing.
        buffer_mib: default shared buffer of each switch, MiB.
        pfc_alpha: share of a switch's free buffer that one ingress may take before it is paused;
            None for 1/8, doubled with every doubling of the link rate, as the HPCC simulator has.
        memory_us: how far back feedback other than single marks can reach, µs; longer ones are cut
            to it, and counted.
        softness: width over which the marking curve is rounded, bytes; 0 for RED as it is.
        mark_quantum: step of marking probabilities below 1, which are rounded down; 0 for none.
            Some switches have 1 %, and mark nothing where it would be less.
        jitter_us: NIC processing adds up to this to every feedback delay, drawn anew each tick, µs.
        failures: whether links can fail (see `failures.fail_links`).
        classes: traffic classes; empty for a single one.
        class_of: traffic class of each traffic source; empty for the first.
        placement: groups of hosts (their numbers) that change places with each other in every
            episode, see `sim.traffic.placement`; empty for hosts that stay.
        ideal: the completion time that slowdowns are relative to, one of `paths.IDEALS`: that of
            the flow alone in the network, or the recorded packet simulator's formula.
        flow_log: room for so many finished flows in `SimState.flow_log`, 0 for no such log.
    """

    topology: Annotated[Topology, NETWORK]
    traffic: Annotated[tuple[Source, ...], Each(SOURCE)]
    transport: Transport = field(default_factory=Dcqcn)
    dt_us: Annotated[float, Real(above=0.0, high=1e4, unit="µs")] = 1.0
    tick_steps: Annotated[int, Whole(low=1, high=MAX_TICK)] = 5
    interval_steps: Annotated[int, Whole(low=1)] = 100
    slots: Annotated[int, Whole(low=1)] = 256
    scheduled: Annotated[int, Whole(low=0)] = 0
    bins: Annotated[int, Whole(low=0)] = 160
    pfc: Annotated[bool, Flag()] = True
    loss_recovery: Annotated[str, TEXT] = SELECTIVE
    load_balancing: Annotated[str, TEXT] = ECMP
    flowlet_gap_us: Annotated[float, Real(above=0.0, unit="µs")] = 50.0
    ack_priority: Annotated[bool, Flag()] = False
    accrue: Annotated[bool, Flag()] = False
    accrue_whole: Annotated[bool, Flag()] = False
    accrue_powers: tuple[float, ...] = ()
    counts: tuple[str, ...] = ()
    buffer_mib: Annotated[float, Real(above=0.0, high=1e9, unit="MiB")] = 32.0
    pfc_alpha: Annotated[float | None, Real(above=0.0, high=1.0, none=True)] = None
    memory_us: Annotated[float, Real(above=0.0, high=1e7, unit="µs")] = 256.0
    softness: Annotated[float, Real(low=0.0, high=1e12, unit="bytes")] = 0.0
    mark_quantum: Annotated[float, Real(low=0.0, high=1.0)] = 0.0
    jitter_us: Annotated[float, Real(low=0.0, high=1e6, unit="µs")] = 0.0
    failures: Annotated[bool, Flag()] = False
    classes: tuple[TrafficClass, ...] = ()
    class_of: tuple[int, ...] = ()
    placement: tuple[tuple[int, ...], ...] = ()
    ideal: Annotated[str, TEXT] = ALONE
    flow_log: Annotated[int, Whole(low=0)] = 0

    def __post_init__(self) -> None:
        """Check sizes and clocks."""
        check(self)
        if self.interval_steps % self.tick_steps:
            raise bad_value(
                "interval_steps", self.interval_steps, f"a multiple of tick_steps={self.tick_steps}"
            )
        object.__setattr__(self, "counts", counters("counts", self.counts))
        # Widths fix shapes, so `auto` becomes a number here.
        traffic = with_widths(self.traffic, self.topology, self.tick_us)
        object.__setattr__(self, "traffic", traffic)
        self._check_ticks()
        placement = check_placement(self.placement, self.topology, traffic)
        object.__setattr__(self, "placement", placement)
        if self.mark_quantum and self.softness:
            raise bad_value("mark_quantum", self.mark_quantum, "0 with a softness above 0")
        if self.loss_recovery not in RECOVERIES:
            raise unknown_name("loss recovery", self.loss_recovery, RECOVERIES)
        if self.ideal not in IDEALS:
            raise unknown_name("ideal", self.ideal, IDEALS)
        self._check_classes()
        if self.loss_recovery == IRN:
            object.__setattr__(self, "transport", with_window(self.transport))
        self._check_balancing()
        check_dt(self.dt_us, self.transport, self.topology)
        named = {name: getattr(self, name) for name in ("slots", "bins", "memory_us", "dt_us")}
        network = f"a state of {self.topology.name}"
        check_memory(", ".join(named), tuple(named.values()), self.state_bytes, network)

    def _check_ticks(self) -> None:
        """Refuse ticks that are not those that the sources were made for."""
        for source in self.traffic:
            timeline = getattr(source, "timeline", None)
            if timeline is not None and self.tick_us > timeline.shortest_us:
                allowed = f"ticks up to {timeline.shortest_us:g} µs, the shortest phase"
                raise bad_value("dt_us, tick_steps", (self.dt_us, self.tick_steps), allowed)
            if isinstance(source, Schedule):
                steps = self.tick_us / source.dt_us
                # Its clock counts substeps of its own, in whole numbers.
                if round(steps) < 1 or abs(steps - round(steps)) > 1e-6 * steps:
                    allowed = f"{self.dt_us:g}, as the simulator has"
                    raise bad_value("dt_us of Schedule", source.dt_us, allowed)

    def _check_classes(self) -> None:
        """Check the class of every source, and take the senders from the classes."""
        n = self.n_classes
        if self.class_of and len(self.class_of) != len(self.traffic):
            allowed = f"one class for each of the {len(self.traffic)} traffic sources"
            raise bad_value("class_of", self.class_of, allowed)
        for number in self.class_of:
            if number not in range(n):
                raise bad_value("class_of", self.class_of, f"numbers of classes, 0 to {n - 1}")
        if self.classes:
            members = tuple(c.transport for c in self.classes)
            # `Mixed` keeps the states of all members in every slot; equal senders need one.
            senders = members[0] if len(set(members)) == 1 else Mixed(members)
            object.__setattr__(self, "transport", senders)

    def _check_balancing(self) -> None:
        """Refuse options that do not work for flows on several paths."""
        balancing = self.load_balancing
        if balancing not in BALANCINGS:
            raise unknown_name("load balancing", balancing, BALANCINGS)
        if balancing == ECMP:
            return
        if TELEMETRY in self.transport.needs:
            allowed = f"ecmp: {self.transport.kind} compares counters of the same ports"
            raise bad_value("load_balancing", balancing, allowed)
        if balancing == SPRAY and self.loss_recovery == GO_BACK_N:
            allowed = "ecmp or flowlet: go-back-n takes every packet out of order for a loss"
            raise bad_value("load_balancing", balancing, allowed)

    @property
    def n_ways(self) -> int:
        """Largest number of paths W that bytes of a flow can be on at once, see `sim.core.ways`."""
        paths = int(self.topology.n_paths.max())
        return {ECMP: 1, FLOWLET: min(paths, 2), SPRAY: paths}[self.load_balancing]

    @property
    def redraws(self) -> bool:
        """Whether flows draw a path for every flowlet: where there are several."""
        return self.load_balancing == FLOWLET and self.n_ways > 1

    @property
    def n_ways_back(self) -> int:
        """Largest number of paths that ACKs of a flow take at once."""
        return self.n_ways if self.load_balancing == SPRAY else 1

    @property
    def n_classes(self) -> int:
        """Number of traffic classes C."""
        return max(len(self.classes), 1)

    @property
    def n_tickets(self) -> int:
        """Number of tickets by which sources learn of their flows, see `sim.traffic.tickets`."""
        return sum(tickets_of(source) for source in self.traffic)

    @property
    def n_queues(self) -> int:
        """Number of queues Q: one per port and class, those of a port side by side."""
        return self.topology.n_ports * self.n_classes

    @property
    def queue_bounds(self) -> tuple[int, ...]:
        """First queue of each level, and one past the last."""
        return tuple(b * self.n_classes for b in self.topology.level_bounds)

    @property
    def queues_last(self) -> int:
        """Number of queues on the last level, the one of the ports to hosts."""
        return self.queue_bounds[-1] - self.queue_bounds[-2]

    @property
    def weights(self) -> tuple[float, ...]:
        """Round-robin weight of each class."""
        return tuple(c.weight for c in self.classes) or (1.0,)

    @property
    def lossless(self) -> tuple[bool, ...]:
        """Which classes PFC protects."""
        return tuple(self.pfc and c.lossless for c in self.classes) or (self.pfc,)

    @property
    def lossy_alpha(self) -> tuple[float, ...]:
        """Dynamic threshold of each class that drops on its own account, `inf` for others."""
        return tuple(math.inf if c.lossless else c.alpha for c in self.classes) or (math.inf,)

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
        """Substeps between two moves of the far part of the CNPs' delay line."""
        return cnp.far_step(self.tick_steps)

    @property
    def fine(self) -> int:
        """Substeps per bit of that part; one word of long bits where no CNP comes that late."""
        queued = not self.ack_priority or self.jitter_us > 0
        return cnp.fine_step(self.coarse) if queued and CNP in self.transport.needs else self.coarse

    @property
    def mark_words(self) -> int:
        """Words of the near delay line of the CNPs, see `cnp.near_words`."""
        return cnp.near_words(base_rtt(self.topology), self.dt_us)

    @property
    def state_bytes(self) -> float:
        """Lower bound of the size of a state, bytes; only parts that can become large count."""
        ports, needs = self.topology.ports, self.transport.needs
        farthest = max(p.delay_us for p in ports) if ports else 0.0
        near = 2.0 * farthest / self.dt_us / 32.0
        # Numbers of 4 bytes: a substep of history has 3 for acknowledgements, 2 for the field.
        per_step = 12.0 * (ACKS in needs) + 8.0 * (FIELD in needs)
        per_slot = 4.0 * (near + 24.0 + 2.0 * self.n_ways * self.topology.n_levels)
        history = self.memory_us / self.dt_us
        per_slot += history * per_step
        queues = 8.0 * history * self.n_queues * (TELEMETRY in needs)
        logged = self.flow_log * 4.0 * (10.0 + self.n_ways * self.topology.n_levels)
        return self.slots * per_slot + queues + 12.0 * self.bins + 4.0 * self.scheduled + logged

    @property
    def memory(self) -> int:
        """Substeps of feedback history."""
        return math.ceil(self.memory_us / self.dt_us)


def counters(field: str, names: Iterable[str]) -> tuple[str, ...]:
    """Names of counters, each once and in the order of `COUNTS`.

    Args:
        field: where they were given, for the error.
        names: some of `COUNTS`.

    Raises:
        ValueError: an unknown name, or a single string.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise bad_value(field, names, "a tuple of names of counters")
    requested = tuple(names)
    for name in requested:
        if name not in COUNTS:
            raise unknown_name("counter", name, COUNTS)
    return tuple(name for name in COUNTS if name in requested)


@cache
def base_rtt(topology: Topology) -> float:
    """Longest round trip of a full packet through empty queues, µs, ACKs without size.

    Propagation both ways and a store-and-forward time of 1000 B at every hop, NIC included, as the
    HPCC simulator computes the base RTT that its windows are sized for.
    """
    t = topology
    delay = np.append([p.delay_us for p in t.ports], 0.0)
    stored = np.append([PAYLOAD / (p.gbps * GBPS) for p in t.ports], 0.0)
    nic_delay, nic_rate = np.array(t.nic_delay_us), np.array(t.nic_gbps) * GBPS
    time = 2.0 * delay + stored
    between = time[t.routes].sum(-1).max(-1)
    first, edge = 2.0 * nic_delay + PAYLOAD / nic_rate, np.array(t.edge)

    def slowest(times: np.ndarray) -> np.ndarray:
        return np.array([times[edge == e].max(initial=0.0) for e in range(len(between))])

    return float((slowest(first)[:, None] + between + slowest(time[t.last])).max())
