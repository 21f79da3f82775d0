"""Long runs: bytes are conserved to the end, and the second half is like the first.

Only `ecn-marl validate --long` runs them; they take minutes to tens of minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ecn_marl import lanes
from ecn_marl.sim.clocks import choose_clock
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.metrics import counted, counter_bytes
from ecn_marl.sim.network.topology import GBPS, Topology, fat_tree, star
from ecn_marl.sim.simulator import SimParams, SimState, Simulator, scaled_ecn
from ecn_marl.sim.traffic.poisson import Poisson
from ecn_marl.sim.traffic.sizes import CHUNK, SLOWDOWN_UNIT, size_table
from ecn_marl.sim.traffic.sizing import demand_of, slots_for
from ecn_marl.sim.transports import parse_transport
from ecn_marl.validation.lines import Case, Line, Outcome, Tolerance

INTERVAL_US = 100.0
LOAD = 0.6
CALL = 500
"""Intervals per call of the compiled loop."""

LOST = Tolerance(absolute=1e-6)
"""Bytes lost or created, as a share of those offered."""

WAITED = Tolerance(absolute=1e-3)
"""Share of the flows that wait for a slot."""

ARRIVALS = Tolerance(relative=0.01)
"""Number of flows against their rate."""

DRIFT = Tolerance(relative=0.05)
"""Second half against the first: WebSearch traffic is bursty."""


class Snapshot(NamedTuple):
    """Counters of every run at one time, `[runs]`; slowdowns `[runs, 3]`."""

    started: np.ndarray
    finished: np.ndarray
    slowdown: np.ndarray
    delivered: np.ndarray
    queue: np.ndarray


def cases() -> Iterator[Case]:
    """A star for 100 s and a fat-tree of 128 hosts for 12 s, with the senders of `hpcc-paper`."""
    star_8 = star(8, gbps=25.0)
    run = partial(long_run, "star of 8, 100 s", star_8, 100.0, 4)
    yield Case("endurance/star", run, 600, long=True)
    run = partial(long_run, "fat-tree k = 8, 12 s", fat_tree(8, gbps=25.0), 12.0, 1)
    yield Case("endurance/fat-tree", run, 900, long=True)


def simulator(topology: Topology) -> Simulator:
    """WebSearch at 60 % load between all hosts, at the clock that scenarios choose."""
    senders = parse_transport("dcqcn:hpcc-paper")
    dt, steps = choose_clock(senders, topology, INTERVAL_US)
    source = Poisson(load=LOAD, table="WebSearch")
    demand = demand_of(source, topology, dt * steps)
    assert demand is not None
    return Simulator(
        topology,
        (source,),
        senders,
        dt_us=dt,
        tick_steps=steps,
        interval_steps=round(INTERVAL_US / dt),
        slots=slots_for([demand], topology, dt * steps),
        bins=0,
    )


def long_run(name: str, topology: Topology, seconds: float, runs: int) -> Outcome:
    """Simulate and compare: bytes, arrivals against their rate, and the halves of the run."""
    sim = simulator(topology)
    params = sim.default_params()
    keys = jax.vmap(jax.random.key)(np.arange(runs))
    state = jax.jit(jax.vmap(sim.init, (0, None)))(keys, params)
    calls = 2 * round(seconds * 1e6 / INTERVAL_US / CALL / 2)  # even, for two equal halves
    queue, halves = np.zeros(runs), []
    for call in range(calls):
        state, mean = _advance(sim, state, params)
        queue += np.asarray(mean, np.float64)
        if call in (calls // 2 - 1, calls - 1):
            halves.append(_snapshot(state, queue))
    first, end = halves
    second = Snapshot(*(b - a for a, b in zip(first, end, strict=True)))
    seconds = calls * CALL * INTERVAL_US / 1e6
    lines = [
        _balance(name, state),
        _waited(name, state, end),
        _arrivals(name, sim, end, seconds),
    ]
    for quantity, first_half, second_half in _halves(first, second):
        note = "against the first"
        lines.append(
            Line("endurance", name, quantity, "", first_half, second_half, DRIFT, "repeated", note)
        )
    return Outcome(lines)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _advance(sim: Simulator, state: SimState, params: SimParams) -> tuple[SimState, PyTree]:
    """`CALL` intervals in all runs; the sum of the ports' mean queues over them, bytes."""
    ecn = scaled_ecn(params.net, 5.0, 200.0, 0.01)

    def run(state: SimState, params: SimParams, ecn: Ecn) -> tuple[SimState, PyTree]:
        def interval(carry: PyTree, _: None) -> tuple[PyTree, None]:
            state, stats = sim.interval(carry[0], params, ecn)
            return (state, carry[1] + stats.queue_mean.mean() / CALL), None

        return jax.lax.scan(interval, (state, 0.0 * state.queue.sum()), None, length=CALL)[0]

    return jax.vmap(lanes.mapped(run, {0: 0}), (0, None, None))(state, params, ecn)


