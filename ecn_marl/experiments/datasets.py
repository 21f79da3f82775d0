"""Offline datasets: what agents saw, did and earned, for learning without an environment.

`record` runs policies in episodes of the training stream, never in those that policies are scored
on, and writes two tables into a folder, as `_tables` does, with `croissant.json` beside them:

    steps   a row for every interval and agent: observation, action, reward, `terminated`,
            `truncated`
    ends    a row for every episode and agent: the observation after the last interval

Each has the columns `policy`, `seed` and `episode` in front, as all records have. `Dataset` reads
them as arrays, as the experience of a `flashbax` vault (OG-MARL reads those), or as episodes of
Minari.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl import lanes
from ecn_marl._checks import Real, Whole, check_seed, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._files import json_text, write_all
from ecn_marl._tables import Coded, Column, Tables, check_folder
from ecn_marl.baselines.bound import decision_kind
from ecn_marl.baselines.evaluation.episodes import BATCH, decide, thresholds, with_memory
from ecn_marl.baselines.evaluation.own_policies import HostPolicy
from ecn_marl.baselines.evaluation.streams import training_key
from ecn_marl.envs.actions import ThresholdsAction
from ecn_marl.envs.agents import PORT
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import VIEW, in_view, make
from ecn_marl.experiments import croissant
from ecn_marl.experiments.evaluation import listed, members_of, seed_of, shown, texts
from ecn_marl.experiments.policies import Arena, Named, arena, resolve
from ecn_marl.experiments.recording import Recording, facts
from ecn_marl.experiments.workflow import Show
from ecn_marl.render.bars import notebook_progress
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.wrappers import Lanes

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("steps", "ends")

EPISODES = 64
"""Episodes of each policy, if nothing else is asked for."""

THRESHOLDS = ("action_kmin_bytes", "action_kmax_bytes", "action_pmax")
"""Columns of actions that are thresholds."""

KIND = "offline dataset"
"""What `facts["kind"]` says of a folder that `Dataset` reads."""


def record(
    policies: Any,
    scenario: str | None = None,
    *,
    out: str | PathLike[str],
    episodes: int = EPISODES,
    seed: int = 0,
    epsilon: float = 0.0,
    checkpoint: str = "best",
    overwrite: bool = False,
    show: Show | None = None,
    **options: Any,
) -> Dataset:
    """Write what policies see, do and earn in training episodes to a folder.

    All policies have the same observations and actions: those of the first trained one, else those
    that `options` ask for (`features=`, `history=`, `actions=`). If any of them sets thresholds
    without choosing among actions, as `rule` and static settings do, actions are thresholds (Kmin
    and Kmax in bytes, Pmax). Episode i has the same traffic for all policies.

    Args:
        policies: one, or several, as `evaluate` takes them, but functions of PettingZoo's dicts.
        scenario: name of a scenario; None for that of the first trained policy, else
            `restore-serve-v0`.
        out: a new folder.
        episodes: episodes of each policy.
        seed: which training episodes.
        epsilon: how likely an agent acts at random in an interval, in place of its policy.
        checkpoint: which policy of a run: `best` (the latest if none was evaluated), `latest`.
        overwrite: whether a dataset that is in the folder is replaced.
        show: moves a progress bar, `show(episodes done, note)`; None for one in notebooks.
        **options: options of `ecn_marl.make`.

    Raises:
        ValueError: a name or an option that is not allowed, a function of PettingZoo's dicts,
            policies with different observations or actions, thresholds where agents are not ports.
    """
    folder = Path(fspath(out))
    check_folder(folder, overwrite, "out")
    check_value("episodes", episodes, Whole(low=1))
    check_value("epsilon", epsilon, Real(low=0.0, high=1.0))
    check_seed(seed)
    named = [resolve(policy) for policy in listed(policies)]
    place = arena(named, scenario, **options)
    place = Arena(place.scenario, place.options, checkpoint)
    members = [resolve(x) for policy in named for x in members_of(policy)]
    with notebook_progress("record", episodes * len(members), show) as move:
        ready = _ready(place, members)
        about = _about(place, ready, episodes, seed, float(epsilon))
        labels = {seed_of(member.name): shown(member) for member in members}
        recording = Recording(folder, labels, episodes, about, overwrite, tables=TABLES)
        keys = jax.vmap(lambda i: jax.random.fold_in(training_key(seed), i))(jnp.arange(episodes))
        set_directly = about["make_options"]["actions"] == ThresholdsAction.name
        for done, (member, env, controller) in enumerate(ready):
            move(done * episodes, f"{member.label}: compiling")
            run = _runner(env, controller, set_directly, float(epsilon))
            for first in range(0, episodes, BATCH):
                columns = jax.device_get(run(keys[first : first + BATCH]))
                _write(recording, seed_of(member.name), first, about, columns)
                move(done * episodes + min(first + BATCH, episodes), member.label)
        recording.close()
    dataset = Dataset(folder)
    text = json_text(croissant.metadata(dataset)) + "\n"
    write_all({folder / croissant.FILE: text})
    return dataset


def _ready(place: Arena, members: Sequence[Named]) -> list[tuple[Named, EcnEnv, Any]]:
    """Every policy, the environment with the dataset's view, and its controller."""
    trained = [member for member in members if member.trained]
    common = {name: place.options[name] for name in VIEW if name in place.options}
    if trained:
        common = trained[0].view(place)
    ready = []
    for member in members:
        own = member.view(place)
        if member.trained and own != common:
            allowed = f"the view of {trained[0].name}: record it in a folder of its own"
            raise bad_value("policy", member.name, allowed)
        env = make(place.scenario, **in_view(place.scenario, place.options, own | common))
        controller = member.controller(env, place)
        if isinstance(controller, HostPolicy):
            allowed = "a pure act(key, obs, state), which is compiled with the episodes"
            raise bad_value("policy", member.name, allowed)
        ready.append((member, env, controller))
    widths = {env.obs_dim for _, env, _ in ready}
    if len(widths) > 1:
        raise bad_value("policies", sorted(widths), "all with observations of one length")
    return ready


