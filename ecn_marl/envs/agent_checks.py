"""Checks of agents and actions for the PettingZoo faces; each error says what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from ecn_marl._errors import bad_value

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
