"""Checks of agents and actions for the PettingZoo faces; each error says what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ecn_marl._errors import bad_value, unknown_name

Space = TypeVar("Space")


def agent_range(agents: Sequence[str]) -> str:
    """The names of the agents, shortened: the first and the last."""
    return agents[0] if len(agents) == 1 else f"{agents[0]} … {agents[-1]}"


def space_of(spaces: Mapping[str, Space], agent: str) -> Space:
    """The space of an agent.

    Raises:
        ValueError: unknown agent.
    """
    if agent not in spaces:
        raise bad_value("agent", agent, agent_range(list(spaces)))
    return spaces[agent]


def check_actions(actions: object, agents: Sequence[str]) -> None:
    """Check that actions are a dict by agent.

    Raises:
        ValueError: they are not. For an array, the message says how to make a dict of it.
    """
    if isinstance(actions, Mapping):
        return
    allowed = "a dict with one action for every agent"
    shape = getattr(actions, "shape", None)
    if shape is not None:
        array = f"an array {list(shape)}"
        raise bad_value("actions", array, f"{allowed}: dict(zip(env.agents, actions))")
    raise bad_value("actions", actions, f"{allowed}, {agent_range(agents)}")


def check_shape(action: object, shape: tuple[int, ...]) -> None:
    """Check the shape of all agents' actions, known or traced.

    Raises:
        ValueError: another shape, or no array.
    """
    received = getattr(action, "shape", None)
    if received is None:
        raise bad_value("action", action, f"an array {list(shape)}: agents first")
    if tuple(received) != shape:
        raise bad_value("shape of action", tuple(received), f"{shape}: agents first")


def reset_options(options: Mapping[str, object] | None, allowed: tuple[str, ...]) -> dict[str, Any]:
    """The options of a reset, checked.

    Args:
        options: what the user passed.
        allowed: names of options that the face has.

    Raises:
        ValueError: no dict, or an unknown name; the message lists the names.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise bad_value("options", options, f"a dict; known: {', '.join(allowed) or 'none'}")
    for name in options:
        # PettingZoo's own conformance tests pass an option of the name `options`.
        if name not in (*allowed, "options"):
            raise unknown_name("option of reset", name, allowed)
    return dict(options)


def key_words(value: object, shape: tuple[int, ...]) -> np.ndarray:
    """Data of JAX keys that fix episodes, uint32; see `EcnParallelEnv.reset`.

    Raises:
        ValueError: another shape, or no whole numbers of 32 bits.
    """
    words = np.asarray(value)
    if words.shape != shape or words.dtype.kind not in "iu":
        received = f"{words.dtype} {list(words.shape)}"
        raise bad_value("key", received, f"uint32 {list(shape)}, such as jax.random.key_data(key)")
    if words.size and (words.min() < 0 or words.max() >= 2**32):
        raise bad_value("key", words.tolist(), "whole numbers from 0 to 2^32 - 1")
    return words.astype(np.uint32)
