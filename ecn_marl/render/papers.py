"""The report of `ecn-marl bench pet|acc|haecn`: one HTML file, and tables in Markdown."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import cycle
from typing import Any

import jinja2
import numpy as np

from ecn_marl.render.plots import COLOURS, INK, Page
from ecn_marl.render.tables import DASH

TITLES = {
    "published": "as published",
    "reading": "best reading",
    "tuned": "tuned",
    "best": "static:best",
}
"""Columns of the table of claims."""

MEANING = {
    "reproduced": "the interval holds the paper's figure, excludes 0, and is no wider than it",
    "beyond": "the whole interval lies beyond the paper's figure",
    "weaker": "the interval has the paper's sign, but ends before the paper's figure",
    "too wide": "the interval holds the paper's figure, but is wider than the figure itself",
    "not": "the interval contains 0; for a value that is no change, it misses the paper's figure",
    "opposite": "the whole interval has the other sign",
    "did not learn": "no verdict: a learner earns less of its own reward than a static setting",
    "too few seeds": "no verdict: a learner has fewer than three seeds",
    "invalid": "does not count: too many flows waited for a slot, or too many bytes or too much "
    "feedback was lost",
}
"""Verdicts, in words."""

DRAWN = ("static:secn1", "static:secn2", "static:best", "oracle")
"""Rules that are drawn; the others are in the tables."""

STYLES = {
    "published": "-",
    "reading": "-",
    "alternative": ":",
    "tuned": "--",
    "online": "-.",
    "ablated": ":",
    "rule": ":",
}


def claims_markdown(outcome: Mapping[str, Any]) -> str:
    """The claims of a paper as a table in Markdown.

    Args:
        outcome: what `experiments.papers.outcome.outcome` returned.
    """
    head = ("claim", "where", "paper", *TITLES.values())
    rows = []
    for claim in outcome["claims"]:
        cells = [claim_cell(claim, column) + _in_words(claim, column) for column in TITLES]
        paper = amount(claim["paper"], claim["unit"])
        if claim["reached"] is False:
            paper += "; beyond every row"
        rows.append((claim["text"], claim["where"], paper, *cells))
    return _markdown(head, rows)


def _in_words(claim: Mapping[str, Any], column: str) -> str:
    """The verdict of a learner's column, after its figure."""
    measured = claim["columns"][column]
    if measured is None or column == "best" or not measured["verdict"]:
        return ""
    return f": **{measured['verdict']}**"


def own_markdown(outcome: Mapping[str, Any]) -> str:
    """Every learner beside the best static setting under its own reward, as a table in Markdown.

    Args:
        outcome: what `experiments.papers.outcome.outcome` returned.
    """
    head = (
        "cell",
        "learner",
        "own reward",
        "best static",
        "its setting",
        "margin",
        "queue, KB",
        "",
    )
    rows = []
    for cell in outcome["cells"]:
        for name, row in cell["rows"].items():
            own = row["own"]
            if own is None:
                continue
            setting = ", ".join(f"{x:g}" for x in own["setting"])
            margin = own["margin"]
            ends = f"[{margin['low']:+.4f}, {margin['high']:+.4f}]"
            rows.append(
                (
                    cell["name"],
                    f"`{name}`",
                    f"{own['reward']['value']:.4f}",
                    f"{own['best_static']:.4f}",
                    f"({setting})",
                    f"{margin['value']:+.4f} {ends}".replace("-", "−"),
                    _number(row["figures"]["queue"]),
                    ", ".join(f"**{flag}**" for flag in own_flags(own)),
                )
            )
    return _markdown(head, rows)


def own_flags(own: Mapping[str, Any]) -> list[str]:
    """What has to be known of a learner's own reward, in words; see `own_reward`."""
    return [
        *([] if own["learnt"] else ["did not learn"]),
        *(["still rising"] if own["rising"] else []),
    ]


