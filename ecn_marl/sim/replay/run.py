"""Runs a flow list through a network.

Every 10 µs the queues are sampled; sums over the substeps in between are exact. An empty network
with no flow left to start does not change, so the rest of the time is filled in, not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ecn_marl import lanes
from ecn_marl._errors import bad_value
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.paths import Paths, find_paths
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.metrics import counted, counter_bytes
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.random import Stream, hash_bits
from ecn_marl.sim.regimes import regimes_of
from ecn_marl.sim.replay import capacity
from ecn_marl.sim.replay.result import Replay
from ecn_marl.sim.replay.samples import SAMPLE_US, Record, Rows, port_classes
from ecn_marl.sim.replay.settings import Settings
from ecn_marl.sim.simulator import SimParams, SimState, Simulator
from ecn_marl.sim.traffic.schedules import Schedule, schedule
from ecn_marl.sim.traffic.sizes import CHUNK, PAYLOAD, wire_size
from ecn_marl.sim.traffic.tickets import TIME_UNIT
from ecn_marl.sim.traffic.trace import FlowList

CHUNK_SAMPLES = 100
"""Samples per call of the compiled loop: progress is shown every millisecond."""


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
            `sim.replay.capacity`; takes time in proportion to the square of the flows of a link.
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


_start = jax.jit(Simulator.init, static_argnums=0)
"""An empty network."""


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


@partial(jax.jit, static_argnums=(0, 1))
def _advance(
    sim: Simulator, samples: int, state: SimState, params: SimParams, ecn: Ecn
) -> tuple[SimState, Rows, Array]:
    """Simulate a number of samples.

    It is a batch of one: `lanes` take a sixth of the time that XLA takes, and pass over free slots.

    Returns:
        State, rows `[samples, P]`, and whether the network is empty with no flow left to start.
    """

    def all_samples(state: SimState, params: SimParams, ecn: Ecn) -> tuple[SimState, Rows]:
        def sample(state: SimState, _: None) -> tuple[SimState, Rows]:
            state, stats = sim.interval(state, params, ecn)
            return state, Rows(*[getattr(stats, name) for name in Rows._fields])

        return jax.lax.scan(sample, state, None, length=samples)

    run = jax.vmap(lanes.mapped(all_samples, {0: 0}), (0, None, None))
    batch = jax.tree.map(lambda x: x[None], state)
    state, rows = jax.tree.map(lambda x: x[0], run(batch, params, ecn))
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
        # A last, shorter chunk is a program of its own.
        n = min(CHUNK_SAMPLES, samples - done)
        state, rows, empty = _advance(sim, n, state, params, ecn)
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
