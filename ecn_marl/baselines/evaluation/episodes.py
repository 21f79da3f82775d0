"""Evaluation of policies on episodes that are not used in training.

Episode `i` of seed `s` has the same traffic for all policies, so their differences are paired. Its
key is one of the tuning stream unless keys are given, see `streams`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ecn_marl import _parts, lanes
from ecn_marl._errors import bad_value
from ecn_marl._flags import FLAGGED
from ecn_marl.baselines.evaluation import host_loop, traces
from ecn_marl.baselines.evaluation.completion import (
    COSTS,
    PARTS,
    SIZES,
    SPILLED,
    objective,
    summarise,
)
from ecn_marl.baselines.evaluation.own_policies import HostPolicy, PurePolicy, host_runner
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.evaluation.windows import counters, ends, in_windows, window_columns
from ecn_marl.envs.episode import FLOWLETS, PORT_METRICS, SHARE, PhaseEcn
from ecn_marl.envs.interface import Environment, MeasuredEnvironment, PortEnvironment
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.metrics import histogram_quantile
from ecn_marl.wrappers import Lanes

Decision = Array | Ecn
"""Actions `[A, ...]`, or thresholds (`PhaseEcn` among them) that are set without decoding."""

Controller = Callable[[jax.Array, jax.Array], Decision]
"""`(key, obs [A, obs_dim]) -> decision`."""


@runtime_checkable
class StatefulController(Protocol):
    """A controller with memory, a pytree that is carried through an episode."""

    def init(self) -> PyTree:
        """Memory at the start of an episode."""

    def __call__(self, key: jax.Array, obs: jax.Array, memory: PyTree) -> Decision:
        """Actions or thresholds, as of a `Controller`."""

    def observe(self, memory: PyTree, info: dict[str, jax.Array]) -> PyTree:
        """Memory after an interval, given the `info` of its step."""


@dataclass(frozen=True)
class _Memoryless:
    """A plain controller, with an empty memory."""

    controller: Controller

    def init(self) -> tuple[()]:
        return ()

    def __call__(self, key: jax.Array, obs: jax.Array, memory: tuple[()]) -> Decision:
        return self.controller(key, obs)

    def observe(self, memory: tuple[()], info: dict[str, jax.Array]) -> tuple[()]:
        return ()

    def costs(self, memory: tuple[()]) -> dict[str, Any]:
        counted = getattr(self.controller, "costs", None)
        return {} if counted is None else dict(counted())


def with_memory(controller: Controller | StatefulController) -> StatefulController:
    """Any controller as one with memory, so that loops handle a single kind."""
    if isinstance(controller, StatefulController):
        return controller
    return _Memoryless(controller)


@dataclass(frozen=True)
class Evaluation:
    """Results of evaluating one controller.

    Attributes:
        name: label of the policy.
        episodes: per-episode metrics of the environment (see `EcnEnv.episode_metrics`), and the
            controller's costs, each `[episodes, ...]`.
    """

    name: str
    episodes: dict[str, np.ndarray]

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Per-episode numbers for tables and figures, `[episodes]` float64 each.

        `J`; of each size class its `_mean`, `_p99`, `_geomean` slowdown (NaN where no flow of the
        class was measured), `_sum` of slowdowns, flows `_measured`, `_unfinished` (of these) and
        `_finished` (in the whole episode); `mice_p99`, of flows up to 1 MB; counters for
        `accounts` and `invalid_reasons`; reward, queue (bytes), utilisation, pauses, those of
        `envs.episode`; costs, counters of sources (`source:…`), weights and parts of a
        declared objective (`weight:…`, `part:…`) and numbers of windows (`windows:…`), if there
        are any.
        """
        raw = {name: np.asarray(x, np.float64) for name, x in self.episodes.items()}
        columns: dict[str, np.ndarray] = {}
        p99 = histogram_quantile(raw["slowdown_histogram"], 0.99)
        for i, size in enumerate(SIZES):
            flows = raw["flows_measured"][:, i]
            n_measured = np.where(flows > 0, flows, np.nan)
            columns |= {
                f"{size}_mean": raw["slowdown_sum"][:, i] / n_measured,
                f"{size}_p99": np.where(flows > 0, p99[:, i], np.nan),
                f"{size}_geomean": np.exp(raw["slowdown_log_sum"][:, i] / n_measured),
                f"{size}_sum": raw["slowdown_sum"][:, i],
                f"{size}_measured": flows,
                f"{size}_unfinished": raw["flows_unfinished"][:, i],
                f"{size}_finished": raw["flows_finished"][:, i],
            }
        mice_histogram = raw["slowdown_histogram"][:, :2].sum(1, keepdims=True)
        has_mice = raw["flows_measured"][:, :2].sum(1) > 0
        columns["mice_p99"] = np.where(
            has_mice, histogram_quantile(mice_histogram, 0.99)[:, 0], np.nan
        )
        finished = raw["flows_finished"].sum(1)
        counts = {
            "offered": raw["flows_started"] + raw["flows_waiting"],
            "started": raw["flows_started"],
            "finished": finished,
            "unfinished": raw["flows_started"] - finished,
            "deferred": raw["deferred"],
            "deferred_us": raw["deferred_us"],
            "waiting": raw["flows_waiting"],
        }
        prefixed = (
            name for name in raw if name.startswith(("source:", SHARE)) or _parts.is_declared(name)
        )
        optional = (
            name for name in (*COSTS, *FLOWLETS, *PORT_METRICS, FLAGGED, SPILLED) if name in raw
        )
        names = (*_COPIED, *optional, *prefixed)
        if weights := _parts.exponents(raw):
            both = columns | {name.removeprefix(_parts.PART): x for name, x in raw.items()}
            parts = {name: both[name] for name in weights}
            objectives = {"J": _parts.composed(parts, weights)}
        else:
            objectives = {"J": objective(*(columns[part] for part in PARTS))}
        copied = {name: raw[name] for name in names}
        return objectives | columns | counts | copied | window_columns(raw)

    def summary(self, allow_flagged: bool = False) -> dict[str, Any]:
        """JSON-able summary, see `completion.summarise`."""
        columns = {name: x[None] for name, x in self.columns.items()}
        return summarise(self.name, columns, allow_flagged)