def _snapshot(state: SimState, queue: np.ndarray) -> Snapshot:
    totals = state.totals
    return Snapshot(
        started=np.asarray(totals.started, np.float64),
        finished=np.asarray(totals.finished, np.float64),
        slowdown=counted(totals.slowdown, SLOWDOWN_UNIT),
        delivered=np.asarray(counter_bytes(totals.delivered), np.float64),
        queue=queue.copy(),  # the caller goes on adding to it
    )


def _balance(name: str, state: SimState) -> Line:
    """Offered = delivered + queued + not yet sent + dropped, in the worst run."""
    flows, totals = state.flows, state.totals
    # All in float64: float32 has 24 bits, and the tolerance is 1e-6 of terabytes.
    unsent = np.asarray(flows.rest_high, np.float64) * CHUNK + np.asarray(
        flows.rest_low, np.float64
    )
    unsent = np.where(np.asarray(flows.stage) != life.FREE, unsent, 0.0).sum(-1)
    queued = np.asarray(flows.backlog, np.float64).sum((-1, -2))
    queued += np.asarray(state.pool, np.float64)[:, 1].sum(-1)
    departed = counter_bytes(totals.delivered) + counter_bytes(totals.dropped)
    offered = counter_bytes(totals.offered)
    error = np.abs(offered - departed - queued - unsent) / offered
    note = f"{offered.sum() / 1e12:.3g} TB in {len(offered)} runs"
    worst = float(error.max())
    return Line("endurance", name, "bytes lost or made", "", 0.0, worst, LOST, "theory", note)


def _waited(name: str, state: SimState, end: Snapshot) -> Line:
    """Share of the flows that waited for a slot."""
    share = float(np.asarray(state.totals.deferred).sum() / end.started.sum())
    return Line("endurance", name, "flows deferred", "", 0.0, share, WAITED, "theory")


def _arrivals(name: str, sim: Simulator, end: Snapshot, seconds: float) -> Line:
    """Flows per second against the rate of the Poisson process."""
    line_rate = sum(sim.topology.nic_gbps) * GBPS * 1e6
    expected = LOAD * line_rate / float(size_table("WebSearch").mean)
    rate = float(end.started.mean()) / seconds
    return Line("endurance", name, "flows", "1/s", expected, rate, ARRIVALS, "theory")


def _halves(first: Snapshot, second: Snapshot) -> Iterator[tuple[str, float, float]]:
    """Statistics of both halves, over all runs."""
    for name in ("started", "delivered", "queue"):
        first_value, second_value = (float(getattr(half, name).sum()) for half in (first, second))
        yield f"{name}, second half", 1.0, second_value / first_value
    for i, size in enumerate(("mice", "medium", "elephants")):
        first_value, second_value = (
            float(h.slowdown[:, i].sum() / h.finished[:, i].sum()) for h in (first, second)
        )
        yield f"slowdown of {size}, second half", first_value, second_value
