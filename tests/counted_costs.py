"""Rewards and costs of a learner that remembers, in environments that count nothing."""

from __future__ import annotations

import jax
from jaxtyping import Array, PyTree

from ecn_marl.baselines.evaluation.cost import Costs
from ecn_marl.baselines.evaluation.episodes import evaluation_keys
from ecn_marl.baselines.evaluation.stateful_policy import Deciding
from ecn_marl.envs.interface import Environment


def count_costs(
    env: Environment,
    params: PyTree,
    algorithm: Deciding,
    actor: PyTree,
    *,
    episodes: int,
    seed: int = 0,
) -> Costs:
    """Mean reward and costs of a greedy policy over evaluation episodes.

    Args:
        env: functional environment (without auto-reset), its agents ports.
        params: its parameters; `max_steps` is the length of an episode.
        algorithm: has `start`, `decide`, `watch` and `costs`, as `DDQN`, `CentralACC` and `HAECN`.
        actor: its parameters.
        episodes: number of episodes, all run at once.
        seed: seed of the evaluation stream.
    """
    env = algorithm.view(env) if hasattr(algorithm, "view") else env

    def episode(key: jax.Array) -> tuple[Array, dict[str, Array]]:
        reset_key, run_key = jax.random.split(key)
        obs, state = env.reset(reset_key, params)

        def step(carry: PyTree, key: jax.Array) -> tuple[PyTree, Array]:
            obs, state, memory = carry
            memory, action = algorithm.decide(actor, memory, obs)
            obs, state, reward, _, _, info = env.step(key, state, action, params)
            return (obs, state, algorithm.watch(memory, reward, info)), reward.mean()

        carry = (obs, state, algorithm.start(env.num_agents))
        keys = jax.random.split(run_key, int(params.max_steps))
        (_, _, memory), reward = jax.lax.scan(step, carry, keys)
        return reward.mean(), algorithm.costs(memory)

    reward, costs = jax.jit(jax.vmap(episode))(evaluation_keys(seed, episodes))
    return {"reward": float(reward.mean())} | {k: float(v.mean()) for k, v in costs.items()}
