"""The programs that are timed: environments with random actions, and training."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ecn_marl import lanes
from ecn_marl._errors import bad_value
from ecn_marl._memory import tree_bytes
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config
from ecn_marl.baselines.training.loop import compiled_update, initial_state
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.parallelism import env_mesh, fitting_devices, per_device, shard_envs
from ecn_marl.sim.core import flags
from ecn_marl.sim.state import SimState
from ecn_marl.speed.machine import peak_memory
from ecn_marl.speed.timing import Compiled, Plan, Timing, compiled, measure
from ecn_marl.wrappers import AutoReset

AT_ONCE = 8
"""Steps under random actions compiled as one: between them `lanes` keeps the state in vectors."""

Carry = tuple[PyTree, PyTree, PyTree, Array]
"""Keys, states, observations and summed rewards of a batch."""


@dataclass(frozen=True)
class Measured:
    """A program and its timing.

    Attributes:
        program: the compiled program.
        timing: its runs; a step is one tuning interval of all environments.
        devices: devices that shared the work.
        state_bytes: bytes of one environment's state.
        flagged: share of the environments that are flagged at the end, see `flagged`.
    """

    program: Compiled
    timing: Timing
    devices: int
    state_bytes: int
    flagged: dict[str, float]


def flagged(state: PyTree) -> dict[str, float]:
    """Share of the environments whose episode is flagged: in which a fixed structure was too small.

    Args:
        state: states of a batch of environments, whatever they are wrapped in.

    Returns:
        `any`, and the share of each flag that is raised, by name; see `sim.core.flags`.
    """

    def is_network(tree: object) -> bool:
        return isinstance(tree, SimState)

    networks = [x for x in jax.tree.leaves(state, is_leaf=is_network) if is_network(x)]
    bits = np.concatenate([np.ravel(jax.device_get(x.flags)) for x in networks])
    by_name = {name: float((bits & flags.BITS[name] > 0).mean()) for name in flags.names(bits)}
    return {"any": float((bits > 0).mean()), **by_name}


def start(env: AutoReset | EcnEnv, params: PyTree, key: jax.Array, envs: int) -> Carry:
    """Fresh environments, each with a key of its own."""
    keys = jax.random.split(key, envs)
    obs, state = jax.vmap(env.reset, (0, None))(keys, params)
    return keys, state, obs, jnp.zeros((envs, env.num_agents), jnp.float32)


def random_steps(
    env: AutoReset | EcnEnv, at_once: int = 1
) -> Callable[[jax.Array, PyTree, PyTree, Array, PyTree, Array], Carry]:
    """Steps of a batch of environments under uniformly random actions.

    Args:
        env: functional environment that resets itself, or whose episode is longer than all runs.
        at_once: steps that are compiled as one.

    Returns:
        `run(keys, state, obs, reward, params, n)`: the batch after `n * at_once` steps.
        Observations of the last step and sums of the rewards are results, so that the compiler
        cannot leave their computation out.
    """
    load_of = env.load
    load = None if load_of is None else lambda key, state, *inputs: load_of(state)

    @partial(lanes.mapped, updates={0: 0, 1: 1, 2: 2, 3: 3}, load=load)
    def steps_of_one(
        key: jax.Array, state: PyTree, obs: Array, total: Array, params: PyTree
    ) -> Carry:
        def step(carry: Carry, _: None) -> tuple[Carry, None]:
            key, state, _, total = carry
            key, act_key, env_key = jax.random.split(key, 3)
            action = env.action.sample(act_key, env.num_agents)
            obs, state, reward = env.step(env_key, state, action, params)[:3]
            return (key, state, obs, total + reward), None

        carry: Carry = jax.lax.scan(step, (key, state, obs, total), None, length=at_once)[0]
        return carry

    def run(
        keys: jax.Array,
        state: PyTree,
        obs: Float[Array, "envs agents obs"],
        reward: Float[Array, "envs agents"],
        params: PyTree,
        n: Int[Array, ""],
    ) -> Carry:
        def body(_: object, carry: Carry) -> Carry:
            after: Carry = jax.vmap(steps_of_one, (0, 0, 0, 0, None))(*carry, params)
            return after

        carry: Carry = jax.lax.fori_loop(0, n, body, (keys, state, obs, reward))
        return carry

    return run


def compiled_steps(
    env: EcnEnv, envs: int, devices: int, seed: int = 0, at_once: int = 1
) -> tuple[Compiled, Carry, PyTree]:
    """The program of `random_steps` over devices, a batch to start from, and the parameters."""
    wrapped, params = AutoReset(env), env.default_params
    mesh = env_mesh(devices)
    steps = random_steps(wrapped, at_once)
    run = per_device(steps, mesh, shared=(4, 5), donate=(0, 1, 2, 3))
    carry = jax.jit(start, static_argnums=(0, 3))(wrapped, params, jax.random.key(seed), envs)
    carry = shard_envs(carry, mesh)
    # The number of turns is traced, so that one program serves runs of every length.
    return compiled(run, *carry, params, jnp.int32(1)), carry, params


def time_env(
    env: EcnEnv,
    envs: int,
    devices: int,
    plan: Plan,
    alone: AbstractContextManager[None] | None = None,
) -> Measured:
    """Time environments alone: random actions, new episodes where one ends.

    Args:
        env: environment.
        envs: how many are stepped at once.
        devices: devices at most; as many are used as divide `envs`.
        plan: how it is timed.
        alone: entered once all is compiled; timed within.
    """
    used_devices = fitting_devices(envs, devices)
    at_once = math.gcd(plan.steps or AT_ONCE, AT_ONCE)  # a run is a whole number of calls
    program, carry, params = compiled_steps(env, envs, used_devices, at_once=at_once)
    size = tree_bytes(jax.eval_shape(env.reset, jax.random.key(0), params)[1])

    def advance(n: int) -> None:
        nonlocal carry  # the call takes the memory of its arguments
        carry = program.call(*carry, params, jnp.int32(n))
        jax.block_until_ready(carry)

    calls = None if plan.steps is None else plan.steps // at_once
    with alone or nullcontext():
        timing = measure(advance, replace(plan, steps=calls))
    timing = replace(timing, steps=timing.steps * at_once)
    return Measured(program, timing, used_devices, size, flagged(carry[1]))


def time_training(
    algorithm: str,
    env: EcnEnv,
    envs: int,
    plan: Plan,
    alone: AbstractContextManager[None] | None = None,
) -> tuple[Measured, int]:
    """Time a trainer with its default settings: roll-outs and gradient steps.

    Args:
        algorithm: name of the trainer.
        env: environment.
        envs: how many are stepped at once.
        plan: how it is timed; its steps are rounded up to whole updates.
        alone: entered once all is compiled; timed within.

    Returns:
        Its timing, where a step is one update, and the environment steps of an update.
    """
    config = algorithm_config(algorithm, envs=envs)
    trainer = ALGORITHMS[algorithm](env, config)
    params = env.default_params
    state = initial_state(trainer, params, seed=0)
    program = compiled(compiled_update(trainer), state, params)
    size = tree_bytes(jax.eval_shape(env.reset, jax.random.key(0), params)[1])

    def advance(n: int) -> None:
        nonlocal state
        for _ in range(n):
            state, _ = program.call(state, params)
        jax.block_until_ready(state)

    if plan.steps is not None:
        updates = -(-plan.steps * envs // config.steps_per_update)
        plan = Plan(plan.runs, updates, plan.target_s)
    with alone or nullcontext():
        timing = measure(advance, plan)
    return Measured(program, timing, 1, size, flagged(state)), config.steps_per_update


def env_row(scenario: str, env: EcnEnv, envs: int, measured: Measured) -> dict[str, Any]:
    """Measured environments as a row of the report."""
    return {"program": "environments"} | _row(scenario, env, envs, measured, envs)


def training_row(
    scenario: str, algorithm: str, env: EcnEnv, envs: int, measured: Measured, per_update: int
) -> dict[str, Any]:
    """Measured training as a row of the report."""
    return {"program": f"train {algorithm}"} | _row(scenario, env, envs, measured, per_update)


def _row(
    scenario: str, env: EcnEnv, envs: int, measured: Measured, env_steps: int
) -> dict[str, Any]:
    """A row of the report; a timed step is `env_steps` environment steps.

    Returns:
        What was run, and `env_steps_per_s`, `agent_steps_per_s`, `flow_substeps_per_s` (flow slots
        x substeps x environment steps per second), `sim_s_per_wall_s` (simulated time of all
        environments together), `cores_used`: spread over the runs, each; `flagged`, see `flagged`.
    """
    sim, timing = env.sim, measured.timing
    substeps = sim.interval_steps
    return {
        "scenario": scenario,
        "envs": envs,
        "devices": measured.devices,
        "agents": env.num_agents,
        "slots": sim.slots,
        "substeps": substeps,
        "interval_us": sim.interval_us,
        "runs": len(timing.wall_s),
        "env_steps_per_run": timing.steps * env_steps,
        "trace_s": measured.program.trace_s,
        "compile_s": measured.program.compile_s,
        "env_steps_per_s": timing.rate(env_steps),
        "agent_steps_per_s": timing.rate(env_steps * env.num_agents),
        "flow_substeps_per_s": timing.rate(env_steps * sim.slots * substeps),
        "sim_s_per_wall_s": timing.rate(env_steps * sim.interval_us * 1e-6),
        "cpu_ns_per_flow_substep": 1e9 * timing.step_cpu_s / (env_steps * sim.slots * substeps),
        "cores_used": timing.cores_used,
        "state_bytes_per_env": measured.state_bytes,
        "program_bytes": measured.program.memory,
        "peak_memory": peak_memory(),
        "flagged": measured.flagged,
    }


def parse_counts(option: str, text: str) -> tuple[int, ...]:
    """Numbers of environments, e.g. `1,100,1000`.

    Raises:
        ValueError: something else than integers of at least 1 with commas between them.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise bad_value(option, text, "integers >= 1 with commas between them, e.g. 1,100,1000")
    return tuple(int(part) for part in parts)
