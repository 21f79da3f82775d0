"""Closed forms: fixed points and oscillations of congestion controls at one bottleneck."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import find_peaks

from ecn_marl.sim import theory
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import GBPS, star
from ecn_marl.sim.simulator import SimParams, SimState, Simulator
from ecn_marl.sim.traffic.schedules import Schedule, schedule
from ecn_marl.sim.traffic.sizes import PAYLOAD
from ecn_marl.sim.transports import parse_transport, preset
from ecn_marl.validation.lines import Case, Line, Tolerance, lines_of, theory_case
from ecn_marl.validation.runs import incast_flows

FIXED_POINT = Tolerance(relative=0.01)
OSCILLATION = SAWTOOTH = Tolerance(relative=0.10)

RAMP = (5e3, 200e3, 0.01)
"""Kmin and Kmax (bytes), Pmax of the mean-field comparisons (Zhu et al., CoNEXT'16)."""


def cases() -> Iterator[Case]:
    """All comparisons with theory."""
    yield theory_case("theory/mean-field", _mean_field, 15.0)
    yield theory_case("theory/hpcc", _hpcc)
    yield theory_case("theory/timely", _timely)
    yield theory_case("theory/dctcp", _dctcp)


def _incast(
    transport: str, n: int, gbps: float, delay_us: float, dt_us: float, **options: Any
) -> tuple[Simulator, SimParams]:
    """N endless flows into one port of a star; intervals of 0.1 ms by default."""
    sim = Simulator(
        star(n + 1, gbps=gbps, delay_us=delay_us),
        (Schedule(dt_us, n),),
        parse_transport(transport),
        dt_us=dt_us,
        slots=n,
        bins=0,
        **{"interval_steps": round(100 / dt_us)} | options,
    )
    return sim, sim.default_params(traffic=(schedule(incast_flows(n), dt_us),))


def _series(
    sim: Simulator, params: SimParams, ecn: tuple[float, float, float], ms: float
) -> tuple[np.ndarray, ...]:
    """Mean queue, mean squared queue, largest queue and bytes sent of every interval, `[T]` each.

    All of the bottleneck, over the second half.
    """
    ports = jnp.ones((sim.topology.n_ports,))
    thresholds = Ecn(*(ports * x for x in ecn))

    @jax.jit
    def run(key: jax.Array) -> tuple[jax.Array, ...]:
        def interval(state: SimState, _: None) -> tuple[SimState, tuple[jax.Array, ...]]:
            state, stats = sim.interval(state, params, thresholds)
            port_stats = (stats.queue_mean, stats.queue_sq, stats.queue_max, stats.tx_bytes)
            return state, tuple(x[0] for x in port_stats)

        length = round(1e3 * ms / sim.interval_us)
        return jax.lax.scan(interval, sim.init(key, params), None, length=length)[1]

    rows = [np.asarray(x, np.float64) for x in run(jax.random.key(0))]
    return tuple(x[len(x) // 2 :] for x in rows)


def _settled(
    sim: Simulator, params: SimParams, ecn: tuple[float, float, float], ms: float
) -> tuple[float, float, float]:
    """Queue mean and std (KB) and utilisation of the bottleneck over the second half."""
    mean, square, _, sent = (x.mean() for x in _series(sim, params, ecn, ms))
    capacity = float(params.net.port_rate[0]) * sim.interval_us
    variance = max(square - mean**2, 0.0)  # rounding may make that of a fixed point negative
    return mean / 1e3, variance**0.5 / 1e3, sent / capacity


def _mean_field_run(n: int, delay_us: float, ms: float) -> tuple[float, float, float]:
    """The published equations at 40 Gb/s: packets and ACKs without size, constant delay."""
    name = "dcqcn:paper,source=mean_field"
    sim, params = _incast(name, n, 40.0, delay_us / 4, 1.0, ack_priority=True, pfc=False)
    net = replace(params.net, packet_bytes=np.float32(1.0), ack_bytes=np.float32(0.0))
    return _settled(sim, replace(params, net=net), RAMP, ms)


def _mean_field() -> list[Line]:
    """Exact fixed points of DCQCN, and its oscillation at a long delay.

    The oscillation's reference is an independent solution of the delay equations (56.2 KB, 79.0 KB,
    .949; `tests/sim/delay_equations.py`).
    """
    group, lines = "theory", []
    for n in (2, 10):
        expected = theory.dcqcn_fixed_point(40.0 * GBPS, n, *RAMP, preset("paper"))
        mean, *_ = _mean_field_run(n, 4.0, 200.0)
        case = f"mean-field DCQCN N={n}, 4 µs"
        queue = expected.queue / 1e3
        lines.append(Line(group, case, "queue", "KB", queue, mean, FIXED_POINT, "theory"))
    mean, std, used = _mean_field_run(10, 85.0, 200.0)
    case = "mean-field DCQCN N=10, 85 µs"
    table = (
        ("queue mean", "KB", 56.2, mean, OSCILLATION),
        ("queue std", "KB", 79.0, std, OSCILLATION),
        ("utilisation", "%", 94.9, 100 * used, OSCILLATION),
    )
    return lines + lines_of(group, case, table, "theory")


def _hpcc() -> list[Line]:
    """HPCC uses `eta + N W_ai / BDP` of the link with an empty queue (Li et al., SIGCOMM'19)."""
    lines = []
    for n in (2, 8):
        sim, params = _incast("hpcc:hpcc", n, 25.0, 1.0, 1.0)
        rate, base = 25.0 * GBPS, float(params.net.base_rtt)
        expected = theory.hpcc_fixed_point(rate, n, base, float(params.transport.ai) * base)
        mean, _, used = _settled(sim, params, (1e9, 2e9, 0.01), 10.0)
        near, packet = Tolerance(absolute=0.5), Tolerance(absolute=PAYLOAD / 1e3)
        table = (
            ("utilisation", "%", 100 * expected.utilisation, 100 * used, near),
            ("queue", "KB", expected.queue / 1e3, mean, packet),
        )
        lines += lines_of("theory", f"HPCC N={n}", table, "theory")
    return lines


def _timely() -> list[Line]:
    """Fixed point of patched TIMELY; `C * base RTT` of its bytes are in propagation."""
    sim, params = _incast("timely:patched,share=0.3", 2, 10.0, 1.0, 2.0)
    constants = params.transport
    expected = theory.timely_patched_fixed_point(
        10.0 * GBPS, 2, float(constants.ai), float(constants.beta), float(constants.t_low)
    )
    base = 4.0 + (float(params.net.packet_bytes) + 2 * float(params.net.ack_bytes)) / (10 * GBPS)
    queue = (expected.queue - 10.0 * GBPS * base) / 1e3
    mean, *_ = _settled(sim, params, (1e9, 2e9, 0.01), 200.0)
    return [Line("theory", "patched TIMELY N=2", "queue", "KB", queue, mean, FIXED_POINT, "theory")]


def _dctcp() -> list[Line]:
    """The sawtooth of synchronised flows that are marked at dequeue, see `theory.dctcp_sawtooth`.

    With 32 flows, an RTT of 801 µs and K = 130 packets, the growth of the queue in a round is
    larger than its ripple within a round. (With 2 to 8 flows the ripple crosses K early, cuts come
    before the closed form expects them, and the amplitude is 20 to 30 % below it.)
    """
    n, gbps, delay_us, k = 32, 10.0, 200.0, 130
    name = f"dctcp:sigcomm10,g={1 / 128},alpha_init=0.2,initial={1e6 / n}"
    sim, params = _incast(name, n, gbps, delay_us, 2.0, interval_steps=10, memory_us=2048.0)
    packet, ack = float(params.net.packet_bytes), float(params.net.ack_bytes)
    base = 4 * delay_us + (packet + 2 * ack) / (gbps * GBPS)
    expected = theory.dctcp_sawtooth(gbps * GBPS, base, k * packet, n, packet, at_dequeue=True)
    threshold = (k * packet, k * packet + 1.0, 1.0)
    queue, _, peak, _ = _series(sim, params, threshold, 300.0)
    depth = (expected.q_max - expected.q_min) / 2
    # The prominence leaves out the ripple within a round.
    tops, lows = find_peaks(peak, prominence=depth)[0], find_peaks(-queue, prominence=depth)[0]
    high, low = peak[tops].mean(), queue[lows].mean()
    period = float(np.diff(tops).mean()) * sim.interval_us
    table = (
        ("queue, highest", "KB", expected.q_max / 1e3, high / 1e3, SAWTOOTH),
        ("sawtooth, amplitude", "KB", expected.amplitude / 1e3, (high - low) / 1e3, SAWTOOTH),
        # A cut takes only part of a round; the closed form has the growth of windows, not when.
        ("sawtooth, period", "µs", expected.period, period, None),
    )
    return lines_of("theory", f"DCTCP N={n}", table, "theory")
