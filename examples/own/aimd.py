# aimd.py: senders of your own, additive increase and multiplicative decrease
from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
from flax import struct

import ecn_marl
from ecn_marl.sim.feedback import ACKS, PROBE


@struct.dataclass
class AimdState:
    rate: jnp.ndarray  # bytes/us, [F]
    line: jnp.ndarray  # rate of the flow's NIC
    marked: jnp.ndarray  # whether this round trip had a mark


@dataclass(frozen=True)
class Aimd:
    """Adds to its rate in a round trip without marks, cuts it after one with marks."""

    kind: ClassVar[str] = "aimd"
    header: ClassVar[float] = 0.0
    latched: ClassVar[bool] = False
    needs: ClassVar[frozenset] = frozenset({ACKS, PROBE})

    name: str = "plain"
    step: float = 25.0  # bytes/us
    keep: float = 0.5

    def default_params(self):
        return {"step": self.step, "keep": self.keep}

    def init(self, slots, dtype=jnp.float32, levels=1):
        return AimdState(jnp.zeros(slots, dtype), jnp.zeros(slots, dtype), jnp.zeros(slots, bool))

    def start(self, state, params, new, line, base_rtt):
        rate, old = jnp.where(new, line, state.rate), jnp.where(new, line, state.line)
        return AimdState(rate, old, state.marked & ~new)

    def rate(self, state):
        return state.rate

    def window(self, state):
        return None

    def update(self, state, params, heard, dt):
        marked = state.marked | (heard.marked > 0)
        rate = jnp.where(marked, state.rate * params["keep"], state.rate + params["step"])
        rate = jnp.where(heard.returned, jnp.clip(rate, 12.5, state.line), state.rate)
        return replace(state, rate=rate, marked=marked & ~heard.returned)


ecn_marl.register_transport("aimd", Aimd())
