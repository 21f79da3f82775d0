"""From records to tables, figures and `results.json`, without running anything.

    DIR/SCENARIO/scores/NAME.json(.gz)   records, see `experiments/records.py`
    OUT/table.md                         all tables
    OUT/results.json                     every number in them, with intervals
    OUT/marl_eval.json                   the same episodes for marl-eval
    OUT/figures/SCENARIO_ratios.png, …_curves.png, …_profiles.png, all_profiles.png

The same records make the same files. Nothing here needs JAX.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ecn_marl._errors import bad_value
from ecn_marl._files import json_text, write_all
from ecn_marl.experiments.backends import ON_PACKETS, agreements
from ecn_marl.experiments.compare import BASELINE, compare, overall
from ecn_marl.experiments.marl_eval import marl_eval
from ecn_marl.experiments.records import SUFFIXES, Record

SCORES = "scores"
PLAN = "plan.json"
"""File in the folder of a paper's suite, see `papers/run.py`."""
RESULTS, TABLE, MARL_EVAL, FIGURES = "results.json", "table.md", "marl_eval.json", "figures"

Scenarios = Mapping[str, Mapping[str, Record]]
"""Records by scenario and policy."""


def holds_papers(folder: Path) -> bool:
    """Whether a folder is one of `bench pet|acc|haecn|all`."""
    return any(folder.glob(f"*/{PLAN}"))


def read_records(folder: Path) -> dict[str, dict[str, Record]]:
    """All records `folder/**/scores/*.json(.gz)`.

    Records of one `scores` folder are compared with each other. They are keyed by their scenario's
    name. If several folders have records of one scenario (e.g. under other loads), the folder is
    part of the key.

    Raises:
        ValueError: no record, a damaged one, two of one policy, or two scenarios in one folder.
    """
    files = sorted(path for path in folder.glob(f"**/{SCORES}/*") if path.name.endswith(SUFFIXES))
    if not files:
        raise bad_value("folder", str(folder), f"a folder with records, …/{SCORES}/NAME.json")
    places: dict[Path, dict[str, Record]] = {}
    for path in files:
        record, place = Record.load(path), places.setdefault(path.parent.parent, {})
        if record.name in place:
            raise bad_value("record", str(path), f"one record of {record.name!r} in the folder")
        place[record.name] = record
    names = {path: _scenario(path, records) for path, records in places.items()}
    scenarios: dict[str, dict[str, Record]] = {}
    for path, records in places.items():
        name = names[path]
        if list(names.values()).count(name) > 1:
            name = f"{name} ({path.relative_to(folder)})"
        scenarios[name] = records
    return scenarios


def _scenario(path: Path, records: Mapping[str, Record]) -> str:
    """The one scenario of all records of a folder."""
    names = sorted({str(record.meta.get("scenario", path.name)) for record in records.values()})
    if len(names) > 1:
        raise bad_value("scenario", names, f"one scenario in {path / SCORES}")
    return names[0]


def results(scenarios: Scenarios, allow_flagged: bool = False) -> dict[str, Any]:
    """What `results.json` holds; see `compare.compare` for `allow_flagged`.

    Returns:
        `scenarios`: what `compare.compare` returns, by scenario; of several scenarios also
        `overall`, what `compare.overall` returns; `beside`: what `backends.agreement` returns, of
        scenarios that were scored on packets, too.

    Raises:
        ValueError: no `static:best` in a scenario, or records of different episodes.
    """
    comparisons = {}
    for name, records in scenarios.items():
        if BASELINE not in records:
            allowed = f"policies with {BASELINE!r} among them, which scores are relative to"
            raise bad_value(f"records of {name}", sorted(records), allowed)
        comparisons[name] = compare(records, allow_flagged=allow_flagged)
    result: dict[str, Any] = {"scenarios": comparisons}
    if beside := agreements(scenarios):
        result["beside"] = beside
    fluid = {name: x for name, x in comparisons.items() if not name.endswith(ON_PACKETS)}
    return result | ({"overall": overall(fluid)} if len(fluid) > 1 else {})


def stored_facts(folder: Path) -> dict[str, Any]:
    """`protocol` and `machine` of the folder's `results.json`, if it exists.

    Records do not hold them; read here, they are kept when tables are made anew.

    Raises:
        ValueError: the file is not JSON.
    """
    path = folder / RESULTS
    if not path.is_file():
        return {}
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise bad_value(RESULTS, str(path), f"a whole JSON file, or none ({error})") from None
    return {name: tree[name] for name in ("protocol", "machine") if name in tree}


def publish(
    scenarios: Scenarios,
    out: Path,
    facts: Mapping[str, object] | None = None,
    allow_flagged: bool = False,
) -> tuple[dict[str, Any], list[Path]]:
    """Write tables, results and figures.

    Args:
        scenarios: records by scenario and policy.
        out: the folder; made if it is not there.
        facts: further entries of `results.json`, e.g. the protocol and the machine.
        allow_flagged: see `compare.compare`.

    Returns:
        What `results.json` holds, and the files that were written.

    Raises:
        ValueError: see `results`.
        OSError: a file cannot be written.
    """
    from ecn_marl.render.bench_table import bench_table

    result = dict(facts or {}) | results(scenarios, allow_flagged)
    texts = {
        TABLE: bench_table(result),
        RESULTS: json_text(result) + "\n",
        MARL_EVAL: json.dumps(marl_eval(scenarios), allow_nan=False) + "\n",
    }
    outputs: dict[Path, str | bytes] = {out / name: text for name, text in texts.items()}
    for name, picture in _figures(scenarios, result).items():
        outputs[out / FIGURES / name] = picture
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    write_all(outputs)  # all files or none: tables and figures always are of the same records
    return result, list(outputs)


def _figures(scenarios: Scenarios, result: Mapping[str, Any]) -> dict[str, bytes]:
    """Pictures by file name."""
    from ecn_marl.render.results_plots import learning_curves, profiles, ratios

    pictures: dict[str, bytes | None] = {}
    for name, records in scenarios.items():
        comparison = result["scenarios"][name]
        # A split's name has a colon and a slash, which file names must not have.
        file_name = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        if len(records) > 1:
            pictures[f"{file_name}_ratios.png"] = ratios(comparison, f"{name}: completion times")
        curves = learning_curves(list(records.values()), f"{name}: learning curves")
        pictures[f"{file_name}_curves.png"] = curves
        valid = {
            row["name"]: row["over_seeds"]
            for row in comparison["policies"]
            if row["over_seeds"] is not None
        }
        pictures[f"{file_name}_profiles.png"] = profiles(valid, f"{name}: scores of all seeds")
    if "overall" in result:
        title = "All scenarios: scores of all seeds"
        pictures["all_profiles.png"] = profiles(result["overall"]["policies"], title)
    return {name: data for name, data in pictures.items() if data is not None}
