"""Fat-trees against closed forms: times on an empty network, loads of the tiers, oversubscription.

There are no recorded runs of a fat-tree. Its paths decide the compared values: the number of hops,
the share of uniform traffic that each tier carries, and the rate through a tier of half the
capacity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ecn_marl import lanes
from ecn_marl.sim.clocks import choose_clock
from ecn_marl.sim.network.topology import GBPS, Topology, fat_tree
from ecn_marl.sim.simulator import SimParams, SimState, Simulator, scaled_ecn
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.poisson import Poisson
from ecn_marl.sim.traffic.schedules import Schedule, schedule
from ecn_marl.sim.traffic.sizes import HEADER, PAYLOAD, wire_size
from ecn_marl.sim.transports import parse_transport
from ecn_marl.validation.lines import Case, Line, Tolerance, theory_case

GROUP = "fat-tree"
SIZE = 100_000
"""Payload of every listed flow, bytes."""

ALONE, SHARED = Tolerance(relative=0.001), Tolerance(relative=0.01)
CARRIED, LAST = Tolerance(relative=0.02), Tolerance(relative=0.05)
LOAD, SEEDS, INTERVALS, SLOTS = 0.4, 16, 100, 128
NO_MARKS = (1e6, 2e6, 0.01)
"""Thresholds, KB, that no queue reaches: the closed forms have no congestion control."""


def cases() -> Iterator[Case]:
    """All comparisons, of a tree of 16 hosts."""
    yield theory_case("fat-tree/alone", _alone)
    yield theory_case("fat-tree/oversubscribed", _oversubscribed)
    yield theory_case("fat-tree/tiers", _tiers, 10.0)


def _simulator(topology: Topology, source: Source, **options: Any) -> Simulator:
    """A simulator at the clock of the scenarios; ACKs have no size, so that loads are of data."""
    senders = parse_transport("dcqcn:hpcc-paper")
    dt_us, steps = choose_clock(senders, topology, 100.0)
    clock: dict[str, Any] = {"dt_us": dt_us, "tick_steps": steps}
    clock["interval_steps"] = round(100.0 / dt_us)
    return Simulator(topology, (source,), senders, bins=0, **clock, **options)


def _run(
    sim: Simulator, params: SimParams, intervals: int, seeds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Completion times, µs, `[seeds, N]`, and mean utilisation of every port, `[P]`."""
    params = replace(params, net=replace(params.net, ack_bytes=np.float32(0.0)))

    @lanes.mapped
    def run(key: jax.Array, params: SimParams) -> tuple[jax.Array, jax.Array]:
        def interval(state: SimState, _: None) -> tuple[SimState, jax.Array]:
            state, stats = sim.interval(state, params, scaled_ecn(params.net, *NO_MARKS))
            return state, stats.utilisation

        state, used = jax.lax.scan(interval, sim.init(key, params), None, length=intervals)
        return state.fct_log, used[intervals // 4 :].mean(0)  # first the empty network fills

    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    fct, used = jax.device_get(jax.jit(jax.vmap(run, (0, None)))(keys, params))
    return np.asarray(fct, float), np.asarray(used, float).mean(0)


def _completion_times(
    topology: Topology, rows: list[tuple[int, int, float]], intervals: int, **options: object
) -> np.ndarray:
    """Completion times of flows `(source, destination, start in µs)`, µs, `[N]`."""
    src, dst, start = (np.array(x) for x in zip(*rows, strict=True))
    columns = {"src": src, "dst": dst, "size_B": np.full(len(rows), SIZE), "start_ns": 1e3 * start}
    sim = _simulator(
        topology, Schedule(2.0, len(rows)), scheduled=len(rows), slots=2 * len(rows), **options
    )
    params = sim.default_params(traffic=(schedule(columns, sim.dt_us),))
    return _run(sim, params, intervals, 4)[0].mean(0)


def _time(gbps: float, links: int, delay_us: float = 1.0) -> float:
    """Time of a flow: its bytes at a rate, a packet stored at every switch, and both ways, µs."""
    rate, packet = gbps * GBPS, PAYLOAD + HEADER
    return SIZE / PAYLOAD * packet / rate + (links - 1) * packet / rate + 2 * links * delay_us


def _alone() -> list[Line]:
    """One flow at a time: under one edge switch, within a pod, from pod to pod; then all to one.

    The last of 15 flows to one host ends when its link has carried them all, up to the round trip.
    Their queues grow one behind the other, at the edge, in the pods and at the receiver.
    """
    rows = [(0, 1, 0.0), (0, 2, 200.0), (0, 4, 400.0)]
    rows += [(host, 0, 600.0) for host in range(1, 16)]
    fct = _completion_times(fat_tree(4), rows, 14).tolist()
    lines = [
        Line(
            GROUP,
            f"alone, {links} links",
            "FCT",
            "µs",
            _time(25.0, links),
            simulated,
            ALONE,
            "theory",
        )
        for links, simulated in zip((2, 4, 6), fct[:3], strict=True)
    ]
    expected = 15 * _time(25.0, 1, 0.0)
    last = Line(
        GROUP, "15 to 1, no marks", "last FCT", "µs", expected, max(fct[3:]), LAST, "theory"
    )
    return [*lines, last]


def _oversubscribed() -> list[Line]:
    """Four hosts of a pod send to another pod over links of half the rate, spread over all paths.

    Both hosts of an edge switch share two uplinks of 12.5 Gb/s: each gets 12.5.
    """
    rows = [(host, host + 4, 0.0) for host in range(4)]
    fct = _completion_times(fat_tree(4, uplink_gbps=12.5), rows, 3, load_balancing="spray")
    expected = _time(12.5, 6)
    last = float(fct.max())
    return [Line(GROUP, "2:1, 4 flows", "last FCT", "µs", expected, last, SHARED, "theory")]


def _tiers() -> list[Line]:
    """Uniform traffic: of 15 destinations 14 are beyond the edge switch, and 12 beyond the pod."""
    net = fat_tree(4)
    sim = _simulator(net, Poisson(load=LOAD, table="Solar2022"), slots=SLOTS)
    _, used = _run(sim, sim.default_params(), INTERVALS, SEEDS)
    table = sim.traffic[0].default_params().table
    # Sizes at the middles of equal shares: headers depend on packets, which the mean size hides.
    payload = np.interp((np.arange(200_000) + 0.5) / 200_000, table.cdf, table.size)
    wire = wire_size(payload)
    offered = LOAD * wire.mean() / payload.mean()
    tier = [name.rstrip("0123456789.") for name in net.switches]
    kind = dict(zip(net.switches, tier, strict=True))
    lines = []
    for (switch, peer), share in {
        ("edge", "agg"): 14 / 15,
        ("agg", "core"): 12 / 15,
        ("core", "agg"): 12 / 15,
        ("agg", "edge"): 14 / 15,
        ("edge", "host"): 1.0,
    }.items():
        in_tier = [kind[p.switch] == switch and p.peer.startswith(peer) for p in net.ports]
        simulated = 100 * float(used[np.array(in_tier)].mean())
        name = f"uniform traffic, {switch} to {peer}"
        lines.append(
            Line(
                GROUP, name, "utilisation", "%", 100 * offered * share, simulated, CARRIED, "theory"
            )
        )
    return lines
