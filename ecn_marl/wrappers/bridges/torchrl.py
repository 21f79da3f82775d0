"""TorchRL over the batch: a batched `EnvBase` that shares arrays without a copy.

A single network is `torchrl.envs.PettingZooWrapper(ecn_marl.parallel_env(...))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
import jax
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from ecn_marl._checks import STREAM_SEED, check_value
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import EnvState
from ecn_marl.envs.parallel import EcnParallelEnv
from ecn_marl.envs.registry import make
from ecn_marl.wrappers.batch import batch_steps, compiled, with_steps
from ecn_marl.wrappers.bridges.torch import to_jax, to_torch

GROUP = "agents"
"""Key of the entries of single agents."""


class EcnTorchRL(EnvBase):
    """A batch of networks, batch size `[N]`, agents grouped as in TorchRL's MARL tutorials.

    Entries are `("agents", "observation")` `[N, A, obs_dim]`, `("agents", "action")` `[N, A]`
    (`discrete`) or `[N, A, 3]`, `("agents", "reward")` `[N, A, 1]`, and for the whole network
    `done`, `terminated` and `truncated` `[N, 1]`. Episodes end by their horizon: truncated, never
    terminated. The caller resets, as TorchRL's rollouts and collectors do.

    Observations and rewards are in JAX's memory: clone a tensor before writing to it. With seed s
    network i has the episodes of `parallel_env` after `reset(seed=s + i)`, except for rounding.

    Attributes:
        core: the functional environment.
        num_networks: networks in the batch N.
    """

    def __init__(
        self, core: EcnEnv, num_networks: int = 8, *, max_steps: int | None = None
    ) -> None:
        """Wrap a functional environment.

        Args:
            core: the environment.
            num_networks: networks in the batch.
            max_steps: steps per episode, that of the scenario if None.

        Raises:
            ValueError: a value that is not allowed.
        """
        steps = batch_steps(core, num_networks, max_steps)
        platform = jax.default_backend()
        super().__init__(
            device="cuda" if platform in ("gpu", "cuda") else "cpu", batch_size=[num_networks]
        )
        self.core, self.num_networks = core, num_networks
        self._steps = steps
        self._params = jax.device_put(core.default_params)
        self._streams = [np.random.default_rng() for _ in range(num_networks)]
        self._state: EnvState | None = None
        self._obs: jax.Array | None = None
        self._declare()

    def _declare(self) -> None:
        """Set the specs of observations, actions, rewards and flags."""
        n, agents, width = self.num_networks, self.core.num_agents, self.core.obs_dim
        face = EcnParallelEnv(self.core)
        space = face.observation_space(self.core.agents[0])
        low, high = float(space.low.min()), float(space.high.max())
        shape = (n, agents, width)
        options = {"device": self.device, "dtype": torch.float32}
        obs_spec = (
            Bounded(low, high, shape=shape, **options)
            if np.isfinite(low)
            else Unbounded(shape, **options)
        )
        self.observation_spec = self._grouped("observation", obs_spec)
        act = face.action_space(self.core.agents[0])
        self.action_spec = self._grouped("action", _action_spec(act, (n, agents), self.device))
        self.reward_spec = self._grouped("reward", Unbounded((n, agents, 1), **options))
        flag = Categorical(2, shape=(n, 1), dtype=torch.bool, device=self.device)
        names = ("done", "terminated", "truncated")
        self.done_spec = Composite({k: flag.clone() for k in names}, shape=(n,), device=self.device)

    def _grouped(self, name: str, spec: TensorSpec) -> Composite:
        n, agents = self.num_networks, self.core.num_agents
        inner = Composite({name: spec}, shape=(n, agents), device=self.device)
        return Composite({GROUP: inner}, shape=(n,), device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        """Network i starts the stream of episodes of seed + i."""
        check_value("seed", seed, STREAM_SEED)
        self._streams = [
            np.random.default_rng(None if seed is None else int(seed) + i)
            for i in range(self.num_networks)
        ]

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        """Start the next episode of the networks that `_reset` marks, of all without it."""
        reset, _, choose = compiled(self.core.program, self)
        requested = None if tensordict is None else tensordict.get("_reset", None)
        mask = np.ones(self.num_networks, bool)
        if requested is not None and self._state is not None:
            mask = requested.reshape(self.num_networks, -1).any(1).cpu().numpy()
        words = np.zeros((self.num_networks, 2), np.uint32)
        for i in np.flatnonzero(mask):
            # Only networks that restart draw, so a network's episodes depend on its own seed alone.
            words[i] = self._streams[i].integers(2**32, size=2, dtype=np.uint32)
        fresh = reset(words, self._params, self._steps)
        if not mask.all():
            fresh = choose(mask, fresh, (self._obs, self._state))
        self._obs, self._state = fresh
        return TensorDict(
            {GROUP: self._agents({"observation": to_torch(self._obs)}), **self._flags()},
            batch_size=self.batch_size,
            device=self.device,
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """One tuning interval."""
        _, step, _ = compiled(self.core.program, self)
        action = to_jax(tensordict[GROUP, "action"])
        obs, self._state, reward, terminated, truncated, _ = step(
            self._state, action, self._params, self._steps
        )
        self._obs = obs
        obs_tensor, reward_tensor = to_torch((obs, reward))
        ended, cut = to_torch((terminated.all(1), truncated.all(1)))
        agent_entries = self._agents(
            {"observation": obs_tensor, "reward": reward_tensor.unsqueeze(-1)}
        )
        return TensorDict(
            {GROUP: agent_entries, **self._flags(ended, cut)},
            batch_size=self.batch_size,
            device=self.device,
        )

    def _agents(self, entries: Mapping[str, object]) -> TensorDict:
        size = (self.num_networks, self.core.num_agents)
        return TensorDict(entries, batch_size=size, device=self.device)

    def _flags(
        self, terminated: torch.Tensor | None = None, truncated: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """`done` and its parts, `[N, 1]`; all unset without arguments."""
        if terminated is None or truncated is None:
            zero = torch.zeros(self.num_networks, dtype=torch.bool, device=self.device)
            terminated = truncated = zero
        flags = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        return {k: x.clone().unsqueeze(-1) for k, x in flags.items()}


def _action_spec(
    space: gymnasium.Space[Any], shape: Sequence[int], device: torch.device
) -> TensorSpec:
    """Spec of the actions of all agents, given gymnasium's space of one."""
    if hasattr(space, "nvec"):
        nvec = torch.as_tensor(space.nvec)
        return MultiCategorical(
            nvec.expand(*shape, len(nvec)), shape=(*shape, len(nvec)), device=device
        )
    if hasattr(space, "n"):
        return Categorical(int(space.n), shape=tuple(shape), device=device)
    box = cast(gymnasium.spaces.Box, space)
    size = (*shape, *box.shape)
    low, high = (torch.tensor(x, device=device).expand(size).clone() for x in (box.low, box.high))
    return Bounded(low, high, shape=size, dtype=torch.float32, device=device)


def torchrl_env(
    scenario: str = "websearch-v0",
    num_networks: int = 8,
    *,
    max_steps: int | None = None,
    **options: Any,
) -> EcnTorchRL:
    """A batched environment for TorchRL.

    Args:
        scenario: name of a registered scenario.
        num_networks: networks in the batch.
        max_steps: steps per episode, that of the scenario if None.
        **options: as in `ecn_marl.make`, e.g. `actions="discrete"`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    core = make(scenario, **with_steps(options, max_steps))
    return EcnTorchRL(core, num_networks, max_steps=max_steps)
