"""The table of `ecn-marl headroom`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from ecn_marl._parts import PART, of_steps
from ecn_marl.baselines.evaluation.completion import verdict
from ecn_marl.render.bench_table import estimated
from ecn_marl.render.tables import DASH, number, percent, plain_table


def headroom_table(result: Mapping[str, Any]) -> Table:
    """Table of the policies that span the headroom of a scenario.

    Args:
        result: what `headroom.headroom` returns.
    """
    first = result["policies"][0]["figures"]
    columns = {"J": "J", "short_mean": "short", "short_p99": "p99", "long_geomean": "long"}
    columns |= {name: name.removeprefix(PART) for name in of_steps(first)}
    title = f"{result['scenario']}: {result['episodes']} tuning episodes"
    table = plain_table(title, ["policy"], ["score [95%]", *columns.values()])
    table.add_column("Kmin, Kmax in KB at 25 Gb/s, Pmax")
    for row in result["policies"]:
        settings = [f"({', '.join(f'{x:g}' for x in setting)})" for setting in row["settings"]]
        score, figures = row["score"], row["figures"]
        parts = [number(figures[name]["value"]["value"]) for name in columns]
        invalid = f"\nINVALID: {verdict(row)}" if row["invalid"] else ""
        name, interval = row["name"] + invalid, estimated(score, digits=3)
        table.add_row(name, interval, *parts, "\n".join(settings))
    gain = result["gain"]
    table.caption = (
        f"The oracle lowers J by {percent(gain['value'])} "
        f"[{percent(gain['low'])}, {percent(gain['high'])}] against static:best in the same "
        "episodes.\n"
        f"Settings were searched on {result['search_episodes']} other tuning episodes."
    )
    if len(result["phases"]) == 1:
        table.caption += "\nThe traffic has no phases, so the oracle is the best static setting."
    else:
        table.caption += f"\nSettings by phase: {', '.join(result['phases'])}"
        table.caption += f"; by group: {', '.join(result['groups'])}."
    if known := result.get("hindsight"):
        table.caption += "\n" + _in_hindsight(known) + _refused("hindsight", known["invalid"])
    return table


def interaction_table(found: Mapping[str, Any]) -> Table:
    """Table of the best responses of groups of ports to each other.

    Args:
        found: `interaction` of what `headroom.headroom` returns.
    """
    kmin = [f"{setting[0]:g}" for setting in found["settings"]]
    title = f"Best Kmin of some ports against {', '.join(kmin)} KB of others"
    best_and_cost = ("best Kmin, KB", "cost of another case's best [95%]")
    table = plain_table(title, ["phase", "ports", "others"], best_and_cost)
    for row in found["pairs"]:
        for group in (0, 1):
            best = ", ".join(kmin[i] for i in row["best"][group])
            cost = row["cost"][group]
            shown = DASH
            if cost is not None:
                shown = f"{percent(cost['cost'])} [{percent(cost['low'])}, {percent(cost['high'])}]"
            names = row["groups"][group], row["groups"][1 - group]
            table.add_row(row["phase"], *names, best, shown)
    table.caption = (
        f"{found['episodes']} episodes; Kmax = 4 Kmin, Pmax 1. Other ports and phases have the "
        "oracle's settings.\n"
        "Where there is a cost, ports interact: in two cases the setting that is best in the other "
        "one costs J, for certain."
    )
    invalid = list(dict.fromkeys(reason for row in found["pairs"] for reason in row["invalid"]))
    table.caption += _refused("best responses", invalid)
    return table


def _in_hindsight(known: Mapping[str, Any]) -> str:
    """The gains of settings that are chosen for an episode that is known."""
    single, sequence, oracle, over = (
        f"{percent(gain['value'])} [{percent(gain['low'])}, {percent(gain['high'])}]"
        for gain in (known[name] for name in ("static", "best", "oracle", "over_oracle"))
    )
    return (
        f"In hindsight, in {known['episodes']} of the episodes: a setting for each "
        f"{known['window_us'] / 1000:g} ms lowers J by {sequence}, one for the whole episode by "
        f"{single}. The oracle lowers it by {oracle} in these; against it the former gains {over}."
    )


def _refused(what: str, reasons: Sequence[str]) -> str:
    """A line that says why runs do not count, empty if they do."""
    return f"\nINVALID, {what}: {'; '.join(reasons)}." if reasons else ""
