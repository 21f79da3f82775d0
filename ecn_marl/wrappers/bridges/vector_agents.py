"""Agents as environments: every agent of every network is a sub-environment of a `VectorEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import make
from ecn_marl.wrappers.batch import with_steps
from ecn_marl.wrappers.bridges.vector import EcnVectorEnv


class AgentVectorEnv(EcnVectorEnv):
    """Every agent of every network as a sub-environment, for code that knows single agents only.

    Sub-environment `i * A + a` is agent a of network i: observations `[num_envs, obs_dim]`, actions
    `[num_envs, ...]`, each with its own reward. A network's agents start and end together, are
    seeded together, and can only be reset together. For an agent's learner the other agents are
    part of the network, so its environment is stationary only while their policy is.
    """

    agents_apart = True

    def _rows(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.num_envs, *x.shape[2:])

    def _flags(self, x: np.ndarray) -> np.ndarray:
        return np.repeat(x, self.core.num_agents)

    def _reward(self, x: np.ndarray) -> np.ndarray:
        return self._rows(x.astype(np.float64))


def networks_for(core: EcnEnv, num_envs: int) -> int:
    """Networks whose agents are `num_envs` sub-environments.

    Raises:
        ValueError: it is no multiple of the agents of a network.
    """
    check_value("num_envs", num_envs, Whole(low=1))
    networks, remainder = divmod(num_envs, core.num_agents)
    if networks < 1 or remainder:
        allowed = f"a multiple of the {core.num_agents} agents of {core.name}"
        raise bad_value("num_envs", num_envs, allowed)
    return networks


def vector_env(
    scenario: str = "websearch-v0",
    num_networks: int = 8,
    *,
    per_agent: bool = False,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    max_steps: int | Sequence[int] | None = None,
    **options: Any,
) -> EcnVectorEnv:
    """A gymnasium `VectorEnv`.

    Args:
        scenario: name of a registered scenario.
        num_networks: networks in the batch.
        per_agent: `AgentVectorEnv` instead of `EcnVectorEnv`.
        autoreset_mode: see `EcnVectorEnv`.
        max_steps: steps per episode, or one for each network.
        **options: as in `ecn_marl.make`, e.g. `features="pet"`, `actions="box"`, `load=0.8`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    kind = AgentVectorEnv if per_agent else EcnVectorEnv
    core = make(scenario, **with_steps(options, max_steps))
    return kind(core, num_networks, autoreset_mode=autoreset_mode, max_steps=max_steps)
