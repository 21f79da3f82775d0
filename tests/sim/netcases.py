"""Networks, flow lists and byte balances shared by the simulator's tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from roundoff import U
from tiers import tiers

from ecn_marl.sim import (
    Dcqcn,
    Ecn,
    Incast,
    Poisson,
    Schedule,
    SimParams,
    SimState,
    Simulator,
    leaf_spine,
    parking_lot,
    scaled_ecn,
    schedule,
    star,
)
from ecn_marl.sim.metrics import counter_bytes
from ecn_marl.sim.state import COUNTS
from ecn_marl.sim.traffic.sizes import CHUNK
from ecn_marl.sim.transports import preset

ROWS = 24
"""Length of every flow list (shorter ones are filled with flows that never start)."""

CHUNKS = 10
"""Tuning intervals per call of a compiled program."""

OFF = (1e6, 2e6, 0.01)
"""Thresholds (KB, KB, 1) that no queue reaches."""

NEVER_NS = 2e12


def network(topology, dt_us=1.0, **options):
    """A simulator of a flow list; all of them have the same shapes."""
    return Simulator(
        topology,
        (Schedule(dt_us, ROWS),),
        Dcqcn.of("hpcc-paper"),
        dt_us=dt_us,
        slots=16,
        scheduled=ROWS,
        **options,
    )


STAR = network(star(9))
STAR_COARSE = network(star(9), 5.0)
STAR_DROPS = network(star(9), pfc=False)
STAR_PRIORITY = network(star(9), ack_priority=True)
SPINE = network(leaf_spine(2, 2, 2))
SPINE_COARSE = network(leaf_spine(2, 2, 2), 5.0)


def flow_list(rows):
    """Columns of a schedule from rows (src, dst, bytes, start in µs)."""
    rows = [*rows, *[(1, 0, 1, NEVER_NS / 1e3)] * (ROWS - len(rows))]
    src, dst, size, begin = (np.array(x) for x in zip(*rows, strict=True))
    return {"src": src, "dst": dst, "size_B": size, "start_ns": np.asarray(begin, float) * 1e3}


QUICK = {"xla_backend_optimization_level": 0}
"""Compiler options: half the compile time, twice the run time."""


def program(sim, quick=False):
    """The simulator's compiled loop over `CHUNKS` intervals."""
    return compiled(sim, quick)[1]


def start(sim, quick=False):
    """The simulator's compiled `init`."""
    return compiled(sim, quick)[0]


@cache
def compiled(sim, quick):
    """Compiled `init` and loop, cached."""

    def run(state, params, ecn):
        def interval(state, _):
            return sim.interval(state, params, ecn)

        return jax.lax.scan(interval, state, None, length=CHUNKS)

    options = QUICK if quick else None
    return tuple(jax.jit(f, compiler_options=options) for f in (sim.init, run))


@dataclass
class Run:
    """A simulation so far: its state, and the statistics of its last intervals `[T, P]`."""

    sim: Simulator
    state: SimState
    params: SimParams
    ecn: Ecn
    stats: Any = None
    quick: bool = False

    def on(self, intervals):
        """Go on for some intervals (`CHUNKS` at a time)."""
        state, parts = self.state, []
        for _ in range(math.ceil(intervals / CHUNKS)):
            state, stats = program(self.sim, self.quick)(state, self.params, self.ecn)
            parts.append(stats)
        stats = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        return replace(self, state=state, stats=stats)

    @property
    def fct(self):
        """Completion times of the flow list, µs."""
        return np.asarray(self.state.fct_log, np.float64)

    @property
    def totals(self):
        """Counters since the start."""
        return self.state.totals

    def dropped(self):
        """Bytes dropped since the start."""
        return float(counter_bytes(self.totals.dropped))

    def slot(self, flow):
        """Slot of a flow of the list that is in progress."""
        (slot,) = np.flatnonzero(np.asarray(self.state.flows.flow_id) == flow)
        return int(slot)


def with_net(params, **net):
    """Parameters with fields of `NetParams` replaced; one number is for all links or ports."""
    real = params.net.port_rate.dtype
    net = {
        k: np.broadcast_to(np.asarray(v, real), getattr(params.net, k).shape)
        for k, v in net.items()
    }
    return replace(params, net=replace(params.net, **net))


def simulate(sim, rows, intervals, ecn=OFF, seed=0, transport=None, **net):
    """Run a flow list under `ecn` (KB, KB, 1; or `Ecn`); `net` replaces fields of `NetParams`."""
    params = with_net(sim.default_params(traffic=(schedule(flow_list(rows), sim.dt_us),)), **net)
    if transport is not None:
        real = params.net.port_rate.dtype
        params = replace(params, transport=jax.tree.map(real.type, transport))
    ecn = ecn if isinstance(ecn, Ecn) else scaled_ecn(params.net, *ecn)
    return Run(sim, start(sim)(jax.random.key(seed), params), params, ecn).on(intervals)


