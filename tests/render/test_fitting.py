"""Tables on narrow terminals: no column is cut, none is lost."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from ecn_marl.render.fitting import fitted
from ecn_marl.render.tables import plain_table

HEAD = ("name", "topology", "benchmark", "hosts", "agents", "Gb/s", "senders", "steps")
CELLS = ("leaf-spine:12,24,6", "yes", "288", "432", "25, 100", "dcqcn:hpcc-paper", "320")


def wide() -> Table:
    """Three rows of eight columns."""
    table = plain_table("Scenarios")
    for name in HEAD:
        table.add_column(name, no_wrap=name == "name")
    for i in range(3):
        table.add_row(f"a-rather-long-name-{i}-v0", *CELLS)
    return table


def printed(table: Table, width: int) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width)
    for part in fitted(table, width):
        console.print(part)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, 80])
def test_a_wide_table_is_split(width):
    table = wide()
    table.caption = "All of them."
    lines = printed(table, width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width and "…" not in text
    for header in HEAD[1:]:
        assert text.count(header) == 1, header
    for cell in CELLS:
        assert text.count(cell) == 3, cell
    assert lines[0] == "Scenarios" and text.strip().endswith("All of them.")


def test_a_table_that_fits_is_left_alone():
    table = wide()
    assert fitted(table, 200) == [table]
    narrow = Table("name", "value")
    narrow.add_row("x" * 90, "1")
    assert fitted(narrow, 60) == [narrow], "two columns have nothing to go below"


def test_a_column_that_may_wrap_does_so_before_others_move():
    table = Table("name")
    table.add_column("about", max_width=30)
    table.add_column("value")
    table.add_row("x", "a word " * 12, "1")
    assert fitted(table, 50) == [table]
    lines = printed(table, 50)
    assert max(map(len, lines)) <= 50 and "\n".join(lines).count("word") == 12
    assert len(fitted(table, 35)) == 2 and max(map(len, printed(table, 35))) <= 35
