"""The simulations of `runs`, packet by packet: the same networks, lists, settings and samples."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from ecn_marl.packets.records import Network
from ecn_marl.packets.replaying import rows as statistics
from ecn_marl.packets.replaying import sampled
from ecn_marl.packets.simulator import PacketSimulator, PacketState
from ecn_marl.sim.core.lifecycle import SENDING
from ecn_marl.sim.network.topology import GBPS, Topology
from ecn_marl.sim.replay import Settings
from ecn_marl.sim.simulator import scaled_ecn
from ecn_marl.sim.traffic.schedules import schedule
from ecn_marl.validation.runs import ECN, SENDERS, Columns, Rows, Samples, packet_seeds


def simulate_packets(
    profile: str,
    variants: Sequence[tuple[Topology, Columns]],
    ecn: Sequence[str],
    duration_ms: float,
    buffer_mib: float,
    slots: int | None,
    until_done: bool,
) -> Samples:
    """`runs.simulate` on packets, whose times are cut to whole ns as the recorded ones are."""
    shape = (len(variants), len(ecn), packet_seeds())
    n_flows = len(variants[0][1]["src"])
    settings = Settings(
        transport=SENDERS[profile], duration_ms=duration_ms, buffer_mib=buffer_mib, slots=slots
    )
    series = [np.zeros((*shape, settings.samples)) for _ in Rows._fields]
    fct_us, deferred = np.full((*shape, n_flows), np.nan), np.zeros(shape)
    longest = 0
    for v, e, s in np.ndindex(*shape):
        state, one = _run(settings, *variants[v], ECN[ecn[e]], s, until_done)
        for store, values in zip(series, one, strict=True):
            store[v, e, s, : len(values)] = values
        longest = max(longest, len(one.queue))
        assert state.engine is not None
        fct_us[v, e, s], deferred[v, e, s] = state.engine.log, state.totals.deferred
    return Samples(Rows(*(x[..., :longest] for x in series)), fct_us, deferred)


def _run(
    settings: Settings,
    network: Topology,
    flows: Columns,
    ecn: tuple[float, float, float],
    seed: int,
    until_done: bool,
) -> tuple[PacketState, Rows]:
    """One run; its state at the end, and the statistics of its samples `[T]`."""
    sim = settings.simulator(network, np.asarray(flows["start_ns"], np.float64))
    cfg = PacketSimulator.of(sim, whole_ns=True)
    params = cfg.default_params(traffic=(schedule(flows, settings.dt_us),))
    watch = [0] if network.n_switches == 1 else list(network.ports_of_kind("host"))
    capacity = sum(network.ports[i].gbps for i in watch) * GBPS * 10.0
    parts: list[Rows] = []
    ports: list[np.ndarray] = []
    others: list[tuple[int, float]] = []
    finite = np.asarray(flows["size_B"]) < 1e9

    def probe(net: Network) -> None:
        ports.append(net.ports[watch].copy())
        first = (net.flows["flow_id"] == 0) & (net.flows["stage"] == SENDING)
        others.append((int(net.clock["pauses"][0]), float(net.senders["rate"][first].sum())))

    def note(done: int) -> None:
        one = statistics(np.stack(ports))
        pauses, rate = np.array(others, np.float64).T
        parts.append(
            Rows(
                queue=one.queue.mean(1),
                mean=one.queue_mean.mean(1),
                square=one.queue_sq.mean(1),
                peak=one.queue_max.max(1),
                utilisation=one.tx_bytes.sum(1) / capacity,
                pauses=pauses,
                rate=rate,
            )
        )
        ports.clear()
        others.clear()

    def all_done(state: PacketState) -> bool:
        assert state.engine is not None
        return until_done and bool(np.isfinite(state.engine.log[finite]).all())

    thresholds = scaled_ecn(params.net, *ecn)
    key = jax.random.key(seed)
    state = sampled(cfg, key, params, thresholds, settings.samples, probe, note, all_done)
    return state, Rows(*(np.concatenate(x) for x in zip(*parts, strict=True)))
