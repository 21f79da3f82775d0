"""Tables on narrow terminals: columns that do not fit beside each other move below."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

NAMES_SHARE = 3
"""The first column, with names, has at most this part of the width; longer names wrap."""

GAP = 3
"""Characters between two columns."""


def fitted(table: Table, width: int) -> list[Table]:
    """A table as one or several that fit a width, each with the first column.

    Args:
        table: a table of texts.
        width: characters per line.

    Returns:
        The table itself if it fits. Else its parts, with the title above the first and the caption
        below the last. A column is cut only if it alone is wider than a line.
    """
    widths = [_width(column) for column in table.columns]
    # The first column stays in every part, so two columns cannot be parted.
    if sum(widths) + GAP * len(widths) <= width or len(widths) < 3:
        return [table]
    names = min(widths[0], width // NAMES_SHARE)
    groups: list[list[int]] = [[]]
    for number in range(1, len(widths)):
        used = sum(widths[i] + GAP for i in groups[-1])
        if groups[-1] and names + used + GAP + widths[number] > width:
            groups.append([])
        groups[-1].append(number)
    parts = [_part(table, [0, *group], names) for group in groups]
    parts[0].title, parts[-1].caption = table.title, table.caption
    return parts


def _part(table: Table, numbers: list[int], names: int) -> Table:
    """Some columns of a table, the first of them at most `names` wide."""
    part = Table(
        title_style=table.title_style,
        title_justify=table.title_justify,
        caption_justify=table.caption_justify,
        box=table.box,
        pad_edge=table.pad_edge,
        padding=table.padding,
    )
    for number in numbers:
        column = table.columns[number]
        first = number == 0
        part.add_column(
            column.header,
            justify=column.justify,
            no_wrap=not first and column.max_width is None,
            overflow="fold" if first else column.overflow,
            max_width=names if first else column.max_width,
        )
    cells = [list(table.columns[number].cells) for number in numbers]
    for row in zip(*cells, strict=True):
        part.add_row(*row)
    return part


def _width(column: Column) -> int:
    """The longest line of a column, header included; longer ones wrap at its `max_width`."""
    longest = max(map(_length, (column.header, *column.cells)), default=0)
    return longest if column.max_width is None else min(longest, column.max_width)


def _length(cell: RenderableType) -> int:
    text = cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain
    return max((cell_len(line) for line in text.splitlines()), default=0)
