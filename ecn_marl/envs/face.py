"""What the PettingZoo faces share: episodes, checks, and dicts keyed by agent.

A step is one compiled call and one transfer; it returns numpy arrays and Python scalars. JAX starts
at the first reset, so an environment can be made and pickled to a worker process before.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from jaxtyping import PyTree
from pettingzoo import ParallelEnv

from ecn_marl._checks import STREAM_SEED, check_numbers, check_value
from ecn_marl._copies import OwnCopies
from ecn_marl._errors import bad_value
from ecn_marl._fork import check_process
from ecn_marl._programs import Programs
from ecn_marl.envs.agent_checks import (
    agent_range,
    check_actions,
    key_words,
    reset_options,
    space_of,
)

if TYPE_CHECKING:
    import jax

    from ecn_marl.envs.telemetry import Telemetry

MAX_CYCLES = 2**31 - 1
"""Longest episode; steps are counted in int32."""

Dicts = tuple[
    dict[str, np.ndarray],
    dict[str, float],
    dict[str, bool],
    dict[str, bool],
    dict[str, dict[str, Any]],
]
"""Observations, rewards, terminations, truncations and infos by agent."""


def whole_cycles(steps: Any) -> int:
    """A number of steps per episode as Python's integer.

    Raises:
        ValueError: it is no integer in [1, 2^31 - 1].
    """
    try:
        steps = operator.index(steps)
    except TypeError:
        raise bad_value("max_cycles", steps, "an integer >= 1") from None
    if not 1 <= steps <= MAX_CYCLES:
        raise bad_value("max_cycles", steps, f"an integer in [1, {MAX_CYCLES}]")
    return int(steps)


def check_length(core: Any, steps: int, field: str) -> None:
    """Refuse episodes of another length than an environment can have.

    Args:
        core: the functional environment.
        steps: steps per episode.
        field: their name in messages.

    Raises:
        ValueError: no observation or action comes through in so few, or rewards are relative to a
            reference that was measured in another number.
    """
    telemetry: Telemetry | None = getattr(core, "telemetry", None)
    if telemetry is not None:
        telemetry.check(core.interval_us, steps)
    if getattr(core, "reward_reference", None) is not None and steps != core.horizon:
        allowed = f"{core.horizon}, the steps that its reward_reference was measured in"
        raise bad_value(field, steps, allowed)


class Face(OwnCopies, ParallelEnv, ABC):
    """A `ParallelEnv` around a functional environment.

    `reset(seed=s)` starts a stream of episodes; resets without a seed continue it. An environment
    that was never seeded draws its seed from the operating system. Copies and pickles continue
    where the original stood, bit by bit.

    Attributes:
        core: the functional environment.
        render_mode: one of `metadata["render_modes"]`, or None.
        possible_agents: all agents.
        agents: all agents; empty before `reset` and after the last step.
    """

    metadata: dict[str, Any]

    programs: ClassVar[Programs[Any]]
    """Compiled functions of all faces of a class: reset; the step to the next decision; others."""

    def __init__(
        self,
        core: Any,
        max_cycles: object,
        box: gymnasium.spaces.Box,
        render_mode: str | None = None,
        render_modes: tuple[str, ...] = (),
    ) -> None:
        """Wrap a functional environment.

        Args:
            core: the environment.
            max_cycles: steps per episode, its horizon if None.
            box: what an agent observes.
            render_mode: see `render_modes`.
            render_modes: those that the face has.

        Raises:
            ValueError: unknown render mode, or `max_cycles` is no integer in [1, 2^31 - 1], or
                other steps than those that rewards relative to a reference were measured in.
        """
        if render_mode is not None and render_mode not in render_modes:
            raise bad_value("render_mode", render_mode, f"one of {', '.join(render_modes)} or None")
        self.core = core
        self.render_mode = render_mode
        self.max_cycles = core.horizon if max_cycles is None else max_cycles
        self.metadata = {
            "name": f"ecn_marl_{core.name.replace('-', '_')}",
            "render_modes": list(render_modes),
            "is_parallelizable": True,
        }
        self.possible_agents = list(core.agents)
        self.agents: list[str] = []
        # One for each agent: a space has a generator of its own.
        self.observation_spaces = {agent: deepcopy(box) for agent in self.possible_agents}
        self.action_spaces = {a: core.action.gymnasium_space() for a in self.possible_agents}
        self._index = {agent: i for i, agent in enumerate(self.possible_agents)}
        self._stream: np.random.Generator | None = None
        self._key: jax.Array | None = None
        self._params: PyTree = None
        self._state: PyTree = None

    def __repr__(self) -> str:
        """One line: scenario, agents, and the spaces of one."""
        last = self.possible_agents[-1]
        return (
            f"<{type(self).__name__} {self.core.name}: {agent_range(self.possible_agents)}, "
            f"observations ({self.core.obs_dim},), actions {self.action_spaces[last]}, "
            f"{self.max_cycles} steps>"
        )

    @property
    def max_cycles(self) -> int:
        """Steps per episode; may be set, and holds from the next reset."""
        return self._max_cycles

    @max_cycles.setter
    def max_cycles(self, steps: Any) -> None:
        steps = whole_cycles(steps)
        check_length(self.core, steps, "max_cycles")
        self._max_cycles = steps

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """Observation space of an agent, the same object at each call; unknown: ValueError."""
        return space_of(self.observation_spaces, agent)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Action space of an agent, the same object at each call; unknown: ValueError."""
        return space_of(self.action_spaces, agent)

    def reset(
        self, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Start an episode.

        Args:
            seed: start the stream of episodes of this seed; None continues the stream.
            options: `key`, uint32 `[2]`, the data of a JAX key (threefry) that fixes this episode
                in place of the stream, such as a row of `keys` of `ecn_marl.evaluate`.

        Returns:
            Observations (float32 `[obs_dim]`) and infos of all agents: what `reset_info` of the
            functional environment has.

        Raises:
            ValueError: a seed that is no integer >= 0, an unknown option, or parameters out of
                their ranges.
            ForkedProcess: this process was forked from one that has used JAX.
        """
        import jax

        check_process()
        check_value("seed", seed, STREAM_SEED)
        given = reset_options(options, ("key",))
        words = key_words(given["key"], (2,)) if "key" in given else None
        if self._params is None:
            params = self.core.default_params
            check_numbers(params)
            self._params = jax.device_put(params)
        # All is checked: from here on the stream changes.
        if seed is not None or self._stream is None:
            self._stream = np.random.default_rng(seed)
        if words is None:
            words = self._stream.integers(2**32, size=2, dtype=np.uint32)
        # A whole key: `jax.random.key` uses 32 bits of a seed, and JAX's settings choose its
        # generator.
        self._key = jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")
        self._params = replace(self._params, max_steps=jax.device_put(np.int32(self.max_cycles)))
        reset, *_ = self._functions()
        obs, self._state = reset(self._key, self._params)
        self.agents = list(self.possible_agents)
        rows = jax.device_get(obs)
        known = self.core.reset_info(self._state, self._params)
        facts = {name: column.tolist() for name, column in jax.device_get(known).items()}
        return (
            {agent: rows[i].copy() for agent, i in self._index.items()},
            {a: {name: x[i] for name, x in facts.items()} for a, i in self._index.items()},
        )

    def step(self, actions: Mapping[str, object]) -> Dicts:
        """Apply one action per agent, and run to the next decision.

        Args:
            actions: one action for every agent in `agents`.

        Returns:
            Observations, rewards, terminations (always False), truncations and infos: the `info` of
            the functional environment's step for every agent.

        Raises:
            ResetNeeded: no episode is running.
            ValueError: an action is missing, too many, or not in its space; nothing has changed
                then.
        """
        if not self.agents:
            raise ResetNeeded("no episode is running: call reset() first and after the last step")
        rows, reward, terminated, truncated, info = self._advance(self._stack(actions))
        acted = self.agents
        if (terminated | truncated).all():
            self.agents = []
        # `tolist` converts a column at once; indexing would make a numpy scalar of every entry.
        facts = zip(*(column.tolist() for column in info.values()), strict=True)
        # Rows are copied, because the caller may write to them.
        return (
            {agent: rows[i].copy() for i, agent in enumerate(acted)},
            dict(zip(acted, reward.tolist(), strict=True)),
            dict(zip(acted, terminated.tolist(), strict=True)),
            dict(zip(acted, truncated.tolist(), strict=True)),
            {a: dict(zip(info, row, strict=True)) for a, row in zip(acted, facts, strict=True)},
        )

    def _advance(self, actions: np.ndarray) -> tuple[Any, ...]:
        """Step; observations, rewards, ends and info, as numpy's arrays of all agents."""
        import jax

        _, step, *_ = self._functions()
        obs, self._state, *outputs = step(self._key, self._state, actions, self._params)
        results: tuple[Any, ...] = jax.device_get((obs, *outputs))
        return results

    def _functions(self) -> tuple[Callable[..., Any], ...]:
        """Compiled functions, unless this process cannot run them: ForkedProcess."""
        check_process()
        return self.programs.of(self.core.program, self)

    def _stack(self, actions: Mapping[str, object]) -> np.ndarray:
        """Checked actions as one array, `[A, *action.shape]`."""
        check_actions(actions, self.possible_agents)
        if actions.keys() != self._index.keys():
            for agent in self.agents:
                if agent not in actions:
                    raise bad_value("actions", f"none for {agent}", "one action for every agent")
            unknown = next(agent for agent in actions if agent not in self._index)
            raise bad_value("actions", f"one for {unknown!r}", "actions of this env's agents only")
        return self._checked([actions[agent] for agent in self.agents])

    @abstractmethod
    def _checked(self, actions: list[object]) -> np.ndarray:
        """Actions of all agents in turn as one array.

        Raises:
            ValueError: one is not in its agent's space.
        """

    def render(self) -> Any:
        """There is nothing to show."""

    def close(self) -> None:
        """There is nothing to close."""