def _about(
    place: Arena,
    ready: Sequence[tuple[Named, EcnEnv, Any]],
    episodes: int,
    seed: int,
    epsilon: float,
) -> dict[str, Any]:
    """What the dataset is of, and the options of `make` that give its observations and actions."""
    env = ready[0][1]
    set_directly = any(decision_kind(env, controller) is not Array for _, env, controller in ready)
    if set_directly and (env.agent_kind != PORT or env.per_queue):
        allowed = "policies that choose among actions, where agents are not ports, or set queues"
        raise bad_value("policies", [member.name for member, _, _ in ready], allowed)
    view = {name: x for name, x in place.options.items() if name in VIEW}
    trained = [member.view(place) for member, _, _ in ready if member.trained]
    view = trained[0] if trained else view
    actions: Any = ThresholdsAction.name if set_directly else view.get("actions", env.action.name)
    if set_directly:
        view = {name: x for name, x in view.items() if name != "action_options"}
    return {
        **facts(scenario=place.scenario, options=texts(place.options), seed=seed),
        "kind": KIND,
        "epsilon": epsilon,
        "make_options": {n: x if _is_json(x) else str(x) for n, x in view.items()}
        | {"actions": actions},
        "intervals": env.horizon,
        "interval_us": env.interval_us,
        "agents": list(env.agents),
        "observation": _observation_columns(env),
        "action": list(THRESHOLDS) if set_directly else _action_columns(env),
        "width": env.width,
        "episodes": episodes,
    }


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _action_columns(env: EcnEnv) -> list[str]:
    """Names of the entries of an action."""
    return [f"action_{name}" for name in env.action.components] or ["action"]


def _observation_columns(env: EcnEnv) -> list[str]:
    """Names of the entries of an observation: feature, queue if each has its own, intervals ago."""
    queues = range(env.sim.n_classes) if env.per_queue else (None,)
    ages = reversed(range(env.feature.history))
    return [
        "_".join(("obs", name, *([] if q is None else [f"q{q}"]), str(age)))
        for age in ages
        for q in queues
        for name in env.feature.names
    ]


def _runner(
    env: EcnEnv, controller: Any, set_directly: bool, epsilon: float
) -> Callable[[jax.Array], dict[str, Array]]:
    """`keys -> obs [E, T + 1, A, O], action [E, T, A, ...], reward, terminated, truncated`."""
    params, policy, faced = env.default_params, with_memory(controller), Lanes(env)

    def explored(key: jax.Array, state: PyTree, chosen: Any) -> Any:
        where_key, what_key = jax.random.split(jax.random.fold_in(key, 1))
        own = env.num_agents
        by_chance: Any = env.action.sample(what_key, own)
        random = jax.random.bernoulli(where_key, epsilon, (own,))
        if isinstance(chosen, Ecn):
            by_chance = thresholds(env, params, state, by_chance)
        return jax.tree.map(
            lambda x, y: jnp.where(random.reshape(-1, *[1] * (x.ndim - 1)), x, y), by_chance, chosen
        )

    def step(carry: PyTree, key: jax.Array) -> tuple[PyTree, dict[str, Array]]:
        obs, state, memory = carry
        act_key, env_key = jax.random.split(key)  # as in `episodes.roll_out`
        chosen: Any
        chosen, memory = decide(policy, act_key, obs, memory)
        if set_directly:
            ecn = thresholds(env, params, state, chosen)
            chosen = jax.tree.map(lambda x: jnp.broadcast_to(x, (env.num_agents,)), ecn)
        chosen = explored(act_key, state, chosen) if epsilon else chosen
        advance = faced.step_ecn if set_directly else faced.step
        after, state, reward, terminated, truncated, info = advance(env_key, state, chosen, params)
        row = {
            "obs": obs,
            "action": _row_of(chosen),
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
        }
        return (after, state, policy.observe(memory, info)), row

    def episode(key: jax.Array) -> dict[str, Array]:
        reset_key, run_key = jax.random.split(key)
        obs, state = faced.reset(reset_key, params)
        keys = jax.random.split(run_key, int(params.max_steps))
        (last, _, _), rows = jax.lax.scan(step, (obs, state, policy.init()), keys)
        return {**rows, "obs": jnp.concatenate([rows["obs"], last[None]])}

    return jax.jit(lambda keys: jax.vmap(lanes.mapped(episode))(keys))


