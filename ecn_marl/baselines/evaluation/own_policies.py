"""Policies of a user's own, as evaluations run them: pure functions, and functions of PettingZoo.

A pure one is compiled with the episode. One of PettingZoo's dicts is called on the host for every
interval; its episodes run one after the other, so that it may keep a state of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl import lanes
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation import traces
from ecn_marl.envs.agent_checks import check_actions
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.sim.core.queues import Ecn


class PurePolicy:
    """`act(key, obs, state) -> action, state` as a controller with memory."""

    def __init__(self, policy: Any) -> None:
        """Keep the function; see `experiments.policies.OwnPolicy`."""
        self.act: Callable[..., Any] = getattr(policy, "act", policy)
        self.start: Callable[[], PyTree] = getattr(policy, "init", lambda: None)

    def init(self) -> PyTree:
        """Memory at the start of an episode: the state of the policy."""
        return self.start()

    def decide(self, key: jax.Array, obs: Array, memory: PyTree) -> tuple[Array | Ecn, PyTree]:
        """Decision and memory.

        Raises:
            ValueError: the function returns something else, or a state of another structure.
        """
        decision = self.act(key, obs, memory)
        if not isinstance(decision, tuple) or isinstance(decision, Ecn) or len(decision) != 2:
            raise bad_value("result of act", decision, "a pair: action, state")
        action, after = decision
        first, second = (str(jax.tree.structure(x)) for x in (memory, after))
        if first != second:
            allowed = f"{first}, as before: give the object a method init() for its first state"
            raise bad_value("state of act", second, allowed)
        return action if isinstance(action, Ecn) else jnp.asarray(action), after

    def __call__(self, key: jax.Array, obs: Array, memory: PyTree) -> Array | Ecn:
        """The decision alone; loops call `episodes.decide`."""
        return self.decide(key, obs, memory)[0]

    def observe(self, memory: PyTree, info: dict[str, Array]) -> PyTree:
        """Memory after an interval: its policy sees observations alone."""
        return memory


class HostPolicy:
    """`policy(observations) -> actions`, dicts by agent, run on the host."""

    def __init__(self, policy: Callable[..., Any], env: PortEnvironment, infos: bool) -> None:
        """Keep the function.

        Args:
            policy: the function.
            env: environment to act in.
            infos: whether it takes the infos as its second argument.
        """
        self.policy, self.infos, self.codec = policy, infos, env.action
        self.agents = env.agents

    def reset(self) -> None:
        """Tell the policy that an episode begins, if it wants to know."""
        if hasattr(self.policy, "reset"):
            self.policy.reset()

    def __call__(self, obs: np.ndarray, info: Mapping[str, np.ndarray]) -> np.ndarray:
        """Actions of all agents, checked, `[A, ...]`.

        Args:
            obs: observations, `[A, obs_dim]`.
            info: infos of the last step (of the reset), `[A]` each.

        Raises:
            ValueError: an agent without an action, or an action that is not in its space.
        """
        rows = {agent: obs[i].copy() for i, agent in enumerate(self.agents)}
        columns = {name: np.asarray(x).tolist() for name, x in info.items() if np.ndim(x) == 1}
        infos = {a: {n: x[i] for n, x in columns.items()} for i, a in enumerate(self.agents)}
        actions = self.policy(rows, infos) if self.infos else self.policy(rows)
        check_actions(actions, self.agents)
        for agent in self.agents:
            if agent not in actions:
                raise bad_value("actions", f"none for {agent}", "one action for every agent")
        stacked = np.stack([np.asarray(actions[agent]) for agent in self.agents])
        return self.codec.check(stacked, len(self.agents))


def host_runner(
    env: Any, params: PyTree, policy: HostPolicy
) -> Callable[[jax.Array], dict[str, Any]]:
    """A function that runs episodes of a policy on the host.

    Args:
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of an episode.
        policy: the policy.

    Returns:
        `keys -> metrics`, each with a leading axis of episodes, as of `episodes_runner`.
    """
    reset, traced = jax.jit(env.reset), traces.are_kept(env)

    def step_one(key: jax.Array, state: PyTree, action: Array) -> PyTree:
        obs, after, _, _, _, info = env.step(key, state, action, params)
        return obs, after, info, traces.of_interval(env, params, state, info) if traced else {}

    @jax.jit
    def step(key: jax.Array, state: PyTree, action: Array) -> PyTree:
        batch = jax.tree.map(lambda x: jnp.asarray(x)[None], (key, state, action))
        return jax.tree.map(lambda x: x[0], jax.vmap(lanes.mapped(step_one))(*batch))

    @jax.jit
    def finish(state: PyTree, kept: dict[str, Array]) -> dict[str, Any]:
        metrics: dict[str, Any] = env.episode_metrics(state, params)
        return metrics | traces.of_episode(env, state, kept)

    def episode(key: jax.Array) -> dict[str, Any]:
        reset_key, run_key = jax.random.split(key)
        obs, state = reset(reset_key, params)
        info = jax.device_get(env.reset_info(state, params))
        policy.reset()
        rows: list[dict[str, Any]] = []
        for step_key in jax.random.split(run_key, int(params.max_steps)):
            action = policy(np.asarray(obs), info)
            _, env_key = jax.random.split(step_key)
            obs, state, info, kept = step(env_key, state, jnp.asarray(action))
            info, kept = jax.device_get((info, kept))
            rows.append(kept)
        joined = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        metrics: dict[str, Any] = finish(state, joined)
        return metrics

    def run(keys: jax.Array) -> dict[str, Any]:
        episodes = [jax.device_get(episode(key)) for key in keys]
        stacked: dict[str, Any] = jax.tree.map(lambda *x: np.stack(x), *episodes)
        return stacked

    return run
