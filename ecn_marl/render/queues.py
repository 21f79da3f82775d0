"""One episode in detail: queues at every tick of the simulator under several policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl.baselines.evaluation.episodes import (
    Controller,
    StatefulController,
    decide,
    evaluation_keys,
    thresholds,
    with_memory,
)
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import EnvParams
from ecn_marl.render.plots import QueueSeries
from ecn_marl.sim.core.queues import Ecn


def queue_series(
    env: EcnEnv,
    params: EnvParams,
    controllers: Mapping[str, Controller | StatefulController],
    seed: int,
) -> tuple[str, list[QueueSeries]]:
    """Run the first evaluation episode of a seed under every policy.

    Args:
        env: the environment.
        params: its parameters; `max_steps` is the length of the episode.
        controllers: policies by label.
        seed: seed of the evaluation stream.

    Returns:
        Name of the host port with the most traffic under the last policy, and its queue under each.
    """
    recorded = _record(env, params, list(controllers.values()), evaluation_keys(seed, 1)[0])
    hosts = env.sim.topology.ports_of_kind("host")
    port = int(hosts[np.argmax(recorded["utilisation"][-1].mean(0)[hosts])])
    ticks = recorded["ticks"].shape[2]
    interval_ms = env.interval_us / 1e3
    starts = np.arange(recorded["kmin"].shape[1]) * interval_ms
    series = [
        QueueSeries(
            label=name,
            time_ms=(np.arange(starts.size * ticks) + 1) * (interval_ms / ticks),
            queue=recorded["ticks"][i, :, :, port].reshape(-1),
            interval_ms=starts,
            kmin=recorded["kmin"][i, :, port],
            kmax=recorded["kmax"][i, :, port],
            utilisation=float(recorded["utilisation"][i, :, port].mean()),
        )
        for i, name in enumerate(controllers)
    ]
    return str(env.port_info(port)["name"]), series


def _record(
    env: EcnEnv,
    params: EnvParams,
    controllers: list[Controller | StatefulController],
    key: jax.Array,
) -> dict[str, np.ndarray]:
    """The same episode under every controller, all of them in one compiled program.

    Returns:
        `ticks`, the queue at the end of every tick, bytes, `[controllers, intervals, ticks, A]`;
        infos of each interval, `[controllers, intervals, A]`: `queue` at its end, `kmin` and
        `kmax`, bytes, and `utilisation`.
    """
    sim = env.sim
    tick_simulator = replace(sim, interval_steps=sim.tick_steps)
    reset_key, run_key = jax.random.split(key)

    policies = [with_memory(controller) for controller in controllers]

    def episode(index: Array) -> dict[str, Array]:
        def step(carry: PyTree, key: jax.Array) -> tuple[PyTree, dict[str, Array]]:
            obs, state, memories = carry
            act_key, env_key = jax.random.split(key)
            # All controllers decide, and the index picks one: in a batch, a `lax.switch` would run
            # all of its branches, too.
            decided = [
                decide(c, act_key, obs, memory)
                for c, memory in zip(policies, memories, strict=True)
            ]
            options = [thresholds(env, params, state, chosen) for chosen, _ in decided]
            ecn: Ecn = jax.tree.map(lambda *x: jnp.stack(x)[index], *options)

            def tick(inner: PyTree, ecn: Ecn) -> tuple[PyTree, Array]:
                inner, stats = tick_simulator.interval(inner, params.sim, ecn)
                return inner, stats.queue

            by_tick = env.in_force_by_tick(state, ecn, params)
            _, queues = jax.lax.scan(tick, state.sim, by_tick)
            # The interval again as a whole: so the episode is bit for bit that of an evaluation.
            obs, state, _, _, _, info = env.step_ecn(env_key, state, ecn, params)
            row = {name: info[name] for name in ("queue", "utilisation", "kmin", "kmax")}
            memories = [
                c.observe(memory, info) for c, (_, memory) in zip(policies, decided, strict=True)
            ]
            return (obs, state, memories), row | {"ticks": queues}

        keys = jax.random.split(run_key, int(params.max_steps))
        first = (*env.reset(reset_key, params), [c.init() for c in policies])
        return jax.lax.scan(step, first, keys)[1]

    results = jax.jit(jax.vmap(episode))(jnp.arange(len(controllers)))
    return {name: np.asarray(values) for name, values in results.items()}
