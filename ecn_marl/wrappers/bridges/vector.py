"""The gymnasium face: a batch of networks as a `VectorEnv`, stepped by one compiled call.

Inputs and outputs are numpy arrays. JAX starts at the first reset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from ecn_marl._checks import STREAM_SEED, check_numbers
from ecn_marl._copies import OwnCopies
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._fork import check_process
from ecn_marl.envs.agent_checks import key_words, reset_options
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import EnvState
from ecn_marl.envs.parallel import EcnParallelEnv
from ecn_marl.errors import InvalidInput
from ecn_marl.wrappers.batch import batch_steps, compiled


class EcnVectorEnv(OwnCopies, VectorEnv):
    """A batch of networks; each is a sub-environment whose agents act as one.

    Observations are `[num_envs, A, obs_dim]`, actions `[num_envs, A, ...]`, rewards the mean over a
    network's agents. Infos have an array `[num_envs, A]` for every entry of `info` of
    `EcnEnv.step`, and the agents' `reward`.

    A network seeded with s has the episodes of `parallel_env` after `reset(seed=s)`, except for
    rounding. Episodes end by their horizon: truncated, never terminated.

    Attributes:
        core: the functional environment.
        num_networks: networks in the batch.
        autoreset_mode: `NEXT_STEP`: the step after the last one ignores the action and returns the
            first observation of the next episode, with reward 0. `SAME_STEP`: the last step returns
            it, and `infos["final_obs"]` and `infos["final_info"]` are those of the ended episode.
            `DISABLED`: the caller resets, with `options={"reset_mask": mask}`.
    """

    agents_apart = False

    def __init__(
        self,
        core: EcnEnv,
        num_networks: int = 8,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_steps: int | Sequence[int] | None = None,
    ) -> None:
        """Wrap a functional environment.

        Args:
            core: the environment.
            num_networks: networks in the batch.
            autoreset_mode: one of gymnasium's, or its value, e.g. `"SameStep"`.
            max_steps: steps per episode, or one number for each network.

        Raises:
            ValueError: a value that is not allowed.
        """
        self._steps = batch_steps(core, num_networks, max_steps)
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            raise unknown_name(
                "autoreset_mode", str(autoreset_mode), [m.value for m in AutoresetMode]
            ) from None
        self.core = core
        self.num_networks = num_networks
        self.num_envs = num_networks * (core.num_agents if self.agents_apart else 1)
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": []}
        face = EcnParallelEnv(core)
        first = core.agents[0]
        obs_space, action_space = (s(first) for s in (face.observation_space, face.action_space))
        if not self.agents_apart:
            obs_space, action_space = (
                batch_space(space, core.num_agents) for space in (obs_space, action_space)
            )
        self.single_observation_space: gymnasium.Space[Any] = obs_space
        self.single_action_space: gymnasium.Space[Any] = action_space
        self.observation_space = batch_space(obs_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._streams: list[np.random.Generator] = []
        self._ended = np.zeros(num_networks, bool)
        self._params: PyTree = None
        self._state: EnvState | None = None
        self._obs: np.ndarray | None = None

    def __repr__(self) -> str:
        """One line: how many sub-environments, and the environment of each network."""
        return f"{type(self).__name__}(num_envs={self.num_envs}, {self.core!r})"

    def reset(
        self,
        *,
        seed: int | np.integer | Sequence[int | None] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start episodes.

        Args:
            seed: s seeds network i with s + i; a sequence has one for each network; None continues
                each network's stream of episodes.
            options: `reset_mask`, bool `[num_envs]`, resets those sub-environments only; `key`,
                uint32 `[num_networks, 2]`, fixes the episodes as in `parallel_env`.

        Returns:
            Observations, and infos: empty, but for what `EcnEnv.reset_info` has.

        Raises:
            ValueError: seeds that are no integers >= 0, a wrong number of them, a mask that does
                not fit, or parameters out of their ranges.
            ResetNeeded: a mask at the very first reset.
            ForkedProcess: this process was forked from one that has used JAX.
        """
        import jax

        check_process()
        given = reset_options(options, ("reset_mask", "key"))
        mask = self._mask(given.get("reset_mask"))
        words = key_words(given["key"], (self.num_networks, 2)) if "key" in given else None
        if self._state is None and not mask.all():
            raise ResetNeeded("reset all sub-environments first")
        self._seed(seed, mask)
        # gymnasium's own generator takes one integer only.
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        if self._params is None:
            params = self.core.default_params
            check_numbers(params)
            self._params = jax.device_put(params)
        self._restart(mask, words)
        self._ended &= ~mask
        return self._rows(np.array(self._obs)), self._infos(self._first_info(), mask)

    def step(
        self, actions: ArrayLike | tuple[ArrayLike, ...]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply actions for one tuning interval.

        Args:
            actions: one for every sub-environment, `[num_envs, ...]`.

        Returns:
            Observations, rewards (float64), terminations, truncations, and infos as in gymnasium's
            vector environments: `key` has a mask `_key`.

        Raises:
            ResetNeeded: before the first reset, or after a last step if autoreset is disabled.
            ValueError: actions that are not in the space; nothing has changed then.
        """
        import jax

        late = self._ended
        if self._state is None or (self.autoreset_mode is AutoresetMode.DISABLED and late.any()):
            raise ResetNeeded("call reset() first, and for those that ended")
        _, step, _ = compiled(self.core.program, self)
        action = self._check(actions)
        # The batch is one program: networks that are due for a reset are stepped, and then
        # replaced.
        obs, self._state, *outputs = step(self._state, action, self._params, self._steps)
        last_obs, reward, terminated, truncated, info = jax.device_get((obs, *outputs))
        self._obs = last_obs
        if not self.agents_apart:
            info = {"reward": reward, **info}
        ended = (terminated | truncated).all(1)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._restart(late)
            reward, ended = np.where(late[:, None], 0.0, reward), ended & ~late
        infos: dict[str, Any] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            late = ended
            self._restart(ended)
            infos = self._final(last_obs, info, ended)
        self._ended = ended
        infos |= self._infos(info, ~late)
        if late.any() and self.core.phase_info:
            # Networks that have just restarted tell what they tell after a reset.
            known = self._first_info().items()
            first = {k: np.where(late[:, None], x, info[k]) for k, x in known}
            infos |= self._infos(first, np.ones_like(late))
        truncated = self._flags(ended & truncated.all(1))
        terminated = self._flags(ended & terminated.all(1))
        # Copied, because the caller may write to it; arrays from JAX are read-only.
        return self._rows(np.array(self._obs)), self._reward(reward), terminated, truncated, infos

    def _restart(self, mask: np.ndarray, given: np.ndarray | None = None) -> None:
        """Start the next episode of some networks; the others stay as they are.

        Args:
            mask: which networks.
            given: data of their keys, `[num_networks, 2]`; None for those of their streams.
        """
        if not mask.any():
            return
        reset, _, choose = compiled(self.core.program, self)
        words = np.zeros((self.num_networks, 2), np.uint32) if given is None else given
        for i in np.flatnonzero(mask) if given is None else ():
            # Only networks that restart draw, so a network's episodes depend on its own seed alone.
            words[i] = self._streams[i].integers(2**32, size=2, dtype=np.uint32)
        fresh = reset(words, self._params, self._steps)
        if not mask.all():
            fresh = choose(mask, fresh, (self._obs, self._state))
        self._obs, self._state = np.asarray(fresh[0]), fresh[1]

    def _first_info(self) -> dict[str, np.ndarray]:
        """What all networks' `reset_info` has, `[N, A]`, after their resets."""
        import jax

        assert self._state is not None
        known: Any = jax.vmap(self.core.reset_info, (0, None))(self._state, self._params)
        first: dict[str, np.ndarray] = jax.device_get(known)
        return first

    def _seed(self, seed: int | np.integer | Sequence[int | None] | None, mask: np.ndarray) -> None:
        """New streams of episodes for the seeded networks, and for those without a stream."""
        n = self.num_networks
        allowed = f"an integer >= 0, {n} of them or None"
        if not isinstance(seed, Sequence | np.ndarray) or isinstance(seed, str):
            if not STREAM_SEED.fits(seed):
                raise bad_value("seed", seed, allowed)
            seeds = [None if seed is None else int(seed) + i for i in range(n)]
        else:
            seeds = list(seed)
        if len(seeds) != n or not all(map(STREAM_SEED.fits, seeds)):
            raise bad_value("seed", seed, allowed)
        if not self._streams:
            self._streams = [np.random.default_rng(s) for s in seeds]
        for i in np.flatnonzero(mask):
            if seeds[i] is not None:
                self._streams[i] = np.random.default_rng(seeds[i])

    def _mask(self, mask: object) -> np.ndarray:
        """Networks that a `reset_mask` names, `[num_networks]`."""
        if mask is None:
            return np.ones(self.num_networks, bool)
        flags: np.ndarray = np.asarray(mask)
        if flags.shape != (self.num_envs,) or flags.dtype != bool or not flags.any():
            received = f"{flags.dtype} {flags.shape}, {np.count_nonzero(flags)} set"
            raise bad_value("reset_mask", received, f"bool ({self.num_envs},), at least one set")
        rows = flags.reshape(self.num_networks, -1)
        if (rows.any(1) != rows.all(1)).any():
            raise bad_value("reset_mask", flags.tolist(), "the same for all agents of a network")
        return np.asarray(rows.all(1))

    def _check(self, actions: ArrayLike | tuple[ArrayLike, ...]) -> np.ndarray:
        """Checked actions, `[num_networks, A, ...]`."""
        core, n = self.core, self.num_networks
        array = np.asarray(actions)
        if array.shape != self.action_space.shape:
            raise bad_value("shape of actions", array.shape, f"{self.action_space.shape}")
        rows = array.reshape(n, core.num_agents, *core.action.shape)
        for i in range(n):
            try:
                core.action.check(rows[i], core.num_agents, core.agents)
            except ValueError as error:
                raise InvalidInput(f"network {i}: {error}") from None
        return rows.astype(core.action.dtype)

    def _final(self, obs: np.ndarray, info: dict[str, Any], ended: np.ndarray) -> dict[str, Any]:
        """`final_obs` and `final_info` of the networks that ended."""
        if not ended.any():
            return {}
        mask = self._flags(ended)
        # An array of objects, None where nothing ended, as in gymnasium's own vector environments.
        rows = np.full(self.num_envs, None, object)
        final_rows = self._rows(np.array(obs))
        for i in np.flatnonzero(mask):
            rows[i] = final_rows[i]
        final = self._infos(info, ended)
        return {"final_obs": rows, "_final_obs": mask, "final_info": final, "_final_info": mask}

    def _infos(self, info: dict[str, Any], reported: np.ndarray) -> dict[str, Any]:
        """Infos of the networks that are `reported`, zeros for the others, and masks."""
        if not reported.any():
            return {}
        mask = self._flags(reported)

        def masked(x: np.ndarray) -> np.ndarray:
            return np.where(reported.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)

        columns = {k: self._rows(masked(v)) for k, v in info.items()}
        return {f"{m}{k}": mask.copy() if m else v for k, v in columns.items() for m in ("", "_")}

    def _rows(self, x: np.ndarray) -> np.ndarray:
        """From networks and agents, `[N, A, ...]`, to sub-environments, `[num_envs, ...]`."""
        return x

    def _flags(self, x: np.ndarray) -> np.ndarray:
        """From networks to sub-environments."""
        return x.copy()

    def _reward(self, x: np.ndarray) -> np.ndarray:
        """Rewards of the sub-environments from those of the agents, `[N, A]`."""
        return x.mean(1, dtype=np.float64)
