"""The tables of Tessler et al. 2021, measured anew: learners of rates beside rule-based senders.

    OUT/runs/LEARNER-seedK/…                 the run
    OUT/runs/LEARNER-seedK.json              its settings, and the code that trained it
    OUT/runs/LEARNER-seedK-int8.npz          its policy, quantised
    OUT/cells/SCENARIO/POLICY-seedK.json     metrics of a policy in a scenario, one episode

Learners are trained on many-to-one alone, as their settings say, with as many seeds as episodes.
Seed K of a learner is measured in the episode of seed K, like all other policies; so in records,
which are kept in a folder for each scenario, senders have that seed, too. `LEARNER:int8` is
the same run, quantised after training. Results for the same code, scenario and training are not
made again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._files import without_nan
from ecn_marl._lock import locked
from ecn_marl.baselines.algorithms import RATE_ALGORITHMS
from ecn_marl.baselines.exporting.files import save_policy
from ecn_marl.baselines.training.checkpoint import write_json
from ecn_marl.envs.rate.scenarios import RateScenario, with_options
from ecn_marl.experiments.json_files import json_types
from ecn_marl.experiments.rate import UPDATES, rate_policy_of, subject_of, train_rate
from ecn_marl.experiments.rate_evaluation import RATE_TABLES, Episodes, run_episodes
from ecn_marl.experiments.rate_paper import printed
from ecn_marl.experiments.recording import Recording, close, facts
from ecn_marl.experiments.sources import code
from ecn_marl.experiments.workflow import Show
from ecn_marl.sim.transports import TRANSPORTS, parse_transport

POLICIES = ("adpg", "adpg:int8", "dcqcn:hpcc-paper", "hpcc:sigcomm19", "swift:htsim")
"""Rows of the tables by default."""

INT8 = "int8"
"""Suffix `:int8` of a learner's name: its quantised policy."""

FULL: dict[str, dict[str, float]] = {
    **{f"many-to-one-{n}-v0": {} for n in (2, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)},
    "many-to-one-8192-v0": {},
    **{f"all-to-all-{n}-v0": {} for n in (4, 8)},
    **{f"long-short-{n}-v0": {} for n in (2, 128, 1024, 2048)},
}
"""Scenarios of the paper's tables, and fields that differ from the registered scenario."""

SHORT = {"duration_us": 4e5, "warm_up_us": 2e5}

SMALL: dict[str, dict[str, float]] = {
    **{f"many-to-one-{n}-v0": SHORT for n in (2, 16, 128)},
    **{f"all-to-all-{n}-v0": {"duration_us": 1e5, "warm_up_us": 5e4} for n in (4, 8)},
    **{f"long-short-{n}-v0": {} for n in (2, 128)},
}
"""Scenarios of `--small`: minutes on two cores."""

SMALL_UPDATES = 1000
"""Updates of every learner with `--small`."""


def of_sizes(
    scenarios: Mapping[str, Mapping[str, object]], smallest: int | None, largest: int | None
) -> dict[str, Mapping[str, Any]]:
    """The scenarios with so many flows to a host, or that interrupt the long flow.

    Args:
        scenarios: scenarios by name, with fields of `RateScenario`.
        smallest: flows at least; None for any. With a number, all to all is left out.
        largest: flows at most; None for any.

    Raises:
        ValueError: no many-to-one scenario has.
    """
    selected = {}
    for name, options in scenarios.items():
        spec = with_options(name, dict(options))
        if spec.kind == "all-to-all":
            chosen = smallest is None
        else:
            chosen = (smallest or 1) <= spec.size <= (math.inf if largest is None else largest)
        if chosen:
            selected[name] = options
    if not any(with_options(name, {}).kind == "many-to-one" for name in selected):
        sizes = [with_options(n, {}).size for n in scenarios if n.startswith("many-to-one")]
        allowed = (
            f"numbers around the flows of a many-to-one scenario, {min(sizes)} to {max(sizes)}"
        )
        name, value = ("smallest", smallest) if largest is None else ("largest", largest)
        raise bad_value(name, value, allowed)
    return selected


