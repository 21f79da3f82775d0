"""The tables of `ecn-marl bench` and `ecn-marl report`, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ecn_marl._parts import PART, of_steps
from ecn_marl._parts import formula as formula_of
from ecn_marl.baselines.evaluation.completion import verdict
from ecn_marl.render import backend_table
from ecn_marl.render.tables import DASH

COLUMNS = (
    "policy",
    "score",
    "J",
    "short: mean / p99",
    "medium: mean / p99",
    "long: geometric mean / mean / p99",
    "oracle's gain taken",
    "better than the baseline",
    "worse by over 5 %",
)

COUNT_COLUMNS = (
    "policy",
    "offered",
    "started",
    "finished",
    "unfinished",
    "deferred (each, µs)",
    "waiting",
    "dropped",
    "feedback cut",
)

COST_COLUMNS = ("policy", "cost of a decision", "training")

OVERALL_COLUMNS = ("policy", "score, interquartile mean", "score, mean", "seeds")

RATIOS = {
    "short_mean": "short mean",
    "short_p99": "short p99",
    "medium_mean": "medium mean",
    "medium_p99": "medium p99",
    "long_geomean": "long geometric mean",
    "long_mean": "long mean",
    "long_p99": "long p99",
    "queue_mean": "queue",
}
"""Figures whose ratios are shown, and their columns."""

FORMULA = "J = (short mean · short p99)^¼ · (long geometric mean)^½"

NOTE = """\
Lower is better. {formula} of FCT slowdowns; short: \
up to 100 KB, long: above 1 MB. Score: J relative to {baseline} in the same episodes. All are \
geometric means over {episodes} episodes and a learner's seeds; [95 % intervals] are of a paired \
bootstrap over both. ≥: a lower bound, as unfinished flows count with their age so far. Oracle's \
gain taken: the policy's reduction of log J, as a share of the oracle's. Better: share of seeds \
and episodes with a lower J than under {baseline}. Worse: slowdowns over 5 % above those under \
{baseline}, with ? where the interval includes 5 %."""

RATIO_NOTE = "Relative to {baseline} in the same episodes, with [95 % intervals] as above."

COUNT_NOTE = """\
Mean numbers of flows in an episode. Unfinished: started, but not finished at the end. Deferred: \
waited for a slot, in brackets the mean wait. Waiting: never got a slot. Dropped: share of the \
bytes. Feedback cut: share of the flows' time with feedback older than the history that is kept."""

COST_NOTE = """\
Cost of a decision: per port and interval. Exchanged: between agents, or with a central \
controller. Training: time of all seeds together."""


STREAM_NOTES = {
    "tuning": "Tuning episodes (`stream: tuning`), for choosing between policies: no test result.",
    "sealed": "Sealed test episodes (`stream: sealed`); every use is listed in `results/USES.md`.",
}
"""Notes on the episodes that policies were scored on, by stream."""


def bench_table(result: Mapping[str, Any]) -> str:
    """The results as Markdown.

    Args:
        result: `scenarios`, what `compare.compare` returned by scenario, and, of several scenarios,
            `overall`, what `compare.overall` returned; `beside`, see `backends.agreements`.

    Returns:
        For each scenario a table of completion times, best score first and invalid rows last, one
        of their ratios to the baseline, one of counts and one of costs, with notes; what was scored
        on packets, too, beside the fluid; at the end the statistics over all scenarios.
    """
    parts = []
    for scenario, comparison in result["scenarios"].items():
        parts += [f"## {scenario}", *scenario_tables(comparison)]
    for scenario, compared in result.get("beside", {}).items():
        titles = {row["name"]: row for row in result["scenarios"][scenario]["policies"]}
        label = partial(_title_of, titles)
        table = markdown(backend_table.COLUMNS, backend_table.rows(compared, label))
        notes = " ".join(backend_table.notes(compared))
        parts += [f"## {scenario}, beside packets", table, notes]
    if overall := result.get("overall"):
        parts += ["## All scenarios", *_overall(overall)]
    return "\n\n".join(parts) + "\n"


def _title_of(rows: Mapping[str, Mapping[str, Any]], name: str) -> str:
    return policy_title(rows[name])


