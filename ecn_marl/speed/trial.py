"""The program that a trial on a GPU runs through XLA and through the kernel of `ecn_marl.lanes`."""

from __future__ import annotations

import jax
from jaxtyping import Array, PyTree

from ecn_marl.envs.registry import make
from ecn_marl.lanes.trial import TrialProgram
from ecn_marl.wrappers import AutoReset


def environments(scenario: str = "websearch-v0", envs: int = 4096) -> TrialProgram:
    """Steps of environments, each under an action drawn once; ends of episodes are the decisions.

    Args:
        scenario: registered scenario.
        envs: environments.
    """
    env = AutoReset(make(scenario))
    params = env.default_params
    keys = jax.random.split(jax.random.key(0), envs)
    state = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)[1]
    action = jax.vmap(lambda key: env.action.sample(key, env.num_agents))(keys)

    def step(
        turn: Array, state: PyTree, key: jax.Array, action: Array, params: PyTree
    ) -> tuple[PyTree, PyTree, PyTree]:
        key = jax.random.fold_in(key, turn)
        obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)
        return state, (obs, reward, info), (terminated, truncated)

    return TrialProgram(step, state, ((keys, True), (action, True), (params, False)))
