"""Writes `results/sealed.json` from the records of sealed runs.

    python docs/sealed.py runs/bench                # rows of its scenarios
    python docs/sealed.py runs/first runs/second    # policies of several runs in one row
    python docs/sealed.py --new runs/bench          # rows in place of those of an older set
    python docs/sealed.py --file results/x.json runs/bench    # of another set, beside them

A folder is the `--out` of `ecn-marl bench … --sealed`. With `--backend packets` there, rows have
what packets say, too. A row that the file has for a scenario gets further policies if they were
scored in the same episodes of the same simulator: every policy that both have must have the same J
in every episode, within `SAME`. Then the file keeps its own scores of that policy. Otherwise the
row is refused, unless `--new` says that the new run replaces it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl._files import write_all
from ecn_marl.baselines.evaluation.completion import PARTS, invalid_reasons, parts_of
from ecn_marl.baselines.evaluation.statistics import crossed_interval
from ecn_marl.envs.registry import FLUID, PACKETS
from ecn_marl.experiments.backends import ON_PACKETS, agreement, matching
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.sealed import SET

FILE = Path(__file__).parents[1] / "results" / "sealed.json"

CLASSES = ("short_mean", "short_p99", "short_geomean", "long_geomean", "long_mean", "long_p99")
BASE = "static:best"

SAME = 1e-3
"""Relative difference of J in one episode that another kind of processor may make by rounding.
3e-5 is the largest seen; other episodes differ by tens of per cent."""


def row_of(records: Mapping[str, Record], known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The row of a scenario.

    Args:
        records: a record of every policy of the run, `static:best` among them.
        known: the row that the file has and that these policies are added to, or None.

    Raises:
        ValueError: no `static:best`, or a policy that both have differs in an episode.
    """
    if BASE not in records:
        raise bad_value("records", sorted(records), f"a run with {BASE}")
    base = records[BASE]
    row: dict[str, Any] = dict(known or {})
    row |= {
        "scenario": base.meta["scenario"],
        "commit": row.get("commit", base.meta["commit"]),
        "episodes": base.episodes,
        "set": row.get("set", SET),
        "parts": list(parts_of(base.columns)),
    }
    keys = ("scores", "seeds", "classes_to_static", "invalid", "steps", "seconds", "commits")
    row |= {key: dict(row.get(key, {})) for key in keys}
    for name, record in records.items():
        _add(row, name, record, base)
    if not row["commits"]:
        del row["commits"]
    return row | relative(row["scores"])


def _add(row: dict[str, Any], name: str, record: Record, base: Record) -> None:
    """Add a policy to a row."""
    scores = np.round(record.columns["J"], 4).tolist()
    if name in row["scores"]:
        before = row["scores"][name]
        if np.shape(before) != np.shape(scores) or not np.allclose(scores, before, SAME, 0):
            raise bad_value(
                f"J of {name} in {row['scenario']}", "another", "that of the file's row"
            )
        return
    row["scores"][name] = scores
    own, other = _classes(record), _classes(base)
    ratios = {key: float(np.exp(np.nanmean(np.log(own[key]) - np.log(other[key])))) for key in own}
    row["classes_to_static"][name] = {key: round(x, 3) for key, x in ratios.items()}
    if reasons := invalid_reasons(record.columns):
        row["invalid"][name] = reasons
    if record.meta.get("steps"):
        row["seeds"][name] = np.round(np.exp(_mean_logs(record.columns["J"])), 4).tolist()
        row["steps"][name] = record.meta["steps"]
        row["seconds"][name] = record.meta["seconds"]
    if record.meta["commit"] != row["commit"]:
        row["commits"][name] = record.meta["commit"][:12]


def _classes(record: Record) -> dict[str, np.ndarray]:
    """Slowdowns by class of flows, or the parts of J if the scenario declares its own."""
    parts = parts_of(record.columns)
    return {key: record.columns[key] for key in CLASSES} if tuple(parts) == PARTS else parts


