"""Stable-Baselines3 over the batch: every agent of every network in one `VecEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from ecn_marl._copies import OwnCopies
from ecn_marl.wrappers.bridges.vector_agents import AgentVectorEnv, vector_env


class EcnSB3VecEnv(OwnCopies, VecEnv):
    """`AgentVectorEnv` for SB3: it resets within the step that ends an episode.

    At an episode's last step `infos[i]` has only `terminal_observation` and `TimeLimit.truncated`,
    from which SB3 bootstraps. `seed(s)`, which `PPO(..., seed=s)` calls, takes effect at the next
    `reset`. A network has the seed of its first agent.

    Attributes:
        agents: the environment that is wrapped.
    """

    def __init__(self, agents: AgentVectorEnv) -> None:
        """Wrap a vector environment that resets in the same step."""
        # First, because SB3's constructor calls `get_attr`.
        self.agents = agents
        super().__init__(
            agents.num_envs, agents.single_observation_space, agents.single_action_space
        )

    def reset(self) -> np.ndarray:
        """Start episodes; observations `[num_envs, obs_dim]`."""
        seeds = self._seeds[:: self.agents.core.num_agents]
        obs, _ = self.agents.reset(seed=seeds)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Apply the actions for one tuning interval.

        Returns:
            Observations, rewards (float32), dones, infos.
        """
        obs, reward, terminated, truncated, agent_infos = self.agents.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        done = terminated | truncated
        for i in np.flatnonzero(done):
            infos[i]["terminal_observation"] = agent_infos["final_obs"][i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        return obs, reward.astype(np.float32), done, infos

    def close(self) -> None:
        """Release the wrapped environment."""
        self.agents.close()

    def get_attr(self, attr_name: str, indices: object = None) -> list[Any]:
        """An attribute of the wrapped environment, the same for all."""
        return [getattr(self.agents, attr_name)] * len(self._selected(indices))

    def set_attr(self, attr_name: str, value: object, indices: object = None) -> None:
        """Set an attribute of the wrapped environment, for all."""
        setattr(self.agents, attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: object,
        indices: object = None,
        **method_kwargs: object,
    ) -> list[Any]:
        """Call a method of the wrapped environment, once."""
        result = getattr(self.agents, method_name)(*method_args, **method_kwargs)
        return [result] * len(self._selected(indices))

    def env_is_wrapped(self, wrapper_class: type, indices: object = None) -> list[bool]:
        """No sub-environment is wrapped on its own."""
        return [False] * len(self._selected(indices))

    def _selected(self, indices: object) -> Sequence[int]:
        return list(self._get_indices(indices))


def sb3_env(
    scenario: str = "websearch-v0",
    num_networks: int = 8,
    *,
    max_steps: int | Sequence[int] | None = None,
    **options: object,
) -> EcnSB3VecEnv:
    """A `VecEnv` for Stable-Baselines3, one policy shared by all agents.

    Args:
        scenario: name of a registered scenario.
        num_networks: networks in the batch.
        max_steps: steps per episode, or one for each network.
        **options: as in `ecn_marl.make`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    agents = vector_env(
        scenario,
        num_networks,
        per_agent=True,
        autoreset_mode="SameStep",
        max_steps=max_steps,
        **options,
    )
    assert isinstance(agents, AgentVectorEnv)
    return EcnSB3VecEnv(agents)
