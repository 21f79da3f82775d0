"""Results of a suite as JSON and CSV: claims, figures of all cells, rows and protocol.

Everything is computed from records. The report and the tables of the documentation read only these
results.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ecn_marl.baselines.evaluation.completion import invalid_reasons
from ecn_marl.baselines.evaluation.windows import SERIES, count_windows, series_column
from ecn_marl.envs.registry import make
from ecn_marl.experiments.own_reward import own_reward
from ecn_marl.experiments.papers import measures as ms
from ecn_marl.experiments.papers.suite import COLUMNS, Cell, Claim, Plot, Results, Row, Suite
from ecn_marl.experiments.records import Record


def outcome(suite: Suite, results: Results, protocol: Mapping[str, object]) -> dict[str, Any]:
    """Everything that the report shows of a paper.

    Args:
        suite: the suite.
        results: records by cell and row.
        protocol: how they were made, see `run.protocol`.

    Returns:
        `paper`, `title`, `notes`, `protocol`; `claims` (see `claim_row`); `cells`, each with its
        `rows` by name (see `_cell_row`); `rows`, their descriptions; `plots`.
    """
    cells = [_cell(cell, results.get(cell.name, {})) for cell in suite.cells]
    return {
        "paper": suite.name,
        "title": suite.title,
        "notes": list(suite.notes),
        "protocol": dict(protocol),
        "claims": [claim_row(claim, results) for claim in suite.claims],
        "cells": cells,
        "rows": [_about(row, results) for row in suite.rows],
        "plots": [_plot(plot) for plot in suite.plots],
    }


def claim_row(claim: Claim, results: Results) -> dict[str, Any]:
    """A claim beside our measurements.

    Returns:
        The fields of the claim but its measure, and `columns`: by name of `suite.COLUMNS`
        the fields of `Measured` and `verdict` (see `measures.verdict`); None where nothing was
        measured. `reached`: whether any of them is as far as the paper's figure.
    """
    columns: dict[str, Any] = {}
    for column in COLUMNS:
        measured = claim.measure(results, column)
        columns[column] = None
        if measured is not None:
            verdict = ms.verdict(claim.paper, measured, claim.unit == "%")
            columns[column] = {**measured._asdict(), "verdict": verdict}
    names = ("key", "text", "paper", "unit", "where", "note")
    facts = {name: getattr(claim, name) for name in names}
    return {**facts, "columns": columns, "reached": _reached(claim, columns)}


def _reached(claim: Claim, columns: Mapping[str, Any]) -> bool | None:
    """Whether a row's figure is as far as the paper's; None if none was measured.

    A change has to reach it, a value has to be within a factor of two. What no row reaches, static
    settings included, cannot be a matter of learning.
    """
    values = [x["value"] for x in columns.values() if x is not None and not x["invalid"]]
    if not values:
        return None
    if claim.unit == "%":
        return any(value * np.sign(claim.paper) >= abs(claim.paper) for value in values)
    return any(0.5 * claim.paper <= value <= 2.0 * claim.paper for value in values)


def _cell(cell: Cell, records: Mapping[str, Record]) -> dict[str, Any]:
    """A cell and the figures of its rows."""
    env = make(cell.scenario, **cell.options)
    return {
        **{name: getattr(cell, name) for name in ("name", "where", "scenario", "training", "x")},
        "options": {name: str(value) for name, value in cell.options.items()},
        "network": env.sim.topology.name,
        "ports": env.num_agents,
        "episode_ms": env.horizon * env.interval_us / 1e3,
        "rows": {name: _cell_row(record) for name, record in records.items()},
    }


def _cell_row(record: Record) -> dict[str, Any]:
    """Figures of a row in a cell: estimates, and means by window over seeds and episodes."""
    windows = count_windows(record.columns)
    over_time = {}
    for name in SERIES if windows else ():
        parts = [series_column(record.columns, name, i, i) for i in range(windows)]
        over_time[name] = [float(np.nanmean(x)) if np.isfinite(x).any() else None for x in parts]
    return {
        "seeds": record.seeds,
        "episodes": record.episodes,
        "invalid": invalid_reasons(record.columns),
        "settings": record.meta.get("settings"),
        "own": own_reward(record),
        "rewards": record.meta.get("rewards"),
        "figures": {name: ms.estimated(record, name) for name in ms.FIGURES},
        "over_time": over_time,
    }


def _about(row: Row, results: Results) -> dict[str, Any]:
    """Description of a row: form, recipe, values that the paper does not state, training time."""
    recipe = None
    if row.recipe is not None:
        tuning = row.recipe.tuning
        recipe = {
            "algorithm": row.recipe.algorithm,
            "options": {name: str(value) for name, value in row.recipe.options.items()},
            "settings": {name: str(value) for name, value in row.recipe.settings.items()},
            "tuning": None if tuning is None else asdict(tuning),
        }
    # A set, since all cells of a training score the same run, whose time counts once.
    seconds = {
        float(records[row.name].meta["seconds"])
        for records in results.values()
        if row.name in records and "seconds" in records[row.name].meta
    }
    return {
        "name": row.name,
        "title": row.title,
        "form": row.form,
        "recipe": recipe,
        "unstated": dict(row.unstated),
        "choices": [choice._asdict() for choice in row.choices],
        "training_seconds": sum(seconds),
    }


def _plot(plot: Plot) -> dict[str, Any]:
    titles = SERIES if plot.over_time else {name: title for name, (title, _) in ms.FIGURES.items()}
    return {**asdict(plot), "titles": {name: titles[name] for name in plot.figures}}


def claims_csv(outcomes: list[dict[str, Any]]) -> str:
    """Claims as CSV: a line for each claim and column."""
    head = ("paper", "claim", "text", "where", "unit", "paper_value", "column", "value", "low")
    rows = []
    for paper in outcomes:
        for claim in paper["claims"]:
            for column, measured in claim["columns"].items():
                names = ("value", "low", "high", "cell", "verdict", "invalid")
                numbers = [None if measured is None else measured[name] for name in names]
                fixed = (claim["key"], claim["text"], claim["where"], claim["unit"], claim["paper"])
                rows.append((paper["paper"], *fixed, column, *numbers))
    return _csv((*head, "high", "cell", "verdict", "invalid"), rows)


def figures_csv(outcomes: list[dict[str, Any]]) -> str:
    """Figures of all cells as CSV: a line for each cell, row and figure."""
    rows = []
    for paper in outcomes:
        for cell in paper["cells"]:
            for name, row in cell["rows"].items():
                for figure, estimate in row["figures"].items():
                    ends = (estimate["value"], estimate["low"], estimate["high"])
                    invalid = "; ".join(row["invalid"])
                    fixed = (paper["paper"], cell["name"], name, row["seeds"], row["episodes"])
                    rows.append((*fixed, figure, *ends, invalid))
    head = ("paper", "cell", "row", "seeds", "episodes", "figure", "value", "low", "high")
    return _csv((*head, "invalid"), rows)


def _csv(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return file.getvalue()