def relative(scores: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the scores of a row.

    Args:
        scores: J of each policy, `[seeds, episodes]`.

    Returns:
        `oracle`, the better one; `J`, geometric means; `to_rule` and `to_oracle`, J over theirs
        with its 95 % interval over seeds and episodes, paired; `share` of the gain of the oracle
        over `static:best`, in log J, none without phases, where there is none.
    """
    logs = {name: np.log(np.array(x)) for name, x in scores.items()}
    mean = {name: float(x.mean()) for name, x in logs.items()}
    oracle = min((name for name in mean if name.startswith("oracle")), key=mean.__getitem__)
    gain = mean[BASE] - mean[oracle]
    own = mean if gain else {}
    return {
        "oracle": oracle,
        "J": {name: round(float(np.exp(x)), 4) for name, x in mean.items()},
        "to_rule": _to("rule", logs),
        "to_oracle": _to(oracle, logs),
        "share": {name: round((mean[BASE] - x) / gain, 4) for name, x in own.items()},
    }


def beside_packets(fluid: Mapping[str, Record], packets: Mapping[str, Record]) -> dict[str, Any]:
    """What packets say in the first of the episodes, of learners with the seed that was best.

    Args:
        fluid: records of the policies in the fluid, the rule's among them.
        packets: records of the same policies on packets.

    Returns:
        `J` and `fluid`, geometric means on packets and in the fluid; `to_rule` and
        `fluid_to_rule`, J over the rule's with its 95 % interval, paired by episode; `tau` and `r`
        of `backends.agreement`; `scores`, J of every episode on packets; `episodes` and `set`.
    """
    found = agreement(fluid, packets)
    logs = {name: np.log(record.columns["J"]) for name, record in packets.items()}
    pairs = {name: np.log(matching(fluid[name], record)["J"]) for name, record in packets.items()}
    return {
        "episodes": packets["rule"].episodes,
        "J": {row["name"]: round(row["packets"], 4) for row in found["policies"]},
        "fluid": {row["name"]: round(row["fluid"], 4) for row in found["policies"]},
        "to_rule": _to("rule", logs),
        "fluid_to_rule": _to("rule", pairs),
        "tau": round(found["tau"], 3),
        "r": round(found["r"], 4),
        "scores": {name: np.round(np.exp(x), 4).tolist() for name, x in logs.items()},
        "set": SET,
    }


def _to(other: str, logs: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """J of policies over that of another with its interval, from log J, `[seeds, episodes]`."""
    found = {}
    for name in logs:
        if name != other:
            middle, half = crossed_interval(logs[name] - logs[other])
            ends = np.exp([middle, middle - half, middle + half])
            found[name] = np.round(ends, 4).tolist()
    return found


def _mean_logs(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.nanmean(np.log(values), axis=1))


def records_of(folder: Path, backend: str = FLUID) -> dict[str, dict[str, Record]]:
    """Records of a sealed run by scenario and policy; on packets perhaps none.

    Raises:
        ValueError: the folder has no sealed records.
    """
    found: dict[str, dict[str, Record]] = {}
    for file in sorted(folder.rglob("sealed/scores/*.json")):
        if (file.parents[2].name == PACKETS) != (backend == PACKETS):
            continue
        record = Record.load(file)
        scenario = record.meta["scenario"].removesuffix(ON_PACKETS)
        found.setdefault(scenario, {})[record.name] = record
    if not found and backend == FLUID:
        raise bad_value("folder", str(folder), "the --out of `ecn-marl bench … --sealed`")
    return found


def merged(rows: Sequence[Mapping[str, Any]], folder: Path, new: bool) -> list[dict[str, Any]]:
    """Rows with those of a run.

    Args:
        rows: those of the file.
        folder: of the run.
        new: replace rows of its scenarios; else add policies to them.
    """
    by_scenario = {row["scenario"]: dict(row) for row in rows}
    on_packets = records_of(folder, PACKETS)
    for scenario, records in records_of(folder).items():
        known = None if new else by_scenario.get(scenario)
        by_scenario[scenario] = row_of(records, known)
        if scenario in on_packets:
            by_scenario[scenario]["packets"] = beside_packets(records, on_packets[scenario])
    return list(by_scenario.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Adds runs to the file.

    Args:
        argv: command line, that of the process if None.
    """
    parser = argparse.ArgumentParser(description="Rows of results/sealed.json.")
    parser.add_argument("folders", nargs="+", type=Path, help="runs of `bench --sealed`")
    parser.add_argument("--new", action="store_true", help="replace rows of their scenarios")
    parser.add_argument("--file", type=Path, default=FILE, help="of the rows; made if it is new")
    args = parser.parse_args(argv)
    stored = json.loads(args.file.read_text()) if args.file.is_file() else {"scenarios": []}
    for folder in args.folders:
        stored["scenarios"] = merged(stored["scenarios"], folder, args.new)
    write_all({args.file: json.dumps(stored) + "\n"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
