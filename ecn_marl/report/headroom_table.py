"""The table of `ecn-marl headroom`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ecn_marl.report.tables import _table, percent


def headroom_table(result: Mapping[str, Any]) -> Table:
    """Table of the policies that span the headroom of a scenario.

    Args:
        result: what `headroom.headroom` returns.
    """
    table = _table(f"{result['scenario']}: {result['episodes']} episodes, seed {result['seed']}")
    table.add_column("policy")
    table.add_column("reward, 95%CI", justify="right", no_wrap=True)
    table.add_column("Kmin, Kmax in KB at 25 Gb/s, Pmax")
    for row in result["policies"]:
        each = [f"({', '.join(f'{x:g}' for x in setting)})" for setting in row["settings"]]
        if len(each) > 1:
            each = [f"{p}: {s}" for p, s in zip(result["phases"], each, strict=True)]
        reward = row["reward"]
        table.add_row(row["name"], f"{reward['mean']:.4f}±{reward['ci95']:.4f}", "\n".join(each))
    room = result["headroom"]
    table.caption_justify = "left"
    table.caption = (
        f"Headroom, oracle - static:best: {room['mean']:.4f}±{room['ci95']:.4f} (paired), "
        f"{percent(result['share'])} of the span from SECN1 to the oracle."
    )
    if len(result["phases"]) == 1:
        table.caption += "\nNo traffic phases here: the oracle is the best static setting."
    return table
