"""Time of a decision of an exported policy of flows on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl.baselines.exporting.rate_policy import MODELS, RatePolicy
from ecn_marl.baselines.rate_exported import device_arrays

FLOWS = 8192
"""Flows that decide together: those of the largest scenario."""

REPEATS = 21
"""Timed runs, of which the median is taken."""

CHAIN = 1000
"""Decisions of one flow in a run of XLA, each after the one before."""

NUMPY_CHAIN = 50
"""Decisions of one flow in a run of numpy."""


def decision_costs(policy: RatePolicy) -> dict[str, dict[str, float]]:
    """Median time per decision, µs, by what runs it (`numpy`, `xla`).

    Args:
        policy: the policy.

    Returns:
        `alone`: one flow decides, in XLA each decision after the one before; `together`: `FLOWS`
        flows decide in one call, time per flow.
    """
    obs = np.random.default_rng(0).normal(size=(FLOWS, policy.obs_dim)).astype(np.float32)
    arrays, decide = device_arrays(policy), MODELS[policy.model]

    @jax.jit
    def together(arrays: PyTree, obs: Array) -> Array:
        return jnp.asarray(decide(jnp, arrays, obs))

    @jax.jit
    def alone(arrays: PyTree, obs: Array) -> Array:
        def decide_next(last: Array, x: Array) -> tuple[Array, None]:
            # The decision before enters (times zero), or XLA could batch the decisions.
            return jnp.asarray(decide(jnp, arrays, x + 0.0 * last)), None

        return jax.lax.scan(decide_next, jnp.ones(()), obs)[0]

    all_obs, chain_obs = jnp.asarray(obs), jnp.asarray(obs[:CHAIN])
    return {
        "numpy": {
            "alone": _median_us(lambda: [policy(x) for x in obs[:NUMPY_CHAIN]], NUMPY_CHAIN),
            "together": _median_us(lambda: policy(obs), FLOWS),
        },
        "xla": {
            "alone": _median_us(lambda: alone(arrays, chain_obs).block_until_ready(), CHAIN),
            "together": _median_us(lambda: together(arrays, all_obs).block_until_ready(), FLOWS),
        },
    }


def _median_us(run: Callable[[], object], decisions: int) -> float:
    """Median time per decision, µs; one run before is not counted."""
    run()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return float(np.median(times)) / decisions * 1e6
