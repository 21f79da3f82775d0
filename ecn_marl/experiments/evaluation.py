"""`ecn_marl.evaluate`, which is also the command `eval`: policies on the same episodes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ecn_marl._checks import Whole, check_seed, check_value
from ecn_marl._errors import bad_value
from ecn_marl._garbage import seldom_collected
from ecn_marl._regimes import REGIMES
from ecn_marl._tables import check_folder
from ecn_marl.baselines.evaluation import traces
from ecn_marl.baselines.evaluation.completion import summarise
from ecn_marl.baselines.evaluation.episodes import Evaluation, evaluation_keys
from ecn_marl.baselines.evaluation.statistics import over_seeds
from ecn_marl.baselines.oracle import BEST
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import FLUID, is_packets
from ecn_marl.envs.settings import BASE_GBPS
from ecn_marl.experiments import rate
from ecn_marl.experiments.backends import agreement
from ecn_marl.experiments.compare import compare
from ecn_marl.experiments.executors import (
    Task,
    check_workers,
    executor,
    of_arena,
    run_episodes,
)
from ecn_marl.experiments.policies import (
    Arena,
    Named,
    OwnPolicy,
    RunOf,
    Searched,
    arena,
    resolve,
)
from ecn_marl.experiments.rate_evaluation import evaluate_rates
from ecn_marl.experiments.recording import Keep, Recording, facts
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.results import Result
from ecn_marl.experiments.workflow import Show
from ecn_marl.render.bars import notebook_progress
from ecn_marl.sim.regimes import regimes_of
from ecn_marl.sim.units import KB

EPISODES, RATE_EPISODES = 64, 1
"""Episodes of each policy, if nothing else is asked for; where flows are the agents."""


@seldom_collected()
def evaluate(
    policies: Any,
    scenario: str | None = None,
    *,
    episodes: int | None = None,
    seed: int = 0,
    records: bool | str | PathLike[str] = True,
    overwrite: bool = False,
    checkpoint: str = "best",
    allow_flagged: bool = False,
    show: Show | None = None,
    backend: str = FLUID,
    workers: int | str = 1,
    beside: bool = False,
    check: bool = False,
    **options: Any,
) -> Result:
    """Evaluate policies on the same episodes, which no policy was trained on.

    Where flows are the agents (by the scenario, else by the first policy) these are runs and files
    of such learners, and senders such as `swift:htsim`, and the result is a
    `rate_evaluation.RateResult`, with `.episodes` and `.flows`.

    Args:
        policies: one, or several: names as the command `eval` takes them (`static:best`, `rule`,
            `runs/first`, `pretrained:…`, a file), what `train` and `load_policy` return, and a
            user's own functions, see `experiments.policies.OwnPolicy`.
        scenario: name of a scenario; None for that of the first trained policy, else
            `restore-serve-v0`.
        episodes: episodes of each policy; None for 64, or 1 where flows are the agents.
        seed: which tuning episodes.
        records: a new folder for the tables of flows, ports and episodes; True for a temporary
            one, which is removed with the result; False to keep none: an evaluation takes some
            per cent less time then.
        overwrite: whether records in the folder are replaced.
        checkpoint: which policy of a run: `best` (the latest if none was evaluated), `latest`.
        allow_flagged: whether results that do not count are scored all the same, see
            `completion.invalid_reasons`.
        show: moves a progress bar, `show(episodes done, note)`; None for one in notebooks.
        backend: what simulates the network: `fluid` or `packets`, see `registry.make`.
        workers: processes, each of which runs one episode at a time, or a cluster, see
            `executors.executor`; for packets.
        beside: with packets, whether to run the same episodes in the fluid, too: the result has
            that evaluation as `fluid`, and a table of the differences.
        check: whether to hold the completion times of all flows against what every link can have
            carried (`sim.replay.capacity`); time grows with the square of a link's flows.
        **options: options of `ecn_marl.make`, e.g. `load=0.5`; `max_steps` counts the intervals of
            the scenario, whatever those of a policy are. Where flows are the agents, fields of
            `RateScenario`.

    Raises:
        ValueError: an unknown name, an option that a policy brings along itself, a policy that
            does not fit the scenario, or a folder that holds something else.
        BrokenInvariant: with `check`, flows are through a link before it can have carried them.
    """
    given_policies = listed(policies)
    folder = None if isinstance(records, bool) else Path(fspath(records))
    if folder is not None:
        check_folder(folder, overwrite)
    temporary = tempfile.TemporaryDirectory(prefix="ecn-marl-") if records is True else None
    if temporary is not None:
        folder = Path(temporary.name) / "records"
    if rate.is_rate_evaluation([_name(x) for x in given_policies], scenario):
        given = {"backend": backend, "workers": workers, "beside": beside, "check": check}
        _refuse_of_ports(given | {"allow_flagged": allow_flagged})
        count = RATE_EPISODES if episodes is None else episodes
        with notebook_progress("evaluate", count * len(given_policies), show) as move:
            rates = evaluate_rates(
                given_policies,
                scenario,
                options=options,
                episodes=count,
                seed=seed,
                folder=folder,
                overwrite=overwrite,
                checkpoint=checkpoint,
                show=move,
            )
        rates.temporary = temporary
        return rates
    episodes = EPISODES if episodes is None else episodes
    check_value("episodes", episodes, Whole(low=1))
    check_seed(seed)
    check_workers(workers, backend)
    if not is_packets(backend) and beside:
        raise bad_value("beside", beside, "False without packets: it compares packets to the fluid")
    named = [_of_ports(policy) for policy in given_policies]
    place = replace(arena(named, scenario, **options), checkpoint=checkpoint, backend=backend)
    members = [resolve(x) for policy in named for x in members_of(policy)]
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise bad_value("policies", twice, "each of them once, under names of their own")
    total = episodes * len(members) * (2 if beside else 1)
    bar = notebook_progress("evaluate", total, show)
    with bar as move, executor(workers) as pool:
        result = _evaluate(
            place, members, episodes, seed, folder, overwrite, allow_flagged, move, pool, check
        )
        if beside:
            _put_beside(result, members, allow_flagged, partial(_later, move, total // 2))
    result.temporary = temporary
    return result


def listed(policies: Any) -> list[Any]:
    """The policies, one or several."""
    several = isinstance(policies, Iterable) and not isinstance(policies, str | PathLike)
    found = list(policies) if several and not callable(policies) else [policies]
    if not found:
        raise bad_value("policies", found, "at least one")
    return found


def _name(policy: Any) -> str:
    """The name of a policy; empty if it has none."""
    return fspath(policy) if isinstance(policy, str | PathLike) else ""


def _of_ports(policy: Any) -> Named:
    """A policy of ports, resolved."""
    if rate.is_rate_evaluation([_name(policy)], None):
        allowed = "a policy of ports, as the first one: this one sets rates of flows"
        raise bad_value("policy", _name(policy), allowed)
    return resolve(policy)


def _refuse_of_ports(given: Mapping[str, Any]) -> None:
    """Refuse settings that evaluations of rates do not have."""
    usual = {"backend": FLUID, "workers": 1, "beside": False}
    usual |= {"check": False, "allow_flagged": False}
    for name, value in given.items():
        if value != usual[name]:
            allowed = f"{usual[name]!r} where flows are the agents"
            raise bad_value(name, value, allowed)


def members_of(policy: Named) -> list[Any]:
    """The single policies that one stands for, see `Named.members`."""
    return [policy] if isinstance(policy, OwnPolicy) else list(policy.members)


def seed_of(name: str) -> tuple[str, int]:
    """A policy's name without the number of its seed, and that number."""
    folder, _, number = name.partition("#")
    return (folder, int(number)) if number.isdecimal() else (name, 0)


