"""Policies bound to a scenario, to be put into a loop of one's own: by dicts, arrays, or compiled.

    policy = ecn_marl.load_policy("rule", "restore-serve-v0")
    env = ecn_marl.parallel_env("restore-serve-v0", **policy.make_options)
    observations, infos = env.reset(seed=0)
    while env.agents:
        observations, _, _, _, infos = env.step(policy(observations, infos))

Under `jit` and `vmap` the same policy is three pure functions: `init`, `act` and `observe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from ecn_marl import lanes
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.episodes import (
    Controller,
    Decision,
    StatefulController,
    decide,
    with_memory,
)
from ecn_marl.envs.actions import ThresholdsAction
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import PHASE, PhaseEcn
from ecn_marl.sim.core.queues import Ecn


class State(NamedTuple):
    """What a policy carries through an episode."""

    memory: PyTree
    """Memory of the controller."""
    phase: Int[Array, " agents"]
    """Phase of the next interval, which only oracles know."""


def decision_kind(env: EcnEnv, controller: Controller | StatefulController) -> type:
    """What a controller decides on: `Ecn`, `PhaseEcn`, or an array of actions."""
    policy = with_memory(controller)

    def first(key: jax.Array, obs: Array) -> Decision:
        return decide(policy, key, obs, policy.init())[0]

    obs = jax.ShapeDtypeStruct((env.num_agents, env.obs_dim), jnp.float32)
    shapes = jax.eval_shape(first, jax.random.key(0), obs)
    return PhaseEcn if isinstance(shapes, PhaseEcn) else Ecn if isinstance(shapes, Ecn) else Array


class BoundPolicy:
    """A policy of ports in one scenario: what `ecn_marl.load_policy` returns, files aside.

    Attributes:
        named: the policy by its name, see `experiments.policies`.
        make_options: options of `ecn_marl.make` and its faces for the environment that it needs.
            `max_steps` and options of the traffic are not among them.
    """

    def __init__(
        self,
        named: Any,
        env: EcnEnv,
        controller: Controller | StatefulController,
        view: Mapping[str, Any],
    ) -> None:
        """Bind a controller.

        Args:
            named: the policy by its name.
            env: environment that the controller was made for.
            controller: the controller.
            view: options of `make` for `env`.
        """
        self.named, self._policy, kind = named, with_memory(controller), decision_kind
        self._stateful = isinstance(controller, StatefulController)
        self._agents, self._obs_dim = env.num_agents, env.obs_dim
        self._features = env.feature
        decides = kind(env, controller)
        self._knows_phase = decides is PhaseEcn
        self._sets_thresholds = decides is not Array
        self.make_options: dict[str, Any] = dict(view)
        if self._sets_thresholds:
            if env.per_queue:
                allowed = "False for a policy that sets thresholds itself"
                raise bad_value("per_queue", env.per_queue, allowed)
            self.make_options.pop("action_options", None)
            self.make_options["actions"] = ThresholdsAction.name
            # It reads infos of ports and sets their thresholds, whoever its agents are.
            self.make_options.pop("agents", None)
            self._agents = env.sim.topology.n_ports
        if self._knows_phase:
            self.make_options["counts"] = (*self.make_options.get("counts", ()), PHASE)
        self.reset()

    def __repr__(self) -> str:
        """One line: its name, and what it needs."""
        return f"<BoundPolicy {self.named.name}: {self._agents} agents, needs {self.make_options}>"

    def init(self) -> State:
        """State at the start of an episode. An oracle must `observe` the first phase, too."""
        return State(self._policy.init(), jnp.zeros((self._agents,), jnp.int32))

    def act(self, key: jax.Array, obs: Array, state: State) -> tuple[Array, State]:
        """Actions of all ports, `[A, ...]`, and the state; pure.

        Args:
            key: PRNG key.
            obs: observations, `[A, obs_dim]`.
            state: the state.
        """
        chosen, memory = decide(self._policy, key, obs, state.memory)
        if isinstance(chosen, PhaseEcn):
            chosen = chosen.during(state.phase)
        action = ThresholdsAction.actions(chosen) if isinstance(chosen, Ecn) else chosen
        return action, State(memory, state.phase)

    def observe(self, state: State, info: Mapping[str, Array]) -> State:
        """State after an interval; pure.

        Args:
            state: the state before.
            info: the `info` of the step, `[A]` each; of a reset, `env.reset_info(...)`.

        Raises:
            ValueError: something is missing that the policy reads.
        """
        phase = state.phase
        if self._knows_phase:
            if PHASE not in info:
                allowed = f"one with {PHASE}: make the environment with {self.make_options}"
                raise bad_value("info", sorted(info), allowed)
            phase = jnp.asarray(info[PHASE]).astype(jnp.int32)
        if not self._stateful or set(info) <= {PHASE}:  # the infos of a reset
            return State(state.memory, phase)
        try:
            return State(self._policy.observe(state.memory, dict(info)), phase)
        except (KeyError, TypeError, ValueError):
            allowed = f"what a step returns in an environment made with {self.make_options}"
            raise bad_value("info", sorted(info), allowed) from None

    def reset(self, seed: int = 0) -> None:
        """Begin an episode, for `__call__`; `seed` is that of random decisions."""
        self._key = np.random.default_rng(seed)
        self._state: State | None = None

    def __call__(self, observations: Any, infos: Any = None) -> Any:
        """Actions for observations, one call for every step of an episode.

        The infos of a reset (empty, or with the phase alone) begin a new episode.

        Args:
            observations: PettingZoo's dict by agent, or an array `[networks, A, obs_dim]`, as
                `vector_env` returns it.
            infos: those that came with them. Policies without a memory do without.

        Returns:
            A dict of actions by agent, or an array `[networks, A, ...]`.

        Raises:
            ValueError: observations or infos of another environment than the policy needs.
        """
        if isinstance(observations, Mapping):
            obs = np.stack([np.asarray(x) for x in observations.values()])[None]
            rows = list((infos or {}).values())
            names = rows[0].keys() if rows else ()
            columns = {n: np.asarray([r[n] for r in rows], np.float32)[None] for n in names}
            given = None if infos is None else columns
            return dict(zip(observations, self._decide(obs, given, None)[0], strict=True))
        restarted = None
        if infos:
            reported = next((x for n, x in infos.items() if n == "_queue"), None)
            restarted = None if reported is None else ~np.asarray(reported)
            infos = {n: x for n, x in infos.items() if not n.startswith(("_", "final_"))}
            infos = {n: np.asarray(x, np.float32) for n, x in infos.items() if np.ndim(x) == 2}
        return self._decide(np.asarray(observations), infos, restarted)

    def _decide(
        self, obs: np.ndarray, infos: dict[str, np.ndarray] | None, restarted: np.ndarray | None
    ) -> np.ndarray:
        """Actions of a batch of networks, `[N, A, ...]`."""
        expected = (self._agents, self._obs_dim)
        if obs.ndim != 3 or obs.shape[1:] != expected:
            names = ", ".join(self._features.names)
            allowed = (
                f"(networks, {self._agents}, {self._obs_dim}): {self._features.history} intervals "
                f"of {names}; make the environment with load_policy(...).make_options"
            )
            raise bad_value("shape of observations", obs.shape, allowed)
        begins = self._state is None or (infos is not None and set(infos) <= {PHASE})
        needs_infos = self._stateful or self._knows_phase
        if infos is None and needs_infos:
            raise bad_value(
                "infos", None, f"those of the environment: {self.named.name} reads them"
            )
        n = len(obs)
        if begins:
            first = self.init()
            self._state = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), first)
        if infos and needs_infos:
            if restarted is not None and restarted.any():
                raise bad_value(
                    "infos",
                    "networks that were reset meanwhile",
                    "episodes that end together: autoreset_mode='Disabled', and reset()",
                )
            known = {name: jnp.asarray(x) for name, x in infos.items()}
            self._state = self._observed(self._state, known)
        words = self._key.integers(2**32, size=(n, 2), dtype=np.uint32)
        action, self._state = self._acted(words, jnp.asarray(obs, jnp.float32), self._state)
        return np.asarray(action)

    @cached_property
    def _observed(self) -> Any:
        # By lanes, as evaluations run: XLA rounds products and sums together, and bits differ.
        return jax.jit(jax.vmap(lanes.mapped(self.observe)))

    @cached_property
    def _acted(self) -> Any:
        def act(words: Array, obs: Array, state: State) -> tuple[Array, State]:
            key = jax.random.wrap_key_data(words, impl="threefry2x32")
            return self.act(key, obs, state)

        return jax.jit(jax.vmap(lanes.mapped(act)))
