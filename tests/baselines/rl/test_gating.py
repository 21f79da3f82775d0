"""Idle ports: ACC's rule against plain Python, port by port."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ecn_marl.baselines.rl.gating import first_gate, watch


def reference(queue, kmin, reward, tolerance, intervals):
    """Whether a port is idle after each interval."""
    idle, unchanged, last_reward = [], 0, None
    for q, k, r in zip(queue, kmin, reward, strict=True):
        unchanged = (
            unchanged + 1 if last_reward is not None and abs(r - last_reward) <= tolerance else 0
        )
        last_reward = r
        idle.append(q < k or unchanged >= intervals)
    return idle


def test_rule_over_random_intervals():
    rng = np.random.default_rng(0)
    time, ports = 200, 5
    queue = rng.integers(0, 20, (time, ports)).astype(float)  # at times exactly Kmin
    kmin = rng.choice([5.0, 10.0], (time, ports))
    reward = rng.choice([0.2, 0.2005, 0.8], (time, ports), p=[0.45, 0.45, 0.1])
    action = np.zeros((time, ports), np.int32)

    def step(gate, x):
        gate = watch(gate, *x, tolerance=1e-3, intervals=3)
        return gate, gate.idle

    rows = [jnp.asarray(x, jnp.float32) for x in (reward, queue, kmin)]
    first = first_gate(jnp.zeros((ports,), jnp.int32), ports)
    assert not np.any(first.idle)
    _, idle = jax.jit(lambda a, *x: jax.lax.scan(step, first, (a, *x)))(action, *rows)
    expected = [reference(queue[:, i], kmin[:, i], reward[:, i], 1e-3, 3) for i in range(ports)]
    np.testing.assert_array_equal(idle, np.array(expected).T)
    idle_above_kmin = np.mean(np.array(expected).T & (queue >= kmin))
    assert idle_above_kmin > 0.05, "the case must hold ports that are idle for their reward alone"
