"""Random small networks, senders and flow lists, run packet by packet and in the fluid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

pytest.importorskip("numba", reason="extra packets is not installed")

from ecn_marl.packets import packet_simulator
from ecn_marl.sim import Schedule, Simulator, leaf_spine, scaled_ecn, schedule, star
from ecn_marl.sim.core.paths import find_paths
from ecn_marl.sim.random import Stream, hash_bits
from ecn_marl.sim.replay.capacity import Crossings, Overbooking, worst
from ecn_marl.sim.traffic.sizes import HEADER
from ecn_marl.sim.transports import parse_transport
from ecn_marl.sim.units import GBPS

FLOWS = 12
NEVER_NS = 1e12
"""Start of flows that only fill a list up."""

LONGEST_US = 60_000.0

NETWORKS = {"star": star(6), "leaf-spine": leaf_spine(2, 3, 2)}
SENDERS = (
    *("dcqcn:hpcc-run", "dcqcn:hpcc-paper", "dcqcn:mellanox", "dctcp:hpcc", "dctcp:sigcomm10"),
    *("timely:hpcc", "timely:patched", "swift:htsim", "hpcc:hpcc", "hpcc:sigcomm19"),
)
RATES = (10.0, 25.0, 40.0, 100.0)
DEEP = (1e6, 2e6, 0.01)
"""Thresholds (KB, KB, 1) that no queue reaches."""


@dataclass(frozen=True)
class Case:
    """A flow list, thresholds and links.

    Attributes:
        flows: columns `src`, `dst`, `size_B` and `start_ns`, `[N]` each.
        ecn: Kmin, Kmax (KB at 25 Gb/s) and Pmax.
        nic: rates of the NICs, Gb/s, `[H]`.
        port: rates of the ports, Gb/s, `[P]`.
        delay_us: of every link.
        seed: of marks and paths.
    """

    flows: dict[str, np.ndarray]
    ecn: tuple[float, float, float]
    nic: np.ndarray
    port: np.ndarray
    delay_us: float
    seed: int = 0


def flow_list(*rows):
    """Columns from rows (src, dst, bytes, start in µs)."""
    src, dst, size, start = (np.array(x) for x in zip(*rows, strict=True))
    return {"src": src, "dst": dst, "size_B": size, "start_ns": np.asarray(start, float) * 1e3}


def plain(network, *rows, ecn=DEEP, gbps=25.0, delay_us=1.0, seed=0):
    """A case whose links are all alike."""
    t = NETWORKS[network]
    rates = np.full(t.n_hosts, gbps), np.full(t.n_ports, gbps)
    return Case(flow_list(*rows), ecn, *rates, delay_us, seed)


@st.composite
def cases(draw, network, largest=300_000, deep=False):
    """Bursts, incasts and others, of one packet to 300 KB; links of 10 to 100 Gb/s."""
    t = NETWORKS[network]
    n = draw(st.integers(1, FLOWS))
    hosts = st.integers(0, t.n_hosts - 1)
    into_one = draw(st.booleans())
    dst = np.full(n, draw(hosts)) if into_one else np.array([draw(hosts) for _ in range(n)])
    src = (dst + np.array([draw(st.integers(1, t.n_hosts - 1)) for _ in range(n)])) % t.n_hosts
    sizes = st.one_of(st.integers(1, 3_000), st.integers(1, largest))
    within = draw(st.sampled_from((0.0, 5e3, 1e5)))
    starts = np.sort([draw(st.floats(0.0, 1.0)) * within for _ in range(n)])
    kmin = draw(st.sampled_from((2.5, 5.0, 20.0, 100.0)))
    ecn = (
        kmin,
        kmin * draw(st.sampled_from((1.0, 2.0, 40.0))),
        draw(st.sampled_from((0.01, 0.2, 1.0))),
    )
    rates = st.sampled_from(RATES)
    return Case(
        {
            "src": src,
            "dst": dst,
            "size_B": np.array([draw(sizes) for _ in range(n)]),
            "start_ns": np.floor(starts),
        },
        DEEP if deep else ecn,
        np.array([draw(rates) for _ in range(t.n_hosts)]),
        np.array([draw(rates) for _ in range(t.n_ports)]),
        draw(st.sampled_from((0.2, 1.0, 10.0))),
        draw(st.integers(0, 2**20)),
    )


class Runner:
    """A network's shape and its senders, on either backend."""

    def __init__(self, network, transport, packets, **options):
        self.topology = NETWORKS[network]
        sim = Simulator(
            self.topology,
            (Schedule(1.0, FLOWS),),
            parse_transport(transport),
            **{"dt_us": 1.0, "slots": FLOWS, "scheduled": FLOWS, "bins": 0} | options,
        )
        self.sim = packet_simulator(sim) if packets else sim
        functions = (self.sim.init, self.sim.collect)
        self.init, self.collect = functions if packets else map(jax.jit, functions)
        self._paths = jax.jit(self._find_paths)

    def params(self, case):
        """Parameters of a case."""
        fill = FLOWS - len(case.flows["src"])
        last = {"src": 0, "dst": 1, "size_B": 1, "start_ns": NEVER_NS}
        rows = {k: np.append(case.flows[k], np.full(fill, v)) for k, v in last.items()}
        params = self.sim.default_params(traffic=(schedule(rows, 1.0),))
        rate = {"nic_rate": case.nic, "port_rate": case.port}
        delay = {"nic_delay": case.nic, "port_delay": case.port}
        numbers = {k: np.float32(x * GBPS) for k, x in rate.items()}
        numbers |= {k: np.full(len(x), case.delay_us, np.float32) for k, x in delay.items()}
        return replace(params, net=replace(params.net, **numbers))

    def start(self, case):
        """State, parameters and thresholds at the start."""
        params = self.params(case)
        state = self.init(jax.random.key(case.seed), params)
        return state, params, scaled_ecn(params.net, *case.ecn, 25.0)

    def run(self, case, longest_us=LONGEST_US):
        """The state when all flows have finished, or after the longest time, and parameters."""
        state, params, ecn = self.start(case)
        n = len(case.flows["src"])
        while float(state.step) < longest_us:
            state, _ = self.collect(state, params, ecn)
            if np.isfinite(self.fct(state)[:n]).all():
                break
        return state, params

    @staticmethod
    def fct(state) -> np.ndarray:
        """Completion times, µs; exact on packets."""
        engine = getattr(state, "engine", None)
        return np.asarray(state.fct_log, float) if engine is None else engine.log

    def paths(self, state, params):
        """Paths of the list's flows."""
        return self._paths(params.net, params.traffic[0], state.seed)

    def _find_paths(self, net, plan, seed):
        net = jax.tree.map(jnp.asarray, net)
        source, nic = self.sim.traffic[0], net.nic_rate
        whole = replace(source, width=FLOWS)
        offer: Any = whole.offer(source.init(jax.random.key(0), plan, nic), plan, nic)
        numbers = jnp.arange(FLOWS, dtype=jnp.int32)
        return find_paths(net, offer, hash_bits(jnp.asarray(seed), numbers, Stream.PATH))

    def worst(self, case, state, params) -> Overbooking:
        """The set of flows that is furthest ahead of a link."""
        paths = self.paths(state, params)
        n = len(case.flows["src"])
        begin = np.asarray(case.flows["start_ns"]) / 1e3
        forward, back = (np.asarray(x)[:n] for x in (paths.forward, paths.back))
        flows = Crossings(
            *(case.flows["src"], case.flows["dst"], forward, back),
            *(np.asarray(case.flows["size_B"], float), begin, begin + self.fct(state)[:n]),
        )
        return worst(self.links(case), flows, HEADER + self.sim.transport.header)

    def links(self, case):
        """The topology with the links of a case."""
        t = self.topology
        ports = tuple(
            replace(p, gbps=float(g), delay_us=case.delay_us)
            for p, g in zip(t.ports, case.port, strict=True)
        )
        nics = tuple(float(g) for g in case.nic)
        return replace(t, ports=ports, nic_gbps=nics, nic_delay_us=(case.delay_us,) * t.n_hosts)


@cache
def runner(network, transport="dcqcn:hpcc-paper", packets=True, **options):
    """The only `Runner` of these settings."""
    return Runner(network, transport, packets, **options)


def wire(payload, more=0.0):
    """Payload, and 48 B and what senders add for each packet of up to 1000 B."""
    return payload + (48 + more) * np.ceil(np.asarray(payload) / 1000)


def balance(state):
    """Bytes offered, and where they are: delivered, in the network, not sent yet."""
    clock, flows = state.engine.net.clock[0], state.engine.net.flows
    busy = flows[flows["stage"] > 0]
    return int(clock["offered"]), {
        "delivered": int(clock["delivered"]),
        "dropped": int(clock["dropped"]),
        "inside": int(busy["inside"].sum()),
        "unsent": int(busy["unsent"].sum()),
    }