@dataclass(frozen=True)
class RatePlan:
    """What to compare.

    Attributes:
        out: folder of the bench.
        policies: rows: names in `RATE_ALGORITHMS`, with `:int8` if they are quantised, and senders.
        seeds: seeds of every learner, and episodes of every policy.
        scenarios: scenarios by name, with fields of `RateScenario`.
        updates: updates of every learner.
        records: folder for records of all flows and episodes; None for none.
        overwrite: whether to replace records that are there.
    """

    out: Path
    policies: tuple[str, ...] = POLICIES
    seeds: int = 5
    scenarios: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: FULL)
    updates: int = UPDATES
    records: Path | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Check numbers and names before work begins.

        Raises:
            ValueError: an unknown policy or scenario, or numbers that are not allowed.
        """
        for name, value in {"seeds": self.seeds, "updates": self.updates}.items():
            if value < 1:
                raise bad_value(name, value, "an integer >= 1")
        if not self.policies:
            raise bad_value("policies", self.policies, f"names, e.g. {', '.join(POLICIES)}")
        for policy in self.policies:
            _check_policy(policy)
        for scenario in self.scenarios:
            self.spec(scenario)

    def spec(self, scenario: str) -> RateScenario:
        """A scenario of the plan."""
        return with_options(scenario, dict(self.scenarios[scenario]))


def row_names(text: str) -> tuple[str, ...]:
    """Names of policies from `NAME,NAME,…`; options of senders keep their commas."""
    names: list[str] = []
    for part in text.split(","):
        if "=" in part and names and ":" in names[-1]:
            names[-1] += f",{part}"
        else:
            names.append(part.strip())
    return tuple(dict.fromkeys(names))


def rate_bench(plan: RatePlan, show: Callable[[str], Show]) -> dict[str, Any]:
    """Train and measure everything that has no result yet.

    Args:
        plan: what to compare.
        show: `show(task)(done, note)` reports progress, `done` a share of the task.

    Returns:
        `protocol`; `scenarios`: of each by name `kind`, `size`, `options` and `policies`, and of
        each of these, metrics by name, a list with a number per seed, and the `paper`'s numbers.

    Raises:
        FolderInUse: another process works in the folder.
    """
    with locked(plan.out, "bench"):
        return _bench(plan, show)


def _bench(plan: RatePlan, show: Callable[[str], Show]) -> dict[str, Any]:
    """Run `rate_bench` in a locked folder."""
    learners = dict.fromkeys(p.partition(":")[0] for p in plan.policies if _is_learner(p))
    trained = {name: _train(plan, name, show) for name in learners}
    scenarios: dict[str, Any] = {}
    for scenario in plan.scenarios:
        spec, rows = plan.spec(scenario), {}
        recording = _recording(plan, scenario, trained)
        for policy in plan.policies:
            move = show(f"{scenario}: {policy}")
            cells = [
                _cell(plan, scenario, policy, seed, trained, move, recording)
                for seed in range(plan.seeds)
            ]
            metrics = {name: [cell[name] for cell in cells] for name in cells[0]}
            rows[policy] = {"metrics": metrics, "paper": printed(spec.kind, spec.size, policy)}
        close(recording)
        scenarios[scenario] = {
            "kind": spec.kind,
            "size": spec.size,
            "options": dict(plan.scenarios[scenario]),
            "policies": rows,
        }
    protocol = {"seeds": plan.seeds, "updates": plan.updates, "training": trained, "code": code()}
    return {"protocol": protocol, "scenarios": scenarios}


def _recording(plan: RatePlan, scenario: str, trained: Mapping[str, object]) -> Recording | None:
    """Records of a scenario; those that are there are kept if they are of the same plan."""
    if plan.records is None:
        return None
    shown = {(policy, seed): policy for policy in plan.policies for seed in range(plan.seeds)}
    about = facts(
        scenario=scenario,
        options=json_types(asdict(plan.spec(scenario))),
        training=json_types(dict(trained)),
    )
    folder = plan.records / scenario
    return Recording(folder, shown, 1, about, plan.overwrite, resume=True, tables=RATE_TABLES)


def _is_learner(policy: str) -> bool:
    return policy.partition(":")[0] in RATE_ALGORITHMS


def _check_policy(policy: str) -> None:
    """Raise a ValueError for an unknown policy."""
    name, _, form = policy.partition(":")
    if not _is_learner(policy):
        if name not in TRANSPORTS:
            raise unknown_name("policy", name, (*RATE_ALGORITHMS, *TRANSPORTS))
        parse_transport(policy)
    elif form not in ("", INT8):
        raise bad_value("policy", policy, f"{name} or {name}:{INT8}")


def _train(plan: RatePlan, name: str, show: Callable[[str], Show]) -> dict[str, Any]:
    """Train all seeds of a learner; returns its settings and updates, which its cells depend on."""
    config = RATE_ALGORITHMS[name].config_class()
    request = json_types({"settings": asdict(config), "updates": plan.updates, "code": code()})
    for seed in range(plan.seeds):
        run = _run(plan, name, seed)
        if _read(_request_file(run)) == request:
            continue
        move = show(f"train {name}, seed {seed}")

        def report(row: dict[str, Any], total: int, move: Show = move) -> None:
            move(row["update"] / total, f"reward {row['reward']:.4f}")

        # Neither is of the run that follows, even if that is killed.
        for file in (_quantised(run), _request_file(run)):
            file.unlink(missing_ok=True)
        steps = plan.updates * config.steps_per_update
        train_rate(name, run, steps=steps, seed=seed, overwrite=True, progress=report)
        # Last, so that a training that was killed is not taken for a finished one.
        write_json(_request_file(run), request)
    return {key: request[key] for key in ("settings", "updates")}


def _cell(
    plan: RatePlan,
    scenario: str,
    policy: str,
    seed: int,
    trained: Mapping[str, object],
    move: Show,
    recording: Recording | None,
) -> dict[str, float]:
    """Metrics of one policy and seed in a scenario."""
    spec = plan.spec(scenario)
    name, _, form = policy.partition(":")
    asked = {
        "scenario": scenario,
        "fields": asdict(spec),
        "policy": policy,
        "seed": seed,
        "training": trained.get(name) if _is_learner(policy) else None,
        "code": code(),
    }
    request = json_types(asked)
    file = plan.out / "cells" / scenario / f"{policy.replace(':', '-')}-seed{seed}.json"
    stored = _read(file)
    recorded = recording is None or recording.has(policy, seed)
    if recorded and stored is not None and stored["asked"] == request:
        metrics: dict[str, float] = stored["metrics"]
        # NaN, e.g. a recovery that never came, is null in the file.
        return {key: float("nan") if x is None else x for key, x in metrics.items()}
    source = policy
    if _is_learner(policy):
        run = _run(plan, name, seed)
        source = str(_quantised(run) if form else run)
        if form and not _quantised(run).is_file():
            save_policy(rate_policy_of(run, int8=True), _quantised(run))
    subject, spec, actor = subject_of(source, scenario, dict(plan.scenarios[scenario]))

    def report(share: float) -> None:
        move((seed + share) / plan.seeds, f"seed {seed}")

    episode = Episodes((policy, seed), 0, seed, 1)
    measured = run_episodes(subject, spec, actor, episode, report, recording)
    metrics = {key: float(values[0]) for key, values in measured.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, without_nan({"asked": request, "metrics": metrics}))
    return metrics


def _run(plan: RatePlan, name: str, seed: int) -> Path:
    return plan.out / "runs" / f"{name}-seed{seed}"


def _quantised(run: Path) -> Path:
    return run.with_name(f"{run.name}-{INT8}.npz")


def _request_file(run: Path) -> Path:
    return run.with_name(f"{run.name}.json")


def _read(file: Path) -> Any:
    """Content of a JSON file; None if it does not exist."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