def scenario_tables(comparison: Mapping[str, Any]) -> list[str]:
    """Blocks of Markdown of one scenario: up to four tables, each with its notes.

    Args:
        comparison: what `compare.compare` returned.
    """
    rows = ranked(comparison["policies"])
    baseline = f"`{comparison['baseline']}`"
    steps = {name: name.removeprefix(PART) for name in of_steps(rows[0]["figures"])}
    weights = rows[0].get("weights")
    formula = formula_of(weights) if weights else FORMULA
    others = [row for row in rows if row["name"] != comparison["baseline"]]
    return [
        markdown(COLUMNS, [row_cells(row, comparison["baseline"]) for row in rows]),
        *_remarks(rows),
        *_streams(rows),
        NOTE.format(baseline=baseline, episodes=comparison["episodes"], formula=formula),
        markdown(
            ("policy", *steps.values(), *RATIOS.values()),
            [_ratio_cells(row, (*steps, *RATIOS)) for row in others],
        ),
        RATIO_NOTE.format(baseline=baseline),
        markdown(COUNT_COLUMNS, [_count_cells(row) for row in rows]),
        COUNT_NOTE,
        *_costs(rows),
    ]


def _streams(rows: list[dict[str, Any]]) -> list[str]:
    """Notes on the episodes, where the records state their stream."""
    streams = dict.fromkeys(row["meta"].get("stream") for row in rows)
    return [STREAM_NOTES[stream] for stream in streams if stream in STREAM_NOTES]


def ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by score, best first; invalid ones and those without a score last."""

    def rank(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
        score = row["score"]["value"]
        unknown = not _is_finite(score)
        return bool(row["invalid"]), unknown, 0.0 if unknown else score

    return sorted(rows, key=rank)


def policy_title(row: Mapping[str, Any]) -> str:
    """Title of a policy; static settings by name and numbers, Kmin, Kmax (KB) and Pmax.

    A learner that earns less of its own reward than a static setting is flagged.
    """
    name = str(row["name"])
    settings = row["meta"].get("settings")
    if isinstance(settings, list) and len(settings) == 1:
        numbers = "{:g},{:g},{:g}".format(*settings[0])
        name += "" if name.endswith(numbers) else f" ({numbers})"
    own = row.get("own")
    flag = " (did not learn)" if own is not None and not own["learnt"] else ""
    return name.replace("static:secn", "SECN") + flag


def row_cells(row: Mapping[str, Any], baseline: str) -> list[str]:
    """A policy's cells, in the order of `COLUMNS`."""
    figures, itself = row["figures"], row["name"] == baseline

    def slowdowns(*names: str) -> str:
        return " / ".join(_slowdown(figures[name]) for name in names)

    name = policy_title(row)
    share = row["share"]
    return [
        f"**INVALID** {name}" if row["invalid"] else name,
        estimated(row["score"]),
        _slowdown(figures["J"]),
        slowdowns("short_mean", "short_p99"),
        slowdowns("medium_mean", "medium_p99"),
        slowdowns("long_geomean", "long_mean", "long_p99"),
        DASH if share is None or itself else estimated(share),
        DASH if itself else estimated(row["improvement"]),
        DASH if itself else ", ".join(_worst(row["worse"])) or "nothing",
    ]


def _ratio_cells(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """A policy's cells in the table of ratios."""
    return [policy_title(row), *(estimated(row["figures"][name]["ratio"]) for name in names)]


def estimated(estimate: Mapping[str, float | None], digits: int = 2) -> str:
    """An estimate as `value [low, high]`; without an interval where it has none."""
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    if not _is_finite(value):
        return DASH
    if not _is_finite(low) or not _is_finite(high) or low == high:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def markdown(columns: Sequence[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    head = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in rows)])


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _slowdown(figure: Mapping[str, Any]) -> str:
    """A slowdown with three digits, marked if it is a lower bound."""
    value = figure["value"]["value"]
    if not _is_finite(value):
        return DASH
    text = f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"≥{text}" if figure["lower_bound"] else text


