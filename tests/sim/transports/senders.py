"""What the tests of senders share: flows, random feedback, ranges of all constants."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

MBPS = 0.125
"""Bytes per µs in one Mb/s."""

FLOWS, STEPS, LEVELS = 4, 500, 3
LINES = np.array([3125.0, 12500.0, 1250.0, 3125.0])
"""NIC rates of the flows, bytes/µs: 25, 100, 10 and 25 Gb/s."""

BASE_RTT = 12.0
"""Longest round trip of the network without queues, µs."""


def random_signals(rng, dt, calm):
    """Feedback of a few hundred substeps: stretches of short and long delays, few or many marks.

    Delays are multiples of 1/8 µs, so that sums of them are exact; `calm` is the share of substeps
    without marks and losses.
    """
    shape = (STEPS, FLOWS)
    base = rng.integers(32, 12 * 8, FLOWS) / 8
    level = np.repeat(rng.choice([0.0, 2.0, 30.0, 90.0, 800.0], (STEPS // 50, FLOWS)), 50, axis=0)
    path = base + np.round(level * rng.uniform(0.5, 1.5, shape) * 8) / 8
    returned = np.zeros(shape, bool)
    rtt, last = np.zeros(shape), np.zeros(FLOWS)
    due = rng.integers(1, 10, FLOWS) * dt
    for t in range(STEPS):
        returned[t] = (t + 1) * dt >= due
        last = np.where(returned[t], path[t], last)
        due = np.where(returned[t], due + np.minimum(path[t], 40 * dt), due)
        rtt[t] = last
    acked = rng.poisson(rng.choice([0.2, 1.0, 5.0], FLOWS), shape).astype(float)
    upset = rng.random(shape) > calm
    marked = np.where(upset, np.round(rng.random(shape) * acked * 256) / 256, 0.0)
    lost = np.where(upset & (rng.random(shape) < 0.3), rng.integers(1, 5000, shape), 0.0)
    # Telemetry: stamps move on, sometimes by more than a substep; counters wrap around.
    stamp = np.cumsum(rng.choice([1, 1, 1, 2, 4], shape), axis=0)
    rate = rng.choice([1250.0, 3125.0, 12500.0], (LEVELS, FLOWS))
    rate[-1, :2] = np.inf
    load = rng.uniform(0.0, 1.3, (STEPS, LEVELS, FLOWS))
    bytes_ = (
        np.where(np.isinf(rate), 0.0, rate) * load * dt * np.diff(stamp, axis=0, prepend=0)[:, None]
    )
    start = rng.integers(2**32 - 100_000, 2**32, (LEVELS, FLOWS))
    sent = (start + np.cumsum(bytes_.astype(np.int64), axis=0)).astype(np.uint64) % 2**32
    queue = rng.choice([0.0, 500.0, 3e4, 2e5], (STEPS, LEVELS, FLOWS)) * rng.random(load.shape)
    return {
        "sent": np.zeros(shape),
        "acked": acked,
        "marked": marked,
        "lost": lost,
        "returned": returned,
        "rtt": rtt,
        "base_rtt": np.broadcast_to(base, shape),
        "n_hops": np.broadcast_to(np.isfinite(rate).sum(0) * 1.0, shape),
        "hop_queue": np.where(np.isinf(rate), 0.0, queue),
        "hop_sent": sent.astype(np.uint32),
        "hop_rate": np.broadcast_to(rate, load.shape),
        "hop_step": stamp.astype(np.int32),
    }


def look(transport, state, leaves=()):
    window = transport.window(state)
    rate = transport.rate(state)
    window = jnp.full_like(rate, jnp.nan) if window is None else window
    return [rate, window, *(getattr(state, leaf) * 1.0 for leaf in leaves)]


CONSTANTS = {
    "dctcp": {
        "g": (0.01, 1.0),
        "ai_bytes": (0.0, 5e3),
        "ai_rate": (0.0, 300.0),
        "initial": (0.0, 3e4),
        "least": (1.0, 4e3),
        "alpha_init": (0.0, 1.0),
        "min_rate": (0.0, 100.0),
    },
    "timely": {
        "ewma": (0.05, 1.0),
        "beta": (0.005, 1.0),
        "t_low": (5.0, 50.0),
        "t_high": (60.0, 500.0),
        "min_rtt": (3.0, 40.0),
        "ai": (0.5, 50.0),
        "hai": (1.0, 200.0),
        "patience": (0, 7),
        "segment": (0.0, 6e4),
        "min_rate": (0.1, 500.0),
        "share": (0.05, 1.0),
    },
    "hpcc": {
        "eta": (0.5, 1.0),
        "ai": (0.0, 50.0),
        "max_stage": (0, 7),
        "min_rate": (0.1, 2000.0),
    },
    "swift": {
        "base": (5.0, 100.0),
        "per_hop": (0.0, 10.0),
        "fs_range": (0.0, 300.0),
        "fs_min": (0.05, 1.0),
        "fs_max": (2.0, 200.0),
        "ai": (0.1, 4.0),
        "beta": (0.1, 1.5),
        "max_cut": (0.1, 1.0),
        "least": (0.005, 0.5),
    },
    "reno": {"initial": (1e3, 3e4), "ai_bytes": (100.0, 5e3), "keep": (0.1, 0.95)},
    "rate-agent": {"min_rate": (1.0, 400.0), "share": (0.05, 1.0)},
}
"""Ranges of all constants, in the senders' units."""
