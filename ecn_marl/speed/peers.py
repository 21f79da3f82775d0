"""Other simulators, measured or recorded: JaxMARL, a packet simulator; and our own replay."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from functools import partial
from importlib import import_module, resources
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl import lanes
from ecn_marl._memory import tree_bytes
from ecn_marl.parallelism import env_mesh, fitting_devices, per_device, shard_envs
from ecn_marl.sim.network.topology import leaf_spine
from ecn_marl.sim.replay import Settings
from ecn_marl.sim.replay.samples import SAMPLE_US
from ecn_marl.sim.simulator import SimState, scaled_ecn
from ecn_marl.sim.traffic.schedules import schedule
from ecn_marl.speed.timing import Plan, compiled, measure, repeat, summarise
from ecn_marl.validation import recorded
from ecn_marl.validation.runs import ECN, SENDERS, default_dt_us

JAXMARL = ("MPE_simple_spread_v3", "HeuristicEnemySMAX")
"""Environments of JaxMARL (Rutherford et al., 2024), with its default settings."""

LIST, PROFILE, SETTING = "websearch_60", "run", "SECN2"
"""The recorded case that is run beside the packet simulator, and its thresholds."""
RECORDED = "d_WebSearch_60_arrival_window"
WINDOW_MS = 50.0
SLOTS = 256
"""Flow slots of the replay, as in the validation: no flow of the list has to wait for one."""
WARM_MS = 5.0
BATCH = 64
"""Replays at once, beside one alone."""
AT_ONCE = 100
"""Samples per call of the compiled program."""


def jaxmarl_rows(
    envs: tuple[int, ...], devices: int, plan: Plan, show: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Steps per second of JaxMARL's environments under random actions.

    Returns:
        Rows with `name`, `envs`, `agents`, `env_steps_per_s`, `agent_steps_per_s`; without the
        package one row per environment, with a `note` that it is missing.
    """
    if find_spec("jaxmarl") is None:
        note = "not installed: pip install 'ecn-marl[jaxmarl]'"
        return [{"name": f"JaxMARL {name}", "note": note} for name in JAXMARL]
    rows = []
    for name in JAXMARL:
        for env_count in envs:
            if show:
                show(f"JaxMARL {name}, {env_count} environments")
            rows.append(_jaxmarl_row(name, env_count, devices, plan))
    return rows


def _jaxmarl_row(name: str, envs: int, devices: int, plan: Plan) -> dict[str, Any]:
    """Time one of JaxMARL's environments."""
    package = import_module("jaxmarl")  # an optional dependency
    env = package.make(name)
    used_devices = fitting_devices(envs, devices)
    mesh = env_mesh(used_devices)
    keys = jax.random.split(jax.random.key(0), envs)
    obs, state = jax.jit(jax.vmap(env.reset))(keys)
    # Rewards and observations are results, so that XLA cannot leave their computation out.
    total = jnp.zeros((envs, len(env.agents)))
    carry = shard_envs((keys, state, obs, total), mesh)
    run = per_device(partial(_jaxmarl_steps, env), mesh, shared=(4,), donate=(0, 1, 2, 3))
    program = compiled(run, *carry, jnp.int32(1))

    def advance(n: int) -> None:
        nonlocal carry  # the call takes the memory of its arguments
        carry = program.call(*carry, jnp.int32(n))
        jax.block_until_ready(carry)

    timing = measure(advance, plan)
    return {
        "name": f"JaxMARL {name}",
        "envs": envs,
        "devices": used_devices,
        "agents": len(env.agents),
        "compile_s": program.compile_s,
        "env_steps_per_s": timing.rate(envs),
        "agent_steps_per_s": timing.rate(envs * len(env.agents)),
        "cores_used": timing.cores_used,
        "state_bytes_per_env": tree_bytes(state) // envs,
        "note": f"jaxmarl {version('jaxmarl')}",
    }


def _jaxmarl_steps(
    env: Any, keys: jax.Array, state: PyTree, obs: Array | dict[str, Array], total: Array, n: Array
) -> tuple[PyTree, PyTree, PyTree, Array]:
    """`programs.random_steps` for an environment that has dicts of agents and resets itself."""

    def step(key: jax.Array, state: PyTree) -> tuple[PyTree, PyTree, PyTree, Array]:
        key, act_key, env_key = jax.random.split(key, 3)
        act_keys = jax.random.split(act_key, len(env.agents))
        action = {a: env.action_space(a).sample(act_keys[i]) for i, a in enumerate(env.agents)}
        obs, state, reward, _, _ = env.step(env_key, state, action)
        return key, state, obs, jnp.stack([reward[agent] for agent in env.agents])

    def body(_: object, carry: PyTree) -> PyTree:
        keys, state, _, total = carry
        keys, state, obs, reward = jax.vmap(step)(keys, state)
        return keys, state, obs, total + reward

    result: PyTree = jax.lax.fori_loop(0, n, body, (keys, state, obs, total))
    return result


