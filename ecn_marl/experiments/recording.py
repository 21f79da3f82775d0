"""Records of evaluations: the tables `flows`, `ports` and `episodes` of a folder.

    flows       a row for every flow: columns of `evaluation.traces.flow_columns`
    ports       a row for every interval and port: columns of `evaluation.traces.port_columns`
    episodes    a row for every episode: `episode_columns`

Each has the columns `policy`, `seed` (number of the learner's seed; 0 for rules) and `episode` in
front. One chunk holds the episodes that were run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from ecn_marl._tables import Coded, Column, Tables, TableWriter
from ecn_marl.baselines.evaluation import traces
from ecn_marl.baselines.evaluation.completion import COUNTS, SIZES
from ecn_marl.baselines.evaluation.episodes import BATCH, Evaluation
from ecn_marl.errors import InvalidInput
from ecn_marl.experiments.sources import checkout, code

TABLES = ("flows", "ports", "episodes")

Keep = Callable[[int, Any, PyTree, dict[str, Any]], None]
"""What `episodes.evaluate` calls after every batch."""


def facts(**more: object) -> dict[str, Any]:
    """What made the records: versions, hash of the sources, commit (None outside of a checkout)."""
    try:
        commit = checkout().commit
    except InvalidInput:
        commit = None
    return {**more, "code": code(), "commit": commit}


class Recording:
    """Writes the records of several policies, which run one after the other."""

    def __init__(
        self,
        folder: str | Path,
        policies: Mapping[tuple[str, int], str],
        episodes: int,
        about: Mapping[str, object],
        overwrite: bool = False,
        resume: bool = False,
        tables: Sequence[str] = TABLES,
    ) -> None:
        """Begin.

        Args:
            folder: where.
            policies: label of each, by name and number of the seed.
            episodes: episodes of each.
            about: facts, see `TableWriter`.
            overwrite: whether to replace records that are there.
            resume: whether to go on with them if they are of the same policies, facts and episodes.
            tables: names of the tables.

        Raises:
            ValueError: see `TableWriter`.
        """
        self.numbers = {policy: i for i, policy in enumerate(policies)}
        self.firsts = range(0, episodes, BATCH)
        parts = [_part(number, i) for number in self.numbers.values() for i in self.firsts]
        listed = [
            {"policy": name, "seed": seed, "label": label}
            for (name, seed), label in policies.items()
        ]
        self.writer = TableWriter(
            folder,
            {**about, "episodes": episodes, "policies": listed},
            dict.fromkeys(tables, parts),
            overwrite,
            resume,
        )

    def has(self, name: str, seed: int | None = None) -> bool:
        """Whether all records of a policy, of one or all of its seeds, are there."""
        own = [i for (policy, k), i in self.numbers.items() if policy == name and seed in (None, k)]
        return all(self.writer.has(_part(i, first)) for i in own for first in self.firsts)

    def keep(self, name: str, seed: int = 0) -> Keep:
        """The function that writes what a policy did in a batch of episodes."""
        return partial(self._write, (name, seed))

    def close(self) -> Tables:
        """Note that all is there, and open it."""
        self.writer.close()
        return Tables(self.writer.folder)

    def _write(
        self, policy: tuple[str, int], first: int, env: Any, params: PyTree, metrics: dict[str, Any]
    ) -> None:
        trace = metrics.pop(traces.TRACE)
        count = len(metrics["reward"])
        ports = traces.port_columns(env, trace)
        repeats = len(ports["start_us"]) // count
        episode = np.repeat(np.arange(first, first + count), repeats)
        self.put("ports", policy, first, episode, ports)
        rows = [traces.flow_columns(env, params, traces.episode_of(trace, i)) for i in range(count)]
        self.put_flows(policy, first, rows)
        columns_of = episode_columns(Evaluation(policy[0], metrics), int(params.max_steps))
        self.put("episodes", policy, first, np.arange(first, first + count), columns_of)

    def put_flows(
        self, policy: tuple[str, int], first: int, episodes: Sequence[Mapping[str, Column]]
    ) -> None:
        """Write the flows of a batch of episodes, from number `first` on."""
        lengths = [len(np.asarray(rows["flow"])) for rows in episodes]
        episode = np.repeat(np.arange(first, first + len(episodes)), lengths)
        joined = {name: _joined([rows[name] for rows in episodes]) for name in episodes[0]}
        self.put("flows", policy, first, episode, joined)

    def put(
        self,
        table: str,
        policy: tuple[str, int],
        first: int,
        episode: np.ndarray,
        columns: Mapping[str, Column],
    ) -> None:
        """Write a chunk.

        Args:
            table: name of the table.
            policy: name of the policy and number of its seed.
            first: number of its first episode.
            episode: number of the episode of each row.
            columns: the other columns.
        """
        part = _part(self.numbers[policy], first)
        self.writer.write(table, part, named(policy, episode) | dict(columns))


def close(recording: Recording | None) -> None:
    """Note that all is there, if anything is recorded."""
    if recording is not None:
        recording.close()


def _part(number: int, first: int) -> str:
    return f"{number:03}-{first:05}"


def named(policy: tuple[str, int], episode: np.ndarray) -> dict[str, Column]:
    """Columns that every table has in front; `policy` is a name, and the number of its seed."""
    zeros = np.zeros(len(episode), np.int32)
    seed = np.full(len(episode), policy[1])
    return {"policy": Coded(zeros, (policy[0],)), "seed": seed, "episode": episode}


def _joined(columns: Sequence[Column]) -> Column:
    """A column of several episodes; names are listed once, whatever episode they are from."""
    arrays = [x for x in columns if not isinstance(x, Coded)]
    if arrays:
        return np.concatenate(arrays)
    coded = [x for x in columns if isinstance(x, Coded)]
    number = {n: i for i, n in enumerate(dict.fromkeys(n for x in coded for n in x.names))}
    codes = [np.asarray([number[n] for n in x.names], np.int32)[x.codes] for x in coded]
    return Coded(np.concatenate(codes), list(number))


def episode_columns(evaluation: Evaluation, intervals: int) -> dict[str, np.ndarray]:
    """Numbers of every episode, `[episodes]` each.

    `J` and its parts; the mean, p99 and geometric mean of each size class' slowdowns; `return`
    (mean of the ports, summed over intervals); mean queue, utilisation; counts of flows and bytes.
    """
    columns, counts = evaluation.columns, ("measured", "unfinished", "finished")
    slowdowns = [f"{size}_{part}" for size in SIZES for part in ("mean", "p99", "geomean")]
    copied = {name: columns[name] for name in ("J", *slowdowns)}
    copied["return"] = columns["reward"] * intervals
    copied |= {
        "queue_mean_bytes": columns["queue_mean"],
        "queue_std_bytes": columns["queue_std"],
        "utilisation": columns["utilisation"],
        "paused": columns["paused"],
        "pauses": columns["pauses"],
        "offered_bytes": columns["bytes_offered"],
        "dropped_bytes": columns["bytes_dropped"],
    }
    copied |= {f"{size}_{count}": columns[f"{size}_{count}"] for size in SIZES for count in counts}
    return copied | {f"flows_{name}": columns[name] for name in COUNTS}
