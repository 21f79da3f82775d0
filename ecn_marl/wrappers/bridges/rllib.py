"""RLlib on its new API stack: a multi-agent environment, and a batch that one call steps.

`rllib_env` is one network as RLlib's `MultiAgentEnv`, for algorithms and policy mappings that
distinguish agents:

    ray.tune.registry.register_env("network", rllib_env)
    PPOConfig().environment("network", env_config={"scenario": "websearch-v0"}).multi_agent(...)

`rllib_vector_env` steps a batch of networks in one compiled call. Every agent is a sub-environment,
so all agents share one policy. An environment runner has `num_envs_per_env_runner` agents, a
multiple of those of a network:

    ray.tune.registry.register_env("agents", rllib_vector_env)
    PPOConfig().environment("agents", env_config={"scenario": "websearch-v0"}).env_runners(
        num_envs_per_env_runner=8 * 16, gym_env_vectorize_mode="vector_entry_point"
    )

Both are plain functions, which Ray sends to its workers by reference; JAX starts there.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from ecn_marl.envs.parallel import parallel_env
from ecn_marl.envs.registry import make
from ecn_marl.wrappers.batch import with_steps
from ecn_marl.wrappers.bridges.comparison import Policy
from ecn_marl.wrappers.bridges.vector_agents import AgentVectorEnv, networks_for


class QuietAgentVectorEnv(AgentVectorEnv):
    """`AgentVectorEnv` without infos: RLlib would turn them into a dict per agent and step."""

    def _infos(self, info: Mapping[str, object], reported: np.ndarray) -> dict[str, Any]:
        return {}


def rllib_env(config: Mapping[str, Any]) -> Any:
    """One network as a `ParallelPettingZooEnv`.

    Args:
        config: `env_config`: arguments of `ecn_marl.parallel_env`.

    Raises:
        ImportError: RLlib is not installed.
        ValueError: an unknown name or a value that is not allowed.
    """
    wrappers = import_module("ray.rllib.env.wrappers.pettingzoo_env")
    return wrappers.ParallelPettingZooEnv(parallel_env(**config))


def rllib_vector_env(config: Mapping[str, Any]) -> AgentVectorEnv:
    """A batch of networks, every agent a sub-environment.

    Args:
        config: `env_config`: `scenario`, `max_steps` and options of `ecn_marl.make`; RLlib adds
            `num_envs`.

    Raises:
        ValueError: an unknown name, a value that is not allowed, or `num_envs` is no multiple of
            the agents of a network.
    """
    options = dict(config)
    num_envs = options.pop("num_envs", None)
    max_steps = options.pop("max_steps", None)
    scenario = options.pop("scenario", "websearch-v0")
    core = make(scenario, **with_steps(options, max_steps))
    networks = 1 if num_envs is None else networks_for(core, num_envs)
    return QuietAgentVectorEnv(core, networks, max_steps=max_steps)


def greedy(module: Any) -> Policy:
    """The most likely actions of an `RLModule` of PyTorch, for `compare`.

    Args:
        module: e.g. `algorithm.get_module()`; its distribution decides.
    """
    torch = import_module("torch")
    distribution = module.get_inference_action_dist_cls()

    def policy(obs: np.ndarray) -> np.ndarray:
        batch = torch.from_numpy(obs.reshape(-1, obs.shape[-1]))
        with torch.no_grad():
            logits = module.forward_inference({"obs": batch})["action_dist_inputs"]
        actions = distribution.from_logits(logits).to_deterministic().sample()
        return np.asarray(actions)

    return policy
