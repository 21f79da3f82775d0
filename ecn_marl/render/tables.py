"""Tables for the terminal: summary of a replay, evaluation of policies, scenarios."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Column, Table

from ecn_marl._flags import flag
from ecn_marl._parts import formula as formula_of
from ecn_marl._regimes import remarks
from ecn_marl.baselines.evaluation.completion import SLOWDOWNS, verdict

DASH = "–"


def plain_table(
    title: str, left: Sequence[str | Column] = (), right: Sequence[str] = (), **options: Any
) -> Table:
    """An empty table in the common style.

    Args:
        title: its title.
        left: columns of text, at the left.
        right: columns of numbers, which are aligned at the right and never wrapped.
        **options: further ones of `rich.table.Table`.
    """
    return Table(
        *left,
        *(Column(name, justify="right", no_wrap=True) for name in right),
        title=title,
        title_style="bold",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        **options,
    )


def number(value: float | None, digits: int = 2) -> str:
    """A number with thousands separated, a dash where there is none (`None` or NaN)."""
    if value is None or value != value:  # NaN
        return DASH
    return f"{value:,.{digits}f}"


def kilobytes(value: float | None, digits: int = 1) -> str:
    """Bytes as KB (1000 B)."""
    return DASH if value is None else number(value / 1e3, digits)


def percent(value: float | None, digits: int = 1) -> str:
    """A share in [0, 1] as per cent."""
    return DASH if value is None or value != value else f"{100 * value:.{digits}f}%"


def replay_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Tables of a replay: slowdown per size class, ports per class, bytes.

    Args:
        summary: what `sim.replay.Replay.summary` returns.
    """
    flows = summary["flows"]
    title = f"FCT slowdown: {flows['finished']:,} of {flows['total']:,} flows finished"
    slowdown = plain_table(title, ["payload"])
    for name in ("flows", "mean", "p50", "p95", "p99"):
        slowdown.add_column(name, justify="right")
    for label, row in summary["slowdown"].items():
        cells = [number(row[name]) for name in ("mean", "p50", "p95", "p99")]
        slowdown.add_row(label, f"{row['flows']:,}", *cells)

    ports = plain_table(
        "Ports: queue in KB (mean, std, max of every substep; p99 of 10-µs samples)", ["class"]
    )
    for name in ("ports", "mean", "std", "p99", "max", "utilisation", "marked packets", "paused"):
        ports.add_column(name, justify="right")
    for kind, row in summary["ports"].items():
        queue = [kilobytes(row["queue_bytes"][name]) for name in ("mean", "std", "p99", "max")]
        marks = number(row["marks"], 0)
        share = [percent(row["utilisation"]), marks, percent(row["paused"])]
        ports.add_row(kind, str(row["ports"]), *queue, *share)

    title = (
        f"Wire bytes ({summary['pauses']:,} pauses, {number(summary['drops'], 0)} packets dropped)"
    )
    balance = plain_table(title)
    for name in summary["bytes"]:
        balance.add_column(name, justify="right")
    balance.add_row(*[number(value, 0) for value in summary["bytes"].values()])

    columns = {"listed": "total"} | _COUNTS | {"late feedback": "late_feedback"}
    counts = plain_table("Flows", right=tuple(columns))
    counts.add_row(*_flow_cells(flows, columns))
    raised = [f"FLAGGED: {flag(x).event}; cure: {flag(x).cure}." for x in summary["flags"]]
    notes = [_COUNTS_LEGEND, _LATE_TICKS, *raised, *remarks(summary["regimes"])]
    counts.caption = escape("\n".join(notes))
    return [slowdown, counts, ports, balance]


