"""Replay of a flow list: run it through a network, and summarise the results.

    flows = read_flows("flows.csv.gz", topology)
    result = replay(flows, topology, Settings(ecn=(5, 200, 0.01), duration_ms=60))
    result.fct_ns, result.slowdown, result.queue_bytes, result.summary()

Every 10 µs the queues are sampled; sums over the substeps in between are exact. An empty network
with no flow left to start does not change, so the rest of the time is filled in, not simulated.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ecn_marl._checks import Real, Whole, check, check_seed
from ecn_marl._errors import bad_value
from ecn_marl._files import without_nan
from ecn_marl.sim import capacity, flags
from ecn_marl.sim import lifecycle as life
from ecn_marl.sim.metrics import counted, counter_bytes, slowdown_summary
from ecn_marl.sim.paths import ALONE, Paths, find_paths
from ecn_marl.sim.queues import Ecn, checked_thresholds
from ecn_marl.sim.random import Stream, hash_bits
from ecn_marl.sim.regimes import regimes_of
from ecn_marl.sim.samples import SAMPLE_US, Record, Rows, port_classes
from ecn_marl.sim.schedules import Schedule, schedule, widest_tick
from ecn_marl.sim.simulator import MAX_TICK, SimParams, SimState, Simulator, scaled_ecn
from ecn_marl.sim.sizes import CHUNK, PAYLOAD, wire_size
from ecn_marl.sim.tickets import TIME_UNIT
from ecn_marl.sim.topology import Topology
from ecn_marl.sim.trace import FlowList, read_flows
from ecn_marl.sim.transports import parse_transport
from ecn_marl.sim.units import KB

__all__ = ["FlowList", "Replay", "Settings", "read_flows", "replay", "write_fct", "write_queues"]

CHUNK_SAMPLES = 100
"""Samples per call of the compiled loop: progress is shown every millisecond."""

TICK_US, TICK_STEPS = 5.0, 5
"""Longest tick, µs or substeps, whichever is more. Each admits flows and refreshes feedback delays.
"""

DEFAULT_SLOTS = 512
"""Default limit of flows in progress."""

CLASS_LABELS = {
    "all": "all",
    "mice": "(0,100KB]",
    "medium": "(100KB,1MB]",
    "elephants": ">1MB",
}
"""How size classes are written in the summary."""


@dataclass(frozen=True)
class Settings:
    """How a flow list is replayed.

    Attributes:
        transport: the senders, e.g. `dcqcn:PRESET` or `hpcc`, see `transports.parse_transport`.
        ecn: (Kmin, Kmax, Pmax) of every port, KB for a port of `ecn_gbps`; thresholds of other
            ports scale with their rates. Kmin = Kmax is a step. Or such a triple for each rate of
            ports by Gb/s, `{25: (100, 400, 0.2), 100: (400, 1600, 0.2)}`, which do not scale.
        ecn_gbps: the rate that `ecn` is meant for, Gb/s; None for that of the slowest NIC.
        dt_us: substep, µs; must divide 10 µs.
        duration_ms: simulated time, a multiple of 0.01 ms.
        seed: fixes marking coins and ECMP hashes.
        buffer_mib: shared buffer of each switch, MiB.
        slots: flows in progress at most; None for as many as there are flows, up to 512. Further
            ones wait at their hosts, count as deferred, and their FCT counts from their start.
        pfc: pause upstream links when buffers fill; without it full buffers drop.
        ack_priority: ACKs and CNPs ride in a class of their own instead of the data queues.
        mark_quantum: step of marking probabilities, see `SimConfig`.
        ideal: the completion time that slowdowns are relative to, one of `paths.IDEALS`: `alone`,
            that of the flow in an empty network, or `standalone`, as the HPCC simulator has it.
        memory_us: how far back feedback can reach, µs, see `SimConfig`.
    """

    transport: str = "dcqcn:hpcc-paper"
    ecn: tuple[float, float, float] | Mapping[float, tuple[float, float, float]] = (5, 200, 0.01)
    ecn_gbps: Annotated[float | None, Real(above=0.0, unit="Gb/s", none=True)] = None
    dt_us: Annotated[float, Real()] = 1.0
    duration_ms: Annotated[float, Real()] = 60.0
    seed: int = 0
    buffer_mib: float = 32.0
    slots: Annotated[int | None, Whole(low=1, none=True)] = None
    pfc: bool = True
    ack_priority: bool = False
    mark_quantum: float = 0.0
    ideal: str = ALONE
    memory_us: float = 256.0

    def __post_init__(self) -> None:
        """Check clocks, slots and thresholds; the rest is checked where it is used."""
        check(self)
        by_rate = self.ecn.items() if isinstance(self.ecn, Mapping) else ((None, self.ecn),)
        for rate, triple in by_rate:
            checked_thresholds(triple, "ecn" if rate is None else f"ecn[{rate}]")
        count = SAMPLE_US / self.dt_us if self.dt_us > 0 else 0.0
        if not 1 <= count <= 1e4 or abs(count - round(count)) > 1e-6:
            allowed = f"a substep that divides {SAMPLE_US} µs, 0.001 µs or longer"
            raise bad_value("dt_us", self.dt_us, f"{allowed}, e.g. 0.5, 1, 2 or 5")
        count = self.duration_ms * 1e3 / SAMPLE_US
        multiple = math.isfinite(count) and abs(count - round(count)) <= 1e-6 * max(count, 1.0)
        if not multiple or round(count) < 1:
            raise bad_value("duration_ms", self.duration_ms, "a positive multiple of 0.01 ms")
        if self.samples * self.substeps >= 2**31:
            allowed = f"less than 2^31 substeps of {self.dt_us} µs"
            raise bad_value("duration_ms", self.duration_ms, allowed)
        check_seed(self.seed)

    @property
    def samples(self) -> int:
        """Number of samples T."""
        return round(self.duration_ms * 1e3 / SAMPLE_US)

    @property
    def substeps(self) -> int:
        """Substeps per sample."""
        return round(SAMPLE_US / self.dt_us)

    def thresholds(self, topology: Topology, params: SimParams) -> Ecn:
        """Thresholds of the ports of a network, `[P]`.

        Raises:
            ValueError: `ecn` has thresholds by rate, and a port has another rate.
        """
        if not isinstance(self.ecn, Mapping):
            gbps = min(topology.nic_gbps) if self.ecn_gbps is None else self.ecn_gbps
            return scaled_ecn(params.net, *self.ecn, gbps)
        for port in topology.ports:
            if port.gbps not in self.ecn:
                allowed = f"thresholds for {port.gbps:g} Gb/s, the rate of {port.name}, too"
                raise bad_value("ecn", dict(self.ecn), allowed)
        rows = np.array([self.ecn[port.gbps] for port in topology.ports], np.float32)
        kmin, kmax, pmax = jnp.asarray(rows * np.array([KB, KB, 1.0], np.float32)).T
        return Ecn(kmin, kmax, pmax)

    def simulator(self, topology: Topology, start_ns: np.ndarray) -> Simulator:
        """The simulator for flows that start at `start_ns`; its tuning interval is one sample."""
        n = self.substeps
        fitting = [k for k in range(1, min(n, MAX_TICK) + 1) if n % k == 0]
        tick = max(k for k in fitting if k <= TICK_STEPS or k * self.dt_us <= TICK_US)
        slots = min(start_ns.size, DEFAULT_SLOTS) if self.slots is None else self.slots
        return Simulator(
            topology,
            (Schedule(self.dt_us, widest_tick(start_ns, self.dt_us * tick, slots)),),
            parse_transport(self.transport),
            dt_us=self.dt_us,
            tick_steps=tick,
            interval_steps=n,
            slots=slots,
            scheduled=start_ns.size,
            bins=0,
            pfc=self.pfc,
            ack_priority=self.ack_priority,
            mark_quantum=self.mark_quantum,
            ideal=self.ideal,
            buffer_mib=self.buffer_mib,
            memory_us=self.memory_us,
        )


@dataclass(frozen=True)
class Replay:
    """Result of a replay. `N` flows in the order of the list, `T` samples, `P` ports.

    Attributes:
        topology: the network.
        flows: the list.
        fct_ns: completion times up to the last ACK, NaN if unfinished, ns, float64 `[N]`.
        slowdown: completion time over that of the flow alone on its path, NaN if unfinished, `[N]`.
        ideal_us: that time of the flow alone, NaN if it starts after the time simulated, `[N]`.
        path: ports on each flow's way, one for each level; P where there is none, and for flows
            that start after the time simulated; int32 `[N, L]`.
        time_us: ends of the samples, µs, `[T]`.
        queue_bytes: queue of every port at the end of each sample, float32 `[T, P]`.
        tx_bytes: bytes each port sent during each sample, ACKs included, float32 `[T, P]`.
        ports: per port class, statistics of queues, utilisation, marks and pauses.
        counts: flows offered, started, deferred and for how long; late feedback, pauses, drops;
            `flags`, see `sim.flags`.
        bytes: balance of wire bytes.
        ecn: thresholds of every port, bytes, `[P]` each.
        samples: statistics of every sample, `[T, P]` each; None unless they were asked for.
        regimes: names of regimes in which the fluid is off, see `sim.regimes`; none on packets.
    """

    topology: Topology
    flows: FlowList
    fct_ns: np.ndarray
    slowdown: np.ndarray
    ideal_us: np.ndarray
    path: np.ndarray
    time_us: np.ndarray
    queue_bytes: np.ndarray
    tx_bytes: np.ndarray
    ports: dict[str, dict[str, Any]]
    counts: dict[str, float]
    bytes: dict[str, float]
    ecn: Ecn
    samples: Rows | None = None
    regimes: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """All results but the series, ready for JSON (`None` where there is no number).

        Returns:
            `flows`: `total` in the list, `offered` (starting within the time simulated), `started`
            (with a slot), `finished`, `unfinished` (started, not finished), `waiting` (without a
            slot at the end), `deferred` (those that waited for one, or still do), `deferred_us`
            and `deferred_mean_us` (for how long, together and each), `dropped` (bytes),
            `late_feedback` (ticks of flows whose feedback was cut); `slowdown` per size class
            (flows, mean, p50, p95, p99); `ports` per port class (see `_port_class`); `marks`
            (expected number of marked packets), `pauses`, `drops` (in packets); names of the
            `flags` that are raised, see `sim.flags`; names of `regimes` in which the fluid is off,
            see `sim.regimes`; `bytes` (`offered
            = delivered + queued + waiting + dropped + error`, wire bytes; dropped bytes are offered
            again).
        """
        counts = self.counts
        started, finished = int(counts["started"]), int(np.isfinite(self.fct_ns).sum())
        offered = int(counts["offered"])
        by_class = slowdown_summary(self.slowdown, self.flows.size.astype(np.float64))
        tree = {
            "flows": {
                "total": len(self.flows),
                "offered": offered,
                "started": started,
                "finished": finished,
                "unfinished": started - finished,
                "waiting": offered - started,
                "deferred": int(counts["deferred"]),
                "deferred_us": counts["deferred_us"],
                "dropped": self.bytes["dropped"],
                "late_feedback": int(counts["late_feedback"]),
                "deferred_mean_us": counts["deferred_us"] / max(counts["deferred"], 1.0),
            },
            "slowdown": {
                label: by_class[name] | {"flows": int(by_class[name]["flows"])}
                for name, label in CLASS_LABELS.items()
            },
            "ports": self.ports,
            "marks": sum(row["marks"] for row in self.ports.values()),
            "pauses": int(counts["pauses"]),
            "drops": counts["drops"],
            "flags": list(flags.names(int(counts["flags"]))),
            "regimes": list(self.regimes),
            "bytes": self.bytes,
        }
        summary: dict[str, Any] = without_nan(tree)
        return summary


def replay(
    flows: FlowList,
    topology: Topology,
    settings: Settings | None = None,
    progress: Callable[[float], None] | None = None,
    check: bool = False,
    keep: bool = False,
) -> Replay:
    """Run a flow list through a network.

    Args:
        flows: the flows, in any order.
        topology: the network.
        settings: how to run it; `Settings()` if None.
        progress: called with the simulated time so far, µs, about every millisecond.
        check: whether to hold all completion times against what every link can have carried, see
            `sim.capacity`; takes time in proportion to the square of the flows of a link.
        keep: whether to keep all statistics of every sample, `Replay.samples`.

    Raises:
        ValueError: a setting or a value of the list that is not allowed, see `FlowList.checked`, or
            no flow starts within the duration.
        BrokenInvariant: with `check`, flows are through a link before it can have carried them.
    """
    return replayed(flows, topology, settings or Settings(), progress, check, _run, keep)


Show = Callable[[float], None] | None
"""Called with the simulated time so far, µs."""

Run = Callable[[Simulator, jax.Array, SimParams, Ecn, Record, Show], tuple[SimState, np.ndarray]]
"""`run(sim, key, params, ecn, record, show) -> (state, completion times µs [N])`; fills the record.
"""


def replayed(
    flows: FlowList,
    topology: Topology,
    settings: Settings,
    show: Show,
    check: bool,
    run: Run,
    keep: bool,
) -> Replay:
    """`replay`, whose network `run` simulates.

    Args:
        flows: the flows, in any order.
        topology: the network.
        settings: how to run it.
        show: called with the simulated time so far, µs, about every millisecond.
        check: see `replay`.
        run: simulates a network that is empty at first.
        keep: see `replay`.
    """
    flows = flows.checked(topology)
    # Flows that start together keep the order of the file, so a replay can be repeated.
    order = np.argsort(flows.start_ns, kind="stable")
    order = order[flows.start_ns[order] < settings.duration_ms * 1e6]
    if not order.size:
        allowed = f"more than the first start, {flows.start_ns.min() / 1e6:g} ms"
        raise bad_value("duration_ms", settings.duration_ms, allowed)
    sim = settings.simulator(topology, flows.start_ns[order])
    params = sim.default_params(traffic=(schedule(flows.take(order), settings.dt_us),))
    thresholds = settings.thresholds(topology, params)
    key = jax.random.key(settings.seed)
    record = Record(settings.samples, topology.n_ports, keep)
    state, fct_us = run(sim, key, params, thresholds, record, show)
    paths = jax.device_get(_paths(settings.ideal, params, state.seed))
    ideal_us = paths.ideal.astype(np.float64)
    packet = float(params.net.packet_bytes)
    if check:
        _check_capacity(topology, flows.take(order), fct_us, paths, packet)
    left_us = settings.duration_ms * 1e3 - flows.start_ns[order] / 1e3
    counts, balance = _account(state, flows.size[order], left_us, packet)
    return Replay(
        topology=topology,
        flows=flows,
        fct_ns=_in_file_order(fct_us * 1e3, order, len(flows)),
        slowdown=_in_file_order(fct_us / ideal_us, order, len(flows)),
        ideal_us=_in_file_order(ideal_us, order, len(flows)),
        path=_in_file_order(np.asarray(paths.forward), order, len(flows), topology.n_ports),
        time_us=np.arange(1, settings.samples + 1) * float(SAMPLE_US),
        queue_bytes=record.queue,
        tx_bytes=record.tx_bytes,
        ports=port_classes(topology, record, packet),
        counts=counts | {"offered": float(order.size)},
        bytes=balance,
        ecn=thresholds,
        samples=record.rows,
        regimes=tuple(regimes_of(sim, float(jnp.min(thresholds.kmin)))),
    )


@partial(jax.jit, static_argnums=0)
def _start(sim: Simulator, key: jax.Array, params: SimParams) -> SimState:
    """An empty network."""
    return sim.init(key, params)


def _check_capacity(
    topology: Topology,
    columns: Mapping[str, np.ndarray],
    fct_us: np.ndarray,
    paths: Paths,
    packet: float,
) -> None:
    """Raise a BrokenInvariant if flows are ahead of a link by a packet of the slowest one."""
    begin = columns["start_ns"] / 1e3
    crossings = capacity.Crossings(
        src=columns["src"],
        dst=columns["dst"],
        forward=np.asarray(paths.forward),
        back=np.asarray(paths.back),
        payload=columns["size_B"].astype(np.float64),
        begin=begin,
        end=begin + fct_us,
    )
    capacity.check_capacity(topology, crossings, packet)


@partial(jax.jit, static_argnums=0)
def _paths(ideal: str, params: SimParams, seed: Array) -> Paths:
    """Path of every scheduled flow, and its completion time alone on it, `[N]`."""
    plan = params.traffic[0]
    # A schedule as wide as the list offers all of its flows at once.
    offer = Schedule(1.0, plan.src.shape[0])
    source = offer.init(jax.random.key(0), plan, params.net.nic_rate)
    number = jnp.arange(plan.src.shape[0], dtype=jnp.int32)
    net = jax.tree.map(jnp.asarray, params.net)
    rows = offer.offer(source, plan, net.nic_rate)
    return find_paths(net, rows, hash_bits(seed, number, Stream.PATH), ideal=ideal)


@partial(jax.jit, static_argnums=0)
def _advance(
    sim: Simulator, state: SimState, params: SimParams, ecn: Ecn, n: Array
) -> tuple[SimState, Rows, Array]:
    """Simulate `n` samples, at most `CHUNK_SAMPLES`.

    Returns:
        State, rows `[CHUNK_SAMPLES, P]` (zero from row `n` on), and whether the network is empty
        with no flow left to start.
    """
    blank = jnp.zeros((CHUNK_SAMPLES, sim.topology.n_ports), state.queue.dtype)

    def sample(i: Array, carry: tuple[SimState, Rows]) -> tuple[SimState, Rows]:
        state, rows = carry
        state, stats = sim.interval(state, params, ecn)
        return state, Rows(*[x.at[i].set(getattr(stats, f)) for f, x in rows._asdict().items()])

    # n is traced, so that a last, shorter chunk needs no compilation of its own.
    state, rows = jax.lax.fori_loop(0, n, sample, (state, Rows(*[blank] * len(Rows._fields))))
    idle = (
        (state.traffic[0].next == params.traffic[0].src.shape[0])
        & jnp.all(state.flows.stage == life.FREE)
        # Exact: a queue that has sent all holds exactly 0 bytes.
        & jnp.all(state.queue == 0)
        & jnp.all(state.ack_rate == 0)
        & ~jnp.any(state.paused)
    )
    return state, rows, idle


def _run(
    sim: Simulator,
    key: jax.Array,
    params: SimParams,
    ecn: Ecn,
    record: Record,
    progress: Show,
) -> tuple[SimState, np.ndarray]:
    """Simulate all samples chunk by chunk; stop once the network stays empty."""
    state, samples = _start(sim, key, params), len(record.queue)
    done, idle = 0, False
    while done < samples and not idle:
        n = min(CHUNK_SAMPLES, samples - done)
        state, rows, empty = _advance(sim, state, params, ecn, jnp.int32(n))
        record.add(done, n, rows)
        done, idle = done + n, bool(empty)
        if progress:
            progress(float((samples if idle else done) * SAMPLE_US))
    return state, np.asarray(state.fct_log, np.float64)


def _in_file_order(
    values: np.ndarray, order: np.ndarray, n: int, none: float = np.nan
) -> np.ndarray:
    """Values of the replayed flows put back in the order of the list, `none` for the others."""
    out = np.full((n, *values.shape[1:]), none, values.dtype)
    out[order] = values
    return out


def _account(
    state: SimState, size: np.ndarray, left_us: np.ndarray, packet: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Counters and the byte balance.

    Offered bytes are counted from the list itself, each packet with the header of a full one of
    `packet` wire bytes. Flows still without a slot at the end are waiting; they have waited for
    `left_us`, the time from their start to the end.
    """
    wire = wire_size(size, packet - PAYLOAD)
    flows, totals = state.flows, state.totals
    admitted = int(totals.started)
    unsent = np.asarray(flows.rest_high, np.float64) * CHUNK + np.asarray(
        flows.rest_low, np.float64
    )
    unsent = unsent[np.asarray(flows.stage) != life.FREE].sum() + wire[admitted:].sum()
    queued = np.asarray(flows.backlog, np.float64).sum()
    queued += np.asarray(state.pool[1], np.float64).sum()
    dropped = float(counter_bytes(totals.dropped))
    balance = {
        "offered": float(wire.sum()) + dropped,
        "delivered": float(counter_bytes(totals.delivered)),
        "queued": float(queued),
        "waiting": float(unsent),
        "dropped": dropped,
    }
    offered, *parts = balance.values()
    balance["error"] = offered - sum(parts)
    counts = {
        "started": float(admitted),
        "late_feedback": float(counted(totals.late_feedback, CHUNK)),
        "deferred": float(totals.deferred) + float(wire.size - admitted),
        "deferred_us": float(counted(totals.deferred_us, TIME_UNIT))
        + float(left_us[admitted:].sum()),
        "pauses": float(totals.pauses),
        "drops": dropped / packet,
        "flags": float(state.flags),
    }
    return counts, balance


def write_fct(result: Replay, file: io.TextIOBase) -> None:
    """Write `flow_id,size_B,start_ns,fct_ns,slowdown`, one line per flow in the list's order.

    Times are rounded to the nanosecond; unfinished flows have empty `fct_ns` and `slowdown`.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["flow_id", "size_B", "start_ns", "fct_ns", "slowdown"])
    flows = result.flows
    columns = (flows.flow_id, flows.size, flows.start_ns, result.fct_ns, result.slowdown)
    for number, size, start, fct, slowdown in zip(*columns, strict=True):
        done = math.isfinite(fct)
        end = (f"{fct:.0f}", f"{slowdown:.5f}") if done else ("", "")
        writer.writerow([int(number), int(size), np.format_float_positional(start, trim="-"), *end])


def write_queues(result: Replay, file: io.BufferedIOBase) -> None:
    """Write a compressed npz: `time_us [T]`, `queue_bytes` and `tx_bytes` `[T, P]`, `port [P]`."""
    np.savez_compressed(
        file,
        time_us=result.time_us,
        queue_bytes=result.queue_bytes,
        tx_bytes=result.tx_bytes,
        port=np.array(result.topology.port_names),
    )