def wire(payload):
    """Payload and 48 B for each packet of up to 1000 B."""
    return payload + 48 * math.ceil(payload / 1000)


def kolmogorov(sample, cdf):
    """Largest distance between the distribution of a sample and a continuous one."""
    probability = cdf(np.sort(sample))
    n = len(probability)
    return max(
        np.abs(probability - np.arange(n) / n).max(),
        np.abs(probability - np.arange(1, n + 1) / n).max(),
    )


def by_packets(payload, gbps, delays, ack=60):
    """Completion time of a flow alone, packet by packet: every link stores and forwards, µs.

    Args:
        payload: bytes.
        gbps: rates of the links on its way, the NIC's first; the ACK's are as many and as fast.
        delays: their propagation delays, µs.
        ack: bytes of the ACK.
    """
    n = math.ceil(payload / 1000)
    packets = [1048] * (n - 1) + [payload - 1000 * (n - 1) + 48]
    at = [0.0] * n
    for rate, delay in zip(gbps, delays, strict=True):
        free = 0.0
        for i, size in enumerate(packets):
            free = max(at[i], free) + size / (125.0 * rate)
            at[i] = free + delay
    return at[-1] + sum(ack / (125.0 * g) + d for g, d in zip(gbps, delays, strict=True))


def alone_us(payload, hops_gbps, nic_gbps=25.0, delay_us=1.0):
    """The same over ports of `hops_gbps` behind a NIC, all links equally long."""
    rates = [nic_gbps, *hops_gbps]
    return by_packets(int(payload), rates, [delay_us] * len(rates))


def standalone_us(payload, hops_gbps, nic_gbps=25.0, delay_us=1.0):
    """The HPCC simulator's ideal time: propagation both ways, one store-and-forward time of 1000 B
    per link, wire bytes at the slowest link.
    """
    rates = [125.0 * x for x in (nic_gbps, *hops_gbps)]
    return wire(payload) / min(rates) + sum(1000 / r for r in rates) + 2 * len(rates) * delay_us


# --- random networks ------------------------------------------------------------------------------


def random_network(topology, **options):
    """A simulator of endless traffic of both kinds."""
    sources = (Poisson(table="FbHdp", width=4), Incast(n_max=4, flow_kb=50.0, width=4))
    options = {"counts": COUNTS, "accrue": True} | options
    return Simulator(topology, sources, Dcqcn.of("hpcc-paper"), slots=24, **options)


RANDOM = {
    "star, drops": random_network(star(5), pfc=False),
    "leaf-spine, PFC": random_network(leaf_spine(2, 2, 2)),
    "leaf-spine, sprayed": random_network(leaf_spine(2, 2, 2), load_balancing="spray"),
    "leaf-spine, flowlets, drops": random_network(
        leaf_spine(2, 2, 2), pfc=False, load_balancing="flowlet", flowlet_gap_us=3.0
    ),
    "parking lot, drops": random_network(parking_lot(2), pfc=False, ack_priority=True),
}
RANDOM_CASES = tiers(
    [(name, bits) for name in RANDOM for bits in (32, 64)],
    ("leaf-spine, PFC", 32),
    ("star, drops", 64),
)
"""Names, and bits of reals."""


def random_params(sim, rng):
    """Random rates, delays, buffers, PFC, senders, traffic and thresholds within wide limits."""
    params = sim.default_params()
    net, real = params.net, params.net.port_rate.dtype
    n_links = net.pfc_alpha.shape

    def pick(values, shape=()):
        return np.asarray(rng.choice(values, shape), real)

    def between(low, high, shape=()):
        return np.asarray(np.exp(rng.uniform(np.log(low), np.log(high), shape)), real)

    net = replace(
        net,
        port_rate=pick([1250.0, 3125.0, 5000.0, 12500.0], net.port_rate.shape),
        nic_rate=pick([1250.0, 3125.0, 5000.0, 12500.0], net.nic_rate.shape),
        port_delay=between(0.01, 20, net.port_delay.shape),
        nic_delay=between(0.01, 20, net.nic_delay.shape),
        buffer=between(1e4, 4e6, net.buffer.shape),
        pfc_alpha=np.broadcast_to(pick([0.125, 0.5, 1e6]), n_links),
        headroom=net.headroom * pick([0.0, 0.2, 1.0]),
        ack_bytes=pick([0.0, 60.0, 200.0]),
        packet_bytes=pick([500.0, 1048.0, 4096.0]),
    )
    poisson, incast = params.traffic
    traffic = (
        replace(poisson, load=between(0.05, 1.5)),
        replace(
            incast,
            load=between(0.05, 1.5),
            flow_bytes=pick([100.0, 5e3, 5e4, 5e5]),
            jitter_us=pick([0.0, 30.0]),
            receiver=pick([-1.0, 0.0]),
        ),
    )
    name = rng.choice(["paper", "hpcc-run", "hpcc-paper", "hpcc-config"])
    transport = jax.tree.map(real.type, preset(str(name)))
    kmin = between(1, 2e5, net.port_rate.shape)
    ecn = Ecn(kmin, kmin + between(1, 4e5, kmin.shape), between(1e-3, 1, kmin.shape))
    return replace(params, net=net, transport=transport, traffic=traffic), ecn