def shown(policy: Named) -> str:
    """How a policy is shown among its records: all seeds of a run together."""
    if isinstance(policy, RunOf):
        return resolve(policy.folder).label
    return policy.label


def _evaluate(
    place: Arena,
    members: list[Named],
    episodes: int,
    seed: int,
    folder: Path | None,
    overwrite: bool,
    allow_flagged: bool,
    show: Show,
    pool: Executor | None,
    check: bool,
) -> Result:
    """Evaluate single policies in an arena; searches report their progress, too."""
    done, total = 0, episodes * len(members)

    def searching(runs: int, note: str) -> None:
        show(done, f"{note}, {runs:,} episodes so far")

    place = replace(place, progress=searching)
    # All controllers first: what does not fit is an error before anything is run.
    ready = [(policy, place.env(policy), place.controller(policy)) for policy in members]
    recording = None
    if folder is not None:
        about = facts(scenario=place.scenario, options=texts(place.options), seed=seed)
        seeds = {seed_of(x.name): shown(x) for x in members}
        recording = Recording(folder, seeds, episodes, about, overwrite)
    evaluations: dict[str, Evaluation] = {}
    more: dict[str, dict[str, Any]] = {}
    for policy, env, controller in ready:
        done = len(evaluations) * episodes
        show(done, f"{policy.label}: compiling" if done < total else "")
        progress = partial(_progress, show, done, policy.label)
        keep = _keep(recording, policy.name, check)
        found = controller if isinstance(policy, Searched) else None  # none searches again
        build = partial(of_arena, replace(place, progress=None), policy, found)
        task = Task(policy.name, build, evaluation_keys(seed, episodes))
        evaluations[policy.name] = run_episodes(pool, task, (env, controller), progress, keep)
        more[policy.name] = {"interval_us": env.interval_us}
        if (settings := policy.settings(place)) is not None:
            more[policy.name]["settings"] = settings
        if (found := policy.found(place)) is not None:
            more[policy.name]["found"] = found
    tables = None if recording is None else recording.close()
    records = grouped(evaluations, {"scenario": place.scenario, "eval_seed": seed})
    rows = rows_of(records, allow_flagged)
    for row in rows:
        first = next(name for name in more if seed_of(name)[0] == seed_of(row["name"])[0])
        row |= more[first]
    summary = {
        "scenario": place.scenario,
        "backend": place.backend,
        "options": place.options,
        "episodes": episodes,
        "seed": seed,
        "policies": rows,
        "regimes": _regimes(place.backend, ready, more),
    }
    labels = {policy.name: policy.label for policy in members}
    reset_keys = jax.vmap(lambda key: jax.random.split(key)[0])(evaluation_keys(seed, episodes))
    words = np.asarray(jax.random.key_data(reset_keys))
    return Result(summary, records, labels, words, place, tables)