def entry_title(entry: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> str:
    """The reward of an entry of `reward_references.measure`, with options that differ."""
    first, options = entries[0]["options"], entry["options"]
    differing = [f"{name} {value:g}" for name, value in options.items() if value != first.get(name)]
    return ", ".join((entry["reward"], *differing))


def reference_table(references: Mapping[str, Any]) -> Table:
    """Reference returns of rewards; `references` is what `reward_references.measure` returns."""
    table = plain_table(f"{references['scenario']}: {references['episodes']}")
    for name in ("reward", "reference", "returns, port mean", "headroom", "95 %", "spread"):
        table.add_column(name, justify="left" if name in ("reward", "reference") else "right")
    for entry in references["entries"]:
        for name, port_returns in entry["returns"].items():
            headroom = entry["headroom"][name]
            interval = f"{headroom['low']:.4g} – {headroom['high']:.4g}"
            cells = (
                f"{sum(port_returns) / len(port_returns):.4g}",
                f"{headroom['value']:.4g}",
                interval,
            )
            title = entry_title(entry, references["entries"])
            table.add_row(title, name, *cells, number(headroom["spread"]))
    table.caption = (
        f"Headroom: what {references['entries'][0]['oracle']} earns above the reference in an "
    )
    table.caption += "episode, mean over ports.\nSpread: standard deviation of an episode's return "
    table.caption += "under the reference, divided by the headroom."
    return table


def scenario_tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Tables of scenarios: the benchmark's, others, the papers'.

    Args:
        rows: as `ecn-marl scenarios --json` prints them.
    """
    groups: dict[str, list[dict[str, Any]]] = {"The benchmark": [], "Others": [], "Of papers": []}
    for row in rows:
        kind = "The benchmark" if row["benchmark"] else "Of papers" if row["paper"] else "Others"
        groups[kind].append(row)
    return [_scenario_table(title, found) for title, found in groups.items() if found]


def _scenario_table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = plain_table(title)
    left = ("name", "what happens")
    for name in (*left, "hosts", "agents", "Gb/s", "steps"):
        side: Any = "left" if name in left else "right"
        most = 46 if name == "what happens" else None  # lines of 100 characters hold the table
        table.add_column(name, justify=side, no_wrap=name == "name", max_width=most)
    for row in rows:
        rates = ", ".join(f"{rate:g}" for rate in row["port_gbps"])
        what = f"superseded: {row['superseded']}." if row["superseded"] else row["about"]
        cells = (row["name"], escape(what), str(row["hosts"]), str(row["agents"]), rates)
        table.add_row(*cells, str(row["max_steps"]))
    return table


def sender_table(rows: list[dict[str, str]]) -> Table:
    """Table of the presets of senders; `rows` as `ecn-marl senders --json` prints them."""
    preset = Column("preset", no_wrap=True)
    table = plain_table("Senders", [preset, "second name", "link rate", "from"])
    for row in rows:
        table.add_row(*map(escape, row.values()))
    table.caption = (
        "Link rate: what the constants are for, whatever the network's. With gbps=RATE, as in\n"
        "dcqcn:hpcc-run,gbps=100, they are scaled as their source scales them."
    )
    return table


def evaluation_tables(
    result: Mapping[str, Any], label: Callable[[str], str], width: int = 100
) -> list[Table]:
    """Tables of evaluated policies, lowest J first, invalid ones last.

    Args:
        result: what `workflow.evaluate` returns.
        label: gives the title of a policy, from its name.
        width: characters per line; below 100 the columns move closer together.

    Returns:
        Completion times; counts of flows, totals over all episodes; reward and queues; counters of
        traffic sources, if there are any; the fluid beside packets, if both were run.
    """
    rows = sorted(result["policies"], key=_by_objective)
    names = [_name(row, label) for row in rows]
    tables = [_completion_table(rows, names), _flows_table(rows, names), _queues_table(rows, names)]
    tables += _source_tables(rows, names)
    if "beside" in result:
        from ecn_marl.render.backend_table import backend_table

        tables.append(backend_table(result["beside"], label))
    tables[0].title = f"{result['scenario']}: {result['episodes']} episodes never trained on, "
    tables[0].title += f"seed {result['seed']}"
    weights = rows[0].get("weights")
    formula = formula_of(weights) if weights else "J = (short mean · p99)^¼ · (long)^½"
    legend = [
        _LEGEND.format(formula=formula),
        *([_SCORE_LEGEND] if "score" in rows[0] else []),
        *_settings(rows, label),
    ]
    legend += [*_invalid(rows, label), *remarks(result.get("regimes", ()))]
    tables[0].caption = "\n".join(legend)
    for table in tables:
        if width < 100:
            table.padding = (0, 0)
    return tables


_LEGEND = """\
FCT slowdown mean/p99 (long: geometric mean/p99), lower is better;
short ≤ 100 KB < medium ≤ 1 MB < long. {formula}.
≥: a lower bound, as unfinished flows count with their age so far."""

_SCORE_LEGEND = """\
Score: J divided by that of the best static setting in the same episodes.
Gain: the policy's reduction of log J, as a share of the oracle's."""

_COUNTS = {
    **{name: name for name in ("offered", "started", "finished", "unfinished", "deferred")},
    **{"waited, µs": "deferred_us", "waiting": "waiting"},
}
"""Columns of counts of flows."""

_COUNTS_LEGEND = (
    "Deferred: flows that waited for a slot; waited: their waiting times added up.\n"
    "Waiting: flows that never got a slot."
)

_FLOWLETS = {"flowlets": "flowlets", "kept": "flowlets_kept"}
"""Further columns where flows are flowlets."""

_FLOWLETS_LEGEND = (
    "\nFlowlets: new paths after a flow's first. Kept: ticks in which a flow kept its path,\n"
    "because an older one had to drain."
)

_LOSSES = {"dropped, B": "dropped", "late feedback": "late_feedback"}
"""Dropped bytes and late feedback as counts; the table of ports has them as shares."""

_LATE_LEGEND = "feedback older than the history that is kept"
_LATE_TICKS = f"Late feedback: ticks in which a flow had {_LATE_LEGEND}."


def _completion_table(rows: list[dict[str, Any]], names: list[str]) -> Table:
    # Parts of J that are no slowdowns of flows: times of jobs' steps.
    steps = [name for name in rows[0]["parts"] if name not in SLOWDOWNS]
    scored = "score" in rows[0]
    columns = (
        "J, 95%CI",
        *steps,
        "short",
        "medium",
        "long",
        *(("score", "gain") if scored else ()),
    )
    table = _policy_table("", columns)
    for i, (row, name) in enumerate(zip(rows, names, strict=True)):
        objective, slowdown = _between(row["J"]), row["slowdown"]
        table.add_row(
            name,
            f"[bold]{objective}[/]" if i == 0 else objective,
            *(_value(row["parts"][part]) for part in steps),
            _pair(slowdown["short"], "mean"),
            _pair(slowdown["medium"], "mean"),
            _pair(slowdown["long"], "geomean"),
            *([_value(row["score"]), _percent_of(row["share"])] if scored else []),
        )
    return table


def _flows_table(rows: list[dict[str, Any]], names: list[str]) -> Table:
    columns, legend = _with_flowlets(rows, _COUNTS, _COUNTS_LEGEND)
    table = _policy_table("Flows", tuple(columns))
    for row, name in zip(rows, names, strict=True):
        table.add_row(name, *_flow_cells(row["flows"], columns))
    table.caption = legend
    return table


def _with_flowlets(
    rows: list[dict[str, Any]], columns: dict[str, str], legend: str
) -> tuple[dict[str, str], str]:
    """Columns and their legend, with those of flowlets if a policy has any."""
    if any("flowlets" in row["flows"] for row in rows):
        return columns | _FLOWLETS, legend + _FLOWLETS_LEGEND
    return columns, legend


def flows_table(rows: list[dict[str, Any]]) -> Table:
    """Counts of flows, means per episode; `rows` as of `compare.compare`."""
    columns, legend = _with_flowlets(rows, _COUNTS | _LOSSES, _COUNTS_LEGEND)
    table = _policy_table("Flows, means per episode", tuple(columns))
    for row in rows:
        table.add_row(row["name"], *_flow_cells(row["flows"], columns))
    table.caption = f"{legend}\n{_LATE_TICKS}"
    return table


def _flow_cells(flows: Mapping[str, Any], columns: Mapping[str, str]) -> list[str]:
    return [number(flows.get(key), 0) for key in columns.values()]


def _queues_table(rows: list[dict[str, Any]], names: list[str]) -> Table:
    columns = ("reward, 95%CI", "queue, KB", "util.", "paused", "pauses", "dropped", "late")
    timed = all("interval_us" in row for row in rows)
    table = _policy_table("Ports", (*columns, *(["Δt, µs"] if timed else [])))
    for row, name in zip(rows, names, strict=True):
        reward = number(row["reward"]["mean"], 4)
        if (half_width := row["reward"]["ci95"]) is not None and half_width == half_width:
            reward += f"±{half_width:.4f}"
        queue = f"{kilobytes(row['queue_mean'])}±{kilobytes(row['queue_std'])}"
        shares = [percent(row[share]) for share in ("utilisation", "paused")]
        lost = [percent(row[share]) for share in ("dropped", "cut")]
        interval = [f"{row['interval_us']:g}"] if timed else []
        table.add_row(name, reward, queue, *shares, f"{row['pauses']:,}", *lost, *interval)
    table.caption = (
        "Reward: mean per port and interval Δt; a learner's may be longer.\n"
        "Queue: mean±std over ports and time. Dropped: share of the bytes.\n"
        f"Late: share of the flows' time with {_LATE_LEGEND}."
    )
    return table


def _source_tables(rows: list[dict[str, Any]], names: list[str]) -> list[Table]:
    """Counters of traffic sources, means over episodes; those that count the same share a table."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for source, counters in rows[0].get("sources", {}).items():
        alike.setdefault(tuple(counters), []).append(source)
    tables = []
    for columns, sources in alike.items():
        several = len(sources) > 1
        title = f"Traffic source{'s' if several else ''} {', '.join(sources)}"
        table = _policy_table(title, (*(["source"] if several else []), *columns))
        for source in sources:
            for row, name in zip(rows, names, strict=True):
                numbers = [number(value, 0) for value in row["sources"][source].values()]
                table.add_row(name, *([source] if several else []), *numbers)
        tables.append(table)
    return tables


def _policy_table(title: str, columns: Sequence[str]) -> Table:
    """A table whose first column is the policy, the others numbers."""
    return plain_table(title, [Column("policy", overflow="fold")], columns)


def _by_objective(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
    value = row["J"]["value"]
    return bool(row["invalid"]), value is None, value or 0.0


def _name(row: Mapping[str, Any], label: Callable[[str], str]) -> str:
    name = label(row["name"]) + (f", {row['seeds']} seeds" if row["seeds"] > 1 else "")
    mark = "INVALID\n" if row["invalid"] else ""
    return mark + escape(name.replace(" (", "\n("))


def _settings(rows: list[dict[str, Any]], label: Callable[[str], str]) -> list[str]:
    """A line for each policy whose settings a search has found, unless its name has them."""
    lines = []
    for row in rows:
        if row.get("settings") and not label(row["name"]).endswith(")"):
            settings = dict.fromkeys(tuple(setting) for setting in row["settings"])
            texts = [",".join(f"{x:g}" for x in setting) for setting in settings]
            name = label(row["name"])
            lines.append(escape(f"{name}: Kmin KB, Kmax KB, Pmax at 25 Gb/s {'; '.join(texts)}."))
    return lines


def _invalid(rows: list[dict[str, Any]], label: Callable[[str], str]) -> list[str]:
    return [
        escape(f"INVALID {label(row['name'])}: {verdict(row)}.") for row in rows if row["invalid"]
    ]


def _between(estimate: Mapping[str, Any]) -> str:
    """A value with half the width of its interval."""
    text = number(estimate["value"])
    if estimate["low"] is None:
        return text
    return f"{text}±{number((estimate['high'] - estimate['low']) / 2)}"


def _pair(row: Mapping[str, Any], centre: str) -> str:
    mark = "≥" if row["lower_bound"] and row[centre] is not None else ""
    return f"{mark}{number(row[centre])}/{number(row['p99'], 1)}"


def _value(estimate: Mapping[str, Any] | None) -> str:
    return number(None if estimate is None else estimate["value"])


def _percent_of(estimate: Mapping[str, Any] | None) -> str:
    return percent(None if estimate is None else estimate["value"], 0)


def compact(value: float) -> str:
    """A number to three digits, with k, M or G."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
