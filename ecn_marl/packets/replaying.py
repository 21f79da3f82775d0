"""Replay of a flow list packet by packet, with the settings and results of `sim.replay`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from ecn_marl.packets.interval import Interval
from ecn_marl.packets.records import PS_PER_US, Network
from ecn_marl.packets.simulator import PacketSimulator, PacketState
from ecn_marl.sim.core.lifecycle import FREE
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.replay import Replay, Settings
from ecn_marl.sim.replay.run import CHUNK_SAMPLES, Show, replayed
from ecn_marl.sim.replay.samples import SAMPLE_US, Record, Rows
from ecn_marl.sim.simulator import SimParams, Simulator
from ecn_marl.sim.traffic.trace import FlowList


def replay(
    flows: FlowList,
    topology: Topology,
    settings: Settings | None = None,
    progress: Show = None,
    check: bool = False,
    keep: bool = False,
    *,
    whole_ns: bool = False,
) -> Replay:
    """Run a flow list through a network, packet by packet.

    Args:
        flows: the flows, in any order.
        topology: the network.
        settings: how to run it; of the clock, only the ticks at which slots are given matter.
        progress: called with the simulated time so far, µs, about every millisecond.
        check: see `sim.replay.replay`.
        keep: see `sim.replay.replay`.
        whole_ns: see `simulator.PacketSimulator`.

    Raises:
        ValueError: a setting or a value of the list that is not allowed, see `sim.replay.replay`
            and `simulator.refuse`.
        BrokenInvariant: more packets are in the network than there is memory for.
    """
    run = partial(run_on_packets, whole_ns)
    result = replayed(flows, topology, settings or Settings(), progress, check, run, keep)
    return replace(result, regimes=())


def run_on_packets(
    whole_ns: bool,
    sim: Simulator,
    key: jax.Array,
    params: SimParams,
    ecn: Ecn,
    record: Record,
    show: Show,
) -> tuple[PacketState, np.ndarray]:
    """Simulate samples of 10 µs; stop once the network stays empty. See `sim.replay.Run`."""
    cfg = PacketSimulator.of(sim, whole_ns=whole_ns)
    counted: list[np.ndarray] = []

    def count(net: Network) -> None:
        counted.append(net.ports.copy())
        net.ports["peak"] = net.ports["queue"]  # a peak is that of its sample

    def note(done: int) -> None:
        record.add(done - len(counted), len(counted), rows(np.stack(counted)))
        counted.clear()
        if show:
            show(float(done * SAMPLE_US))

    state = sampled(cfg, key, params, ecn, len(record.queue), count, note)
    assert state.engine is not None
    return state, state.engine.log


def sampled(
    cfg: PacketSimulator,
    key: jax.Array,
    params: SimParams,
    ecn: Ecn,
    samples: int,
    probe: Callable[[Network], None],
    note: Callable[[int], None],
    stop: Callable[[PacketState], bool] | None = None,
) -> PacketState:
    """Simulate a network under fixed thresholds, and look at it often; stop once it stays empty.

    Args:
        cfg: the simulator; its interval is a sample.
        key: fixes traffic and coins.
        params: parameters.
        ecn: thresholds.
        samples: number of samples.
        probe: called at the end of each, with counters since the last call of `note`.
        note: called with the number of samples done so far, up to a hundred more each time.
        stop: whether to stop here; None for never.
    """
    chunk = max(n for n in range(1, CHUNK_SAMPLES + 1) if samples % n == 0)
    per_sample = cfg.interval_steps // cfg.tick_steps
    # One interval is a chunk: what is computed per interval takes longer than a sample.
    cfg = replace(cfg, interval_steps=chunk * cfg.interval_steps)
    state = cfg.init(key, params)
    for done in range(chunk, samples + 1, chunk):
        assert state.engine is not None
        run = Interval(cfg, state, state.engine, params)
        run.set_ecn(ecn)
        for _ in range(chunk):
            run.advance(per_sample)
            probe(run.net)
        values, _, engine = run.close()
        state = PacketState(**values, engine=engine)
        note(done)
        if idle(state, params) or (stop is not None and stop(state)):
            break
    return state


def rows(ports: np.ndarray) -> Rows:
    """Statistics of samples from the ports' counters at their ends, `[samples, P]`."""

    def since(name: str) -> np.ndarray:
        return np.diff(ports[name], axis=0, prepend=0)

    time = SAMPLE_US * PS_PER_US
    return Rows(
        queue=ports["queue"],
        tx_bytes=since("sent"),
        queue_mean=since("area") / time,
        queue_sq=since("square") / time,
        queue_max=ports["peak"],
        marked_bytes=since("marked"),
        paused=since("paused") / time,
    )


def idle(state: PacketState, params: SimParams) -> bool:
    """Whether the network is empty, and no flow is left to start."""
    assert state.engine is not None
    drawn = int(state.traffic[0].next)
    all_drawn = drawn == params.traffic[0].src.shape[0] and not state.engine.waiting.rows.size
    nothing = state.engine.net.clock["events"][0] == 0
    return bool(all_drawn and nothing and (np.asarray(state.flows.stage) == FREE).all())