def _regimes(
    backend: str, ready: Sequence[tuple[Named, EcnEnv, Any]], more: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Regimes of any policy in which the fluid is off, see `sim.regimes`; none on packets."""
    if is_packets(backend):
        return []
    found: set[str] = set()
    for policy, env, _ in ready:
        kmin = [row[0] for row in more[policy.name].get("settings", ())]
        slowest = min(port.gbps for port in env.sim.topology.ports) / BASE_GBPS
        found |= set(regimes_of(env.sim, KB * slowest * min(kmin, default=np.inf)))
    return [row.name for row in REGIMES if row.name in found]


def _put_beside(result: Result, members: list[Named], allow_flagged: bool, show: Show) -> None:
    """Run the same episodes in the fluid, and put both beside each other."""
    place, summary = replace(result.arena, backend=FLUID), result.summary
    count, seed = summary["episodes"], summary["seed"]
    fluid = _evaluate(place, members, count, seed, None, False, allow_flagged, show, None, False)
    result.fluid = fluid
    summary["beside"] = agreement(fluid.records, result.records)


def _later(show: Show, before: int, done: float, note: str = "") -> None:
    show(before + done, note)


def _keep(recording: Recording | None, name: str, check: bool) -> Keep | None:
    """What is done with the traces of a batch; None if nothing is."""
    write = None if recording is None else recording.keep(*seed_of(name))
    if not check:
        return write

    def checked(first: int, env: Any, params: PyTree, metrics: dict[str, Any]) -> None:
        trace = metrics[traces.TRACE]
        for i in range(len(metrics["reward"])):
            rows = traces.flow_columns(env, params, traces.episode_of(trace, i))
            traces.check_flows(env, params, rows)
        if write is not None:
            write(first, env, params, metrics)

    return checked


def _progress(show: Show, before: int, note: str, done: int) -> None:
    show(before + done, note)


def texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON has them; others as text."""
    plain = (bool, int, float, str, type(None))
    return {name: x if isinstance(x, plain) else str(x) for name, x in options.items()}


def grouped(evaluations: Mapping[str, Evaluation], meta: Mapping[str, object]) -> dict[str, Record]:
    """A record of every policy, then one over all seeds of every run with several seeds."""
    groups: dict[str, list[Evaluation]] = {
        policy: [evaluation] for policy, evaluation in evaluations.items()
    }
    for policy, evaluation in evaluations.items():
        if "#" in policy:  # one of several seeds of a run
            groups.setdefault(seed_of(policy)[0], []).append(evaluation)
    return {
        name: Record.of(name, parts, meta)
        for name, parts in groups.items()
        if name in evaluations or len(parts) > 1
    }


def rows_of(records: Mapping[str, Record], allow_flagged: bool) -> list[dict[str, Any]]:
    """Summaries of policies.

    Returns:
        The summary of each (see `completion.summarise`); of several seeds with `statistics` of
        their J (see `statistics.over_seeds`). With `static:best` among the policies, each also has
        its `score`, `share` of the oracle's gain, `improvement` and what got `worse` (see
        `compare.compare`).
    """
    rows = [_summary(record, allow_flagged) for record in records.values()]
    if BEST in records:
        compared = compare(records, allow_flagged=allow_flagged)
        for row, comparison_row in zip(rows, compared["policies"], strict=True):
            names = ("score", "share", "improvement", "worse")
            row |= {name: comparison_row[name] for name in names}
    return rows


def _summary(record: Record, allow_flagged: bool) -> dict[str, Any]:
    """Summary of a policy, with statistics of its seeds if there are several."""
    summary = summarise(record.name, record.columns, allow_flagged)
    if record.seeds == 1 or summary["refused"]:
        return summary
    if not np.isfinite(record.columns["J"]).all():
        return summary
    seed_means = np.exp(np.log(record.columns["J"]).mean(1))
    return summary | {"statistics": over_seeds(seed_means[:, None]) | {"of": "J"}}
