"""The JaxMARL face: dicts keyed by agent, `jit` and `vmap` inside, no dependency on `jaxmarl`.

A drop-in for JaxMARL's `LogWrapper` and `CTRolloutManager` and for scripts written like its
baselines. Parameters are constants of the compiled program, as they are in JaxMARL's environments.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecn_marl._checks import check_numbers
from ecn_marl._errors import bad_value
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import EnvParams, EnvState
from ecn_marl.envs.features import flatten
from ecn_marl.envs.parallel import EcnParallelEnv
from ecn_marl.envs.registry import make
from ecn_marl.envs.spaces import Box, Discrete, MultiDiscrete, bounds
from ecn_marl.wrappers.batch import check_batches
from ecn_marl.wrappers.lanes import Lanes

WORLD_STATE = "world_state"
"""Key of the global state among the observations, as in JaxMARL's MAPPO."""

Dicts = tuple[
    dict[str, Array], EnvState, dict[str, Array], dict[str, Bool[Array, ""]], dict[str, Array]
]
"""`obs, state, rewards, dones, infos` of a step."""


def _space_classes() -> tuple[type[Any], type[Any], type[Any]]:
    """JaxMARL's classes where it is installed: `CTRolloutManager` asks for them by type."""
    try:
        spaces = import_module("jaxmarl.environments.spaces")
    except ImportError:
        return Discrete, MultiDiscrete, Box
    return spaces.Discrete, spaces.MultiDiscrete, spaces.Box


def translate(space: Any) -> Any:
    """A `Box`, `Discrete` or `MultiDiscrete` of gymnasium as one that JAX can sample from."""
    discrete, multi_discrete, box = _space_classes()
    if hasattr(space, "nvec"):
        return multi_discrete([int(n) for n in space.nvec])
    if hasattr(space, "n"):
        return discrete(int(space.n))
    return box(*bounds(space), space.shape)


