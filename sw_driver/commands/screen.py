"""Output on a terminal: reports and progress; lines break between words only."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from textwrap import fill
from typing import TYPE_CHECKING, TextIO, TypeVar

from sw_driver.report import Report, Table, Watch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Column
    from rich.table import Table as Shown

    from . import OutputOptions

__all__ = ["Screen", "in_lines", "print_prose", "print_table", "show"]

_T = TypeVar("_T")

_WIDE = 10_000
"""Columns of an imaginary screen that is wide enough for every table."""


def show(report: Report, options: OutputOptions) -> int:
    """Print a report, with its complaints on stderr, and return the exit status."""
    if options.json:
        print(json.dumps(report.describe(), indent=2))
    else:
        for part in report.essence if options.quiet else report.lines:
            if isinstance(part, str):
                print_prose(part, report.columns)
            else:
                print_table(part, report.columns)
        if report.files and not options.quiet:
            print("\n".join(["Written:", *(f"  {file}" for file in report.files)]))
    for complaint in report.complaints:
        print(in_lines(f"nearmem: {complaint}", sys.stderr), file=sys.stderr)
    return 0 if report.is_good else 1


class Screen(Watch):
    """Progress bar on stderr; it disappears at the end of the ``with`` block."""

    def __init__(self, options: OutputOptions) -> None:
        self.quiet = options.json or options.quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Screen:
        if not self.quiet:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            console = Console(stderr=True, highlight=False)
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(
                *columns, console=console, transient=True, disable=not console.is_terminal
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task(text, total=None)
        else:
            self._bar.update(self._task, description=text)

    def log(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, soft_wrap=True)

    def track(self, items: Iterable[_T], text: str = "", total: int | None = None) -> Iterator[_T]:
        if self._bar is None:
            yield from items
            return
        before, length = self._task, getattr(items, "__len__", lambda: total)()
        self._task = task = self._bar.add_task(text, total=length)
        for item in items:
            yield item
            self._bar.advance(task)
        self._bar.remove_task(task)
        self._task = before


def in_lines(text: str, stream: TextIO, columns: int | None = None) -> str:
    """Return ``text``, wrapped between words if ``stream`` is a terminal or ``columns`` are given.

    A line takes ``columns`` at most, and no more than a terminal has. Lines of a list are indented.
    """
    if stream.isatty():
        columns = min(shutil.get_terminal_size().columns, columns or _WIDE)
    if columns is None:
        return text
    indent = "  " if text.startswith("- ") else ""
    return fill(
        text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def print_prose(text: str, columns: int | None = None) -> None:
    """Print a sentence on stdout, in lines of ``columns`` at most."""
    print(in_lines(text, sys.stdout, columns))


def print_table(table: Table, columns: int | None = None) -> None:
    """Print a table on stdout, in ``columns`` at most.

    No table is wider than the terminal. Elsewhere the width is ``columns``, ``$COLUMNS`` or 80.
    In a wider table, columns move together and cells break between words. If it is still too wide,
    it becomes lists of names and values.
    """
    _print(_shown(table), columns)


def _shown(table: Table) -> Shown:
    from rich import box
    from rich.markup import escape
    from rich.table import Table as Shown

    shown = Shown(
        title=escape(table.title) or None,
        caption=escape(table.caption) or None,
        box=box.SQUARE if table.is_grid else box.SIMPLE_HEAD,
        show_header=not table.is_grid,
        show_lines=table.is_grid,
        padding=(0, 1, 0, 0) if table.is_dense else (0, 1),
    )
    for place, heading in enumerate(table.headings):
        shown.add_column(escape(heading), justify="left" if place in table.words else "right")
    for row in table.rows:
        if row:
            shown.add_row(*map(escape, row))
        else:
            shown.add_section()
    return shown


def _print(table: Shown, columns: int | None) -> None:
    from rich.console import Console

    console, wide = Console(), Console(width=_WIDE)
    if columns is not None:
        console.width = min(columns, console.width) if console.is_terminal else columns
    excess = wide.measure(table).maximum - console.width
    if excess > 0:
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
    """Return the minimum and maximum width of a column; a number stays with its unit."""
    from rich.measure import Measurement

    cells = [Measurement.get(console, console.options, cell) for cell in column.cells]
    heading = Measurement.get(console, console.options, column.header)
    most = max((cell.maximum for cell in cells), default=0)
    least = most
    if column.justify != "right":
        least = max((cell.minimum for cell in cells), default=0)
    return max(least, heading.minimum), max(most, heading.maximum)


def _print_list(console: Console, table: Shown) -> None:
    """Print a list for each row, or for each column if a column without heading names the rows."""
    from rich.console import Console
    from rich.table import Table as Shown

    for text in (table.title, table.caption):
        if text is not None:
            print_prose(str(text))
    headings = [column.header for column in table.columns]
    cells = [list(column.cells) for column in table.columns]
    if headings[0] or len({*cells[0]}) < len(cells[0]):
        lists = [zip(headings, row, strict=True) for row in zip(*cells, strict=True)]
    else:
        names = ["", *cells[0]]
        lists = [
            zip(names, [heading, *column], strict=True)
            for heading, column in zip(headings[1:], cells[1:], strict=True)
        ]
    for entries in lists:
        grid = Shown.grid(padding=(0, 2))
        for entry in entries:
            if entry[1]:
                grid.add_row(*entry)
        console.print()
        console.width = max(console.width, Console(width=_WIDE).measure(grid).maximum)
        console.print(grid)
