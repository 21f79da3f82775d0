"""Flow lists through small networks of any link rates, compiled once per network and senders."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from ecn_marl.sim import Ecn, Schedule, Simulator, fat_tree, leaf_spine, schedule, star
from ecn_marl.sim.core.paths import find_paths
from ecn_marl.sim.random import Stream, hash_bits
from ecn_marl.sim.replay.capacity import Crossings, Overbooking, worst
from ecn_marl.sim.traffic.sizes import HEADER
from ecn_marl.sim.transports import parse_transport
from ecn_marl.sim.units import GBPS

FLOWS = 16
NEVER_NS = 1e9
"""Start of flows that are there to fill the list only."""

NETWORKS = {"star": star(8), "leaf-spine": leaf_spine(3, 3, 2), "fat-tree": fat_tree(4)}
RATES = (10.0, 25.0, 40.0, 100.0, 400.0)


class Runner:
    """One compiled program: a network's shape, its senders, clock and load balancing."""

    def __init__(self, network: str, transport: str, dt_us: float, balancing: str = "ecmp"):
        self.topology, self.dt_us, self.balancing = NETWORKS[network], dt_us, balancing
        self.sim = Simulator(
            self.topology,
            (Schedule(dt_us, FLOWS),),
            parse_transport(transport),
            dt_us=dt_us,
            tick_steps=5,
            interval_steps=50,
            slots=FLOWS,
            scheduled=FLOWS,
            bins=0,
            load_balancing=balancing,
            pfc=False,
            buffer_mib=1e4,
        )
        fill = {"src": [0], "dst": [1], "size_B": [1], "start_ns": [0.0]}
        first = schedule({name: np.array(x) for name, x in fill.items()}, dt_us)
        self.params = self.sim.default_params(traffic=(first,))
        self._run = jax.jit(self._to_the_end)

    def _to_the_end(self, flows, port_rate, nic_rate, n):
        """Completion times of the first `n` flows, µs, and the paths of all."""
        net = replace(self.params.net, port_rate=port_rate, nic_rate=nic_rate)
        params = replace(self.params, traffic=(flows,), net=net)
        ports = jnp.ones((self.topology.n_ports,))
        deep = Ecn(1e9 * ports, 2e9 * ports, 0.01 * ports)
        state = self.sim.init(jax.random.key(0), params)

        def unfinished(state):
            missing = jnp.isnan(state.fct_log) & (jnp.arange(FLOWS) < n)
            return missing.any() & (state.step * self.dt_us < 50_000.0)

        state = jax.lax.while_loop(
            unfinished, lambda state: self.sim.interval(state, params, deep)[0], state
        )
        source = self.sim.traffic[0]
        net = jax.tree.map(jnp.asarray, net)
        offer = source.offer(source.init(jax.random.key(0), flows, nic_rate), flows, nic_rate)
        numbers = jnp.arange(FLOWS, dtype=jnp.int32)
        paths = find_paths(net, offer, hash_bits(state.seed, numbers, Stream.PATH))
        return state.fct_log, paths

    def run(self, case):
        """Completion times of a case, µs, `[N]`, and the paths of its flows."""
        n, fill = len(case["size_B"]), FLOWS - len(case["size_B"])
        rows = {
            "src": np.append(case["src"], np.zeros(fill, int)),
            "dst": np.append(case["dst"], np.ones(fill, int)),
            "size_B": np.append(case["size_B"], np.ones(fill, int)),
            "start_ns": np.append(case["start_ns"], np.full(fill, NEVER_NS)),
        }
        rates = (np.asarray(case[name], np.float32) * np.float32(GBPS) for name in ("port", "nic"))
        fct, paths = self._run(schedule(rows, self.dt_us), *rates, n)
        fct = np.asarray(fct, np.float64)[:n]
        assert np.isfinite(fct).all(), "a flow did not finish"
        return fct, jax.tree.map(lambda x: np.asarray(x)[:n], paths)

    def network(self, case):
        """The network of a case, with its rates."""
        t = self.topology
        ports = tuple(replace(p, gbps=float(g)) for p, g in zip(t.ports, case["port"], strict=True))
        return replace(t, ports=ports, nic_gbps=tuple(float(g) for g in case["nic"]))

    def worst(self, case) -> Overbooking:
        """The set of its flows that is furthest ahead of a link."""
        fct, paths = self.run(case)
        forward, begin = paths.forward, np.asarray(case["start_ns"]) / 1e3
        if self.balancing != "ecmp":  # several paths: only NICs and ports to hosts are certain
            forward = np.where(np.arange(forward.shape[1]) < forward.shape[1] - 1, -1, forward)
            forward = np.where(forward < 0, self.topology.n_ports, forward)
        flows = Crossings(
            *(np.asarray(case["src"]), np.asarray(case["dst"]), forward, paths.back),
            *(np.asarray(case["size_B"], np.float64), begin, begin + fct),
        )
        return worst(self.network(case), flows, HEADER + self.sim.transport.header)


@cache
def runner(*settings) -> Runner:
    """The only `Runner` of these settings."""
    return Runner(*settings)


@st.composite
def cases(draw, network: str, dt_us: float, largest: int = 500_000):
    """Flow lists and link rates: bursts, in-cast, out-cast, any, of one packet to megabytes."""
    t = NETWORKS[network]
    n = draw(st.integers(1, FLOWS))
    hosts = st.integers(0, t.n_hosts - 1)
    into, out_of = draw(st.sampled_from([(True, False), (False, True), (False, False)]))
    src = np.array([draw(hosts)] * n if out_of else draw(st.lists(hosts, min_size=n, max_size=n)))
    dst = np.array([draw(hosts)] * n if into else draw(st.lists(hosts, min_size=n, max_size=n)))
    moved = (src if into else dst) + (src == dst)
    src, dst = (moved % t.n_hosts, dst) if into else (src, moved % t.n_hosts)
    top = draw(st.sampled_from([1_000, 10_000, 100_000, largest]))
    sizes = st.integers(1, top)
    equal = draw(st.booleans())
    size = [draw(sizes)] * n if equal else draw(st.lists(sizes, min_size=n, max_size=n))
    span = draw(st.sampled_from([0, round(500 * dt_us), round(1e3 * dt_us), round(2e4 * dt_us)]))
    offset = draw(st.integers(0, round(1e3 * dt_us)))
    start = offset + np.sort(draw(st.lists(st.integers(0, span), min_size=n, max_size=n)))
    rate = st.sampled_from(RATES)
    edge, core = draw(rate), draw(rate)
    port = [edge if p.kind == "host" else core for p in t.ports]
    nic = [edge] * t.n_hosts
    if draw(st.booleans()):  # every link has a rate of its own
        port = draw(st.lists(rate, min_size=t.n_ports, max_size=t.n_ports))
    return {
        **{"src": src, "dst": dst, "size_B": np.array(size), "start_ns": start.astype(float)},
        **{"port": port, "nic": nic},
    }
