"""What pictures of experiments have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

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
    rows: Sequence[Row],
    by: str,
    columns: Mapping[str, str],
    name: str,
    label: str,
    folder: Path,
) -> list[Path]:
    """A line for each of ``columns``, which have their names in the legend as values, against
    another column of numbers, on a logarithmic axis."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    places = [float(str(row[by])) for row in rows]
    for number, (column, meaning) in enumerate(columns.items()):
        # Of lines that lie on each other the lower ones are wider.
        wider = len(columns) - 1 - number
        values = [ours(row, column) for row in rows]
        size = {"markersize": 4 + 2 * wider, "linewidth": 1.5 + 2 * wider}
        axes.plot(places, values, "o-", label=meaning, **size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [str(row[by]) for row in rows])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{by}, logarithmic")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    return [save(figure, folder / name)]


def draw_bars(
    rows: Sequence[Row], by: str, columns: Sequence[str], name: str, label: str, folder: Path
) -> list[Path]:
    """A group of bars for each row that has all columns, with the paper's figures, where it has
    any, as lines."""
    rows = [row for row in rows if all(isinstance(row.get(column), Cell) for column in columns)]
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(columns)
    papers: list[tuple[float, float]] = []
    for number, (column, color) in enumerate(zip(columns, _COLORS, strict=False)):
        places = [place + (number - (len(columns) - 1) / 2) * width for place in range(len(rows))]
        axes.bar(places, [ours(row, column) for row in rows], width, label=column, color=color)
        for place, row in zip(places, rows, strict=True):
            cell = row[column]
            if isinstance(cell, Cell) and cell.paper is not None:
                papers.append((place, cell.paper))
    if papers:
        axes.plot(*zip(*papers, strict=True), "k_", markersize=7, markeredgewidth=2, label="paper")
    axes.set_xticks(range(len(rows)), [str(row[by]) for row in rows], rotation=30, ha="right")
    axes.set_ylabel(label)
    axes.legend(fontsize="small")
    return [save(figure, folder / name)]