def packet_rows() -> list[dict[str, Any]]:
    """Recorded speed of the packet simulator.

    Returns:
        Rows with `name`, `repetitions` and `sim_ms_per_wall_s`, the spread over the repetitions.
    """
    text = resources.files("ecn_marl.speed").joinpath("data", "packet_timing.csv").read_text()
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        key = (row["case"], row["profile"], row["ecn"])
        groups.setdefault(key, []).append(float(row["sim_ms"]) / float(row["run_wall_s"]))
    return [
        {
            "name": f"packets, {case} {profile} {ecn}",
            "lanes": 1,
            "repetitions": len(speeds),
            "sim_ms_per_wall_s": summarise(speeds),
            "note": "recorded on an EPYC core",
        }
        for (case, profile, ecn), speeds in groups.items()
    ]


def replay_row(
    count: int, runs: int, devices: int = 1, window_ms: float = WINDOW_MS
) -> dict[str, Any]:
    """Speed of our replay of the recorded leaf-spine case over the same time window.

    Every run starts from an empty network, as the recorded one did.

    Args:
        count: replays at once; they differ in their seed.
        runs: number of runs.
        devices: devices at most.
        window_ms: simulated time of a run, ms.

    Returns:
        A row like those of `packet_rows`, with `sim_ms_per_wall_s` summed over the replays, and
        `flow_substeps_per_s`.
    """
    used_devices, dt_us = fitting_devices(count, devices), default_dt_us(SENDERS[PROFILE])
    flows = recorded.flow_list(LIST)
    settings = Settings(transport=SENDERS[PROFILE], dt_us=dt_us, duration_ms=window_ms, slots=SLOTS)
    sim = settings.simulator(leaf_spine(4, 8, 2), np.asarray(flows["start_ns"], np.float64))
    params = sim.default_params(traffic=(schedule(flows, dt_us),))
    ecn = scaled_ecn(params.net, *ECN[SETTING])
    keys = jax.random.split(jax.random.key(0), count)

    @partial(lanes.mapped, updates={0: 0})
    def advanced(state: SimState, total: Array, params: PyTree) -> tuple[SimState, Array]:
        def sample(carry: tuple[SimState, Array], _: None) -> tuple[tuple[SimState, Array], None]:
            state, stats = sim.interval(carry[0], params, ecn)
            return (state, carry[1] + stats.queue_mean), None

        return jax.lax.scan(sample, (state, total), None, length=AT_ONCE)[0]

    def one_replay(key: jax.Array, params: PyTree, n: Array) -> tuple[SimState, Array]:
        carry = (sim.init(key, params), jnp.zeros((sim.topology.n_ports,), jnp.float32))
        result: PyTree = jax.lax.fori_loop(
            0, n // AT_ONCE, lambda _, carry: advanced(*carry, params), carry
        )
        return result

    mesh = env_mesh(used_devices)
    run = per_device(jax.vmap(one_replay, (0, None, None)), mesh, shared=(1, 2))
    keys = shard_envs(keys, mesh)
    program = compiled(run, keys, params, jnp.int32(1))
    warm = round(min(WARM_MS, window_ms) * 1e3 / SAMPLE_US)
    jax.block_until_ready(program.call(keys, params, jnp.int32(warm)))
    samples = settings.samples

    def advance(n: int) -> None:
        jax.block_until_ready(program.call(keys, params, jnp.int32(n * samples)))

    timing = repeat(advance, 1, runs)
    substeps = samples * settings.substeps
    return {
        "name": f"replay, {RECORDED} {PROFILE} {SETTING}, dt = {dt_us:g} µs",
        "lanes": count,
        "devices": used_devices,
        "repetitions": runs,
        "compile_s": program.compile_s,
        "sim_ms_per_wall_s": timing.rate(window_ms * count),
        "flow_substeps_per_s": timing.rate(count * SLOTS * substeps),
        "cores_used": timing.cores_used,
        "note": "",
    }


def replays(plan: Plan, devices: int) -> list[dict[str, Any]]:
    """Our replay, alone and in a batch, over the recorded time window."""
    return [replay_row(1, plan.runs), replay_row(BATCH, plan.runs, devices)]
