"""Pictures of table rows: bars, stacked bars and lines, with the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import nan
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from sw_driver.files import write_picture

from .reproduction import Claim, Row

__all__ = ["draw_bars", "draw_lines"]

_COLORS = ("#bab0ac", "#f58518", "#9ecae9", "#4c78a8", "#1f3f66", "#54a24b")


def draw_bars(
    rows: Sequence[Row],
    panels: Mapping[str, Sequence[str]],
    path: Path,
    *,
    stacked: bool = False,
    shares: bool = False,
) -> list[Path]:
    """Draw a group of bars for each row, and return the written files.

    ``panels`` are columns by the quantity that they show, with its unit. A row's words name its
    group. With ``stacked``, a row is one bar of parts; with ``shares``, these are in % of their
    sum.
    """
    figure = Figure(figsize=(10, 0.8 + 3 * len(panels)), layout="constrained")
    for axes, (label, columns) in zip(_axes(figure, len(panels)), panels.items(), strict=True):
        width = 0.8 if stacked else 0.8 / len(columns)
        values = [_values(rows, column, 0) for column in columns]
        if shares:
            sums = [sum(cells) / 100 or 1 for cells in zip(*values, strict=True)]
            values = [[x / y for x, y in zip(cells, sums, strict=True)] for cells in values]
        bottoms = [0.0] * len(rows)
        for number, (column, color) in enumerate(zip(columns, cycle(_COLORS), strict=False)):
            shift = 0.0 if stacked else (number - (len(columns) - 1) / 2) * width
            places = [place + shift for place in range(len(rows))]
            axes.bar(places, values[number], width, bottoms, label=column, color=color)
            if stacked:
                bottoms = [sum(both) for both in zip(bottoms, values[number], strict=True)]
            else:
                _papers(axes, places, rows, column)
        axes.set_ylabel(label)
        _legend(axes)
    names = [", ".join(cell for cell in row.values() if isinstance(cell, str)) for row in rows]
    slanted = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    figure.axes[-1].set_xticks(range(len(rows)), names, **slanted)
    return [write_picture(path.with_suffix(".svg"), figure)]


def draw_lines(
    rows: Sequence[Row], columns: Mapping[str, str], label: str, path: Path
) -> list[Path]:
    """Draw a line for each of ``columns``, and return the written files.

    ``columns`` maps columns to their names in the legend. The horizontal axis is the first column,
    of numbers, on a logarithmic scale.
    """
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    (axes,) = _axes(figure, 1)
    by = next(iter(rows[0]))
    places = [float(str(row[by])) for row in rows]
    for number, (column, meaning) in enumerate(columns.items()):
        # Of lines that coincide, the lower ones are wider.
        wider = len(columns) - 1 - number
        size = {"markersize": 4 + 2 * wider, "linewidth": 1.5 + 2 * wider}
        axes.plot(places, _values(rows, column, nan), "o-", label=meaning, **size)
        _papers(axes, places, rows, column)
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [str(row[by]) for row in rows])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{by} (logarithmic scale)")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    _legend(axes)
    return [write_picture(path.with_suffix(".svg"), figure)]


def _axes(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(count, squeeze=False, sharex=True)[:, 0])


def _values(rows: Sequence[Row], column: str, missing: float) -> list[float]:
    """Return our figures of a column, with ``missing`` where there is none."""
    cells = [row.get(column) for row in rows]
    figures = [cell.ours if isinstance(cell, Claim) else None for cell in cells]
    return [missing if figure is None else figure for figure in figures]


def _papers(axes: Axes, places: Sequence[float], rows: Sequence[Row], column: str) -> None:
    """Mark the paper's figures of a column."""
    cells = [(place, row.get(column)) for place, row in zip(places, rows, strict=True)]
    points = [
        (place, cell.value)
        for place, cell in cells
        if isinstance(cell, Claim) and cell.value is not None
    ]
    if points:
        axes.plot(*zip(*points, strict=True), "k_", markersize=7, markeredgewidth=2, label="paper")


def _legend(axes: Axes) -> None:
    """Draw a legend beside the picture, with each name once."""
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(named.values(), named, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
