"""The PettingZoo face of rate control: `rate_parallel_env()`.

All flows are agents all the time. A step runs until the RTT packet of at least one flow is back (or
the episode is over). Then `infos[a]["acts"]` is True for the flows whose turn it is, and their
actions in the next step count. A `ParallelEnv` needs actions of all other agents as well: these are
ignored, the agents' observations do not change, and their rewards are 0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

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
from ecn_marl.envs.agent_checks import check_actions, reset_options, space_of
from ecn_marl.envs.rate.env import MOST_IN_LANES, RateEnv, RateParams, RateState
from ecn_marl.envs.rate.scenarios import RateScenario, make_rate

MAX_STEPS = 2**31 - 1
"""Longest episode; steps are counted in int32."""


def _compiled(core: RateEnv, user: object = None) -> tuple[Callable[..., Any], ...]:
    """Compiled functions of an environment, unless this process cannot run them.

    Args:
        core: the environment.
        user: face that keeps them in use; see `Programs`.

    Raises:
        ForkedProcess: see `check_process`.
    """
    check_process()
    return PROGRAMS.of(core, user)


def _compile(core: RateEnv) -> tuple[Callable[..., Any], ...]:
    """Compiled reset and step to the next event; a batch of one, for the sake of lanes."""
    import jax
    import jax.numpy as jnp

    from ecn_marl import lanes

    def one(state: RateState, action: jax.Array, params: RateParams) -> PyTree:
        # An episode's randomness is in its state.
        return core.step(jax.random.key(0), state, action, params)

    few = core.sim.slots <= MOST_IN_LANES
    mapped: Callable[..., Any] = lanes.mapped(one) if few else one

    def step(state: RateState, action: jax.Array, params: RateParams) -> PyTree:
        def over(carry: PyTree) -> jax.Array:
            return jnp.any(carry[2]) | jnp.any(carry[4]["acts"])

        def go_on(carry: PyTree) -> PyTree:
            batch = jax.tree.map(lambda x: jnp.asarray(x)[None], (carry[1], action))
            after = jax.vmap(mapped, (0, 0, None))(*batch, params)
            obs, state, reward, _, truncated, info = jax.tree.map(lambda x: x[0], after)
            return obs, state, truncated, reward, info

        # A step passes before the first test. The last step's rewards are all there are, because no
        # flow acts in those before.
        first = go_on((None, state))
        return jax.lax.while_loop(lambda c: ~over(c), go_on, first)

    return jax.jit(core.reset), jax.jit(step)


PROGRAMS = Programs(_compile)
"""Compiled functions of all faces."""


class RateParallelEnv(OwnCopies, ParallelEnv):
    """A `ParallelEnv` whose agents are flows: `flow_0`, `flow_1` and so on.

    `reset(seed=s)` starts a stream of episodes; resets without a seed continue it. An environment
    that was never seeded draws its seed from the operating system.

    Attributes:
        core: the functional environment.
        possible_agents: all agents.
        agents: all agents; empty before `reset` and after the last step.
        max_cycles: simulator steps per episode, see `RateEnv.step_us`; several may pass in a
            `step` of this face.
    """

    metadata: dict[str, Any]

    def __init__(self, core: RateEnv, max_cycles: int | None = None) -> None:
        """Wrap a functional environment.

        Raises:
            ValueError: `max_cycles` is no integer in [1, 2^31 - 1].
        """
        self.core = core
        try:
            self.max_cycles = core.horizon if max_cycles is None else operator.index(max_cycles)
        except TypeError:
            raise bad_value("max_cycles", max_cycles, "an integer >= 1") from None
        if not 1 <= self.max_cycles <= MAX_STEPS:
            raise bad_value("max_cycles", max_cycles, f"an integer in [1, {MAX_STEPS}]")
        self.metadata = {
            "name": f"ecn_marl_{core.name.replace('-', '_')}",
            "render_modes": [],
            "is_parallelizable": True,
        }
        self.render_mode = None
        self.possible_agents = list(core.agents)
        self.agents: list[str] = []
        box = gymnasium.spaces.Box(-np.inf, np.inf, (core.obs_dim,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, box)
        self.action_spaces = {a: core.action.gymnasium_space() for a in self.possible_agents}
        self._stream: np.random.Generator | None = None
        self._params: PyTree = None
        self._state: RateState | None = None

    def __repr__(self) -> str:
        """One line: scenario, agents, and the spaces of one."""
        last = self.possible_agents[-1]
        return (
            f"<{type(self).__name__} {self.core.name}: flow_0 … {last}, observations "
            f"({self.core.obs_dim},), actions {self.action_spaces[last]}, {self.max_cycles} steps>"
        )

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """Observation space of an agent, the same object at each call; unknown: ValueError."""
        return space_of(self.observation_spaces, agent)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Action space of an agent, the same object at each call; unknown: ValueError."""
        return space_of(self.action_spaces, agent)

    def reset(
        self, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Start an episode; no flow acts yet.

        Args:
            seed: start the stream of episodes of this seed; None continues the stream.
            options: none are known.

        Returns:
            Observations (zeros) and infos (`acts`, False) of all agents.

        Raises:
            ValueError: a seed that is no integer >= 0, an option, or parameters out of their
                ranges.
            ForkedProcess: this process was forked from one that has used JAX.
        """
        import jax

        check_process()
        check_value("seed", seed, STREAM_SEED)
        reset_options(options, ())
        if seed is not None or self._stream is None:
            self._stream = np.random.default_rng(seed)
        words = self._stream.integers(2**32, size=2, dtype=np.uint32)
        # A whole key: `jax.random.key` uses 32 bits of a seed, and JAX's settings choose its
        # generator.
        key = jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")
        if self._params is None:
            params = replace(self.core.default_params, max_steps=np.int32(self.max_cycles))
            check_numbers(params)
            self._params = jax.device_put(params)
        obs, self._state = _compiled(self.core, self)[0](key, self._params)
        self.agents = list(self.possible_agents)
        rows = jax.device_get(obs)
        return (
            {agent: rows[i].copy() for i, agent in enumerate(self.agents)},
            {agent: {"acts": False} for agent in self.agents},
        )

    def step(
        self, actions: Mapping[str, object]
    ) -> tuple[
        dict[str, np.ndarray],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Apply the actions of the flows whose turn it is, and run until a flow may act again.

        Args:
            actions: one action for every agent.

        Returns:
            Observations, rewards, terminations (always False), truncations and infos: the `info` of
            `RateEnv.step` for every flow.

        Raises:
            ResetNeeded: no episode is running.
            ValueError: an action is missing, too many, or not in its space; nothing has changed
                then.
        """
        import jax

        if not self.agents:
            raise ResetNeeded("no episode is running: call reset() first and after the last step")
        codec, acted = self.core.action, self.agents
        check_actions(actions, self.possible_agents)
        for agent in acted:
            if agent not in actions:
                raise bad_value("actions", f"none for {agent}", "one action for every agent")
        if len(actions) > len(acted):
            unknown = next(agent for agent in actions if agent not in self.action_spaces)
            raise bad_value("actions", f"one for {unknown!r}", "actions of this env's agents only")
        stacked = np.array([codec.check(a, actions[a]) for a in acted], codec.dtype)
        outputs = _compiled(self.core, self)[1](self._state, stacked, self._params)
        obs, self._state, *results = outputs
        rows, truncated, reward, info = jax.device_get((obs, *results))
        if truncated.all():
            self.agents = []
        facts = zip(*(column.tolist() for column in info.values()), strict=True)
        return (
            {agent: rows[i].copy() for i, agent in enumerate(acted)},
            dict(zip(acted, reward.tolist(), strict=True)),
            dict.fromkeys(acted, False),
            dict(zip(acted, truncated.tolist(), strict=True)),
            {a: dict(zip(info, row, strict=True)) for a, row in zip(acted, facts, strict=True)},
        )

    def render(self) -> None:
        """There is nothing to show."""

    def close(self) -> None:
        """There is nothing to close."""


def rate_parallel_env(
    scenario: str | RateScenario = "many-to-one-8-v0",
    max_cycles: int | None = None,
    **options: Any,
) -> RateParallelEnv:
    """A PettingZoo `ParallelEnv` whose agents are flows.

    Args:
        scenario: name of a registered scenario of rate control, or a `RateScenario`.
        max_cycles: simulator steps per episode, that of the scenario if None.
        **options: as in `make_rate`, e.g. `actions="discrete"`, `target=0.1`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    return RateParallelEnv(make_rate(scenario, **options), max_cycles)
