"""Ports for tuners: network parameters and statistics."""

from __future__ import annotations

from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np

from ecn_marl.sim import Simulator, leaf_spine, star
from ecn_marl.sim.network.topology import GBPS, MIB
from ecn_marl.sim.state import PortStats

LINE = 25 * GBPS
INTERVAL = 100.0


def network(rates, switches=1):
    """Network parameters, of which tuners read rates, buffers and the size of a packet."""
    n = len(rates)
    base = Simulator(star(max(n, 2)), ()).default_params().net
    return replace(
        base,
        port_rate=np.asarray(rates, np.float32),
        buffer=np.full(switches, 32 * MIB, np.float32),
    )


def statistics(n=1, **columns):
    """Statistics of `n` ports, 0 where not given; a mean queue alone stands for a steady one."""
    if "queue_mean" in columns:
        mean = np.asarray(columns["queue_mean"], np.float64)
        columns = {"queue": mean, "queue_sq": mean**2, "queue_max": mean} | columns
    values = {f.name: columns.get(f.name, 0.0) for f in fields(PortStats)}
    return PortStats(**{k: jnp.full((n,), jnp.asarray(v, jnp.float32)) for k, v in values.items()})


ONE = network([LINE])
IDLE = statistics()

SPINE = leaf_spine(2, 3, 2)
SWITCH = SPINE.port_switch()
