"""Congestion controls at one bottleneck against closed forms of their steady states."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from congestion_points import adpg_fixed_point, swift_target
from netcases import ROWS, flow_list, start

from ecn_marl import lanes
from ecn_marl.sim import Ecn, Schedule, Simulator, schedule, star, theory
from ecn_marl.sim.metrics import counter_bytes
from ecn_marl.sim.transports import parse_transport

PACKET = 1048
"""Wire bytes of a full packet."""

SLOW, FAST = 1250.0, 3125.0
"""10 and 25 Gb/s in bytes/µs."""


def network(text, rate, delay_us, dt_us=1.0, **options):
    """Eight senders and a receiver."""
    sizes = {"tick_steps": 5, "interval_steps": 10, "slots": 8, "scheduled": ROWS}
    return Simulator(
        star(9, gbps=rate / 125, delay_us=delay_us),
        (Schedule(dt_us, ROWS),),
        parse_transport(text),
        dt_us=dt_us,
        **sizes | options,
    )


def flows_of(n, size=10**9, gap=0.0):
    """N flows to host 0, `gap` µs apart."""
    return [(i + 1, 0, size, i * gap) for i in range(n)]


def prepare(sim, rows, constants, net):
    """Parameters for a flow list, with constants of the senders and the network replaced."""
    params = sim.default_params(traffic=(schedule(flow_list(rows), sim.dt_us),))
    real = params.net.port_rate.dtype
    net = {k: np.full(getattr(params.net, k).shape, v, real) for k, v in net.items()}
    values = {k: real.type(v) for k, v in constants.items()}
    return replace(
        params,
        net=replace(params.net, **net),
        transport=replace(params.transport, **values),
    )


@cache
def program(sim, length, act=None):
    """Compiled batch of runs; `act` may set the senders before each of the `length` intervals."""

    def run(state, params, ecn):
        def interval(state, _):
            if act is not None:
                flows = state.flows
                state = replace(state, flows=replace(flows, transport=act(flows.transport)))
            state, stats = sim.interval(state, params, ecn)
            senders = state.flows.transport
            window = sim.transport.window(senders)
            record = {
                "queue": stats.queue[0],
                "mean": stats.queue_mean[0],
                "peak": stats.queue_max[0],
                "utilisation": stats.utilisation[0],
                "rate": sim.transport.rate(senders),
                "window": senders.line if window is None else window,
                "rtt": state.echo.probe.rtt,
                "alpha": getattr(senders, "alpha", senders.line),
            }
            return state, record

        return jax.lax.scan(interval, state, None, length=length)

    return jax.jit(jax.vmap(lanes.mapped(run), (0, 0, None)))


def simulate(sim, cases, length, k=None, act=None):
    """Run cases `(rows, constants of the senders, fields of the network)` side by side.

    Everything above `k` bytes is marked. Returns a record of each: series per interval (`[T]`,
    `[T, F]`) and the last state.
    """
    params = [prepare(sim, *case) for case in cases]
    states = [start(sim)(jax.random.key(i), p) for i, p in enumerate(params)]
    mark = 1e9 if k is None else float(k)
    ecn = Ecn(*(np.full(9, x, np.float32) for x in (mark, mark + 1, 1.0)))
    stack = (
        jax.tree.map(lambda *x: jnp.stack(x), *states),
        jax.tree.map(lambda *x: np.stack(x), *params),
    )
    results = jax.device_get(program(sim, length, act)(*stack, ecn))
    runs = [jax.tree.map(lambda x, i=i: x[i], results) for i in range(len(cases))]
    return [SimpleNamespace(state=state, **record) for state, record in runs]


def jain(rates):
    """Fairness index of mean rates `[T, n]`."""
    mean = np.asarray(rates, np.float64).mean(0)
    return mean.sum() ** 2 / (len(mean) * (mean**2).sum())


# --- DCTCP ----------------------------------------------------------------------------------------

DCTCP = network("dctcp:sigcomm10,g=0.015625,alpha_init=0.1", SLOW, 100.0, 2.0, memory_us=1024.0)
"""RTT 401 µs: a bandwidth-delay product of 478 packets. A small g, as in the paper's analysis."""

K = 65
"""Marking threshold, packets."""


