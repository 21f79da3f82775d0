"""The PettingZoo faces: `parallel_env()` (ParallelEnv) and `env()` (AEC).

Dicts keyed by agent exist here only. A step is one compiled call and one transfer; what comes back
is numpy and Python scalars. JAX is started at the first reset, so an environment can be made, and
pickled to a worker, before.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import parallel_to_aec

from ecn_marl._errors import bad_value
from ecn_marl.envs.ecn import EcnEnv, EnvState
from ecn_marl.envs.registry import make

RENDER_MODES = ("human", "rgb_array", "ansi")


@cache
def _compiled(core: EcnEnv) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiled reset and step of a functional environment, shared by all its faces."""
    import jax

    return jax.jit(core.reset), jax.jit(core.step)


class EcnParallelEnv(ParallelEnv):
    """A `ParallelEnv` whose agents are switch egress ports: `port_0`, `port_1` and so on.

    All agents act in every step, and all are truncated together at the last one. `reset(seed=s)`
    starts a stream of episodes; resets without a seed continue it. An environment that was never
    seeded draws its seed from the operating system.

    Attributes:
        core: the functional environment.
        max_cycles: steps per episode; may be set, and holds from the next reset.
        render_mode: `human`, `rgb_array`, `ansi` or None.
        possible_agents: all agents.
        agents: agents that can act now; empty before `reset` and after the last step.
    """

    metadata: dict[str, Any]

    def __init__(
        self, core: EcnEnv, render_mode: str | None = None, max_cycles: int | None = None
    ) -> None:
        """Wrap a functional environment.

        Raises:
            ValueError: unknown render mode, or `max_cycles` below 1.
        """
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise bad_value("render_mode", render_mode, f"one of {', '.join(RENDER_MODES)} or None")
        if max_cycles is not None and max_cycles < 1:
            raise bad_value("max_cycles", max_cycles, "an integer >= 1")
        self.core = core
        self.render_mode = render_mode
        self.max_cycles = core.horizon if max_cycles is None else max_cycles
        self.metadata = {
            "name": f"ecn_marl_{core.name.replace('-', '_')}",
            "render_modes": list(RENDER_MODES),
            "is_parallelizable": True,
            "render_fps": 20,
        }
        self.possible_agents = list(core.agents)
        self.agents: list[str] = []
        bound = np.ones((core.obs_dim,), np.float32)
        seen = gymnasium.spaces.Box(-bound * np.inf, bound * np.inf, dtype=np.float32)
        chosen = core.action.gymnasium_space()
        self.observation_spaces = dict.fromkeys(self.possible_agents, seen)
        self.action_spaces = dict.fromkeys(self.possible_agents, chosen)
        self.state_space = gymnasium.spaces.Box(-np.inf, np.inf, (core.state_dim,), np.float32)
        self._index = {agent: i for i, agent in enumerate(self.possible_agents)}
        self._stream: np.random.Generator | None = None
        self._params: Any = None
        self._state: EnvState | None = None
        self._queues: list[np.ndarray] = []

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """Observation space of an agent, the same object at each call."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Action space of an agent, the same object at each call."""
        return self.action_spaces[agent]

    def port_info(self, agent: str) -> dict[str, str | float]:
        """Name, switch, peer, rate (Gb/s) and kind of an agent's port.

        Raises:
            ValueError: unknown agent.
        """
        if agent not in self._index:
            raise bad_value("agent", agent, f"port_0 … port_{len(self._index) - 1}")
        return self.core.port_info(self._index[agent])

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Start an episode.

        Args:
            seed: start the stream of episodes of this seed; None continues the stream.
            options: accepted and not used.

        Returns:
            Observations (float32 `[obs_dim]`) and infos of all agents.
        """
        import jax

        if seed is not None or self._stream is None:
            self._stream = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
        if self._params is None:
            self._params = jax.device_put(self.core.default_params)
        params = self._params.replace(max_steps=np.int32(self.max_cycles))
        self._params = params
        reset, _ = _compiled(self.core)
        key = jax.random.key(int(self._stream.integers(2**63)) & 0x7FFFFFFF)
        obs, state = reset(key, params)
        self._state = state
        self._queues = []
        self.agents = list(self.possible_agents)
        rows = np.asarray(obs)
        return (
            {agent: rows[i].copy() for agent, i in self._index.items()},
            {agent: {} for agent in self.agents},
        )

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, np.ndarray],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Apply one action per agent for one tuning interval.

        Args:
            actions: one action for every agent in `agents`.

        Returns:
            Observations, rewards, terminations (always False), truncations and infos; infos hold
            `queue_mean` (bytes), `utilisation`, `kmin`, `kmax` (bytes) and `pmax` of the interval.

        Raises:
            ValueError: no episode is running, or an action is missing, too many, or not in its
                space; nothing has changed then.
        """
        import jax

        if not self.agents or self._state is None:
            raise bad_value(
                "step", "no episode running", "reset() before the first step and after the last one"
            )
        stacked = self._stack(actions)
        _, step = _compiled(self.core)
        obs, state, reward, _, truncated, info = step(
            jax.random.key(0), self._state, stacked, self._params
        )
        rows, rewards, ended, infos, queues = jax.device_get(
            (obs, reward, truncated, {k: info[k] for k in INFO}, info["queue_mean"])
        )
        self._state = state
        self._queues = [*self._queues[-199:], queues]
        acted = self.agents
        over = bool(ended.all())
        if over:
            self.agents = []
        columns = {k: v.tolist() for k, v in infos.items()}
        pay = rewards.tolist()
        return (
            {agent: rows[i].copy() for i, agent in enumerate(acted)},
            dict(zip(acted, pay, strict=True)),
            dict.fromkeys(acted, False),
            dict.fromkeys(acted, over),
            {agent: {k: v[i] for k, v in columns.items()} for i, agent in enumerate(acted)},
        )

    def _stack(self, actions: dict[str, Any]) -> np.ndarray:
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise bad_value("actions", f"no action for {missing[0]}", "one action for every agent")
        unknown = [agent for agent in actions if agent not in self._index]
        if unknown:
            raise bad_value("actions", f"an action for {unknown[0]!r}", "agents of this env only")
        try:
            stacked = np.stack([np.asarray(actions[agent]) for agent in self.agents])
        except ValueError:
            shapes = sorted({np.shape(a) for a in actions.values()})
            raise bad_value(
                "actions", f"shapes {shapes}", f"shape {self.core.action.shape} for every agent"
            ) from None
        return self.core.action.check(stacked, len(self.agents))

    def state(self) -> np.ndarray:
        """Global state, float32 `[state_dim]`: the last features of all ports.

        Raises:
            ValueError: before the first reset.
        """
        if self._state is None:
            raise bad_value("state", "no episode", "reset() first")
        return np.asarray(self.core.global_state(self._state, self._params), np.float32)

    def render(self) -> np.ndarray | str | None:
        """Draw the queues: an RGB array, a text table, or a window, as `render_mode` says."""
        if self.render_mode is None:
            gymnasium.logger.warn(f"render() needs a render_mode, one of {RENDER_MODES}")
            return None
        from ecn_marl.envs.rendering import draw, show, table

        if self._state is None:
            raise bad_value("render", "no episode", "reset() first")
        ecn, queue = self._state.ecn, np.asarray(self._state.sim.queue)
        if self.render_mode == "ansi":
            return table(self.core, queue, ecn)
        frame = draw(self.core, queue, ecn, self._queues)
        if self.render_mode == "human":
            show(frame, self.metadata["name"])
            return None
        return frame

    def close(self) -> None:
        """Release the window, if there is one."""
        if self.render_mode == "human":
            from ecn_marl.envs.rendering import hide

            hide(self.metadata["name"])


INFO = ("queue_mean", "utilisation", "kmin", "kmax", "pmax")
"""What the infos of agents hold."""


def parallel_env(
    scenario: str = "websearch-v0",
    render_mode: str | None = None,
    max_cycles: int | None = None,
    **options: Any,
) -> EcnParallelEnv:
    """A PettingZoo `ParallelEnv`.

    Args:
        scenario: name of a registered scenario.
        render_mode: `human`, `rgb_array`, `ansi` or None.
        max_cycles: steps per episode, that of the scenario if None.
        **options: as in `ecn_marl.make`, e.g. `features="pet"`, `actions="box"`, `load=0.8`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    return EcnParallelEnv(make(scenario, **options), render_mode, max_cycles)


def env(
    scenario: str = "websearch-v0",
    render_mode: str | None = None,
    max_cycles: int | None = None,
    **options: Any,
) -> AECEnv:
    """The same as a PettingZoo `AECEnv` (agents act in turn); see `parallel_env`."""
    return parallel_to_aec(parallel_env(scenario, render_mode, max_cycles, **options))
