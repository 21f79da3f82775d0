"""`ecn_marl.evaluate` where flows are the agents: learners of rates, and senders with own rules.

    result = ecn_marl.evaluate(["runs/adpg", "swift:htsim"], "many-to-one-8-v0", episodes=3)

Records are the tables `flows` and `episodes`: no thresholds are set and no port has a reward, so
there is no table of ports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import jax
import numpy as np
from jaxtyping import PyTree

from ecn_marl._checks import Whole, check_seed, check_value
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation import traces
from ecn_marl.baselines.evaluation.episodes import BATCH
from ecn_marl.envs.rate.measure import Ended, OwnRates, Steered, Subject, measure
from ecn_marl.envs.rate.scenarios import RateScenario
from ecn_marl.experiments.policies import Arena
from ecn_marl.experiments.rate import is_rate_file, is_rate_run, is_senders, subject_of
from ecn_marl.experiments.recording import Recording, facts
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.results import Plots, Result
from ecn_marl.experiments.workflow import Show
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.traffic.sizes import PAYLOAD, wire_size
from ecn_marl.sim.units import GBPS

DEFAULT_SCENARIO = "many-to-one-8-v0"

RATE_TABLES = ("flows", "episodes")
"""Tables of the records."""


class RateResult(Result):
    """Congestion controls on the same episodes.

    `summary` has `scenario`, `options`, `episodes`, `seed` and `policies`: of each its metrics by
    name, see `envs.rate.measure`, a number for each episode.
    """

    def rich(self, width: int = 110) -> list[Any]:
        """Tables of rich."""
        from ecn_marl.render.rate_table import rate_table

        return [rate_table(self.summary)]

    def table(self) -> Any:
        """A row for each policy: means over episodes."""
        import pandas as pd

        rows = [
            {"policy": name} | {metric: np.mean(x) for metric, x in metrics.items()}
            for name, metrics in self.summary["policies"].items()
        ]
        return pd.DataFrame(rows)

    @property
    def ports(self) -> NoReturn:
        """There is none.

        Raises:
            ValueError: always.
        """
        allowed = "flows or episodes: where flows are the agents, ports decide nothing"
        raise bad_value("table", "ports", allowed)

    @property
    def plot(self) -> Plots:
        """There are no figures.

        Raises:
            ValueError: always.
        """
        allowed = "used with policies of ports: draw from .flows and .episodes"
        raise bad_value("plot", self.summary["scenario"], allowed)


def check_rate_policies(policies: Sequence[object]) -> list[str]:
    """Names of policies of flows.

    Raises:
        ValueError: one of them is none.
    """
    names = [fspath(x) if isinstance(x, str | PathLike) else repr(x) for x in policies]
    for name in names:
        if not (is_rate_run(name) or is_rate_file(name) or is_senders(name)):
            allowed = (
                "a policy of flows, as the scenario or the first one: a run of adpg, ppo, …, its "
                "file, or senders such as swift:htsim"
            )
            raise bad_value("policy", name, allowed)
    if len(set(names)) < len(names):
        raise bad_value("policies", names, "each of them once")
    return names


def evaluate_rates(
    policies: Sequence[object],
    scenario: str | None,
    *,
    options: Mapping[str, Any],
    episodes: int,
    seed: int,
    folder: Path | None,
    overwrite: bool,
    checkpoint: str,
    show: Show,
) -> RateResult:
    """Measure policies of flows, all on the same episodes.

    Args:
        policies: runs, files and senders.
        scenario: name of a scenario of rate control; None for `DEFAULT_SCENARIO`.
        options: fields of `RateScenario`.
        episodes: episodes per policy; episode i has the seed `seed + i`.
        seed: seed of the first.
        folder: where records are kept; None for nowhere.
        overwrite: whether to replace records there.
        checkpoint: of runs, `best` (the latest if none was evaluated) or `latest`.
        show: `show(episodes done, note)`.

    Raises:
        ValueError: an unknown name, or a value that is not allowed.
    """
    names, scenario = check_rate_policies(policies), scenario or DEFAULT_SCENARIO
    check_value("episodes", episodes, Whole(low=1))
    check_seed(seed, count=episodes)
    subjects = [subject_of(name, scenario, dict(options), checkpoint) for name in names]
    texts = {name: str(value) for name, value in options.items()}
    recording = None
    if folder is not None:
        shown = {(name, 0): name for name in names}
        about = facts(scenario=scenario, options=texts, seed=seed)
        recording = Recording(folder, shown, episodes, about, overwrite, tables=RATE_TABLES)
    columns: dict[str, dict[str, np.ndarray]] = {}
    for name, (subject, spec, actor) in zip(names, subjects, strict=True):
        parts = []
        for first in range(0, episodes, BATCH):
            count, done = min(BATCH, episodes - first), len(columns) * episodes + first
            episode = Episodes((name, 0), first, seed + first, count)
            move = partial(_share, show, done, count, name)
            parts.append(run_episodes(subject, spec, actor, episode, move, recording))
        columns[name] = {metric: np.concatenate([x[metric] for x in parts]) for metric in parts[0]}
    summary = {
        "scenario": scenario,
        "options": texts,
        "seed": seed,
        "episodes": episodes,
        "policies": {n: {m: x.tolist() for m, x in own.items()} for n, own in columns.items()},
    }
    records = {
        name: Record(name, {"scenario": scenario}, {m: x[None] for m, x in own.items()})
        for name, own in columns.items()
    }
    keys = np.asarray([jax.random.key_data(jax.random.key(seed + i)) for i in range(episodes)])
    tables = None if recording is None else recording.close()
    return RateResult(summary, records, {n: n for n in names}, keys, Arena(scenario), tables)


@dataclass(frozen=True)
class Episodes:
    """Episodes that are run at once.

    Attributes:
        policy: name of the policy, and the number of its seed, as records have them.
        first: number of the first one.
        seed: seed of the first one; the others follow.
        count: how many.
    """

    policy: tuple[str, int]
    first: int
    seed: int
    count: int


def run_episodes(
    subject: Subject,
    spec: RateScenario,
    actor: PyTree,
    episodes: Episodes,
    progress: Callable[[float], None],
    recording: Recording | None,
) -> dict[str, np.ndarray]:
    """Metrics of episodes, `[count]` each, see `envs.rate.measure`; their records, if any are kept.

    Args:
        subject: what controls the rates.
        spec: the scenario.
        actor: parameters of a policy; None for senders.
        episodes: which.
        progress: called with the share that is done.
        recording: where flows and metrics are written; None for nowhere.
    """
    rows: list[dict[str, Any]] = []
    subject = subject if recording is None else logged(subject)
    metrics = measure(
        subject,
        spec,
        actor=actor,
        seed=episodes.seed,
        seeds=episodes.count,
        progress=progress,
        keep=None if recording is None else partial(_keep, rows, subject),
    )
    if recording is not None:
        numbers = np.arange(episodes.first, episodes.first + episodes.count)
        recording.put_flows(episodes.policy, episodes.first, rows)
        recording.put("episodes", episodes.policy, episodes.first, numbers, metrics)
    return metrics


def logged(subject: Subject) -> Subject:
    """The same with a log of finished flows; a slot holds one flow in these scenarios."""
    sim = replace(subject.sim, flow_log=subject.sim.slots)
    if isinstance(subject, OwnRates):
        return replace(subject, sim=sim)
    assert isinstance(subject, Steered)
    return replace(subject, env=replace(subject.env, sim=sim))


def _share(show: Show, before: int, count: int, note: str, share: float) -> None:
    show(before + share * count, note)


def _keep(rows: list[dict[str, Any]], subject: Subject, ended: Ended) -> None:
    trace = jax.device_get(traces.of_network(subject.sim, ended.net))
    for i in range(len(ended.sent)):
        own = traces.episode_of(trace, i)
        rows.append(flow_columns(subject, ended, own, ended.sent[i]))


def flow_columns(
    subject: Subject, ended: Ended, trace: Mapping[str, Any], sent: np.ndarray
) -> dict[str, Any]:
    """All flows of an episode: `traces.flow_columns`, and `rate_gbps`.

    That is the mean rate at which a flow has sent, headers included: of flows in progress from the
    end of the warm-up on (in long-short from the interruption on), of others over their life.

    Args:
        subject: what controlled the rates.
        ended: the episodes at their end.
        trace: that of one of them.
        sent: bytes that the flow in each of its slots has sent, `[F]`.
    """
    env, params = SimpleNamespace(sim=subject.sim), SimpleNamespace(sim=ended.params)
    columns: dict[str, Any] = traces.flow_columns(env, params, trace)
    finished = columns["finished"]
    header = float(np.asarray(ended.params.net.packet_bytes)) - PAYLOAD
    wire = wire_size(columns["size_bytes"].astype(np.float64), header)
    rate = wire / columns["fct_us"] / GBPS
    slots = trace["slots"]
    at_end = np.flatnonzero(~np.isin(slots["stage"], (life.FREE, life.DONE)))
    start_us = slots["start_step"] * float(subject.sim.dt_us) + slots["start_rest"].astype(float)
    # In the order of the rows: by start, source, size.
    order = np.lexsort((slots["payload"][at_end], slots["src"][at_end], start_us[at_end]))
    rate[~finished] = sent[at_end][order] / ended.elapsed_us / GBPS
    return columns | {"rate_gbps": rate}
