"""What a reproduction reports: figures beside the paper's, each marked how it came about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sw_driver.numbers import check_integer, check_number

__all__ = [
    "MARKS",
    "Cell",
    "Changes",
    "Experiment",
    "Progress",
    "Row",
    "calibrated",
    "given",
    "page",
    "predicted",
]

MARKS = ("given", "calibrated", "predicted")
"""By the paper or a data sheet; fitted to the paper's figure; found with nothing fitted to it."""

Changes = Mapping[str, str]
"""Of a machine or its parts, as ``--set`` has them."""

Progress = Callable[[str], None]
"""Told what is being done now."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number of ours and, if the paper has it, the paper's."""

    ours: float
    mark: str
    """One of :data:`MARKS`."""
    paper: float | None = None
    band: float | None = None
    """The share of the paper's figure that ours may be away from it; None: not judged."""
    digits: int = 2

    def __post_init__(self) -> None:
        if self.mark not in MARKS:
            raise ValueError(f"mark is {self.mark!r}: expected one of {', '.join(MARKS)}")
        check_integer("digits", self.digits, 0)
        if self.band is not None:
            check_number("band", self.band)

    @property
    def deviation(self) -> float | None:
        """From the paper's, as a share of it."""
        return self.ours / self.paper - 1 if self.paper else None

    @property
    def kept(self) -> bool:
        """Whether it is within its band."""
        return self.band is None or self.deviation is None or abs(self.deviation) <= self.band

    def __str__(self) -> str:
        text = f"{self.ours:,.{self.digits}f}"
        if self.paper is not None and self.deviation is not None:
            text += f" ({self.paper:,.{self.digits}f}, {self.deviation:+.1%})"
        return text + {"given": " g", "calibrated": " c", "predicted": ""}[self.mark]

    def describe(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "ours": self.ours,
            "paper": self.paper,
            "deviation": self.deviation,
            "mark": self.mark,
            "band": self.band,
            "kept": self.kept,
        }


def given(ours: float, paper: float | None = None, **how: Any) -> Cell:
    """A cell that is so by the paper or a data sheet; so for the other two marks."""
    return Cell(ours=ours, paper=paper, mark="given", **how)


def calibrated(ours: float, paper: float | None = None, **how: Any) -> Cell:
    return Cell(ours=ours, paper=paper, mark="calibrated", **how)


def predicted(ours: float, paper: float | None = None, **how: Any) -> Cell:
    return Cell(ours=ours, paper=paper, mark="predicted", **how)


Row = Mapping[str, Cell | str]
"""A row of a table: by column a cell, or words."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper, made again."""

    name: str
    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    """What a reader has to know to judge the figures."""
    draw: Callable[[Path], Sequence[Path]] | None = None
    """Draws its pictures into a folder and returns their files."""

    @property
    def columns(self) -> list[str]:
        """In the order of their first use."""
        return list(dict.fromkeys(column for row in self.rows for column in row))

    @property
    def left(self) -> list[tuple[Row, str]]:
        """Rows and columns of the cells that are not within their bands."""
        return [
            (row, column)
            for row in self.rows
            for column, cell in row.items()
            if isinstance(cell, Cell) and not cell.kept
        ]

    def describe(self) -> dict[str, Any]:
        """As JSON has it."""
        rows = [
            {
                column: cell.describe() if isinstance(cell, Cell) else cell
                for column, cell in row.items()
            }
            for row in self.rows
        ]
        return {"name": self.name, "title": self.title, "rows": rows, "notes": list(self.notes)}


def page(introduction: str, experiments: Sequence[Experiment], pictures: Sequence[Path]) -> str:
    """A page with all experiments, as Markdown, each with the pictures of its name."""
    parts = [introduction.strip() + "\n"]
    for experiment in experiments:
        parts.append(_section(experiment))
        parts += [
            f"![{experiment.title}]({each.name})\n"
            for each in pictures
            if each.stem.partition(".")[0] == experiment.name
        ]
    return "\n".join(parts)


def _section(experiment: Experiment) -> str:
    columns = experiment.columns
    lines = [
        f"## {experiment.title}",
        "",
        f"|{'|'.join(columns)}|",
        "|---" + "|--:" * (len(columns) - 1) + "|",
    ]
    lines += [
        f"|{'|'.join(str(row.get(column, '')) for column in columns)}|" for row in experiment.rows
    ]
    for note in experiment.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"
