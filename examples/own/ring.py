# ring.py: a traffic source and a scenario of your own
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import struct

import ecn_marl
from ecn_marl.sim import star
from ecn_marl.sim.traffic import anonymous_offer


@struct.dataclass
class RingParams:
    load: np.float32
    payload: np.float32


@struct.dataclass
class RingState:
    count: jnp.ndarray  # number of the next flow
    start: jnp.ndarray  # time until it starts, us


@dataclass(frozen=True)
class Ring:
    """Every host sends to its neighbour in turn, at even times."""

    load: float = 0.3
    kb: float = 100.0
    width: int = 8  # flows offered per tick

    def default_params(self):
        return RingParams(np.float32(self.load), np.float32(1000.0 * self.kb))

    def init(self, key, params, nic_rate, episode=None):
        return RingState(jnp.zeros((), jnp.int32), jnp.zeros(()))

    def gap(self, params, nic_rate):
        return params.payload / (params.load * nic_rate.sum())

    def offer(self, state, params, nic_rate):
        number = jnp.arange(self.width)
        start = state.start + number * self.gap(params, nic_rate)
        src = (state.count + number) % nic_rate.shape[0]
        payload = jnp.full(self.width, params.payload)
        return anonymous_offer(start, src, (src + 1) % nic_rate.shape[0], payload, payload > 0)

    def advance(self, state, params, nic_rate, taken, elapsed):
        start = state.start + taken * self.gap(params, nic_rate) - elapsed
        return RingState(state.count + taken.astype(jnp.int32), start)


ecn_marl.register_source("ring", Ring)
ecn_marl.register("ring-v0", lambda: ecn_marl.Scenario(star(4), "ring:kb=50", slots=32))