def _row_of(chosen: Any) -> Array:
    """What was chosen as an action, `[A, ...]`."""
    return ThresholdsAction.actions(chosen) if isinstance(chosen, Ecn) else chosen


def _write(
    recording: Recording,
    policy: tuple[str, int],
    first: int,
    about: dict[str, Any],
    columns: dict[str, np.ndarray],
) -> None:
    """Write the rows of a batch of episodes."""
    count, intervals, agents = columns["reward"].shape
    names = tuple(about["agents"])
    episode = np.arange(first, first + count)

    def flat(values: np.ndarray, columns: Sequence[str]) -> dict[str, Column]:
        rows = values.reshape(-1, len(columns))
        return {name: rows[:, i] for i, name in enumerate(columns)}

    interval = np.broadcast_to(np.arange(intervals, dtype=np.int32)[:, None], (intervals, agents))
    agent = np.tile(np.arange(agents, dtype=np.int32), count * intervals)
    steps: dict[str, Column] = {
        "interval": np.tile(interval.reshape(-1), count),
        "agent": Coded(agent, names),
        **flat(columns["obs"][:, :-1], about["observation"]),
        **flat(columns["action"], about["action"]),
        **{name: columns[name].reshape(-1) for name in ("reward", "terminated", "truncated")},
    }
    recording.put("steps", policy, first, np.repeat(episode, intervals * agents), steps)
    ends: dict[str, Column] = {
        "agent": Coded(agent[: count * agents], names),
        **flat(columns["obs"][:, -1], about["observation"]),
    }
    recording.put("ends", policy, first, np.repeat(episode, agents), ends)