def random_run(name, seed, bits=32):
    """One millisecond of a random network, in float32 or float64."""
    sim, quick = RANDOM[name], bits == 64
    with jax.enable_x64(bits == 64):
        params, ecn = random_params(sim, np.random.default_rng(seed))
        state = start(sim, quick)(jax.random.key(seed), params)
        return Run(sim, state, params, ecn, quick=quick).on(CHUNKS)


def balance(state):
    """Wire bytes offered, delivered, queued, waiting (the unsent rest) and dropped."""

    def total(x):
        return float(np.asarray(x, np.float64).sum())

    flows, totals = state.flows, state.totals
    busy = np.asarray(flows.stage) != 0
    unsent = np.asarray(flows.rest_high, np.float64) * CHUNK + np.asarray(
        flows.rest_low, np.float64
    )
    return {
        "offered": float(counter_bytes(totals.offered)),
        "delivered": float(counter_bytes(totals.delivered)),
        "queued": total(flows.backlog) + total(state.pool[1]),
        "waiting": total(unsent[busy]),
        "dropped": float(counter_bytes(totals.dropped)),
    }


def imbalance(state):
    """Bytes lost (or made), and bytes offered."""
    offered, *parts = balance(state).values()
    return offered - sum(parts), offered


def rounding(sim, state, queue_sum, sent):
    """Bytes by which rounding can make `balance` miss, to first order in the unit roundoff u.

    Queues: each substep, bytes join (u of the queue at its end and of what leaves) and leave (u of
    the queue at its end). Flows: what one sends is split over its ways (u each), and every chunk
    begun rounds what is left to send by u of a chunk. Sums of what is delivered, dropped and sent
    again have a term per slot, way, level and substep of a tick. Counters: u of half a chunk for
    each tick in which they move, and of the amount when they reach a whole chunk.

    Args:
        sim: the simulator.
        state: its state at the end.
        queue_sum: sum of all queues over all substeps, bytes.
        sent: bytes sent by all ports.
    """
    parts = balance(state)
    u = float(jnp.finfo(state.queue.dtype).eps) / 2
    queues = 2 * queue_sum + sent
    flows = (sim.n_ways + 2) * parts["offered"]
    terms = sim.slots + sim.n_ways + sim.topology.n_levels + sim.tick_steps
    sums = terms * (parts["delivered"] + 2 * parts["dropped"])
    moving = 3 if parts["dropped"] > 0 else 1
    ticks = moving * int(state.step) / sim.tick_steps + int(state.totals.started)
    counters = ticks * CHUNK / 2 + parts["offered"] + parts["delivered"] + parts["dropped"]
    return u * (queues + flows + sums + counters)


def class_rounding(sim, queue_sum, sent):
    """Bytes by which `class_bytes` can miss the bytes that ports sent, float32.

    What a port sends in a tick is a sum of what backlogs grew by, rounded by u of them for each
    level, and twice a substep as they change. Both totals are sums over an interval.
    """
    ticks = sim.interval_steps // sim.tick_steps
    queues = (2 + (sim.topology.n_levels + 2) / sim.tick_steps) * queue_sum
    # The parts of all flows are what was sent to 32 u, see `test_service_conserves_bytes`.
    return U * (queues + (sim.interval_steps + ticks + sim.slots + 32) * sent)


DETERMINISTIC = [
    (1, 0, 400_000, 0.0),
    (2, 0, 650_000, 3.3),
    (2, 3, 30_000, 10.0),
    (4, 3, 200_000, 40.7),
    (3, 4, 1_000, 44.4),
    (3, 4, 17, 90.0),
    (5, 0, 2_000_000, 101.1),
]
"""Flows that share NICs and ports, unmarked."""
