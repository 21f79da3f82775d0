"""A sender that records the feedback it gets in each substep, on small networks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from netcases import OFF, QUICK, ROWS, flow_list, start, with_net

from ecn_marl.sim import Ecn, Schedule, Simulator, leaf_spine, scaled_ecn, schedule, star
from ecn_marl.sim import feedback as fb
from ecn_marl.sim.metrics import counter_bytes

LINE = 3125.0
"""25 Gb/s in bytes/µs."""

PACKET = 1048
"""Wire bytes of a full packet."""

CHUNK = 100
"""Ticks per call of a compiled program."""

ALL = Ecn(*(np.full(9, x, np.float32) for x in (-2.0, -1.0, 1.0)))
"""Thresholds that mark even what leaves an empty queue."""

SHAPES = {
    "sent": "F",
    "acked": "F",
    "marked": "F",
    "lost": "F",
    "returned": "F",
    "rtt": "F",
    "base_rtt": "F",
    "n_hops": "F",
    "hop_queue": "LF",
    "hop_sent": "LF",
    "hop_rate": "LF",
    "hop_step": "F",
    "mark": "F",
    "past_rate": "F",
}


@struct.dataclass
class EarParams:
    """Rate over line rate, and window in payload bytes."""

    share: Any = 1.0
    window: Any = 1e9


@struct.dataclass
class EarState:
    rate: Any
    window: Any
    at: Any
    log: Any


@dataclass(frozen=True)
class Ear:
    """Sends at a set rate under a set window, and records a tick of its feedback."""

    kind: ClassVar[str] = "ear"
    header: ClassVar[float] = 0.0
    latched: ClassVar[bool] = False
    name: str = "ear"
    needs: frozenset[str] = frozenset((fb.ACKS, fb.PROBE, fb.TELEMETRY, fb.FIELD))
    steps: int = 5

    def default_params(self):
        return EarParams()

    def init(self, slots, dtype=jnp.float32, levels=1):
        zero = jnp.zeros((slots,), dtype)
        sizes = {"F": (self.steps, slots), "LF": (self.steps, levels, slots)}
        dtypes = {"hop_sent": jnp.uint32, "hop_step": jnp.int32, "returned": bool}
        # Slots are not on the last axis, so free ones are recorded and change, too.
        log = {k: jnp.zeros((*sizes[s], 1), dtypes.get(k, dtype)) for k, s in SHAPES.items()}
        return EarState(zero, zero, jnp.zeros((), jnp.int32), log)

    def start(self, state, params, new, line, base_rtt):
        del base_rtt
        return replace(
            state,
            rate=jnp.where(new, line * params.share, state.rate),
            window=jnp.where(new, params.window, state.window),
        )

    def rate(self, state):
        return state.rate

    def window(self, state):
        return state.window

    def update(self, state, params, heard, dt):
        del params, dt
        log = {k: v.at[state.at, ..., 0].set(getattr(heard, k)) for k, v in state.log.items()}
        return replace(state, log=log, at=(state.at + 1) % self.steps)


def network(topology, dt_us=1.0, slots=8, **options):
    traffic = (Schedule(dt_us, ROWS),)
    sizes = {"tick_steps": 5, "interval_steps": 5, "slots": slots, "scheduled": ROWS}
    return Simulator(topology, traffic, Ear(), dt_us=dt_us, **sizes, **options)


STAR = network(star(9))
STAR_DROPS = network(star(9), pfc=False)
STAR_FAST = network(star(9, gbps=100.0), 5.0)
SPINE = network(leaf_spine(2, 2, 2))


def recorder(sim, length):
    """The feedback of every substep, and some of the state at the end of every tick."""

    def run(state, params, ecn):
        def tick(state, _):
            state, _ = sim.interval(state, params, ecn)
            flows = state.flows
            dropped = state.totals.dropped
            snapshot = flows.flow_id, flows.stage, flows.backlog, state.queue, dropped
            return state, (flows.transport.log, snapshot)

        return jax.lax.scan(tick, state, None, length=length)

    return run


@cache
def recording(sim, length):
    """Compiled; with default options for `STAR`, whose bits are compared with a batch's."""
    return jax.jit(recorder(sim, length), compiler_options=None if sim is STAR else QUICK)


def prepare(sim, rows, net, **transport):
    """Parameters for a flow list, with fields of `NetParams` and `EarParams` replaced."""
    params = with_net(sim.default_params(traffic=(schedule(flow_list(rows), sim.dt_us),)), **net)
    real = params.net.port_rate.dtype
    values = {k: real.type(v) for k, v in transport.items()}
    return replace(params, transport=replace(params.transport, **values))


class Heard:
    """A recording: signals `[T, ..., F]` per substep, state per tick."""

    def __init__(self, sim, state, log, snapshots):
        self.sim, self.state = sim, state
        self.signals = {k: np.concatenate(np.asarray(v))[..., 0] for k, v in log.items()}
        self.flow_id, self.stage, self.backlog, self.queue, dropped = map(
            lambda x: x if isinstance(x, tuple) else np.asarray(x), snapshots
        )
        self.dropped = np.asarray(counter_bytes(dropped))

    def __getattr__(self, name):
        return self.signals[name]

    def of(self, flow, name):
        """Signal of a flow of the list while it had a slot, zero otherwise."""
        in_slot = np.repeat(self.flow_id == flow, self.sim.tick_steps, axis=0)
        return np.where(in_slot, self.signals[name], 0).sum(-1)

    def cumulated(self, flow, name):
        return np.cumsum(self.of(flow, name).astype(np.float64))


def listen(sim, rows, length=100, ecn=OFF, seed=0, net=(), change=lambda s: s, **transport):
    """Run a flow list for `length` ticks, a multiple of `CHUNK`."""
    params = prepare(sim, rows, dict(net), **transport)
    ecn = ecn if isinstance(ecn, Ecn) else scaled_ecn(params.net, *ecn)
    state = change(start(sim)(jax.random.key(seed), params))
    parts = []
    for _ in range(length // CHUNK):
        state, part = recording(sim, CHUNK)(state, params, ecn)
        parts.append(part)
    log, snapshots = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return Heard(sim, state, log, snapshots)


def round_trip(delay_us=1.0, hops=1, rate=LINE):
    """Four propagation delays on a star, a packet stored at the port, an ACK at NIC and port."""
    return 2 * (hops + 1) * delay_us + (hops * PACKET + (hops + 1) * 60) / rate