def choices_markdown(outcome: Mapping[str, Any]) -> str:
    """What the papers leave open, what was chosen, and what each alternative gives.

    Args:
        outcome: that of the suite of readings, see `experiments.papers.readings`.
    """
    head = (
        "value",
        "the paper",
        "as published",
        "best reading",
        "otherwise",
        "own reward",
        "queue",
    )
    scored = {name: row for cell in outcome["cells"] for name, row in cell["rows"].items()}
    rows = []
    for row in outcome["rows"]:
        for choice in row["choices"]:
            for name, text in choice["rows"].items():
                found = scored.get(name)
                own = None if found is None else found["own"]
                rows.append(
                    (
                        f"{row['name'].partition(':')[0].upper()}: {choice['what']}",
                        choice["paper"],
                        choice["published"],
                        choice["reading"],
                        text,
                        _number(own["reward"]) if own else DASH,
                        _number(found["figures"]["queue"]) + " KB" if found else DASH,
                    )
                )
    return _markdown(head, rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        # A pipe in a text would end its cell.
        "| " + " | ".join(str(x).replace("|", "\\|") for x in row) + " |"
        for row in lines
    )


def rewards_png(outcome: Mapping[str, Any]) -> bytes | None:
    """The own reward of learners while they train, a panel for each kind; None without records.

    Lines are means over seeds, exploration included; several cells share a training, whose curve
    stands once.
    """
    curves: dict[str, dict[str, Mapping[str, Any]]] = {}
    for cell in outcome["cells"]:
        for name, row in cell["rows"].items():
            if row["rewards"]:
                tuned = " tuned" if name.endswith(":tuned") else ""
                panel = curves.setdefault(name.partition(":")[0] + tuned, {})
                panel.setdefault(f"{name}, {cell['training']}", row["rewards"])
    if not curves:
        return None
    height = -(-len(curves) // 2)
    page = Page(height, (10.4, 0.9 + 2.7 * height), columns=min(len(curves), 2))
    for axis, (family, panel) in zip(page.axes, curves.items(), strict=False):
        for (name, rewards), colour in zip(panel.items(), cycle(COLOURS), strict=False):
            axis.plot(rewards["steps"], rewards["reward"], color=colour, label=name, linewidth=1.4)
        axis.set_title(f"Own reward while training, {family}", loc="left", fontsize=10, color=INK)
        axis.set_xlabel("environment steps per seed")
        axis.legend(frameon=False, fontsize=8)
    for axis in page.axes[len(curves) :]:
        axis.set_visible(False)
    return page.png()


def amount(value: float | None, unit: str) -> str:
    """A figure with its unit; changes with their sign."""
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{value:+.1f}" if unit == "%" else f"{value:.3g}"
    return f"{text.replace('-', '−')} {unit}"


def claim_cell(claim: Mapping[str, Any], column: str) -> str:
    """The measured figure of a column: value, interval and cell."""
    measured = claim["columns"][column]
    if measured is None:
        return DASH
    text = amount(measured["value"], claim["unit"])
    holding = f", holds in {measured['holding']}" if measured["holding"] else ""
    if None not in (measured["low"], measured["high"]) and math.isfinite(measured["low"]):
        bounds = (
            f"{x:+.1f}" if claim["unit"] == "%" else f"{x:.3g}"
            for x in (measured["low"], measured["high"])
        )
        text += f" [{', '.join(bounds)}]".replace("-", "−")
    return f"{text} ({measured['cell']}{holding})"


def plot_png(outcome: Mapping[str, Any], plot: Mapping[str, Any]) -> bytes | None:
    """A figure in the paper's form; None if none of its cells has records."""
    cells = [c for c in outcome["cells"] if c["name"] in plot["cells"] and c["rows"]]
    if not cells:
        return None
    figures = plot["figures"]
    columns = min(len(figures), 2)
    rows = -(-len(figures) // columns)
    page = Page(rows, (5.2 * columns, 0.9 + 2.7 * rows), columns=columns)
    forms = {row["name"]: (row["title"], row["form"]) for row in outcome["rows"]}
    recorded = {name for cell in cells for name in cell["rows"]}
    shown = [
        n for n, (_, form) in forms.items() if n in recorded and (form != "rule" or n in DRAWN)
    ]
    styles = dict(zip(shown, zip(cycle(COLOURS), cycle("osv^Dx*")), strict=False))
    for axis, figure in zip(page.axes, figures, strict=False):
        for name in shown:
            title, form = forms[name]
            x, y, low, high = _line(cells, name, figure, plot["over_time"])
            if not x:
                continue
            colour, marker = styles[name]
            style = {"color": colour, "linestyle": STYLES[form], "linewidth": 1.4}
            axis.plot(x, y, marker=marker, markersize=4, label=title, **style)
            if np.isfinite(low).all() and np.isfinite(high).all() and low:
                axis.fill_between(x, low, high, color=colour, alpha=0.07, linewidth=0)
        axis.set_title(plot["titles"][figure], loc="left", fontsize=10, color=INK)
        axis.set_xlabel(plot["x"])
    for axis in page.axes[len(figures) :]:
        axis.set_visible(False)
    handles, labels = page.axes[0].get_legend_handles_labels()
    page.figure.legend(
        handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=3
    )
    return page.png()


Line = tuple[list[float], list[float], list[float], list[float]]


def _line(cells: Sequence[Mapping[str, Any]], name: str, figure: str, over_time: bool) -> Line:
    """A row's line in a panel: x, y, and the ends of its intervals."""
    if over_time:
        cell = cells[0]
        values = cell["rows"][name]["over_time"].get(figure, []) if name in cell["rows"] else []
        width = cell["episode_ms"] / max(len(values), 1)
        points = [((i + 0.5) * width, y) for i, y in enumerate(values) if y is not None]
        return [x for x, _ in points], [y for _, y in points], [], []
    points = [
        (cell["x"], *(row["figures"][figure][field] for field in ("value", "low", "high")))
        for cell in cells
        if (row := cell["rows"].get(name)) is not None
    ]
    filled = [[math.nan if x is None else x for x in row] for row in points]
    x, y, low, high = ([row[i] for row in filled] for i in range(4))
    return x, y, low, high


def report_html(
    outcomes: Sequence[Mapping[str, object]], machine: Mapping[str, object], command: str
) -> str:
    """One self-contained page of one paper or several.

    Args:
        outcomes: what `experiments.papers.outcome.outcome` returned, by paper.
        machine: the machine that it ran on, see `speed.machine.describe`.
        command: the command that repeats it.
    """
    template = (files("ecn_marl.render") / "templates" / "papers.html").read_text("utf-8")
    env = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    env.globals |= {"amount": amount, "claim_cell": claim_cell, "number": _number}
    env.globals["own_flags"] = own_flags
    return env.from_string(template).render(
        papers=[
            {**outcome, "pictures": _pictures(outcome), "tally": _tally(outcome)}
            for outcome in outcomes
        ],
        columns=TITLES,
        meaning=MEANING,
        machine=machine,
        command=command,
        dash=DASH,
    )


def _pictures(outcome: Mapping[str, Any]) -> list[dict[str, str]]:
    pictures = []
    for plot in outcome["plots"]:
        png = plot_png(outcome, plot)
        if png is not None:
            data = base64.b64encode(png).decode("ascii")
            pictures.append({"title": plot["title"], "where": plot["where"], "data": data})
    rewards = rewards_png(outcome)
    if rewards is not None:
        data = base64.b64encode(rewards).decode("ascii")
        pictures.append({"title": "Own reward while training", "where": "", "data": data})
    return pictures


def _tally(outcome: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Number of claims by column and verdict."""
    tally: dict[str, dict[str, int]] = {column: dict.fromkeys(MEANING, 0) for column in TITLES}
    for claim in outcome["claims"]:
        for column, measured in claim["columns"].items():
            if measured is not None and measured["verdict"] in MEANING:
                tally[column][measured["verdict"]] += 1
    return tally


def _number(estimate: Mapping[str, Any] | None) -> str:
    """An estimate with its interval."""
    if estimate is None or estimate["value"] is None or not math.isfinite(estimate["value"]):
        return DASH
    text = f"{estimate['value']:.4g}"
    if estimate["low"] is None or not math.isfinite(estimate["low"]):
        return text
    return f"{text} [{estimate['low']:.3g}, {estimate['high']:.3g}]"
