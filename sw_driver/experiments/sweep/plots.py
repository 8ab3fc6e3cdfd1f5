"""Pictures of a sweep: throughput along an axis, and throughput against area."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from hw.dram.timing import DramTiming
from sw_driver.axdimm.figures import PAPER_MPARAMS_PER_S
from sw_driver.experiments.settings import KEYS, Value, text_of
from sw_driver.files import write_picture

from .grid import Grid

__all__ = ["area", "throughput", "write_plots"]

Row = Mapping[str, Any]

DPI = 120
MANY_LINES = 20
"""Lines with a name in the legend, at most; the others are drawn without."""
WIDE_RANGE = 50
"""Ratio of largest to smallest value above which an axis is logarithmic."""

NEAR_CEILING = 0.75
"""Share of the ceiling; if all throughputs are above it, the y axis does not begin at 0."""

_UNITS = {
    "count": "parameters of each channel",
    **{field.name: "tCK" for field in fields(DramTiming) if field.name != "tck_ps"},
}
"""Units of keys that have no unit in their name or values."""


def _colors(count: int) -> list[Any]:
    if count <= 10:
        return [colormaps["tab10"](index) for index in range(count)]
    return [colormaps["viridis"](share) for share in np.linspace(0, 0.95, count)]


def _is_power_of_two(value: Value) -> bool:
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0


def _is_category(axis: str) -> bool:
    """Return True if the axis has no numbers, so that no line may join its points."""
    return KEYS[axis] is not int


def _lay_out(axes: Axes, axis: str, values: Sequence[Value]) -> dict[Value, float]:
    """Prepare the x axis; return the position of each value."""
    axes.set_xlabel(f"{axis} ({_UNITS[axis]})" if axis in _UNITS else axis)
    if _is_category(axis):
        places = {value: float(index) for index, value in enumerate(values)}
        axes.set_xlim(-0.5, len(values) - 0.5)
    else:
        places = {value: float(value) for value in values}
        if all(_is_power_of_two(value) for value in values):
            axes.set_xscale("log", base=2)
        elif min(places.values()) > 0 and max(places.values()) > WIDE_RANGE * min(places.values()):
            axes.set_xscale("log")
    labels = [text_of(axis, value) for value in values]
    if len(values) <= 20:
        crowded = sum(map(len, labels)) > 45
        turned = {"rotation": 30, "ha": "right"} if crowded else {}
        axes.set_xticks(list(places.values()), labels, **turned)
        axes.xaxis.set_minor_locator(NullLocator())
    return places


def throughput(grid: Grid, rows: Sequence[Row], axis: str) -> Figure:
    """Draw throughput against ``axis``, a line for each combination of the other axes' values.

    If the axis has names or switches, points stand side by side without lines.
    """
    shown = [row for row in rows if row["mparams_per_s"] is not None]
    lines: dict[str, list[Row]] = {}
    for row in shown:
        lines.setdefault(grid.label(row, without=axis), []).append(row)
    columns = 2 if len(lines) > 8 and max(map(len, lines)) < 50 else 1
    named = -(-min(len(lines), MANY_LINES) // columns)
    figure = Figure(figsize=(7 + columns, 5.2 + 0.2 * named), layout="constrained")
    axes = figure.subplots()
    places = _lay_out(axes, axis, grid.axes[axis])
    category = _is_category(axis)
    for index, (label, line) in enumerate(lines.items()):
        line = sorted(line, key=lambda row: places[row[axis]])
        # Overlapping lines differ in width, overlapping points stand side by side.
        wider = len(lines) - 1 - index if len(lines) <= 6 and not category else 0
        aside = ((index + 0.5) / len(lines) - 0.5) * 0.6 if category else 0.0
        axes.plot(
            [places[row[axis]] + aside for row in line],
            [row["mparams_per_s"] for row in line],
            marker="o",
            markersize=4 + wider,
            linestyle="none" if category else "-",
            linewidth=1.3 + 0.8 * wider,
            color=_colors(len(lines))[index],
            label=(label or "simulated") if index < MANY_LINES else None,
        )
    _mention_more(axes, len(lines))
    ceilings = {(places[row[axis]], row["ceiling_mparams_per_s"]) for row in shown}
    levels = {ceiling for _, ceiling in ceilings}
    label = "ceiling of the DRAM's peak bandwidth"
    if len(levels) == 1:
        (level,) = levels
        text = f"{label}, {level:.2f} MP/s"
        axes.axhline(level, color="black", linestyle="--", linewidth=1, label=text)
    else:
        axes.plot(*zip(*sorted(ceilings), strict=True), "k_", markersize=20, label=label)
    _draw_paper(axes)
    lowest = min(PAPER_MPARAMS_PER_S, *(row["mparams_per_s"] for row in shown))
    # Enlarge small differences near the ceiling: most sweeps look for them.
    bottom = 50 * (lowest // 50 - 1) if lowest > NEAR_CEILING * max(levels) else 0
    axes.set_ylim(bottom=bottom)
    begins = f"; axis begins at {bottom:.0f}" if bottom else ""
    axes.set_ylabel(f"million parameters per second (MP/s{begins})")
    axes.set_title(f"Simulated AXDIMM ({grid.backend}): throughput against {axis}")
    return _finished(figure, axes, columns)


def _finished(figure: Figure, axes: Axes, columns: int = 1) -> Figure:
    """Return the figure with its legend below it."""
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize=9, frameon=False, ncols=columns)
    return figure


def _mention_more(axes: Axes, count: int) -> None:
    if count > MANY_LINES:
        axes.plot([], [], " ", label=f"and {count - MANY_LINES} more")


def _draw_paper(axes: Axes) -> None:
    axes.axhline(
        PAPER_MPARAMS_PER_S,
        color="grey",
        linestyle=":",
        linewidth=1.5,
        label=f"AXDIMM measured in the paper, {PAPER_MPARAMS_PER_S} MP/s",
    )


def area(grid: Grid, rows: Sequence[Row]) -> Figure:
    """Draw throughput against cost; filled marks are points that no other point beats in both.

    The cost is the number of lookup tables of a channel's kernel if the rows have it
    (``--resources``). Otherwise it is the KiB of a channel's on-chip buffers, without logic.
    """
    shown = [row for row in rows if row["mparams_per_s"] is not None]
    costs = [_cost(row) for row in shown]
    figure = Figure(figsize=(8, 4.8 + 0.2 * min(len(shown), MANY_LINES)), layout="constrained")
    axes = figure.subplots()
    for index, (row, cost) in enumerate(zip(shown, costs, strict=True)):
        best = not any(
            (other_cost, -other["mparams_per_s"]) != (cost, -row["mparams_per_s"])
            and other_cost <= cost
            and other["mparams_per_s"] >= row["mparams_per_s"]
            for other, other_cost in zip(shown, costs, strict=True)
        )
        color = _colors(len(shown))[index]
        axes.plot(
            cost,
            row["mparams_per_s"],
            linestyle="none",
            marker="o",
            markersize=7,
            color=color,
            markerfacecolor=color if best else "none",
            label=grid.label(row) if index < MANY_LINES else None,
        )
    _mention_more(axes, len(shown))
    _draw_paper(axes)
    axes.set_xlim(0, 1.08 * max(costs))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(
        "lookup tables of a channel's kernel (UltraScale+, mapped by Yosys, not placed)"
        if "luts" in shown[0]
        else "on-chip buffers of a channel (KiB), without logic"
    )
    axes.set_ylabel("million parameters per second (MP/s)")
    axes.set_title(
        f"Simulated AXDIMM ({grid.backend}): throughput against area\n"
        "filled marks: no other point has the same speed with less area",
        fontsize=11,
    )
    return _finished(figure, axes)


def _cost(row: Row) -> float:
    return row["luts"] if "luts" in row else row["onchip_bytes"] / 1024


def write_plots(folder: Path, grid: Grid, rows: Sequence[Row]) -> list[Path]:
    """Write the plots (PNG); return their paths.

    There is a ``throughput_AXIS.png`` for each axis, and ``area.png`` if the points differ in area.
    Rows without figures (failed points, untimed backends) are left out.
    """
    timed = [row for row in rows if row["mparams_per_s"] is not None]
    figures: dict[str, Figure] = {}
    if timed:
        figures |= {f"throughput_{axis}": throughput(grid, rows, axis) for axis in grid.axes}
    if len({_cost(row) for row in timed}) > 1:
        figures["area"] = area(grid, rows)
    return [write_picture(folder / f"{name}.png", figure, DPI) for name, figure in figures.items()]
