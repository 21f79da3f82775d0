"""Episodes of environments that cannot be traced, such as those on packets: one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl.baselines.evaluation import traces
from ecn_marl.baselines.evaluation.own_policies import HostPolicy
from ecn_marl.baselines.evaluation.windows import counters, ends, in_windows
from ecn_marl.sim.core.queues import Ecn


@runtime_checkable
class Player(Protocol):
    """What plays an episode."""

    def begin(self, keys: jax.Array) -> None:
        """An episode begins; `keys` are two of every interval, the first that of its decision."""

    def choose(self, i: int, obs: Array, info: dict[str, Any]) -> Any:
        """The decision for interval `i`; `info` is that of the step, or the reset, before."""

    def observe(self, info: dict[str, Any]) -> None:
        """What came of it."""

    def costs(self) -> dict[str, Any]:
        """What the episode has cost, by name."""


class Compiled:
    """A controller with memory (`episodes.StatefulController`), compiled."""

    def __init__(self, policy: Any, decide: Callable[..., Any]) -> None:
        """Keep the controller.

        Args:
            policy: the controller.
            decide: `(policy, key, obs, memory) -> decision, memory`, see `episodes.decide`.
        """
        self.policy, self.see = policy, jax.jit(policy.observe)

        @jax.jit
        def act(keys: jax.Array, i: int | Array, obs: Array, memory: PyTree) -> Any:
            return decide(policy, keys[i, 0], obs, memory)

        self.act = act

    def begin(self, keys: jax.Array) -> None:
        """Forget the last episode."""
        self.keys, self.memory = keys, self.policy.init()

    def choose(self, i: int, obs: Array, info: dict[str, Any]) -> Any:
        """The decision."""
        chosen, self.memory = self.act(self.keys, i, obs, self.memory)
        return chosen

    def observe(self, info: dict[str, Any]) -> None:
        """Remember."""
        self.memory = self.see(self.memory, info)

    def costs(self) -> dict[str, Any]:
        """Those that the controller counts."""
        of = getattr(self.policy, "costs", None)
        return {} if of is None else dict(of(self.memory))


class Hosted:
    """A user's policy of PettingZoo's dicts."""

    def __init__(self, policy: HostPolicy) -> None:
        self.policy = policy

    def begin(self, keys: jax.Array) -> None:
        """Tell it that an episode begins."""
        self.policy.reset()

    def choose(self, i: int, obs: Array, info: dict[str, Any]) -> Array:
        """Its actions."""
        return jnp.asarray(self.policy(np.asarray(obs), jax.device_get(info)))

    def observe(self, info: dict[str, Any]) -> None:
        """It is told with the next decision."""

    def costs(self) -> dict[str, Any]:
        """None are counted."""
        return {}


class Played(NamedTuple):
    """An interval that was played.

    Attributes:
        chosen: the decision: actions or thresholds.
        before: the state before it.
        after: the state after it.
        info: the `info` of its step.
    """

    chosen: Any
    before: PyTree
    after: PyTree
    info: dict[str, Any]


def intervals(env: Any, params: PyTree, player: Player, key: jax.Array) -> Iterator[Played]:
    """Play an episode, interval by interval; its keys are those of `episodes.roll_out`."""
    reset_key, step_keys = _keys(key, int(params.max_steps))
    obs, state = env.reset(reset_key, params)
    info = env.reset_info(bare(env, state), params)
    player.begin(step_keys)
    for i in range(int(params.max_steps)):
        chosen, before = player.choose(i, obs, info), state
        advance = env.step_ecn if isinstance(chosen, Ecn) else env.step
        obs, state, _, _, _, info = advance(key, state, chosen, params)
        player.observe(info)
        yield Played(chosen, before, state, info)


# Split and chosen in compiled code, as one by one each takes as long as the packets of a quiet
# interval.
@partial(jax.jit, static_argnums=1)
def _keys(key: jax.Array, intervals: int) -> tuple[jax.Array, jax.Array]:
    reset_key, run_key = jax.random.split(key)
    return reset_key, jax.vmap(jax.random.split)(jax.random.split(run_key, intervals))


def bare(env: Any, state: PyTree) -> PyTree:
    """A state that compiled functions take: without what the simulator keeps on the host."""
    return replace(state, sim=env.sim.traceable(state.sim))


def run(env: Any, params: PyTree, player: Player, windows: int, keys: jax.Array) -> dict[str, Any]:
    """Run episodes; those of a key have the traffic of that key in a traced environment.

    Args:
        env: environment whose simulator is `on_host`.
        params: its parameters; `max_steps` is the length of an episode.
        player: decides.
        windows: number of windows, see `episodes.roll_out_in_windows`.
        keys: keys of the episodes.

    Returns:
        Metrics as of `episodes.episodes_runner`, with a leading axis of episodes.
    """
    params = jax.device_put(params)
    traced = traces.are_kept(env)
    last = ends(int(params.max_steps), windows) if windows else np.zeros(0, int)
    count, measure = jax.jit(counters), jax.jit(env.episode_metrics)
    keep = jax.jit(partial(traces.of_interval, env))

    def episode(key: jax.Array) -> dict[str, Any]:
        counted, kept = [], []
        for i, played in enumerate(intervals(env, params, player, key)):
            state = played.after
            if i in last:
                counted.append(count(bare(env, state)))
            if traced:
                kept.append(keep(params, bare(env, played.before), played.info))
        windowed = in_windows(_joined(counted)) if counted else {}
        metrics = measure(bare(env, state), params) | player.costs() | windowed
        return metrics | traces.of_episode(env, state, _joined(kept) if kept else {})

    episodes = [episode(key) for key in keys]
    logged = [each.pop(traces.TRACE) for each in episodes] if traced else []
    metrics = {n: jnp.stack([jnp.asarray(each[n]) for each in episodes]) for n in episodes[0]}
    return metrics | ({traces.TRACE: traces.stacked(logged)} if traced else {})


def _joined(rows: list[PyTree]) -> PyTree:
    """Rows as arrays over time."""
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)
