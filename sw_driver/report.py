"""Report of a command: tables and sentences for terminals, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "Report",
    "Table",
    "Watch",
    "count",
    "engineering",
    "milliseconds",
    "share",
]

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of formatted cells. Headings or cells name the units.

    Examples
    --------
    >>> rates = {"DDR4": 12.8, "HBM2": 900}
    >>> columns = {"memory": lambda row: row[0], "GB/s": lambda row: f"{row[1]:.1f}"}
    >>> print(Table.of("Rates", rates.items(), columns).markdown)
    |memory|GB/s|
    |---|--:|
    |DDR4|12.8|
    |HBM2|900.0|
    """

    title: str = ""
    headings: Sequence[str]
    """One heading for each column."""
    rows: Sequence[Sequence[str]]
    """Cells of each row. An empty row is a line between its neighbours."""
    words: Sequence[int] = (0,)
    """Indices of columns that hold words; the others hold numbers."""
    caption: str = ""
    is_dense: bool = False
    """True if one space parts the columns, as there are many."""
    is_grid: bool = False
    """True if all cells are of one kind: a line around each cell, no headings."""

    @classmethod
    def of(
        cls,
        title: str,
        records: Iterable[_T],
        columns: Mapping[str, Callable[[_T], str]],
        **options: Any,
    ) -> Table:
        """Return a table with a row for each record; ``columns`` map a heading to its cell."""
        rows = [[cell(record) for cell in columns.values()] for record in records]
        return cls(title=title, headings=[*columns], rows=rows, **options)

    @property
    def markdown(self) -> str:
        """The table in Markdown, without title and caption."""
        ends = ("---" if place in self.words else "--:" for place in range(len(self.headings)))
        lines = [self.headings, [*ends], *filter(None, self.rows)]
        return "\n".join(f"|{'|'.join(line)}|" for line in lines)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Result of a command: figures for programs, tables and sentences for people.

    Examples
    --------
    >>> report = Report(title="Rates", results={"gb_per_s": 12.8}, notes=("Of one channel.",))
    >>> report.describe()["results"], report.is_good
    ({'gb_per_s': 12.8}, True)
    >>> report.markdown.splitlines()
    ['## Rates', '', 'Of one channel.']
    """

    title: str = ""
    results: Any
    """Figures, ready for JSON, with units in their names."""
    parts: Sequence[Table | str] = ()
    """Tables and sentences that show the results."""
    notes: Sequence[str] = ()
    """Sentences that a reader needs to understand the tables."""
    assumptions: Sequence[str] = ()
    """Assumptions behind the results. They hold for all, or results name their numbers, from 1."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """The simulated machine: its name and settings, ready for JSON."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """The work that the machine did, ready for JSON."""
    files: Sequence[Path] = ()
    """Files that the command wrote."""
    complaints: Sequence[str] = ()
    """Sentences about problems, which a quiet command prints, too."""
    is_good: bool = True
    """False if the command fails although it has results."""
    essence: Sequence[Table | str] = ()
    """Tables and sentences that a quiet command prints, too."""
    hides_assumptions: bool = False
    """True if a terminal shows no assumptions; files and JSON have them."""
    columns: int | None = None
    """Columns that lines take at most, also in a file; None: those of the terminal."""

    def describe(self) -> dict[str, Any]:
        """Return the report as an object for JSON."""
        return {
            "results": self.results,
            "assumptions": list(self.assumptions),
            "machine": dict(self.machine),
            "workload": dict(self.workload),
            "files": [str(file) for file in self.files],
        }

    @property
    def lines(self) -> Iterator[Table | str]:
        """Tables and paragraphs in the order of display."""
        yield from [self.title] * bool(self.title)
        yield from self.parts
        yield from self.notes
        if self.assumptions and not self.hides_assumptions:
            yield "Assumed:"
            yield from (f"{number}. {text}" for number, text in enumerate(self.assumptions, 1))

    @property
    def markdown(self) -> str:
        """The report in Markdown: a section for the results and one for the assumptions."""
        parts = [f"## {self.title}"] * bool(self.title)
        for part in [*self.parts, *self.notes]:
            parts.append(part if isinstance(part, str) else part.markdown)
        if self.assumptions:
            parts.append("## What is assumed")
            numbered = enumerate(self.assumptions, 1)
            parts.append("\n".join(f"{number}. {text}" for number, text in numbered))
        return "\n\n".join(parts) + "\n"


class Watch:
    """Progress display of long work. This one shows nothing."""

    def say(self, text: str) -> None:
        """Show the current step."""

    def log(self, line: str) -> None:
        """Show a line that stays on the screen."""

    def track(self, items: Iterable[_T], text: str = "", total: int | None = None) -> Iterator[_T]:
        """Yield the items and show the count; ``total`` is for items without a length."""
        yield from items


def count(value: float | None) -> str:
    """Return a whole number with thousands separators; empty for None."""
    return "" if value is None else f"{value:,.0f}"


def share(value: float | None, digits: int = 1) -> str:
    """Return a share as a percentage; empty for None."""
    return "" if value is None else f"{value:.{digits}%}"


def milliseconds(ns: float) -> str:
    """Return nanoseconds as text in milliseconds, with the unit."""
    return f"{ns / 1e6:,.3f} ms"


def engineering(value: float, unit: str = "", places: int = 1) -> str:
    """Return a number with an SI prefix on its unit: ``"1.5 GB"``."""
    power = min(max(floor(log10(abs(value)) / 3), -5), 5) if value else 0
    if abs(round(value / 1000**power, places)) >= 1000 and power < 5:
        power += 1
    return f"{value / 1000**power:.{places}f} {_PREFIXES[power + 5]}{unit}".rstrip()


_PREFIXES = ("f", "p", "n", "µ", "m", "", "k", "M", "G", "T", "P")
