"""Simulations for the comparisons: many runs (network, thresholds, seed) in one program.

The simulator is configured exactly as in `ecn-marl replay`. Here many runs share a batch, and only
the values that the comparisons need are recorded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ecn_marl import lanes
from ecn_marl._types import Leaf
from ecn_marl.sim.config import base_rtt
from ecn_marl.sim.core.lifecycle import SENDING
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import GBPS, Topology
from ecn_marl.sim.replay import Settings
from ecn_marl.sim.replay.samples import SAMPLE_US
from ecn_marl.sim.simulator import SimParams, SimState, Simulator, scaled_ecn
from ecn_marl.sim.traffic.schedules import Schedule, schedule
from ecn_marl.sim.transports import parse_transport

DEFAULT_DT_US = {"dctcp:hpcc": 5.0, "hpcc:hpcc": 2.0, "timely:hpcc": 5.0}
"""Substep for each kind of sender, µs; 1 µs for all others. docs/validation.md has the errors of
longer ones."""

SENDERS = {
    "run": "dcqcn:hpcc-run",
    "paper": "dcqcn:hpcc-paper",
    "run_vwin": "dcqcn:hpcc-run,windowed=1",
    "dctcp": "dctcp:hpcc",
    "hpcc": "hpcc:hpcc",
    "timely": "timely:hpcc",
    "mellanox": "dcqcn:mellanox",
}
"""Our senders for each recorded profile; there are no recorded runs of `mellanox`."""

SAME_PROGRAM = {"dcqcn:hpcc-run": "dcqcn:hpcc-paper"}
"""Senders that differ from others in constants only, so that they can share a compiled program."""

ECN = {
    "SECN1": (5.0, 200.0, 0.01),
    "SECN2": (100.0, 400.0, 0.2),
    "E3": (20.0, 80.0, 0.5),
    "E4": (320.0, 1280.0, 0.05),
    "STEP75": (74.95, 75.0, 1.0),
}
"""Recorded settings: Kmin KB, Kmax KB, Pmax of a 25 Gb/s port. A step is a very short ramp here."""

CHUNK = 200
"""Samples per call of the compiled loop."""

Columns = Mapping[str, np.ndarray]
"""A flow list as `sim.traffic.schedules.schedule` takes it."""


def has_senders(profile: str) -> bool:
    """Whether the simulator has the senders of a recorded profile."""
    try:
        parse_transport(SENDERS[profile])
    except ValueError:
        return False
    return True


FORCE_DT = "ECN_MARL_VALIDATE_DT_US"
"""Environment variable with a substep for all senders, µs (it reaches the worker processes)."""


def force_dt_us(dt_us: float) -> None:
    """Use a substep for all senders, in this process and the workers it starts.

    Raises:
        ValueError: a substep that does not divide 10 µs.
    """
    Settings(dt_us=dt_us)
    os.environ[FORCE_DT] = str(dt_us)


def default_dt_us(transport: str) -> float:
    """Substep for senders given in their short form, µs."""
    forced = os.environ.get(FORCE_DT)
    return float(forced) if forced else DEFAULT_DT_US.get(transport, 1.0)


PACKETS = "ECN_MARL_VALIDATE_PACKETS"
"""Environment variable with a number of seeds, of marks and paths: if it is set, packets are
simulated instead of the fluid, in as many runs (it reaches the worker processes)."""


def packet_seeds() -> int:
    """Runs of everything if packets are simulated, else 0."""
    return int(os.environ.get(PACKETS, 0))


class Rows(NamedTuple):
    """Statistics of every sample; means over ports unless noted.

    Attributes:
        queue: queue at the end, bytes.
        mean: time mean of the queue, bytes.
        square: time mean of the squared queue, bytes².
        peak: largest queue of any port, bytes.
        utilisation: share of the links' capacity that was sent.
        pauses: PFC pauses so far, in the whole network.
        rate: rate of the sender of the list's first flow, bytes/µs.
    """

    queue: Leaf
    mean: Leaf
    square: Leaf
    peak: Leaf
    utilisation: Leaf
    pauses: Leaf
    rate: Leaf


@dataclass(frozen=True)
class Samples:
    """Results of `simulate`. `V` variants, `E` settings, `S` seeds, `T` samples, `N` flows.

    Attributes:
        rows: every leaf `[V, E, S, T]`.
        fct_us: completion times, µs, NaN if unfinished, `[V, E, S, N]`.
        deferred: flows that waited for a slot, `[V, E, S]`.
    """

    rows: Rows
    fct_us: np.ndarray
    deferred: np.ndarray

    def window(self, start_ms: float, end_ms: float) -> Rows:
        """The samples of a time window."""
        low, high = (round(t * 1e3 / SAMPLE_US) for t in (start_ms, end_ms))
        return Rows(*(x[..., low:high] for x in self.rows))


def incast_flows(n: int) -> dict[str, np.ndarray]:
    """`n` endless flows from hosts 1..n to host 0, all starting at 0."""
    return {
        "src": np.arange(1, n + 1),
        "dst": np.zeros(n, np.int64),
        "size_B": np.full(n, 4_000_000_000),
        "start_ns": np.zeros(n, np.int64),
    }


class Clock(NamedTuple):
    """Substep, µs, and substeps per tick; a tick is a part of 10 µs or a multiple of them."""

    dt_us: float
    tick_steps: int


def simulate(
    profile: str,
    variants: Sequence[tuple[Topology, Columns]],
    ecn: Sequence[str],
    seeds: int,
    duration_ms: float,
    *,
    buffer_mib: float = 32.0,
    slots: int | None = None,
    until_done: bool = False,
    clock: Clock | None = None,
) -> Samples:
    """Run every variant under every setting with every seed, as one batch.

    Args:
        profile: recorded profile, names the senders.
        variants: networks of the same shape with lists of as many flows and the same starts.
        ecn: names of thresholds.
        seeds: number of seeds.
        duration_ms: simulated time, a multiple of 2 ms.
        buffer_mib: shared buffer of each switch, MiB.
        slots: flows in progress at most; None for all.
        until_done: stop as soon as all flows of less than 1 GB have finished.
        clock: None for the senders' default substep and short ticks.

    Returns:
        Samples of the queues towards hosts (on a star: towards the first one).
    """
    if packet_seeds():
        from ecn_marl.validation.packet_runs import simulate_packets  # Numba is an extra

        return simulate_packets(profile, variants, ecn, duration_ms, buffer_mib, slots, until_done)
    transport = SENDERS[profile]
    dt = default_dt_us(transport) if clock is None else clock.dt_us
    # The widest network fixes how far back marks can reach.
    network, flows = max(variants, key=lambda variant: base_rtt(variant[0]))
    settings = Settings(
        transport=transport, dt_us=dt, duration_ms=duration_ms, buffer_mib=buffer_mib, slots=slots
    )
    sim = settings.simulator(network, np.asarray(flows["start_ns"], np.float64))
    if clock is not None:
        sim = replace(
            sim,
            tick_steps=clock.tick_steps,
            interval_steps=max(sim.interval_steps, clock.tick_steps),
            traffic=(Schedule(dt, sim.slots),),
        )
    trees = [
        replace(sim, topology=t).default_params(traffic=(schedule(f, dt),)) for t, f in variants
    ]
    # After the parameters, which have the constants of the senders that were asked for.
    sim = replace(sim, transport=parse_transport(SAME_PROGRAM.get(transport, transport)))
    shape = (len(variants), len(ecn), seeds)
    v, e, s = (index.ravel() for index in np.indices(shape))
    shared_params = len(variants) == 1  # then the batch needs no copy of them for every run
    params = trees[0] if shared_params else jax.tree.map(lambda *x: np.stack(x)[v], *trees)
    levels = [scaled_ecn(trees[0].net, *ECN[name]) for name in ecn]
    thresholds = jax.tree.map(lambda *x: jnp.stack(x)[e], *levels)
    keys = jax.vmap(jax.random.key)(jnp.asarray(s))
    watch = (0,) if network.n_switches == 1 else tuple(map(int, network.ports_of_kind("host")))
    state = _start(sim, shared_params, keys, params)
    finite = np.asarray(flows["size_B"]) < 1e9
    chunks = []
    samples_per_row = round(sim.interval_steps * dt / SAMPLE_US)
    for _ in range(math.ceil(settings.samples / samples_per_row / CHUNK)):
        state, rows = _advance(sim, shared_params, watch, state, params, thresholds)
        chunks.append(jax.device_get(rows))
        if until_done and np.isfinite(np.asarray(state.fct_log)[:, finite]).all():
            break
    # float64: a variance is the small difference of a mean square and a squared mean.
    joined = (np.concatenate(x, -1, dtype=np.float64) for x in zip(*chunks, strict=True))
    # A row is an interval, which is longer than a sample if ticks are; windows count samples.
    series = Rows(*(np.repeat(x, samples_per_row, axis=-1) for x in joined))
    return Samples(
        rows=Rows(*(x.reshape(*shape, -1) for x in series)),
        fct_us=np.asarray(state.fct_log, np.float64).reshape(*shape, -1),
        deferred=np.asarray(state.totals.deferred).reshape(shape),
    )


@partial(jax.jit, static_argnums=(0, 1))
def _start(sim: Simulator, shared_params: bool, keys: jax.Array, params: SimParams) -> SimState:
    """Empty networks; `shared_params`: all runs have the same `params`."""
    return jax.vmap(sim.init, (0, None if shared_params else 0))(keys, params)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(
    sim: Simulator,
    shared_params: bool,
    watch: tuple[int, ...],
    state: SimState,
    params: SimParams,
    ecn: Ecn,
) -> tuple[SimState, Rows]:
    """Simulate a chunk of samples of all runs; rows are `[runs, CHUNK]`."""
    ports = np.array(watch)
    interval_us = sim.interval_steps * sim.dt_us
    capacity = np.array([sim.topology.ports[i].gbps for i in watch]).sum() * GBPS * interval_us

    def run(state: SimState, params: SimParams, ecn: Ecn) -> tuple[SimState, Rows]:
        def sample(state: SimState, _: None) -> tuple[SimState, Rows]:
            state, stats = sim.interval(state, params, ecn)
            flows = state.flows
            is_first = (flows.flow_id == 0) & (flows.stage == SENDING)
            rates = sim.transport.rate(flows.transport)
            return state, Rows(
                queue=stats.queue[ports].mean(),
                mean=stats.queue_mean[ports].mean(),
                square=stats.queue_sq[ports].mean(),
                peak=stats.queue_max[ports].max(),
                utilisation=stats.tx_bytes[ports].sum() / capacity,
                pauses=state.totals.pauses,
                rate=jnp.where(is_first, rates, 0.0).sum(),
            )

        return jax.lax.scan(sample, state, None, length=CHUNK)

    mapped_run = lanes.mapped(run, {0: 0})
    return jax.vmap(mapped_run, (0, None if shared_params else 0, 0))(state, params, ecn)
