"""What pictures of experiments have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from sw_driver.files import replacing

from .reproduction import Cell, Row

__all__ = ["draw_bars", "draw_lines", "ours", "save", "theirs"]

_COLORS = ("#bab0ac", "#f58518", "#9ecae9", "#4c78a8", "#1f3f66", "#54a24b")


def ours(row: Row, column: str) -> float:
    """Our figure in a column, which has to be one."""
    cell = row[column]
    assert isinstance(cell, Cell)
    return cell.ours


def theirs(row: Row, column: str) -> float:
    """The paper's."""
    cell = row[column]
    assert isinstance(cell, Cell)
    assert cell.paper is not None
    return cell.paper


def save(figure: Figure, path: Path) -> Path:
    """As SVG, whole or not at all, the same bytes for the same picture."""
    # With the salt ids are the same each time.
    with rc_context({"svg.hashsalt": "nearmem"}), replacing(path) as part:
        figure.savefig(part, format="svg", metadata={"Date": None})
    return path


def draw_lines(
    rows: Sequence[Row], by: str, name: str, label: str, ending: str, folder: Path
) -> list[Path]:
    """A line for each column that ends so, against another."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    for column in [column for column in rows[0] if column.endswith(ending)]:
        values = [ours(row, column) for row in rows]
        axes.plot(places, values, "o-", label=column.removesuffix(ending).rstrip(","))
    axes.set_xticks(places, [str(row[by]) for row in rows])
    axes.set_xlabel(by)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    return [save(figure, folder / name)]


def draw_bars(
    rows: Sequence[Row], by: str, columns: Sequence[str], name: str, label: str, folder: Path
) -> list[Path]:
    """A group of bars for each row."""
    figure = Figure(figsize=(10, 3.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(columns)
    for number, (column, color) in enumerate(zip(columns, _COLORS, strict=False)):
        places = [place + (number - (len(columns) - 1) / 2) * width for place in range(len(rows))]
        axes.bar(places, [ours(row, column) for row in rows], width, label=column, color=color)
    axes.set_xticks(range(len(rows)), [str(row[by]) for row in rows], rotation=30, ha="right")
    axes.set_ylabel(label)
    axes.legend(fontsize="small")
    return [save(figure, folder / name)]
