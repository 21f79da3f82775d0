"""An environment in closed form: what a bulk phase leaves behind makes the next phase slow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ecn_marl.envs.actions import parse_ecn
from ecn_marl.envs.episode import PhaseEcn

BINS = 400
TOP = 1e4


@struct.dataclass
class State:
    steps: Any
    luck: Any
    bulk: Any
    left: Any
    short: Any


@dataclass(frozen=True)
class Handover:
    """Two ports, each in a group; two intervals of `bulk`, then two of `serve`.

    Each port does best with Kmin = `want` KB in `bulk`, by little, and with 5 KB in `serve`. For
    each octave of Kmin below 80 KB in `bulk`, work is left over, which costs twice as much in
    `serve`: looked at alone, `want` is best in `bulk`; in the run, 80 KB or more is.
    """

    name: str = "handover"
    num_agents: int = 2
    interval_us: float = 50.0
    phase_names: tuple[str, ...] = ("bulk", "serve")
    port_groups: tuple[str, ...] = ("near", "far")
    want: tuple[float, float] = (20.0, 20.0)
    begun: tuple[float, float] = (0.5, 4.0)

    @property
    def default_params(self):
        return SimpleNamespace(max_steps=4, sim=None)

    def port_scale(self, sim):
        return jnp.ones(2)

    def static_ecn(self, setting, params):
        return parse_ecn(setting).scaled(self.port_scale(None))

    def reset(self, key, params):
        zero = jnp.zeros(())
        luck = jax.random.uniform(key, minval=0.8, maxval=1.25)
        return jnp.zeros((2, 1)), State(jnp.int32(0), luck, zero, zero, zero)

    def phase(self, state, params):
        return jnp.broadcast_to(state.steps // 2 % len(self.phase_names), (2,))

    def step_ecn(self, key, state, ecn, params):
        serving = (state.steps // 2 % 2).astype(jnp.float32)
        now = self.phase(state, params)
        kmin = ecn.kmin[now, jnp.arange(2)] if isinstance(ecn, PhaseEcn) else ecn.kmin
        kb = kmin / 1e3
        bulk = 0.1 * jnp.abs(jnp.log2(kb / jnp.asarray(self.want))).mean()
        left = jnp.maximum(jnp.log2(80.0 / kb), 0.0).mean()
        short = jnp.abs(jnp.log2(kb / 5.0)).mean()
        state = replace(
            state,
            steps=state.steps + 1,
            bulk=state.bulk + (1.0 - serving) * bulk,
            left=state.left + (1.0 - serving) * left,
            short=state.short + serving * (2.0 + short + 2.0 * state.left),
        )
        per_interval = jnp.asarray(self.begun)[now] * self.interval_us / 100.0
        info = {"flows_begun": per_interval, "kmin": kmin}
        return jnp.zeros((2, 1)), state, jnp.zeros(2), None, None, info

    def episode_metrics(self, state, params):
        short, logs = state.luck * state.short, state.bulk + 1.0
        cell = (jnp.log(short) / np.log(TOP) * BINS).astype(jnp.int32)
        histogram = jnp.zeros((3, BINS)).at[0, cell].set(10.0)
        return {
            "flows_measured": jnp.asarray([10, 0, 4]),
            "slowdown_sum": jnp.stack([10 * short, jnp.zeros(()), 4 * jnp.exp(logs)]),
            "slowdown_log_sum": jnp.stack([jnp.zeros(()), jnp.zeros(()), 4 * logs]),
            "slowdown_histogram": histogram,
            "reward": -short,
        }


def log_j(bulk, serve, want=(20.0, 20.0)) -> float:
    """log J without luck, from Kmin (KB) of both ports in each phase, p99 taken as the mean."""
    bulk, serve, want = (np.asarray(x, float) for x in (bulk, serve, want))
    logs = 1.0 + 2 * 0.1 * np.abs(np.log2(bulk / want)).mean()
    left = 2 * np.maximum(np.log2(80.0 / bulk), 0.0).mean()
    short = 2 * (2.0 + np.abs(np.log2(serve / 5.0)).mean() + 2.0 * left)
    return float(0.5 * np.log(short) + 0.5 * logs)
