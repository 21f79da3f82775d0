"""Ports for tuners: network parameters and statistics."""

from __future__ import annotations

from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np

from ecn_marl.sim import Simulator, leaf_spine, star
from ecn_marl.sim.state import PortStats
from ecn_marl.sim.topology import GBPS, MIB

LINE = 25 * GBPS
INTERVAL = 100.0


def network(rates, switches=1):
    """Network parameters, of which tuners read rates, buffers and the size of a packet."""
    n = len(rates)
    base = Simulator(star(max(n, 2)), ()).default_params(traffic=((),)).net
    return replace(
        base,
        port_rate=np.asarray(rates, np.float32),
        buffer=np.full(switches, 32 * MIB, np.float32),
    )


def statistics(n=1, **known):
    """Statistics of `n` ports, zero where nothing is known; a steady queue if only that is."""
    if "queue_mean" in known:
        mean = np.asarray(known["queue_mean"], np.float64)
        known = {"queue": mean, "queue_sq": mean**2, "queue_max": mean} | known
    values = {f.name: known.get(f.name, 0.0) for f in fields(PortStats)}
    return PortStats(**{k: jnp.full((n,), jnp.asarray(v, jnp.float32)) for k, v in values.items()})


ONE = network([LINE])
IDLE = statistics()

SPINE = leaf_spine(2, 3, 2)
SWITCH = SPINE.port_switch()
