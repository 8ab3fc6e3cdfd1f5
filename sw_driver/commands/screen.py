"""What a terminal shows: numbers and names whole, prose broken between words."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

__all__ = ["engineering", "in_lines", "print_prose", "print_rows", "print_table"]

_WIDE = 10_000
"""Columns of a screen on which everything fits."""


def in_lines(text: str, stream: TextIO) -> str:
    """A sentence as ``stream`` shows it: on a terminal in lines, no word of which is broken."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return fill(text, width, break_long_words=False, break_on_hyphens=False)


def print_prose(text: str) -> None:
    """Prints a sentence on stdout."""
    print(in_lines(text, sys.stdout))


def engineering(value: float, unit: str = "") -> str:
    """With a prefix of its unit: ``"1.5 GB"``."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit, places=1)(value)


def print_rows(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], words: int | Sequence[int]
) -> None:
    """Prints a table on stdout, whose first columns, as many as ``words``, or the columns of these
    places, are no numbers."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    left = range(words) if isinstance(words, int) else words
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number in left else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    print_table(table)


def print_table(table: Table) -> None:
    """Prints a table on stdout.

    On a screen that is too narrow, columns move together and cells are broken between words. If
    that is not enough, the table becomes lists of names and values. What goes into a file is not
    squeezed.
    """
    from rich.console import Console

    console, wide = Console(), Console(width=_WIDE)
    excess = wide.measure(table).maximum - console.width
    if excess > 0 and console.is_terminal:
        table.padding = 0
        excess = wide.measure(table).maximum - console.width
        least, widths = zip(*(_widths(wide, column) for column in table.columns), strict=True)
        widths = list(widths)
        while excess > 0 and widths != list(least):
            slack = [width if width > few else 0 for few, width in zip(least, widths, strict=True)]
            widths[slack.index(max(slack))] -= 1
            excess -= 1
        if excess > 0 and table.show_header:
            _print_list(console, table)
            return
        for column, width in zip(table.columns, widths, strict=True):
            column.width = width
    console.width = max(console.width, console.width + excess)
    console.print(table)


def _widths(console: Console, column: Column) -> tuple[int, int]:
    """The least and the most that a column takes. A number is not parted from its unit."""
    from rich.measure import Measurement

    cells = [Measurement.get(console, console.options, cell) for cell in column.cells]
    heading = Measurement.get(console, console.options, column.header)
    most = max((cell.maximum for cell in cells), default=0)
    least = most
    if column.justify != "right":
        least = max((cell.minimum for cell in cells), default=0)
    return max(least, heading.minimum), max(most, heading.maximum)


def _print_list(console: Console, table: Table) -> None:
    """A list for each row, or, where the first column names the rows, for each other column."""
    from rich.console import Console
    from rich.table import Table

    for text in (table.title, table.caption):
        if text is not None:
            print_prose(str(text))
    headings = [column.header for column in table.columns]
    cells = [list(column.cells) for column in table.columns]
    if headings[0]:
        lists = [zip(headings, row, strict=True) for row in zip(*cells, strict=True)]
    else:
        names = ["", *cells[0]]
        lists = [
            zip(names, [heading, *column], strict=True)
            for heading, column in zip(headings[1:], cells[1:], strict=True)
        ]
    for entries in lists:
        grid = Table.grid(padding=(0, 2))
        for entry in entries:
            if entry[1]:
                grid.add_row(*entry)
        console.print()
        console.width = max(console.width, Console(width=_WIDE).measure(grid).maximum)
        console.print(grid)