_COPIED = (
    *("bytes_offered", "bytes_dropped", "flow_ticks", "feedback_cut"),
    *("reward", "queue_mean", "queue_std", "utilisation", "pauses", "paused"),
)
"""Metrics that are columns without a change."""


def evaluation_keys(seed: int, episodes: int) -> jax.Array:
    """Keys of the episodes that `eval` shows, `[episodes]`: a part of the tuning stream.

    Raises:
        ValueError: a seed outside of 0 to 2^32 - 1, or `episodes` below 1.
    """
    return tuning_keys("report", seed, episodes)


def thresholds(env: PortEnvironment, params: PyTree, state: PyTree, chosen: Array | Ecn) -> Ecn:
    """Thresholds of ports for the choice of a controller, bytes, `[P]` each.

    Args:
        env: functional environment.
        params: its parameters.
        state: its state then; the thresholds of a `PhaseEcn` depend on the phase.
        chosen: actions, thresholds, or a `PhaseEcn`.
    """
    if isinstance(chosen, PhaseEcn):
        return chosen.during(env.phase(state, params))
    if isinstance(chosen, Ecn):
        return chosen
    return env.action.decode(env.grouping.spread(chosen), env.port_scale(params.sim))


def roll_out(
    env: Environment, params: PyTree, controller: Controller | StatefulController, key: jax.Array
) -> tuple[PyTree, Float[Array, ""], PyTree]:
    """One whole episode.

    Args:
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of the episode.
        controller: the policy that sets the thresholds.
        key: PRNG key.

    Returns:
        The last state, the reward's mean over intervals and agents, and the controller's memory.
    """
    played = roll_out_in_windows(env, params, controller, key, 0)
    return played.state, played.reward, played.memory


class Played(NamedTuple):
    """An episode that was played.

    Attributes:
        state: the last state.
        reward: mean over intervals and agents.
        memory: the controller's memory.
        windows: the numbers of windows, see `windows.in_windows`; empty if there are none.
        ports: what is kept of every interval, `[T, A]` each, see `traces.of_interval`.
    """

    state: PyTree
    reward: Float[Array, ""]
    memory: PyTree
    windows: dict[str, Array]
    ports: dict[str, Array]


def decide(
    policy: StatefulController, key: jax.Array, obs: Array, memory: PyTree
) -> tuple[Decision, PyTree]:
    """The decision of a policy, and its memory, which a user's pure policy changes with it."""
    if isinstance(policy, PurePolicy):
        return policy.decide(key, obs, memory)
    return policy(key, obs, memory), memory


