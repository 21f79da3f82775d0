"""The PettingZoo faces: `parallel_env()` (ParallelEnv) and `env()` (AEC).

Dicts keyed by agent exist here only. A step is one compiled call and one transfer; it returns numpy
arrays and Python scalars. JAX starts at the first reset, so an environment can be made and pickled
to a worker process before.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from jaxtyping import PyTree
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import OrderEnforcingWrapper, parallel_to_aec

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
from ecn_marl.envs.agents import check_ports_act
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import EnvParams, EnvState
from ecn_marl.envs.queues import for_ports
from ecn_marl.envs.registry import make

if TYPE_CHECKING:
    import jax

    from ecn_marl.render.window import Window

RENDER_MODES = ("human", "rgb_array", "ansi")

FRAMES = 200
"""Past intervals that a picture shows."""

MAX_CYCLES = 2**31 - 1
"""Longest episode; intervals are counted in int32."""


def _compiled(core: EcnEnv, user: object = None) -> tuple[Callable[..., Any], ...]:
    """Compiled functions of an environment's `program`, unless this process cannot run them.

    Args:
        core: the `program`.
        user: face that keeps them in use; see `Programs`.

    Raises:
        ForkedProcess: see `check_process`.
    """
    check_process()
    return PROGRAMS.of(core, user)


def _compile(core: EcnEnv) -> tuple[Callable[..., Any], ...]:
    """Compiled reset, step and global state of a functional environment, for all its faces.

    A step is one of a batch of one: lanes take a third of the time that XLA takes, and compile in a
    third of the time.
    """
    import jax

    from ecn_marl import lanes

    if core.sim.on_host:  # it compiles what it can by itself

        def on_host(key: jax.Array, state: EnvState, action: Any, params: EnvParams) -> PyTree:
            return core.step(key, state, jax.numpy.asarray(action), params)

        return core.reset, on_host, core.global_state

    @lanes.mapped
    def step_one(key: jax.Array, state: EnvState, action: jax.Array, params: EnvParams) -> PyTree:
        return core.step(jax.random.fold_in(key, state.steps), state, action, params)

    def step(key: jax.Array, state: EnvState, action: jax.Array, params: EnvParams) -> PyTree:
        batch = jax.tree.map(lambda x: jax.numpy.asarray(x)[None], (key, state, action))
        return jax.tree.map(lambda x: x[0], jax.vmap(step_one, (0, 0, 0, None))(*batch, params))

    return jax.jit(core.reset), jax.jit(step), jax.jit(core.global_state)


PROGRAMS = Programs(_compile)
"""Compiled functions of all faces."""


class EcnParallelEnv(OwnCopies, ParallelEnv):
    """A `ParallelEnv` whose agents are switch egress ports: `port_0`, `port_1` and so on.

    With `agents="switch"` they are switches, `switch_0` and so on; `core.grouping` has their ports.

    All agents act in every step, and all are truncated together at the last one. `reset(seed=s)`
    starts a stream of episodes; resets without a seed continue it. An environment that was never
    seeded draws its seed from the operating system. Copies and pickles continue where the original
    stood, bit by bit.

    Attributes:
        core: the functional environment.
        render_mode: `human`, `rgb_array`, `ansi` or None. `human` shows every step in a window, 20
            per second at most, until `close()` or until the user closes it.
        possible_agents: all agents.
        agents: agents that can act now; empty before `reset` and after the last step.
        state_space: space of `state()`.
    """

    metadata: dict[str, Any]

    def __init__(
        self, core: EcnEnv, render_mode: str | None = None, max_cycles: int | None = None
    ) -> None:
        """Wrap a functional environment.

        Raises:
            ValueError: unknown render mode, one that draws ports while agents are switches, or
                `max_cycles` is no integer above 0.
        """
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise bad_value("render_mode", render_mode, f"one of {', '.join(RENDER_MODES)} or None")
        if render_mode in ("human", "rgb_array"):
            check_ports_act(core, f"render_mode={render_mode!r} (else ansi), which draws ports")
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
        self.observation_spaces = {a: _box(core, core.obs_dim) for a in self.possible_agents}
        self.action_spaces = {a: core.action.gymnasium_space() for a in self.possible_agents}
        self.state_space = _box(core, core.state_dim)
        self._index = {agent: i for i, agent in enumerate(self.possible_agents)}
        self._stream: np.random.Generator | None = None
        self._key: jax.Array | None = None
        self._params: EnvParams | None = None
        self._state: EnvState | None = None
        self._past: deque[dict[str, np.ndarray]] = deque(maxlen=FRAMES)
        self._window: Window | None = None

    def __repr__(self) -> str:
        """One line: scenario, agents, and the spaces of one."""
        last = self.possible_agents[-1]
        return (
            f"<{type(self).__name__} {self.core.name}: {agent_range(self.possible_agents)}, "
            f"observations ({self.core.obs_dim},), actions {self.action_spaces[last]}, "
            f"{self.max_cycles} steps>"
        )

    def __getstate__(self) -> dict[str, Any]:
        """All but the window, which belongs to one process."""
        return self.__dict__ | {"_window": None}

    @property
    def max_cycles(self) -> int:
        """Steps per episode; may be set, and holds from the next reset."""
        return self._max_cycles

    @max_cycles.setter
    def max_cycles(self, steps: Any) -> None:
        try:
            steps = operator.index(steps)
        except TypeError:
            raise bad_value("max_cycles", steps, "an integer >= 1") from None
        if not 1 <= steps <= MAX_CYCLES:
            raise bad_value("max_cycles", steps, f"an integer in [1, {MAX_CYCLES}]")
        self._max_cycles = steps

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """Observation space of an agent, the same object at each call; unknown: ValueError."""
        return space_of(self.observation_spaces, agent)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Action space of an agent, the same object at each call; unknown: ValueError."""
        return space_of(self.action_spaces, agent)

    def port_info(self, agent: str) -> dict[str, str | float]:
        """Name, switch, peer, rate (Gb/s) and kind of an agent's port.

        Raises:
            ValueError: unknown agent, or agents are switches (see `core.grouping.ports`).
        """
        check_ports_act(self.core, "port_info; core.grouping.ports(i) has those of switch_i")
        if agent not in self._index:
            raise bad_value("agent", agent, agent_range(self.possible_agents))
        return self.core.port_info(self._index[agent])

    def reset(
        self, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Start an episode.

        Args:
            seed: start the stream of episodes of this seed; None continues the stream.
            options: `key`, uint32 `[2]`, the data of a JAX key (threefry) that fixes this episode
                in place of the stream, such as a row of `keys` of `ecn_marl.evaluate`.

        Returns:
            Observations (float32 `[obs_dim]`) and infos of all agents: empty, but for what
            `EcnEnv.reset_info` has.

        Raises:
            ValueError: a seed that is no integer >= 0, an unknown option, or parameters out of
                their ranges.
            ForkedProcess: this process was forked from one that has used JAX.
        """
        import jax

        check_process()
        check_value("seed", seed, STREAM_SEED)
        given = reset_options(options, ("key",))
        if seed is not None or self._stream is None:
            self._stream = np.random.default_rng(seed)
        if "key" in given:
            words = key_words(given["key"], (2,))
        else:
            words = self._stream.integers(2**32, size=2, dtype=np.uint32)
        # A whole key: `jax.random.key` uses 32 bits of a seed, and JAX's settings choose its
        # generator.
        self._key = jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")
        if self._params is None:
            params = self.core.default_params
            check_numbers(params)
            self._params = jax.device_put(params)
        self._params = replace(self._params, max_steps=jax.device_put(np.int32(self.max_cycles)))
        reset, *_ = _compiled(self.core.program, self)
        obs, self._state = reset(self._key, self._params)
        self._past.clear()
        self.agents = list(self.possible_agents)
        rows = jax.device_get(obs)
        known = self.core.reset_info(self._state, self._params)
        facts = {name: column.tolist() for name, column in jax.device_get(known).items()}
        self._show()
        return (
            {agent: rows[i].copy() for agent, i in self._index.items()},
            {a: {name: x[i] for name, x in facts.items()} for a, i in self._index.items()},
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
        """Apply one action per agent for one tuning interval.

        Args:
            actions: one action for every agent in `agents`.

        Returns:
            Observations, rewards, terminations (always False), truncations and infos. Infos hold
            the `info` of `EcnEnv.step` for every agent, as floats: among others `queue_mean`
            (bytes, time mean), `utilisation`, `paused` (share of the interval), and `kmin`, `kmax`
            (bytes) and `pmax`, the thresholds that the action set.

        Raises:
            ResetNeeded: no episode is running.
            ValueError: an action is missing, too many, or not in its space; nothing has changed
                then.
        """
        import jax

        if not self.agents:
            raise ResetNeeded("no episode is running: call reset() first and after the last step")
        stacked = self._stack(actions)
        _, step, _ = _compiled(self.core.program, self)
        obs, self._state, *outputs = step(self._key, self._state, stacked, self._params)
        rows, reward, terminated, truncated, info = jax.device_get((obs, *outputs))
        self._past.append(info)
        acted = self.agents
        if (terminated | truncated).all():
            self.agents = []
        self._show()
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

    def _stack(self, actions: Mapping[str, object]) -> np.ndarray:
        """Checked actions as one array, `[A, *action.shape]`."""
        check_actions(actions, self.possible_agents)
        if actions.keys() != self._index.keys():
            for agent in self.agents:
                if agent not in actions:
                    raise bad_value("actions", f"none for {agent}", "one action for every agent")
            unknown = next(agent for agent in actions if agent not in self._index)
            raise bad_value("actions", f"one for {unknown!r}", "actions of this env's agents only")
        try:
            stacked = np.stack([np.asarray(actions[agent]) for agent in self.agents])
            return self.core.action.check(stacked, len(self.agents))
        except ValueError:
            for agent in self.agents:
                self.check_action(agent, actions[agent])
            raise

    def check_action(self, agent: str, action: object) -> np.ndarray:
        """One agent's action as an array of its own.

        Raises:
            ValueError: it is not in the agent's space; the message names the agent.
        """
        codec, shape = self.core.action, _shape(action)
        if action is None:
            raise bad_value(f"action of {agent}", None, f"one of {self.action_space(agent)}")
        if shape != codec.shape:
            allowed = f"{codec.shape} for {codec.name} actions"
            raise bad_value(f"action shape of {agent}", shape, allowed)
        return np.array(codec.check(np.asarray(action)[None], 1, (agent,))[0])

    def state(self) -> np.ndarray:
        """Global state, float32 `[state_dim]`: the last features of all ports.

        Raises:
            ResetNeeded: before the first reset.
        """
        import jax

        if self._state is None:
            raise ResetNeeded("no state: call reset() first")
        *_, global_state = _compiled(self.core.program, self)
        return np.array(jax.device_get(global_state(self._state, self._params)))

    def render(self) -> np.ndarray | str | None:
        """Draw the queues: an RGB array, a text table, or a window, as `render_mode` says.

        Returns:
            uint8 `[height, width, 3]` (`rgb_array`), text (`ansi`), or None.

        Raises:
            ResetNeeded: before the first reset.
            RuntimeError: `human`, and no window can be opened here.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(f"render() needs a render_mode, one of {RENDER_MODES}")
            return None
        from ecn_marl.render.frames import draw, table

        if self._state is None:
            raise ResetNeeded("nothing to render: call reset() first")
        ecn, queue = for_ports(self._state.ecn), np.asarray(self._state.sim.queue)
        if self.render_mode == "ansi":
            return table(self.core, queue, ecn)
        if self.render_mode == "human" and self._window is not None and not self._window.open:
            return None  # the user has closed the window
        frame = draw(self.core, queue, ecn, list(self._past), int(self._state.steps))
        if self.render_mode == "rgb_array":
            return frame
        if self._window is None:
            from ecn_marl.render.window import Window

            self._window = Window(self.metadata["name"], frame.shape, self.metadata["render_fps"])
        self._window.show(frame)
        return None

    def _show(self) -> None:
        """In `human` mode, show every step without a call of `render`."""
        if self.render_mode == "human":
            self.render()

    def close(self) -> None:
        """Close the window, if there is one; the next reset opens another."""
        if self._window is not None:
            self._window.close()
            self._window = None


def _box(core: EcnEnv, size: int) -> gymnasium.spaces.Box:
    """Space of `size` features: the named ones lie in [0, 1], a user's own may lie anywhere."""
    if core.feature.normalised:
        return gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)
    return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _shape(action: Any) -> tuple[int, ...] | str:
    """Shape of an action, or what is wrong with it."""
    try:
        return np.shape(action)
    except ValueError:
        return "ragged"


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
        max_cycles: PettingZoo's name for the steps per episode, those of the scenario if None;
            `max_steps`, as in `ecn_marl.make`, does the same.
        **options: as in `ecn_marl.make`, e.g. `features="pet"`, `actions="box"`, `load=0.8`.

    Raises:
        ValueError: an unknown name or a value that is not allowed; `max_cycles` and `max_steps`.
    """
    if max_cycles is not None and "max_steps" in options:
        raise bad_value("max_cycles", max_cycles, "none beside max_steps: both are the same")
    return EcnParallelEnv(make(scenario, **options), render_mode, max_cycles)


class EcnAECEnv(OwnCopies, OrderEnforcingWrapper):
    """The AEC face: agents act in turn; another order is an error, as in PettingZoo's own.

    An action is checked at its agent's turn. After an error it is still that agent's turn.
    """

    def __init__(self, face: EcnParallelEnv) -> None:
        """Wrap the parallel face."""
        # `.env`, because the conversion wraps its result in a check of the order as well.
        super().__init__(parallel_to_aec(face).env)
        self.face = face

    def __repr__(self) -> str:
        """One line: the parallel face inside."""
        return f"{type(self).__name__}({self.face!r})"

    def step(self, action: object) -> None:
        """Take the action of the agent whose turn it is.

        Args:
            action: in the agent's space, or None if its episode is over.

        Raises:
            ValueError: another action; nothing has changed then.
        """
        if self._has_reset and self.agents:
            agent = self.agent_selection
            if self.terminations[agent] or self.truncations[agent]:
                if action is not None:
                    raise bad_value(f"action of {agent}", action, "None: its episode is over")
            else:
                # A copy: the caller may write the next agent's action into the same array.
                action = self.face.check_action(agent, action)
        super().step(action)

    def observe(self, agent: str) -> np.ndarray | None:
        """What an agent observes; unknown agents: ValueError."""
        space_of(self.face.observation_spaces, agent)
        obs: np.ndarray | None = super().observe(agent)
        return obs

    def last(
        self, observe: bool = True
    ) -> tuple[np.ndarray | None, float, bool, bool, dict[str, Any]]:
        """Observation, reward since its last turn, ends and info of the agent whose turn it is.

        Raises:
            ResetNeeded: no agent is left.
        """
        if self._has_reset and not self.agents:
            raise ResetNeeded("no episode is running: call reset() first and after the last step")
        return super().last(observe)


def env(
    scenario: str = "websearch-v0",
    render_mode: str | None = None,
    max_cycles: int | None = None,
    **options: object,
) -> AECEnv:
    """A PettingZoo `AECEnv` (agents act in turn); arguments as in `parallel_env`."""
    return EcnAECEnv(parallel_env(scenario, render_mode, max_cycles, **options))
