"""One network as a plain `gymnasium.Env` whose agents act as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from ecn_marl._checks import STREAM_SEED, check_value
from ecn_marl._copies import OwnCopies
from ecn_marl._errors import bad_value
from ecn_marl.envs.parallel import EcnParallelEnv, parallel_env


class NetworkEnv(OwnCopies, gymnasium.Env):
    """A central controller's view: observations `[A, obs_dim]`, actions `[A, ...]`.

    The reward is the mean over agents. Infos have an array `[A]` for every entry of the PettingZoo
    face's infos, and the agents' `reward`. Episodes end by their horizon: truncated, never
    terminated. `vector_env` steps many networks at once and is much faster.

    Attributes:
        face: the PettingZoo environment that is wrapped.
    """

    def __init__(self, face: EcnParallelEnv) -> None:
        """Wrap a PettingZoo environment."""
        self.face = face
        self.metadata = {k: face.metadata[k] for k in ("render_modes", "render_fps")}
        self.render_mode = face.render_mode
        n, first = len(face.possible_agents), face.possible_agents[0]
        self.observation_space = batch_space(face.observation_space(first), n)
        self.action_space = batch_space(face.action_space(first), n)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; see `EcnParallelEnv.reset`."""
        check_value("seed", seed, STREAM_SEED)  # before gymnasium, whose error is its own
        obs, infos = self.face.reset(seed, options)
        super().reset(seed=None if seed is None else int(seed))
        return np.stack(list(obs.values())), _columns(infos)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Apply the actions of all agents for one tuning interval.

        Raises:
            ValueError: there is not one action for each agent, or one is not in its space.
        """
        agents = self.face.possible_agents
        rows = list(action) if np.iterable(action) else None
        if rows is None or len(rows) != len(agents):
            raise bad_value("action", action, f"one for each of the {len(agents)} agents")
        joint = dict(zip(agents, rows, strict=True))
        obs, rewards, terminated, truncated, infos = self.face.step(joint)
        reward = np.array(list(rewards.values()), np.float32)
        return (
            np.stack(list(obs.values())),
            float(reward.mean(dtype=np.float64)),
            all(terminated.values()),
            all(truncated.values()),
            {"reward": reward, **_columns(infos)},
        )

    def render(self) -> np.ndarray | str | None:
        """See `EcnParallelEnv.render`."""
        return self.face.render()

    def close(self) -> None:
        """Release the window, if there is one."""
        self.face.close()


def _columns(infos: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    """Infos of all agents as an array `[A]` for every entry."""
    first = next(iter(infos.values()))
    return {k: np.array([row[k] for row in infos.values()], np.float32) for k in first}


def network_env(
    scenario: str = "websearch-v0",
    render_mode: str | None = None,
    max_cycles: int | None = None,
    **options: object,
) -> NetworkEnv:
    """A gymnasium `Env` of one network; arguments as in `ecn_marl.parallel_env`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    return NetworkEnv(parallel_env(scenario, render_mode, max_cycles, **options))
