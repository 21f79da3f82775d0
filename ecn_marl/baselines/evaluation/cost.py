"""Costs of decisions: inferences and operations counted over episodes, time measured on this CPU.

Counts are those of a deployment, where a network that is not needed is not run. Compiled training
evaluates all networks of all agents at once and saves nothing.
"""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl.baselines.rl.networks import Applied
from ecn_marl.envs.agents import SWITCH
from ecn_marl.envs.interface import PortEnvironment

Costs = dict[str, float]
"""`reward`, `inferences_per_decision`, `flops_per_decision`, for HAECN `activation_frequency`."""


@runtime_checkable
class Timed(Protocol):
    """A learner whose networks can be timed, see `Trainer.modules`."""

    def modules(self, actor: PyTree) -> dict[str, tuple[Applied, PyTree]]:
        """Networks and the parameters that one port needs."""


def inference_us(net: Applied, params: PyTree, *, rows: int = 1000, repeats: int = 5) -> float:
    """Time of one inference for one port on this machine, µs: best of `repeats` runs of `rows`.

    One observation after the other, compiled, so that only the network is measured.
    """
    width = jax.tree.leaves(params["params"]["Dense_0"]["kernel"])[0].shape[0]
    obs = jax.random.uniform(jax.random.key(0), (rows, width))

    @jax.jit
    def run(x: Array) -> Array:
        def decide_next(last: Array, obs: Array) -> tuple[Array, Array]:
            # The output before enters (times zero), or XLA could batch the inferences.
            best = jnp.argmax(jnp.asarray(net.apply(params, obs + 0.0 * last)))
            return best.astype(jnp.float32), best

        return jax.lax.scan(decide_next, jnp.zeros(()), x)[1]

    jax.block_until_ready(run(obs))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(run(obs))
        times.append(time.perf_counter() - began)
    # The best run: other work on the machine can only make one slower.
    return min(times) / rows * 1e6


def decision_delay_us(env: PortEnvironment, us_per_decision: float) -> float:
    """How late the thresholds of a switch are if its CPU decides for one port after the other, µs.

    ACC runs one thread over the queues of a switch (§4.2), so the last port waits for all others.
    The delay is that of the switch with the most ports. An agent that is a switch decides once.

    Args:
        env: functional environment.
        us_per_decision: mean time of a decision of an agent, µs, e.g. of `decision_us`.
    """
    if env.agent_kind == SWITCH:
        return us_per_decision
    ports: int = np.bincount(env.sim.topology.port_switch()).max()
    return float(ports) * us_per_decision


def decision_us(algorithm: Timed, actor: PyTree, costs: Costs) -> float:
    """Time per decision on this machine, µs: that of each module times how often it runs."""
    module_us = {
        name: inference_us(net, params) for name, (net, params) in algorithm.modules(actor).items()
    }
    if "decision" in module_us:
        return module_us["decision"] + costs["activation_frequency"] * module_us["policy"]
    return costs["inferences_per_decision"] * module_us["policy"]