class EcnJaxMARL:
    """The environment as JaxMARL's algorithms expect it.

    All agents are `done` together, at the horizon. JaxMARL has no truncation, and its `step` drops
    the last observation. So the horizon counts as termination, and learners cannot bootstrap there.
    Use `AutoReset` or `vector_env` where that matters.

    `CTRolloutManager` accepts `actions="discrete"` only.

    Attributes:
        core: the functional environment.
        params: its parameters.
        num_agents: number of agents A.
        agents: names of the agents, `port_0` (or `switch_0`) and so on.
        observation_spaces: space of each agent.
        action_spaces: space of each agent.
    """

    def __init__(
        self, core: EcnEnv, params: EnvParams | None = None, *, with_world_state: bool = False
    ) -> None:
        """Wrap a functional environment.

        Args:
            core: the environment.
            params: its parameters, `core.default_params` if None.
            with_world_state: whether observations also have `world_state`, one row per agent
                `[A, state_dim]`, for centralised critics.

        Raises:
            InvalidValue: a parameter out of its range, see `Checked`, or an environment that cannot
                be traced.
        """
        check_batches(core)
        self.core = core
        self.params = core.default_params if params is None else params
        check_numbers(self.params)
        self.with_world_state = with_world_state
        self.num_agents = core.num_agents
        self.agents = list(core.agents)
        face = EcnParallelEnv(core)
        first = self.agents[0]
        obs_space, action_space = map(
            translate, (face.observation_space(first), face.action_space(first))
        )
        self.observation_spaces = dict.fromkeys(self.agents, obs_space)
        self.action_spaces = dict.fromkeys(self.agents, action_space)

    def __repr__(self) -> str:
        """One line: the environment inside."""
        return f"{type(self).__name__}({self.core!r})"

    @property
    def name(self) -> str:
        """Name of the scenario; JaxMARL's wrappers look for their own environments in it."""
        return f"ecn_marl_{self.core.name}"

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """All agents are of one class."""
        return {self.core.agent_kind: list(self.agents)}

    def observation_space(self, agent: str) -> Any:
        """Observation space of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """Action space of an agent."""
        return self.action_spaces[agent]

    @partial(jax.jit, static_argnums=0)
    def reset(self, key: jax.Array) -> tuple[dict[str, Array], EnvState]:
        """Start an episode.

        Returns:
            Observations `[obs_dim]` of all agents, and the state.
        """
        obs, state = self.core.reset(key, self.params)
        return self._observations(obs, state), state

    @partial(jax.jit, static_argnums=0)
    def step(
        self,
        key: jax.Array,
        state: EnvState,
        actions: dict[str, Array],
        reset_state: EnvState | None = None,
    ) -> Dicts:
        """One step, and a reset if it ended the episode.

        Args:
            key: PRNG key; fixes the next episode, if one starts.
            state: state.
            actions: an action of each agent.
            reset_state: state that the next episode starts from, a fresh one if None.

        Returns:
            As `step_env`; observations and state are those of the next episode if one started.
        """
        key, fresh = jax.random.split(key)
        obs, next_state, rewards, dones, infos = self.step_env(key, state, actions)
        if reset_state is None:
            first_obs, start = self.reset(fresh)
        else:
            first_obs, start = self.get_obs(reset_state), reset_state
        over = dones["__all__"]
        obs, next_state = jax.tree.map(
            partial(jax.lax.select, over), (first_obs, start), (obs, next_state)
        )
        return obs, next_state, rewards, dones, infos

    @partial(jax.jit, static_argnums=0)
    def step_env(self, key: jax.Array, state: EnvState, actions: dict[str, Array]) -> Dicts:
        """One step without reset.

        Returns:
            Observations, state, rewards, dones (with `__all__`), and infos: the `info` of
            `EcnEnv.step`, `[A]` each, which is the shape that JaxMARL's scripts flatten.
        """
        joint = jnp.stack([jnp.asarray(actions[agent]) for agent in self.agents])
        joint = joint.reshape(self.num_agents, *self.core.action.shape)
        obs, next_state, reward, terminated, truncated, info = Lanes(self.core).step(
            key, state, joint, self.params
        )
        done = terminated | truncated
        dones = {**self._split(done), "__all__": jnp.all(done)}
        return self._observations(obs, next_state), next_state, self._split(reward), dones, info

    @partial(jax.jit, static_argnums=0)
    def get_obs(self, state: EnvState) -> dict[str, Array]:
        """Observations of all agents in a state."""
        return self._observations(flatten(self.core.grouping.mean(state.history)), state)

    @partial(jax.jit, static_argnums=0)
    def get_avail_actions(self, state: EnvState) -> dict[str, Array]:
        """Allowed actions of each agent: all of them, 1 for each choice.

        Raises:
            ValueError: actions are not `discrete`.
        """
        n = getattr(self.core.action, "n", None)
        if n is None:
            raise bad_value("actions", self.core.action.name, "discrete")
        return dict.fromkeys(self.agents, jnp.ones((n,)))

    def world_state(self, state: EnvState) -> Float[Array, " state"]:
        """Global state `[state_dim]`: the last features of all ports."""
        return self.core.global_state(state, self.params)

    def world_state_size(self) -> int:
        """Length of `world_state`."""
        return self.core.state_dim

    def _split(self, rows: Array) -> dict[str, Array]:
        return {agent: rows[i] for i, agent in enumerate(self.agents)}

    def _observations(self, obs: Array, state: EnvState) -> dict[str, Array]:
        observations = self._split(obs)
        if self.with_world_state:
            world = self.world_state(state)
            observations[WORLD_STATE] = jnp.broadcast_to(world, (self.num_agents, *world.shape))
        return observations


def jaxmarl_env(
    scenario: str = "websearch-v0", *, with_world_state: bool = False, **options: Any
) -> EcnJaxMARL:
    """An environment for JaxMARL.

    Args:
        scenario: name of a registered scenario.
        with_world_state: see `EcnJaxMARL`.
        **options: as in `ecn_marl.make`, e.g. `actions="discrete"`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    return EcnJaxMARL(make(scenario, **options), with_world_state=with_world_state)