def roll_out_in_windows(
    env: Environment,
    params: PyTree,
    controller: Controller | StatefulController,
    key: jax.Array,
    windows: int,
) -> Played:
    """`roll_out`, with the numbers of equal windows of the episode.

    Args:
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of the episode.
        controller: the policy that sets the thresholds.
        key: PRNG key.
        windows: number of windows, 0 for none.
    """
    env, policy = Lanes(env), with_memory(controller)
    reset_key, run_key = jax.random.split(key)
    obs, state = env.reset(reset_key, params)

    def step(carry: tuple[Array, PyTree, PyTree], key: jax.Array) -> tuple[PyTree, PyTree]:
        obs, state, memory = carry
        act_key, env_key = jax.random.split(key)
        chosen, memory = decide(policy, act_key, obs, memory)
        advance = env.step_ecn if isinstance(chosen, Ecn) else env.step
        before = state
        if traced and not isinstance(chosen, Ecn):
            # For the infos of ports; a trace has a row for every port, whoever the agents are.
            chosen, advance = thresholds(env, params, state, chosen), env.step_ecn
        obs, state, reward, _, _, info = advance(env_key, state, chosen, params)
        counts = counters(state) if windows else {}
        kept = traces.of_interval(env, params, before, info) if traced else {}
        return (obs, state, policy.observe(memory, info)), (reward.mean(), counts, kept)

    traced = traces.are_kept(env)
    intervals = int(params.max_steps)
    carry = (obs, state, policy.init())
    keys = jax.random.split(run_key, intervals)
    (_, state, memory), (rewards, counts, kept) = jax.lax.scan(step, carry, keys)
    last = ends(intervals, windows) if windows else None
    over_time = {} if last is None else in_windows({name: x[last] for name, x in counts.items()})
    return Played(state, rewards.mean(), memory, over_time, kept)


def episodes_runner(
    env: MeasuredEnvironment,
    params: PyTree,
    build: Callable[[PyTree], Controller | StatefulController],
    windows: int = 0,
) -> Callable[[PyTree, jax.Array], dict[str, jax.Array]]:
    """A compiled function that runs episodes of policies which differ in their parameters only.

    Args:
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of an episode.
        build: `actor -> controller`.
        windows: see `roll_out_in_windows`.

    Returns:
        `(actor, keys) -> metrics`, those of the environment and of windows and the controller's
        costs, each with a leading axis of episodes; and `traces.TRACE` where `traces.are_kept`.
    """
    if getattr(getattr(env, "sim", None), "on_host", False):
        return partial(run_on_host, env, params, build, windows)

    def episode(key: jax.Array, actor: PyTree) -> dict[str, jax.Array]:
        controller = with_memory(build(actor))
        played = roll_out_in_windows(env, params, controller, key, windows)
        costs_of = getattr(controller, "costs", None)
        raw_costs: dict[str, Any] = {} if costs_of is None else costs_of(played.memory)
        costs = {name: jnp.asarray(x, jnp.float32) for name, x in raw_costs.items()}
        metrics = env.episode_metrics(played.state, params) | costs | played.windows
        return metrics | traces.of_episode(env, played.state, played.ports)

    @jax.jit
    def run(actor: PyTree, keys: jax.Array) -> dict[str, jax.Array]:
        metrics: dict[str, jax.Array] = jax.vmap(lanes.mapped(episode), (0, None))(keys, actor)
        return metrics

    return run


def run_on_host(
    env: Any,
    params: PyTree,
    build: Callable[[PyTree], Controller | StatefulController],
    windows: int,
    actor: PyTree,
    keys: jax.Array,
) -> dict[str, Any]:
    """Episodes of an environment that cannot be traced, see `host_loop.run`.

    Args:
        env: environment whose simulator is `on_host`.
        params: its parameters.
        build: `actor -> controller`.
        windows: see `roll_out_in_windows`.
        actor: parameters of the policy.
        keys: keys of the episodes; traffic is that of the same key in the traced environment.
    """
    controller: Any = build(actor)
    if isinstance(controller, HostPolicy):
        return host_loop.run(env, params, host_loop.Hosted(controller), windows, keys)
    player = host_loop.Compiled(with_memory(controller), decide)
    return host_loop.run(env, params, player, windows, keys)


class _Constants:
    """Parameters of an environment, alike if all their numbers are."""

    def __init__(self, params: PyTree) -> None:
        self.params = params
        leaves, form = jax.tree.flatten(params)
        arrays = [np.asarray(x) for x in leaves]
        self.key = form, tuple((x.shape, x.dtype.str, x.tobytes()) for x in arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constants) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class _Fixed:
    """Thresholds that never change, an `Ecn` as `actor`."""

    actor: PyTree

    def __call__(self, key: jax.Array, obs: jax.Array) -> PyTree:
        return self.actor


