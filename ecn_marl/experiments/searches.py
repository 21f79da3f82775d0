"""Searches for the reference policies of a scenario, done once and kept on disk.

    FOLDER/NAME.json     the result, with the table of all candidates

A file is valid only for the code, options and effort that made it; for others it is made anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ecn_marl.baselines.oracle import NEEDS, RULE, SEARCHED
from ecn_marl.baselines.search import Effort, Progress, Search, SearchResult
from ecn_marl.envs.registry import VIEW, lookup, make
from ecn_marl.experiments.json_files import json_types, save_json
from ecn_marl.experiments.sources import flow_list, own_sources, searching_code

IRRELEVANT = (*VIEW, "reward", "credit", "reward_options", "reward_reference")
"""Options of `make` that do not change a search by completion times, so requests leave them out."""

REFERENCES = Path(__file__).parent / "references"
"""Searches that ship with the package, `SCENARIO/NAME.json`: those of the recorded results."""

_SEARCHES: dict[str, Search] = {}
"""Searches of this process, by their requests: policies of one scenario share compiled programs and
results, since the oracle starts from the settings of `static:best`. Those that began with results
that ship are apart: a folder is to hold what this code has searched."""


def file_name(policy: str) -> str:
    """The name of a policy or a scenario as part of a file's name."""
    return "".join(c if c.isalnum() or c in "-.+" else "_" for c in policy)


def search_request(scenario: str, options: Mapping[str, object], effort: Effort) -> dict[str, Any]:
    """Everything that a search depends on, in JSON's types."""
    used_options = {name: x for name, x in options.items() if name not in IRRELEVANT}
    facts = {
        "scenario": scenario,
        "options": used_options,
        "effort": asdict(effort),
        "code": searching_code(),
    }
    facts |= own_sources(scenario, used_options, lookup(scenario))
    facts |= flow_list(used_options)
    return json_types(facts, str)


def find(
    name: str,
    scenario: str,
    options: Mapping[str, Any],
    effort: Effort | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """The settings of a reference policy.

    Args:
        name: one of `oracle.SEARCHED`, or `oracle.CHOICES`.
        scenario: name of the scenario.
        options: options of `ecn_marl.make`.
        effort: how much is searched.
        folder: where it is kept. None: results that ship with the package (`REFERENCES`) are
            used if options and effort are the same; others are kept in memory only.
        progress: called with the episodes run so far and the current task.

    Raises:
        ValueError: see `Search.find`.
    """
    effort = effort or Effort()
    options = {**options, **NEEDS.get(name, {})}
    facts = search_request(scenario, options, effort)
    key = json.dumps({**facts, "shipped": folder is None}, sort_keys=True)
    if key not in _SEARCHES:
        env = make(scenario, **{n: x for n, x in options.items() if n not in IRRELEVANT})
        _SEARCHES[key] = Search(env, env.default_params, effort)
    search = _SEARCHES[key]
    search.report_to(progress)
    for file in sorted((folder or REFERENCES / file_name(scenario)).glob("*.json")):
        stored = json.loads(file.read_text())
        if folder is None:  # results that ship stay valid for newer code
            stored["asked"]["code"] = facts["code"]
        if stored["asked"] == facts:
            search.add(SearchResult.from_dict(stored["found"]))
    result = search.find(name)
    if folder is not None:
        for search_result in search.results.values():
            _write(folder / f"{file_name(search_result.name)}.json", facts, search_result)
    return result


def shipped(scenario: str) -> tuple[str, ...]:
    """Reference policies of a scenario whose search ships with the package."""
    files = sorted((REFERENCES / file_name(scenario)).glob("*.json"))
    names = (json.loads(file.read_text())["found"]["name"] for file in files)
    return tuple(name for name in names if name in SEARCHED)


def shipped_search(
    name: str, scenario: str, options: Mapping[str, object], effort: Effort | None = None
) -> SearchResult | None:
    """A search that ships with the package; None if it was made for other episodes.

    Args:
        name: one of `oracle.SEARCHED`, or `oracle.CHOICES`.
        scenario: name of the scenario.
        options: options of `ecn_marl.make`.
        effort: how much was searched.
    """
    file = REFERENCES / file_name(scenario) / f"{file_name(name)}.json"
    if not file.is_file():
        return None
    stored = json.loads(file.read_text())
    facts = search_request(scenario, {**options, **NEEDS.get(name, {})}, effort or Effort())
    stored["asked"]["code"] = facts["code"]  # results that ship stay valid for newer code
    return SearchResult.from_dict(stored["found"]) if stored["asked"] == facts else None


def listed(result: SearchResult) -> list[list[float]]:
    """Settings as a list of `[kmin, kmax, pmax]`: one if all phases and groups have the same.

    For the rule its deep and its shallow setting; otherwise by phases, then groups.
    """
    rows: list[list[float]] = (
        result.settings[:6].reshape(2, 3).tolist()
        if result.name == RULE
        else result.settings.reshape(-1, 3).tolist()
    )
    return rows[:1] if all(row == rows[0] for row in rows) else rows


def _write(file: Path, facts: Mapping[str, object], result: SearchResult) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_json(file, {"asked": facts, "found": result.as_dict()})
