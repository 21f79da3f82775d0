"""Tables on narrow terminals: no column is cut, none is lost."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from ecn_marl.render.fitting import fitted
from ecn_marl.render.tables import scenario_table

ROWS = [
    {
        **{"name": f"a-rather-long-name-{i}-v0", "topology": "leaf-spine:12,24,6", "hosts": 288},
        **{"agents": 432, "port_gbps": [25.0, 100.0], "transport": "dcqcn:hpcc-paper"},
        **{"interval_us": 100.0, "max_steps": 320, "benchmark": True, "superseded": ""},
    }
    for i in range(3)
]


def printed(table: Table, width: int) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width)
    for part in fitted(table, width):
        console.print(part)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, 80])
def test_a_wide_table_is_split(width):
    table = scenario_table(ROWS)
    table.caption = "All of them."
    lines = printed(table, width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width and "…" not in text
    for header in ("topology", "benchmark", "hosts", "agents", "Gb/s", "senders", "steps"):
        assert text.count(header) == 1, header
    for cell in ("leaf-spine:12,24,6", "25, 100", "dcqcn:hpcc-paper", "432", "320"):
        assert text.count(cell) == 3, cell
    assert lines[0] == "Scenarios" and text.strip().endswith("All of them.")


def test_a_table_that_fits_is_left_alone():
    table = scenario_table(ROWS)
    assert fitted(table, 200) == [table]
    narrow = Table("name", "value")
    narrow.add_row("x" * 90, "1")
    assert fitted(narrow, 60) == [narrow], "two columns have nothing to go below"