def _worst(worse: list[dict[str, Any]]) -> list[str]:
    """The figure of each size class that got worse by most, e.g. `long p99 +12 %`."""
    worst: dict[str, dict[str, Any]] = {}
    for entry in worse:
        size = entry["size"]
        if size not in worst or entry["ratio"]["value"] > worst[size]["ratio"]["value"]:
            worst[size] = entry
    names = {"geomean": "geometric mean"}
    shown = []
    for size, entry in worst.items():
        figure = entry["figure"].partition("_")[2]
        rise = 100.0 * (entry["ratio"]["value"] - 1.0)
        mark = "" if entry["certain"] else "?"
        shown.append(f"{size} {names.get(figure, figure)} +{rise:.0f} %{mark}")
    return shown


def _remarks(rows: list[dict[str, Any]]) -> list[str]:
    """Reasons why rows are invalid, and numbers of episodes without J; one block, or none."""
    lines = []
    for row in rows:
        name = policy_title(row)
        if row["invalid"]:
            lines.append(f"* INVALID {name}: {verdict(row)}.")
        if missing := row["figures"]["J"]["missing"]:
            lines.append(f"* {name}: no J in {missing} episodes, which are left out of it.")
    return ["\n".join(lines)] if lines else []


def _count_cells(row: Mapping[str, Any]) -> list[str]:
    """A policy's cells, in the order of `COUNT_COLUMNS`."""
    flows = row["flows"]
    cells = [_count(flows[name]) for name in ("offered", "started", "finished", "unfinished")]
    waited = flows.get("deferred_us")
    # Not printed if no flow was deferred; the guard only avoids a division by 0.
    mean_wait = DASH if waited is None else _count(waited / max(flows["deferred"], 1e-9))
    deferred = f"{_count(flows['deferred'])} ({mean_wait})" if flows["deferred"] else "0"
    shares = [_share(row[name]) for name in ("dropped", "cut")]
    return [policy_title(row), *cells, deferred, _count(flows["waiting"]), *shares]


def _share(value: float) -> str:
    """A share with two digits, so that 0 means none."""
    return "0" if value == 0.0 else f"{100.0 * value:.2g} %"


def _costs(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """A table of costs and its note; empty if no record has costs."""
    cells = [_cost_cells(row) for row in rows]
    rows_with_costs = [row for row in cells if set(row[1:]) != {DASH}]
    return [markdown(COST_COLUMNS, rows_with_costs), COST_NOTE] if rows_with_costs else []


def _cost_cells(row: Mapping[str, Any]) -> list[str]:
    """A policy's cells, in the order of `COST_COLUMNS`."""
    meta = row["meta"]
    cost = []
    if flops := row["costs"].get("flops_per_decision"):
        cost.append(f"{flops:,.0f} FLOPs")
    if (time := meta.get("us_per_decision")) is not None:
        cost.append(f"{time:.1f} µs")
    if exchanged := meta.get("exchanged_bytes_per_second"):
        cost.append(f"{exchanged / 1e3:,.0f} kB/s exchanged")
    training = DASH
    if meta.get("seconds") is not None and meta.get("steps") is not None:
        training = f"{meta['seconds']:,.0f} s, {row['seeds']} x {meta['steps'] / 1e3:,.0f} k steps"
    return [policy_title(row), ", ".join(cost) or DASH, training]


def _count(value: float) -> str:
    """A mean count: small ones with two digits after the point, so that 0 means none."""
    if value == 0.0:
        return "0"
    return f"{value:,.2g}" if value < 1.0 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _overall(overall: Mapping[str, Any]) -> list[str]:
    """Statistics over scenarios, best first, and the policies that are left out."""
    items = sorted(overall["policies"].items(), key=lambda item: item[1]["iqm"]["value"])
    rows = []
    for name, statistics in items:
        title = policy_title({"name": name, "meta": {}})
        cells = [
            estimated(statistics["iqm"]),
            estimated(statistics["mean"]),
            str(len(statistics["scores"])),
        ]
        rows.append([title, *cells])
    parts = [
        markdown(OVERALL_COLUMNS, rows),
        "Scores of all seeds and scenarios, [95 % intervals] of a bootstrap over seeds.",
    ]
    if overall["left_out"]:
        lines = [f"* {name}: {reason}." for name, reason in overall["left_out"].items()]
        parts.append("Left out:\n\n" + "\n".join(lines))
    return parts