class Dataset:
    """An offline dataset in a folder.

    Attributes:
        tables: its tables; `tables.missing` names chunks that are not there.
        facts: `scenario`, `options` of the episodes, `make_options`: those that give the dataset's
            observations and actions; `agents`, `observation` and `action`: names of the columns;
            `policies`, `epsilon`, `seed`, `interval_us`, versions.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        """Open it.

        Raises:
            ValueError: no such folder, or records of something else.
            DamagedFile: its list of chunks cannot be read.
        """
        self.tables = Tables(Path(fspath(folder)))
        self.facts = self.tables.facts
        if self.facts.get("kind") != KIND:
            allowed = "a folder that `ecn-marl record` has written"
            raise bad_value("dataset", fspath(folder), allowed)

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies that acted."""
        return tuple(dict.fromkeys(row["policy"] for row in self.facts["policies"]))

    @property
    def steps(self) -> pd.DataFrame:
        """The table `steps`."""
        return self.tables.frame("steps")

    def arrays(self, policy: str | None = None, seed: int | None = None) -> dict[str, np.ndarray]:
        """All episodes, or those of one policy; those whose chunks are missing are left out.

        Args:
            policy: name of a policy; None for all.
            seed: number of a run's seed; None for all.

        Returns:
            `obs` `[E, T + 1, A, O]` float32, the last one after the last interval; `action`
            `[E, T, A, ...]` and `reward` `[E, T, A]` float32; `terminated` and `truncated`
            `[E, T, A]` bool; `state` `[E, T + 1, S]`, the global state of `ecn_marl`.

        Raises:
            ValueError: not a policy of the dataset, or no whole chunk.
        """
        if policy is not None and policy not in self.policies:
            raise unknown_name("policy", policy, self.policies)
        steps, ends = self._frames
        if policy is not None:
            steps, ends = (x[x["policy"] == policy] for x in (steps, ends))
        if seed is not None:
            steps, ends = (x[x["seed"] == seed] for x in (steps, ends))
        agents, intervals = len(self.facts["agents"]), int(self.facts["intervals"])
        shape = (-1, intervals, agents)

        def of(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
            return np.ascontiguousarray(frame[list(names)].to_numpy())

        width = len(self.facts["observation"])
        before = of(steps, self.facts["observation"]).reshape(*shape, width)
        after = of(ends, self.facts["observation"]).reshape(-1, 1, agents, width)
        obs = np.concatenate([before, after], 1).astype(np.float32)
        action = of(steps, self.facts["action"])
        single = self.facts["action"] == ["action"]
        arrays = {
            "obs": obs,
            "action": action.reshape(shape if single else (*shape, action.shape[-1])),
            "reward": steps["reward"].to_numpy(np.float32).reshape(shape),
            "state": obs[..., -int(self.facts["width"]) :].reshape(*obs.shape[:2], -1),
        }
        for name in ("terminated", "truncated"):
            arrays[name] = steps[name].to_numpy(bool).reshape(shape)
        return arrays

    @cached_property
    def _frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Both tables, of the episodes that are in both."""
        steps, ends = (self.tables.frame(name) for name in TABLES)
        if not len(steps) or not len(ends):
            raise bad_value("dataset", str(self.tables.folder), "at least one whole chunk")
        names = ["policy", "seed", "episode"]
        both = steps[names].drop_duplicates().merge(ends[names].drop_duplicates())
        steps, ends = (x.merge(both, on=names, how="inner") for x in (steps, ends))
        return steps, ends

    def experience(self, policy: str | None = None) -> dict[str, Any]:
        """Episodes end to end, as a `flashbax` vault holds them and OG-MARL reads them.

        Returns:
            `observations` `[1, E T, A, O]`, `actions` `[1, E T, A, ...]`, `rewards`, `terminals`
            and `truncations` `[1, E T, A]`, `infos` with `state` `[1, E T, S]`. Rows with
            `truncations` are the last of their episodes; the observation after them is left out,
            as there.
        """
        arrays = self.arrays(policy)

        def joined(x: np.ndarray) -> np.ndarray:
            return x.reshape(1, -1, *x.shape[2:])

        return {
            "observations": joined(arrays["obs"][:, :-1]),
            "actions": joined(arrays["action"]),
            "rewards": joined(arrays["reward"]),
            "terminals": joined(arrays["terminated"]),
            "truncations": joined(arrays["truncated"]),
            "infos": {"state": joined(arrays["state"][:, :-1])},
        }

    def to_minari(self, name: str, policy: str | None = None) -> Any:
        """A Minari dataset: an episode for every agent and episode, as agents act independently.

        Args:
            name: Minari's identifier, e.g. `ecn-marl/restore-serve/rule-v0`.
            policy: see `arrays`.

        Raises:
            ImportError: Minari is not installed (`pip install 'minari[hdf5]'`).
        """
        import gymnasium
        import minari
        from minari.data_collector import EpisodeBuffer

        arrays = self.arrays(policy)
        env = make(self.facts["scenario"], **self.facts["make_options"])
        episodes, agents = arrays["obs"].shape[0], arrays["obs"].shape[2]
        buffer = [
            EpisodeBuffer(
                id=e * agents + a,
                observations=arrays["obs"][e, :, a],
                actions=arrays["action"][e, :, a],
                rewards=list(arrays["reward"][e, :, a]),
                terminations=list(arrays["terminated"][e, :, a]),
                truncations=list(arrays["truncated"][e, :, a]),
                infos={},
            )
            for e in range(episodes)
            for a in range(agents)
        ]
        bounds = (-np.inf, np.inf, arrays["obs"].shape[-1:])
        return minari.create_dataset_from_buffers(
            name,
            buffer,
            observation_space=gymnasium.spaces.Box(*bounds, np.float32),
            action_space=env.action.gymnasium_space(),
            algorithm_name=", ".join(self.policies),
            description=f"ecn_marl {self.facts['scenario']}: an episode for every agent",
        )

    def summary(self) -> str:
        """A few lines: rows, actions, and what an episode of each policy returned."""
        steps, facts = self.steps, self.facts
        lines = [
            f"{self.tables.folder}: {len(steps):,} rows of {len(facts['agents'])} agents, "
            f"{len(facts['observation'])} features, actions {facts['make_options']['actions']}"
        ]
        for policy, rows in steps.groupby("policy", sort=False):
            returns = rows.groupby(["seed", "episode"])["reward"].sum() / len(facts["agents"])
            lines.append(
                f"{policy}: {len(returns)} episodes, return {returns.mean():.3f} "
                f"(from {returns.min():.3f} to {returns.max():.3f})"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        """One line."""
        return f"<Dataset {self.facts['scenario']}: {', '.join(self.policies)}; {self.tables!r}>"


def read_dataset(folder: str | PathLike[str]) -> Dataset:
    """The offline dataset that `record` has written; see `Dataset`."""
    return Dataset(folder)
