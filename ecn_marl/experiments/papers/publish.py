"""Writes results of papers: JSON, CSV and one HTML page, from records alone.

OUT/results.json   `machine`, `command` and `papers`, see `outcome.py`
OUT/claims.csv     a line for each claim and column
OUT/figures.csv    a line for each cell, row and figure
OUT/report.html    everything, self-contained
OUT/PAPER/…        records, see `run.py`
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ecn_marl._errors import bad_value
from ecn_marl._files import json_text, write_all
from ecn_marl.experiments.papers import suite
from ecn_marl.experiments.papers.outcome import claims_csv, figures_csv, outcome
from ecn_marl.experiments.papers.run import read_results

RESULTS, REPORT, CLAIMS, FIGURES = "results.json", "report.html", "claims.csv", "figures.csv"


def publish(
    outcomes: Sequence[Mapping[str, object]], out: Path, machine: Mapping[str, object], command: str
) -> tuple[str, list[Path]]:
    """Write everything.

    Args:
        outcomes: what `outcome` returned, by paper.
        out: the folder; made if it is not there.
        machine: the machine that it ran on.
        command: the command that repeats it.

    Returns:
        The text of `results.json`, and the files that were written.
    """
    from ecn_marl.render.papers import report_html

    tree = {"machine": dict(machine), "command": command, "papers": list(outcomes)}
    text = json_text(tree, compact=True) + "\n"  # a megabyte less
    plain = json.loads(text)["papers"]
    texts = {
        RESULTS: text,
        CLAIMS: claims_csv(plain),
        FIGURES: figures_csv(plain),
        REPORT: report_html(plain, machine, command),
    }
    out.mkdir(parents=True, exist_ok=True)
    outputs = {out / name: content for name, content in texts.items()}
    write_all(outputs)
    return text, list(outputs)


def rebuild(folder: Path, out: Path) -> tuple[str, list[Path]]:
    """`publish` from the records of a folder, without running anything.

    Protocol, machine and command are those of its `results.json`.

    Args:
        folder: folder of the bench.
        out: where to write.

    Raises:
        ValueError: no `results.json`, or it is not of papers.
    """
    file = folder / RESULTS
    if not file.is_file():
        raise bad_value("folder", str(folder), f"a folder with {RESULTS}")
    stored = json.loads(file.read_text(encoding="utf-8"))
    if "papers" not in stored:
        raise bad_value(RESULTS, str(file), "results of papers")
    outcomes = []
    for paper in stored["papers"]:
        protocol = paper["protocol"]
        paper_suite = suite(paper["paper"], protocol["small"])
        outcomes.append(outcome(paper_suite, read_results(folder / paper["paper"]), protocol))
    return publish(outcomes, out, stored["machine"], stored["command"])
