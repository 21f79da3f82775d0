"""Environments with dicts for their tests: cases, actions, and all that steps return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ecn_marl.envs.parallel import EcnParallelEnv

Options = dict[str, Any]
KINDS = ("multidiscrete", "discrete", "box")
CASES = [
    *(
        pytest.param(
            {"scenario": "websearch-v0", "actions": kind},
            id=kind,
            marks=() if kind == "discrete" else pytest.mark.thorough,
        )
        for kind in KINDS
    ),
    # With the actions of "multidiscrete"; those of "box" are wrappers/bridges/test_network.py's.
    pytest.param({"scenario": "incast-v0", "features": "pet", "reward": "pet"}, id="incast"),
]


def sampled(env: EcnParallelEnv) -> dict[str, Any]:
    return {agent: env.action_space(agent).sample() for agent in env.agents}


def bits(values: Any) -> Any:
    """Values as nested tuples that are equal only if every bit is, and can be hashed."""
    if isinstance(values, np.ndarray):
        return values.dtype.str, values.shape, values.tobytes()
    if isinstance(values, dict):
        return tuple((key, bits(value)) for key, value in values.items())
    if isinstance(values, list | tuple):
        return tuple(map(bits, values))
    return repr(values)


def play(env: EcnParallelEnv, actions: list[dict[str, Any]]) -> tuple[Any, ...]:
    """All that the steps return, bit by bit."""
    return tuple(bits((env.step(action), env.agents, env.state())) for action in actions)


def script(env: EcnParallelEnv, steps: int, seed: int = 7) -> list[dict[str, Any]]:
    for agent in env.possible_agents:
        env.action_space(agent).seed(seed + int(agent[5:]))
    return [
        {agent: env.action_space(agent).sample() for agent in env.possible_agents}
        for _ in range(steps)
    ]