def sawtooth(run, n):
    """Means over the cycles of the second half: highest and lowest queue (packets), period (µs)."""
    half = len(run.queue) // 2
    queue, peak = run.queue[half:] / PACKET, run.peak[half:] / PACKET
    total = run.window[half:, :n].sum(1)
    falls = np.flatnonzero(np.diff(total) < -500)
    cuts = falls[np.append(True, np.diff(falls) > 15)]  # all flows cut within a round trip
    pairs = list(itertools.pairwise(cuts))
    high = np.mean([peak[a:b].max() for a, b in pairs])
    low = np.mean([queue[a + 1 : b].min() for a, b in pairs])
    return high, low, np.diff(cuts).mean() * DCTCP.interval_us


@cache
def dctcp_runs():
    counts = 2, 4, 8
    cases = [(flows_of(n, gap=53.77), {"initial": 500e3 / n}, {}) for n in counts]
    return dict(zip(counts, simulate(DCTCP, cases, 5000, k=K * PACKET), strict=True))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_dctcp_sawtooth(n):
    """The paper's sawtooth, its marks set when packets leave the queue.

    `theory.dctcp_sawtooth` has marks come back a whole round after the queue passes K. Here, as in
    switches that mark at dequeue, they come back after the base RTT L, a part of the round R = L +
    K/C. With f L of marks per cycle of `alpha W / 2 + x` rounds (no growth in part x of the round
    of a cut; f < 1 as the queue passes K bit by bit),

        alpha (alpha W / 2 + x) = f L / R,

    which is the paper's `alpha² W / 2 = 1` for f = 1, x = 0, L = R. Hence bounds: f = 1, x = 0 and,
    the queue growing by as much as it ripples, f = 1/2, x = 1.
    """
    run = dctcp_runs()[n]
    high, low, period = sawtooth(run, n)
    base = 400 + (PACKET + 120) / SLOW
    paper = theory.dctcp_sawtooth(SLOW, base, K * PACKET, n, PACKET)
    assert K < high <= paper.q_max / PACKET + 0.5
    window = (base * SLOW / PACKET + K + n / 2) / n
    share = base / (base + K * PACKET / SLOW)
    upper = n * window / 2 * math.sqrt(2 * share / window)
    lower = n / 2 * (math.sqrt(1 + window * share) - 1)
    assert upper < paper.amplitude / PACKET
    assert lower < high - low < upper
    # A cycle wins back, one packet per flow and round, what the cut took.
    wait = (high + low) / 2 * PACKET / SLOW
    rounds = period / (base + wait)
    assert (high - low) / n <= rounds <= (high - low) / n + 1.2
    # Over the second half: a flow's alpha swings by a fifth, packet by packet, too.
    alpha = run.alpha[len(run.alpha) // 2 :, :n].mean(0)
    np.testing.assert_allclose(alpha, 2 * (high - low) / n / window, rtol=0.15)
    assert run.utilisation[2500:].min() > 0.999
    assert jain(run.window[2500:, :n]) > 0.99


# --- HPCC -----------------------------------------------------------------------------------------

HPCC = network("hpcc:hpcc", FAST, 1.0)


@cache
def hpcc_runs():
    counts = 2, 4, 8
    return dict(
        zip(counts, simulate(HPCC, [(flows_of(n), {}, {}) for n in counts], 1500), strict=True)
    )


@jax.jit
def estimates(params, state):
    """Load that each sender sees, at the ends of 2000 intervals of 10 µs, `[T, F]`."""
    ecn = Ecn(*(jnp.full(HPCC.topology.n_ports, x) for x in (1e9, 2e9, 0.01)))

    def interval(state, _):
        state, _ = HPCC.interval(state, params, ecn)
        return state, state.flows.transport.load

    return jax.lax.scan(interval, state, None, length=2000)[1]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_hpcc_fixed_point(n):
    """`eta + n W_ai / BDP` of the link is used, and no queue builds up."""
    run = hpcc_runs()[n]
    base = 4 + 2 * 1000 / FAST
    want = theory.hpcc_fixed_point(FAST, n, base, 1.25 * base)
    assert want.queue == 0
    assert run.utilisation[500:].mean() == pytest.approx(want.utilisation, abs=1e-3)
    assert run.peak[500:].max() < PACKET
    # A sender's estimate ripples from ACK to ACK; its mean over time settles.
    load = estimates(prepare(HPCC, flows_of(n), {}, {}), run.state)[:, :n]
    np.testing.assert_allclose(load.mean(0), want.utilisation, atol=2e-3)
    assert jain(run.rate[500:, :n]) > 0.999


# --- TIMELY ---------------------------------------------------------------------------------------

PATCHED = network("timely:patched", SLOW, 1.0, 2.0, interval_steps=50)
PLAIN = network("timely:conext16", SLOW, 1.0, 2.0, interval_steps=50)

BASE = 4 + (1056 + 120) / SLOW
"""Round trip of these two without queues, µs; TIMELY's packets carry 8 bytes more."""


@cache
def patched_runs():
    """Together and apart, from above and below the fair share."""
    starts = [(2, 0.05, 0.0), (2, 0.6, 0.0), (2, 0.3, 4000.0), (4, 0.1, 2000.0)]
    cases = [(flows_of(n, gap=gap), {"share": share}, {}) for n, share, gap in starts]
    return [n for n, _, _ in starts], simulate(PATCHED, cases, 2000)


@pytest.mark.parametrize("case", range(4))
def test_patched_timely_settles_in_its_fixed_point(case):
    """Of the queue in the closed form, propagation holds `C base`: the sender times both."""
    counts, runs = patched_runs()
    n, run = counts[case], runs[case]
    want = theory.timely_patched_fixed_point(SLOW, n, 1.25, 0.008, 50.0)
    queue = run.mean[-300:]
    np.testing.assert_allclose(queue, want.queue - SLOW * BASE, rtol=0.01)
    np.testing.assert_allclose(run.rate[-300:, :n], want.rate, rtol=0.03)
    assert run.utilisation[-300:].mean() > 0.999


@pytest.mark.thorough
def test_plain_timely_does_not_settle():
    """No fixed point: the queue keeps swinging, shares are what they happened to become."""
    cases = [(flows_of(n, gap=gap), {"share": 0.2}, {}) for n, gap in ((2, 3000.0), (4, 3000.0))]
    two, four = simulate(PLAIN, cases, 2000)
    for run in (two, four):
        queue = run.queue[1000:]
        assert queue.std() > 0.5 * queue.mean()
        assert queue.min() < PACKET
        assert queue.max() > 30e3
    assert jain(four.rate[-500:, :4]) < 0.85
    _, runs = patched_runs()
    assert jain(runs[3].rate[-500:, :4]) > 0.999


# --- SWIFT ----------------------------------------------------------------------------------------

SWIFT = network("swift:htsim", FAST, 1.0)


@cache
def swift_runs():
    counts = 1, 2, 4, 8
    runs = simulate(SWIFT, [(flows_of(n), {}, {}) for n in counts], 1500)
    return dict(zip(counts, runs, strict=True))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_swift_keeps_the_delay_near_its_target(n):
    """N windows fill the target: `n cwnd = C target(cwnd)`; additive steps overshoot by `n` packets
    per round, and a cut takes `beta` of the overshoot.
    """
    run = swift_runs()[n]
    cwnd = float(run.window[500:, :n].mean()) / 1000
    target = swift_target(cwnd, 1, 20.0, 20 / 6.55, 100.0)
    delay = run.rtt[500:, :n]
    step = n * PACKET / FAST  # the delay that one round of additive increase adds
    assert delay.mean() == pytest.approx(target, abs=0.75 * step)
    assert np.abs(delay - target).max() < 3 * step + 1
    assert n * cwnd * PACKET == pytest.approx(FAST * target, rel=0.1)
    assert run.utilisation[500:].min() > 0.999
    assert jain(run.window[500:, :n]) > 0.99


def test_a_lone_flow_gathers_no_window():
    """Only its NIC limits it: the window stays at what the NIC sends in a round trip."""
    run = swift_runs()[1]
    base = 4 + (PACKET + 120) / FAST
    assert FAST * base * 1000 / PACKET < run.window[-1, 0] < FAST * (4 + 2000 / FAST) + 1000
    assert run.utilisation[-100:].min() > 0.999


# --- Reno -----------------------------------------------------------------------------------------

RENO = network("reno:rfc5681", SLOW, 12.0, pfc=False)

RENO_BDP = SLOW * (48 + (PACKET + 120) / SLOW)


@cache
def reno_runs():
    buffer = {"buffer": RENO_BDP}
    cases = [(flows_of(n), {}, buffer) for n in (2, 4)]
    cases += [(flows_of(4, size=2_000_000, gap=100.0), {}, buffer)]
    return simulate(RENO, cases, 4000)


@pytest.mark.parametrize("n", [2, 4])
def test_reno_sawtooth(n):
    """Between `(BDP + buffer) / n` and half of it; a buffer of a BDP keeps the link busy."""
    run = reno_runs()[0 if n == 2 else 1]
    window = run.window[2000:, :n] / 1000
    top = 2 * RENO_BDP / PACKET / n
    cuts = np.diff(window, axis=0) < -1.5
    before, after = window[:-1][cuts], window[1:][cuts]
    # To the half, of what may have grown by a packet within the same interval.
    assert (after >= before / 2 - 1e-3).all()
    assert (after <= (before + 1) / 2 + 1e-3).all()
    # Flows notice a loss a round trip late, by when each has grown by one or two packets. Packets
    # of all flows that arrive together overflow the buffer up to two packets per flow early, and
    # the window is read up to 10 µs before its cut, in which it grows by 10 / RTT packets.
    unread = 10 / (2 * RENO_BDP / SLOW)
    assert top - 1 - unread <= before.mean() <= top + 2
    rounds = top / 2
    cycle = rounds * (48 + 1.5 * RENO_BDP / SLOW - 24)
    assert 20_000 / (cuts.sum() / n) == pytest.approx(cycle, rel=0.25)
    assert run.utilisation[2000:].mean() > 0.99
    assert run.peak[2000:].max() < RENO_BDP + 4 * 5 * SLOW
    assert jain(window) > 0.99


def test_reno_sends_dropped_bytes_again():
    run = reno_runs()[2]
    assert counter_bytes(run.state.totals.dropped) > 20e3
    done = np.asarray(run.state.fct_log)[:4]
    assert np.isfinite(done).all()
    assert int(run.state.totals.finished.sum()) == 4
    # 8.4 MB at 10 Gb/s, and some more for the drops and the start.
    ideal = 4 * 2_000_000 * PACKET / 1000 / SLOW
    assert ideal < done.max() + 300 < 1.15 * ideal


# --- rates set from outside -----------------------------------------------------------------------

AGENTS = network("rate-agent:line-rate,share=0.1", FAST, 1.0, interval_steps=5)

TARGETS = {2: 0.9, 4: 0.75, 8: 0.5}
"""ADPG's target for each number of flows."""


def adpg(senders):
    """Set factors that bring `inflation sqrt(rate)` nearer to the target of the run."""
    running = senders.rate > 0
    target = jnp.select([running.sum() == n for n in TARGETS], list(TARGETS.values()), 0.0)
    line = jnp.maximum(senders.line, 1.0)
    u = jnp.clip(target - senders.inflation * jnp.sqrt(senders.rate / line), -1.0, 1.0)
    gain = 0.04
    factor = jnp.where(u >= 0, 1.0 + gain * u, 1.0 / (1.0 - gain * u))
    return AGENTS.transport.set_factor(senders, factor)


def test_adpg_shares_equally():
    """One policy for all gives shares of 1/n, and `inflation sqrt(rate)` is the target on average.

    The fixed point does not attract: the queue integrates the rates and the rates the queue, with a
    delay. It is circled, but a rate that stays the same on average has seen, over its round trips,
    as much too high as too low (to first order in the gain). So the closed form, an inflation of
    `target sqrt(n)`, lies between the extremes, and close to the mean over round trips.
    """
    cases = [(flows_of(n, gap=2.0), {}, {}) for n in TARGETS]
    runs = simulate(AGENTS, cases, 6000, act=adpg)
    for (n, target), run in zip(TARGETS.items(), runs, strict=True):
        want = adpg_fixed_point(target, n)
        assert want.inflation > 1.2
        rate, rtt = run.rate[-2000:, :n] / FAST, run.rtt[-2000:, :n]
        np.testing.assert_allclose(rate.mean(0), want.rate, rtol=0.02)
        assert jain(rate) > 0.9999
        inflation = rtt / (4 + (PACKET + 120) / FAST)
        rounds = 1 / rtt
        mean = (inflation * np.sqrt(rate) * rounds).sum() / rounds.sum()
        assert mean == pytest.approx(target, rel=0.025)
        assert (inflation * rounds).sum() / rounds.sum() == pytest.approx(want.inflation, rel=0.025)
        assert inflation.min() < want.inflation < inflation.max()
        assert run.utilisation[-2000:].mean() > 0.98
