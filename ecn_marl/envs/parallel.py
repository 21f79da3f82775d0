"""The PettingZoo faces of ports: `parallel_env()` (ParallelEnv) and `env()` (AEC)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from jaxtyping import PyTree
from pettingzoo import AECEnv
from pettingzoo.utils import OrderEnforcingWrapper, parallel_to_aec

from ecn_marl._copies import OwnCopies
from ecn_marl._errors import bad_value
from ecn_marl._programs import Programs
from ecn_marl.envs.agent_checks import agent_range, space_of
from ecn_marl.envs.agents import check_ports_act
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import EnvParams, EnvState
from ecn_marl.envs.face import Dicts, Face, whole_cycles
from ecn_marl.envs.queues import for_ports
from ecn_marl.envs.registry import make

if TYPE_CHECKING:
    import jax

    from ecn_marl.render.window import Window

RENDER_MODES = ("human", "rgb_array", "ansi")

FRAMES = 200
"""Past intervals that a picture shows."""


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


class EcnParallelEnv(Face):
    """A `ParallelEnv` whose agents are switch egress ports: `port_0`, `port_1` and so on.

    With `agents="switch"` they are switches, `switch_0` and so on; `core.grouping` has their ports.
    All agents act in every step, and all are truncated together at the last one. Seeds, copies and
    pickles: see `Face`.

    Attributes:
        core: the functional environment.
        render_mode: `human`, `rgb_array`, `ansi` or None. `human` shows every step in a window, 20
            per second at most, until `close()` or until the user closes it.
        state_space: space of `state()`.
    """

    core: EcnEnv

    programs: ClassVar[Programs[EcnEnv]] = PROGRAMS

    def __init__(
        self, core: EcnEnv, render_mode: str | None = None, max_cycles: int | None = None
    ) -> None:
        """Wrap a functional environment.

        Raises:
            ValueError: unknown render mode, one that draws ports while agents are switches, or
                `max_cycles` is no integer above 0.
        """
        if render_mode in ("human", "rgb_array"):
            check_ports_act(core, f"render_mode={render_mode!r} (else ansi), which draws ports")
        super().__init__(core, max_cycles, _box(core, core.obs_dim), render_mode, RENDER_MODES)
        self.metadata["render_fps"] = 20
        self.state_space = _box(core, core.state_dim)
        self._past: deque[dict[str, np.ndarray]] = deque(maxlen=FRAMES)
        self._window: Window | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the window, which belongs to one process."""
        return self.__dict__ | {"_window": None}

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
        """Start an episode, see `Face.reset`, and show it in `human` mode."""
        begun = super().reset(seed, options)
        self._past.clear()
        self._show()
        return begun

    def step(self, actions: Mapping[str, object]) -> Dicts:
        """Apply one action per agent for one tuning interval, see `Face.step`.

        Infos hold the `info` of `EcnEnv.step` for every agent, as floats: among others `queue_mean`
        (bytes, time mean), `utilisation`, `paused` (share of the interval), and `kmin`, `kmax`
        (bytes) and `pmax`, the thresholds that the action set.
        """
        after = super().step(actions)
        self._show()
        return after

    def _advance(self, actions: np.ndarray) -> tuple[Any, ...]:
        results = super()._advance(actions)
        self._past.append(results[-1])
        return results

    def _checked(self, actions: list[object]) -> np.ndarray:
        try:
            stacked = np.stack([np.asarray(action) for action in actions])
            return self.core.action.check(stacked, len(actions))
        except ValueError:
            for agent, action in zip(self.agents, actions, strict=True):
                self.check_action(agent, action)
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
        *_, global_state = self._functions()
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
        ecn = for_ports(self._state.ecn)
        # All queues of a port, one for each traffic class.
        queue = np.asarray(self._state.sim.queue).reshape(self.core.sim.topology.n_ports, -1).sum(1)
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
    if max_cycles is not None:
        if "max_steps" in options:
            raise bad_value("max_cycles", max_cycles, "none beside max_steps: both are the same")
        options["max_steps"] = whole_cycles(max_cycles)
    return EcnParallelEnv(make(scenario, **options), render_mode)


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
