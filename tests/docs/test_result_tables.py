"""Tables of results: what the files in `results/` hold, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from generated import recorded
from synthetic import record

from ecn_marl.experiments.publish import publish


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The module, with an empty folder of results."""
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    return recorded


def write(folder: Path, scenario: str, **changes) -> None:
    """Results of three policies of a scenario."""
    meta = {"stream": "sealed", "commit": "0123456789abcdef"}
    records = [
        record("static:best", scenario=scenario, meta=meta | {"settings": [[5, 320, 0.02]]}),
        record("oracle", (0.4, 1.0, 1.1), scenario=scenario, meta=meta),
        record("ippo", (0.6, 1.0, 1.0), seeds=3, scenario=scenario, meta=meta, **changes),
    ]
    publish({scenario: {one.name: one for one in records}}, folder)


def test_without_results_the_pages_say_so(tables):
    assert tables.leaderboard() == "*No results are recorded in this checkout.*"


def test_invalid_rows_say_so(tables, tmp_path):
    write(tmp_path, "restore-serve-v0", deferred=[9.0] * 6)
    assert "**INVALID** ippo" in tables.leaderboard()


def test_the_leaderboard_has_every_scenario_and_its_commit(tables, tmp_path):
    write(tmp_path / "a", "restore-serve-v0")
    write(tmp_path / "b", "mixed-rtt-v0")
    text = tables.leaderboard()
    assert text.index("## mixed-rtt-v0") < text.index("## restore-serve-v0")
    assert text.count("Scored at commit `0123456789ab`.") == 2
    assert text.count("Sealed test episodes") == 2


def test_one_file_per_scenario(tables, tmp_path):
    write(tmp_path / "a", "restore-serve-v0")
    write(tmp_path / "b", "restore-serve-v0")
    with pytest.raises(ValueError, match="one file with results of restore-serve-v0"):
        tables.measured()


def test_the_page_of_the_papers_has_the_claims_that_were_measured(tables, tmp_path):
    assert tables.papers_pet() == "*No results of `bench pet` are recorded in this checkout.*"
    found = {"value": -4.2, "low": -6.0, "high": -2.0, "cell": "websearch-60", "invalid": ""}
    found["holding"] = "2 of 3"
    claim = {"key": "overall-acc", "text": "overall mean FCT", "paper": -3.9, "unit": "%"}
    columns = dict.fromkeys(("published", "reading", "tuned", "best"))
    columns["published"] = {**found, "verdict": "reproduced"}
    claims = [{**claim, "where": "Fig. 4(a)", "note": "", "columns": columns, "reached": True}]
    paper = {"paper": "pet", "claims": claims}
    paper["protocol"] = {"small": True, "seeds": 5, "episodes": 16}
    (tmp_path / "papers").mkdir()
    file = tmp_path / "papers" / "results.json"
    file.write_text(json.dumps({"papers": [paper]}))
    text = tables.papers_pet()
    assert text.startswith("Small suite, 5 seeds, 16 episodes.")
    figure = "−4.2 % [−6.0, −2.0] (websearch-60, holds in 2 of 3): **reproduced**"
    assert f"| overall mean FCT | Fig. 4(a) | −3.9 % | {figure} | – | – | – |" in text
    assert tables.measured() == {}, "papers are not scenarios of the leaderboard"
