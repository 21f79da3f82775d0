"""Records of evaluations: the tables `flows`, `ports` and `episodes` of a folder.

    flows       a row for every flow: columns of `evaluation.traces.flow_columns`
    ports       a row for every interval and port: columns of `evaluation.traces.port_columns`
    episodes    a row for every episode: `episode_columns`

Each has the columns `policy`, `seed` (number of the learner's seed; 0 for rules) and `episode` in
front. One chunk holds the episodes that were run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from ecn_marl._tables import Tables, TableWriter
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
    ) -> None:
        """Begin.

        Args:
            folder: where.
            policies: label of each, by name and number of the seed.
            episodes: episodes of each.
            about: facts, see `TableWriter`.
            overwrite: whether to replace records that are there.

        Raises:
            ValueError: see `TableWriter`.
        """
        self.numbers = {policy: i for i, policy in enumerate(policies)}
        parts = [
            _part(number, first)
            for number in self.numbers.values()
            for first in range(0, episodes, BATCH)
        ]
        listed = [
            {"policy": name, "seed": seed, "label": label}
            for (name, seed), label in policies.items()
        ]
        self.writer = TableWriter(
            folder,
            {**about, "episodes": episodes, "policies": listed},
            dict.fromkeys(TABLES, parts),
            overwrite,
        )

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
        part = _part(self.numbers[policy], first)
        trace = metrics.pop(traces.TRACE)
        count = len(metrics["reward"])
        rows: dict[str, list[dict[str, np.ndarray]]] = {"flows": [], "ports": []}
        for i in range(count):
            one = traces.episode_of(trace, i)
            rows["flows"].append(traces.flow_columns(env, params, one))
            rows["ports"].append(traces.port_columns(env, one))
        for table, columns in rows.items():
            lengths = [len(next(iter(x.values()))) for x in columns]
            joined = {n: np.concatenate([x[n] for x in columns]) for n in columns[0]}
            episode = np.repeat(np.arange(first, first + count), lengths)
            self.writer.write(table, part, _named(policy, episode) | joined)
        columns_of = episode_columns(Evaluation(policy[0], metrics), int(params.max_steps))
        numbers = np.arange(first, first + count)
        self.writer.write("episodes", part, _named(policy, numbers) | columns_of)


def _part(number: int, first: int) -> str:
    return f"{number:03}-{first:05}"


def _named(policy: tuple[str, int], episode: np.ndarray) -> dict[str, np.ndarray]:
    n = len(episode)
    return {"policy": np.full(n, policy[0]), "seed": np.full(n, policy[1]), "episode": episode}


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