def _without_actor(controller: Any) -> Any:
    """A frozen dataclass without its field `actor`; None for anything else, or unhashable."""
    kind = getattr(controller, "__dataclass_params__", None)
    if kind is None or not kind.frozen or not hasattr(controller, "actor"):
        return None
    form = replace(controller, actor=None)
    return form if _has_hash(form) else None


def _has_hash(form: Any) -> bool:
    try:
        hash(form)
    except TypeError:  # an array, for one, among its fields
        return False
    return True


@lru_cache(maxsize=16)
def _shared_runner(
    env: Any, constants: _Constants, form: Any, windows: int
) -> Callable[[PyTree, jax.Array], dict[str, Any]]:
    """`episodes_runner` of all controllers that differ in their `actor` only."""

    def build(actor: PyTree) -> Any:
        return replace(form, actor=actor)

    return episodes_runner(env, constants.params, build, windows)


BATCH = 32
"""Episodes that are run at once."""


def runner(
    env: Any, params: PyTree, controller: Any, windows: int = 0
) -> Callable[[jax.Array], dict[str, Any]]:
    """A function that runs episodes of one controller: `keys -> metrics`.

    Controllers of the same form share a compiled program: all with fixed thresholds, and the
    policies of one network that differ in their weights, see `Trainer.controller`.

    Args:
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of an episode.
        controller: the policy that sets the thresholds.
        windows: see `roll_out_in_windows`.
    """
    if isinstance(controller, HostPolicy) and not env.sim.on_host:
        return host_runner(env, params, controller)
    fixed = getattr(controller, "ecn", None)
    chosen = controller if fixed is None else _Fixed(fixed)
    form = _without_actor(chosen)
    if form is None:
        return partial(episodes_runner(env, params, lambda _: controller, windows), ())
    return partial(_shared_runner(env, _Constants(params), form, windows), chosen.actor)


def evaluate(
    env: MeasuredEnvironment,
    params: PyTree,
    controller: Controller | StatefulController,
    *,
    name: str,
    episodes: int,
    seed: int = 0,
    batch: int = BATCH,
    progress: Callable[[int], None] | None = None,
    keys: jax.Array | None = None,
    windows: int = 0,
    keep: Callable[[int, Any, PyTree, dict[str, np.ndarray]], None] | None = None,
) -> Evaluation:
    """Run a controller for whole episodes.

    Args:
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of an episode.
        controller: the policy that sets the thresholds.
        name: label of the result.
        episodes: number of episodes.
        seed: which episodes; the same seed is the same traffic for every controller.
        batch: episodes run at once.
        progress: called with the number of episodes done after each batch.
        keys: keys of the episodes, `[episodes]`, in place of those of `seed`.
        windows: see `roll_out_in_windows`.
        keep: called after each batch with the number of its first episode, environment,
            parameters and metrics, those of `traces.TRACE` among them: flows and intervals are
            traced then.

    Raises:
        ValueError: `episodes` below 1, or another number of keys.
    """
    if episodes < 1:
        raise bad_value("episodes", episodes, "an integer >= 1")
    if keep is not None:
        env = traces.keeping(env)
    run = runner(env, params, controller, windows)
    keys = evaluation_keys(seed, episodes) if keys is None else keys
    if len(keys) != episodes:
        raise bad_value("keys", len(keys), f"as many as episodes = {episodes}")
    # The last batch is filled up: another length would be another program to compile.
    padded = jnp.concatenate([keys, keys[: -episodes % batch]]) if episodes > batch else keys
    batches = []
    for start in range(0, len(padded), batch):
        metrics = jax.device_get(run(padded[start : start + batch]))
        while keep is not None and (longest := traces.longest(metrics)):
            env = traces.keeping(env, longest)  # the log was too short: once more with a longer one
            run = runner(env, params, controller, windows)
            metrics = jax.device_get(run(padded[start : start + batch]))
        if keep is not None:
            whole = {k: x for k, x in metrics.items() if k != traces.TRACE}
            trace, count = metrics.pop(traces.TRACE), min(batch, episodes - start)
            rows = jax.tree.map(lambda x, n=count: x[:n], {**whole, traces.TRACE: trace})
            keep(start, env, params, rows)
        batches.append(metrics)
        if progress is not None:
            progress(min(start + batch, episodes))
    joined = {k: np.concatenate([metrics[k] for metrics in batches])[:episodes] for k in batches[0]}
    return Evaluation(name, joined)
