"""Time of each stage of an environment step, by timing the program with stages left out.

Every variant starts from the same loaded network. The time of a stage is the difference between the
program with and without it. XLA fuses across stages, so the parts add up only roughly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.interface import Environment
from ecn_marl.sim.core.lifecycle import FREE
from ecn_marl.sim.core.tick import Tick
from ecn_marl.sim.simulator import Ecn, SimParams, SimState, Simulator
from ecn_marl.sim.state import PortSums
from ecn_marl.speed.programs import compiled_steps
from ecn_marl.speed.timing import Plan, Timing, compiled, interleaved
from ecn_marl.wrappers import AutoReset

Step = Callable[[PyTree, jax.Array], tuple[PyTree, PyTree]]
"""`(state, key) -> (next state, other results of the step)`."""

LOADED = 50
"""Steps of the warm-up: 5 ms at intervals of 100 µs, a loaded network."""


@dataclass(frozen=True)
class NoAdmission(Simulator):
    """A simulator that admits no new flows."""

    def _admit(self, state: SimState, params: SimParams) -> tuple[SimState, Array, Array]:
        busy = state.flows.stage != FREE
        return state, jnp.zeros_like(busy), busy


@dataclass(frozen=True)
class NoSubsteps(NoAdmission):
    """A simulator without admission and substeps: senders and queues do not move."""

    def _substep(
        self, state: SimState, sums: PortSums, slotless: Array, tick: Tick
    ) -> tuple[SimState, PortSums, Array]:
        return replace(state, step=state.step + 1), sums, slotless


@dataclass(frozen=True)
class NoCompletion(NoSubsteps):
    """A simulator without completions either: only preparations of ticks and PFC are left."""

    def _complete(
        self, state: SimState, sums: PortSums, params: SimParams, tick: Tick, slotless: Array
    ) -> tuple[SimState, PortSums]:
        return state, sums


def breakdown(
    env: EcnEnv, envs: int, plan: Plan, show: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Time the stages of a step, on one device.

    Args:
        env: the environment.
        envs: how many are stepped at once.
        plan: how every variant is timed.
        show: called with the next measurement.

    Returns:
        Rows with `stage`, `cpu_us` and `wall_us` (least of all runs, per step of all environments)
        and `share` of the CPU time of the whole, the first row. Parts are differences, see above.
    """
    program, carry, params = compiled_steps(env, envs, 1)
    keys, state, *_ = program.call(*carry, params, jnp.int32(LOADED))
    ecn = env.static_ecn("secn1", params)
    advances: dict[str, Callable[[int], None]] = {}

    def variant(name: str, step: Step, first: PyTree) -> None:
        if show:
            show(f"stages: {name}")
        advances[name] = _advance(step, first, keys)

    def fixed(state: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        obs, state, reward, *_ = env.step_ecn(key, state, ecn, params)
        return state, (obs, reward)

    # A variant donates only states that it has computed itself: all can start from these.
    variant("all", _random_actions(AutoReset(env), params), state)
    variant("no reset", _random_actions(env, params), state.env)
    variant("fixed", fixed, state.env)
    for kind in (Simulator, NoAdmission, NoSubsteps, NoCompletion):
        sim = _without_stages(kind, env.sim)
        step = partial(_interval, sim, jax.tree.map(jnp.asarray, params.sim), ecn)
        variant(kind.__name__, step, state.env.sim)
    return _rows(interleaved(advances, plan))


def _rows(timings: dict[str, Timing]) -> list[dict[str, Any]]:
    """Differences between successive variants; the last variant stands for itself."""
    names = {
        "all": "auto-reset",
        "no reset": "random actions, decoding",
        "fixed": "features, reward, episode sums",
        "Simulator": "admission",
        "NoAdmission": "substeps",
        "NoSubsteps": "completion, release",
        "NoCompletion": "tick: feedback delays, PFC; statistics",
    }
    full_step = timings["all"]
    rows = [_stage("step", full_step.least_cpu_s, full_step.least_s, full_step.least_cpu_s)]
    order = list(names)
    for i, name in enumerate(order):
        cpu, wall = timings[name].least_cpu_s, timings[name].least_s
        if i + 1 < len(order):
            without = timings[order[i + 1]]
            cpu, wall = cpu - without.least_cpu_s, wall - without.least_s
        rows.append(_stage(names[name], cpu, wall, full_step.least_cpu_s))
    return rows


def _stage(name: str, cpu_s: float, wall_s: float, whole_s: float) -> dict[str, Any]:
    return {
        "stage": name,
        "cpu_us": 1e6 * cpu_s,
        "wall_us": 1e6 * wall_s,
        "share": cpu_s / whole_s if whole_s > 0 else float("nan"),
    }


def _without_stages(kind: type[Simulator], sim: Simulator) -> Simulator:
    """The same simulator without some stages."""
    return kind(**{f.name: getattr(sim, f.name) for f in fields(Simulator) if f.init})


def _random_actions(env: Environment, params: PyTree) -> Step:
    """Steps under random actions."""

    def step(state: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        act_key, env_key = jax.random.split(key)
        action = env.action.sample(act_key, env.num_agents)
        obs, state, reward, *_ = env.step(env_key, state, action, params)
        return state, (obs, reward)

    return step


def _interval(
    sim: Simulator, params: SimParams, ecn: Ecn, state: SimState, key: jax.Array
) -> tuple[PyTree, PyTree]:
    """A tuning interval of the network alone."""
    del key
    return sim.interval(state, params, ecn)


def _advance(step: Step, first: PyTree, keys: jax.Array) -> Callable[[int], None]:
    """Repeated steps of a batch; results are carried, so that XLA cannot drop their computation."""

    def run(carry: PyTree, keys: jax.Array, n: Array) -> PyTree:
        def body(i: Array, carry: PyTree) -> PyTree:
            step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, i)  # new actions every step
            return jax.vmap(step)(carry[0], step_keys)

        return jax.lax.fori_loop(0, n, body, carry)

    carry = jax.jit(jax.vmap(step))(first, keys)
    program = compiled(jax.jit(run, donate_argnums=0), carry, keys, jnp.int32(1))

    def advance(n: int) -> None:
        nonlocal carry
        carry = program.call(carry, keys, jnp.int32(n))
        jax.block_until_ready(carry)

    return advance
