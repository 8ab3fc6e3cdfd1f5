"""Pictures of a sweep: throughput by setting and by area, where the time goes, the roofline."""

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
from sw_driver.axdimm.runs import DRAM_TIMES
from sw_driver.experiments.figures import PAPER_MPARAMS_PER_S
from sw_driver.experiments.settings import KEYS, Value, text_of

from .grid import Grid

__all__ = ["area", "roofline", "throughput", "time_breakdown", "write_plots"]

Row = Mapping[str, Any]

DPI = 120
MANY_LINES = 20
"""More lines than these are drawn, but not all named."""
BARS_PER_FIGURE = 40
WIDE_RANGE = 50
"""Axes whose values span more than this factor are logarithmic."""

NEAR_CEILING = 0.75
"""Throughputs that are all above this share of the ceiling are drawn enlarged."""

_CEILING = "ceiling of the DRAM's peak bandwidth"

_UNITS = {
    "count": "parameters of each channel",
    **{field.name: "tCK" for field in fields(DramTiming) if field.name != "tck_ps"},
}
"""Units of keys that neither their name nor their values tell."""

_TIMES = {
    "data": ("data", "#4c78a8"),
    "refresh": ("refresh", "#f58518"),
    "row": ("precharge and activate", "#54a24b"),
    "turn_around": ("turn-around", "#e45756"),
    "starved": ("starved by the kernel", "#b279a2"),
    "idle": ("idle", "#bab0ac"),
}
"""Names and colours."""


def _colors(count: int) -> list[Any]:
    if count <= 10:
        return [colormaps["tab10"](index) for index in range(count)]
    return [colormaps["viridis"](share) for share in np.linspace(0, 0.95, count)]


def _is_power_of_two(value: Value) -> bool:
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0


def _is_category(axis: str) -> bool:
    """Whether there is nothing between two values, so that no line may join them."""
    return KEYS[axis].kind is not int


def _lay_out(axes: Axes, axis: str, values: Sequence[Value]) -> dict[Value, float]:
    """Prepares the x axis; returns where each value is."""
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
    crowded = sum(map(len, labels)) > 45
    if len(values) <= 20:
        axes.set_xticks(
            list(places.values()),
            labels,
            rotation=30 if crowded else 0,
            ha="right" if crowded else "center",
        )
        axes.xaxis.set_minor_locator(NullLocator())
    return places


def throughput(grid: Grid, rows: Sequence[Row], axis: str) -> Figure:
    """Throughput against ``axis``: a line for each combination of the other axes' values.

    Points of an axis whose values are names or switches are side by side, and not joined.
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
    few = len(lines) <= 6
    category = _is_category(axis)
    ceilings: dict[tuple[float, ...], list[float]] = {}
    for index, (label, line) in enumerate(lines.items()):
        line = sorted(line, key=lambda row: places[row[axis]])
        x = [places[row[axis]] for row in line]
        # Lines that lie on each other are told apart by their width, points by their place.
        wider = len(lines) - 1 - index if few and not category else 0
        aside = ((index + 0.5) / len(lines) - 0.5) * 0.6 if category else 0.0
        axes.plot(
            [place + aside for place in x],
            [row["mparams_per_s"] for row in line],
            marker="o",
            markersize=4 + wider,
            linestyle="none" if category else "-",
            linewidth=1.3 + 0.8 * wider,
            color=_colors(len(lines))[index],
            label=(label or "simulated") if index < MANY_LINES else None,
        )
        ceilings[tuple(row["ceiling_mparams_per_s"] for row in line)] = x
    _mention_more(axes, len(lines))
    flat = {ceiling[0] for ceiling in ceilings if len(set(ceiling)) == 1}
    for ceiling in sorted(flat):
        text = f"{_CEILING}, {ceiling:.2f} MP/s"
        axes.axhline(ceiling, color="black", linestyle="--", linewidth=1, label=text)
    label = _CEILING
    for ceiling, x in ceilings.items():
        if flat.issuperset(ceiling):
            continue
        pieces = [([place - 0.4, place + 0.4], [y, y]) for place, y in zip(x, ceiling, strict=True)]
        for piece in pieces if category else [(x, ceiling)]:
            axes.plot(*piece, color="black", linestyle="--", linewidth=1, label=label)
            label = "_"
    _draw_paper(axes)
    lowest = min(PAPER_MPARAMS_PER_S, *(row["mparams_per_s"] for row in shown))
    # Small differences near the ceiling are what most sweeps are about.
    near = lowest > NEAR_CEILING * max(map(max, ceilings))
    bottom = 50 * (lowest // 50 - 1) if near else 0
    axes.set_ylim(bottom=bottom)
    begins = f", the axis begins at {bottom:.0f}" if near else ""
    axes.set_ylabel(f"million parameters a second (MP/s{begins})")
    axes.set_title(f"The simulated AXDIMM ({grid.backend}): throughput against {axis}")
    return _finished(figure, axes, ncols=columns)


def _finished(figure: Figure, axes: Axes, *, grid: bool = True, **legend: Any) -> Figure:
    """The figure with its legend below it."""
    if grid:
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize=9, frameon=False, **legend)
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
        label=f"AXDIMM as measured in the paper, {PAPER_MPARAMS_PER_S} MP/s",
    )


def time_breakdown(grid: Grid, rows: Sequence[Row]) -> Figure:
    """Where the DRAM clocks of each point go, as shares: a bar a point, the first on top."""
    shown = [row for row in rows if row["data_tck"] is not None]
    labels = [grid.label(row) or str(row["preset"]) for row in shown]
    # Long labels take their room from the figure, not from the bars.
    width = 7.5 + 0.075 * max(map(len, labels), default=0)
    figure = Figure(figsize=(width, 2.2 + 0.34 * max(len(shown), 1)), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    totals = np.array(
        [sum(row[f"{name}_tck"] for name in DRAM_TIMES) for row in shown], dtype=float
    )
    left = np.zeros(len(shown))
    for time, (name, color) in _TIMES.items():
        shares = 100 * np.array([row[f"{time}_tck"] for row in shown]) / totals
        bars = axes.barh(places, shares, left=left, color=color, label=name, height=0.75)
        axes.bar_label(
            bars,
            [f"{share:.1f}" if share >= 4 else "" for share in shares],
            label_type="center",
            fontsize=8,
            color="white" if time != "idle" else "black",
        )
        left += shares
    for place, row in zip(places, shown, strict=True):
        axes.text(101, place, f"{row['mparams_per_s']:.1f} MP/s", va="center", fontsize=8)
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 114)
    axes.set_xticks(range(0, 101, 10))
    axes.set_xlabel("% of the run's DRAM clocks, all channels")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Where the time goes ({grid.backend})")
    return _finished(figure, axes, grid=False, ncols=len(_TIMES) // 2)


def roofline(grid: Grid, rows: Sequence[Row]) -> Figure:
    """Throughput in operations against operations per byte of DRAM traffic.

    A rule stands at its operations for its bytes, Adam at 16 for 28; one without operations is left
    out. Slopes are the DRAM's peaks, flats those of the units; each point lies under its own.
    """
    shown = [row for row in rows if row["mparams_per_s"] is not None and row["flops_per_parameter"]]
    rules = {row["rule"]: (row["flops_per_parameter"], row["bytes_per_parameter"]) for row in shown}
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    x = np.geomspace(1 / 8, 16, 400)
    peaks = sorted({row["dram_gb_per_s"] for row in shown})
    units = sorted({row["compute_gflop_per_s"] for row in shown})
    for index, peak in enumerate(peaks):
        # A roof ends where the highest flat cuts it.
        under = x[x * peak <= max(units)]
        axes.plot(under, under * peak, color="black", linewidth=1.5)
        place = under[min(8 + 60 * index, len(under) - 1)]
        axes.text(
            place,
            place * peak * 1.04,
            f"DRAM {peak:.1f} GB/s",
            rotation=np.degrees(np.arctan(peak)),
            rotation_mode="anchor",
            transform_rotates_text=True,
            va="bottom",
            fontsize=8,
        )
    for index, roof in enumerate(units):
        color = _colors(len(units))[index]
        of_roof = [row for row in shown if row["compute_gflop_per_s"] == roof]
        above = x[x * max(peaks) >= roof]
        axes.plot(above, np.full_like(above, roof), color=color, linewidth=1.5)
        axes.annotate(
            f"units {roof:,.1f} GFLOP/s",
            (x[-1], roof),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
            color=color,
        )
        speeds = [row["mparams_per_s"] for row in of_roof]
        axes.plot(
            [row["flops_per_parameter"] / row["bytes_per_parameter"] for row in of_roof],
            [row["mparams_per_s"] * row["flops_per_parameter"] / 1000 for row in of_roof],
            linestyle="none",
            marker="o",
            # Rings of several sizes show where points lie on each other.
            markersize=6 + 2.5 * min(len(units) - 1 - index, 5),
            markerfacecolor="none",
            markeredgewidth=1.6,
            color=color,
            label=f"{len(of_roof)} point{'s' * (len(of_roof) > 1)} under {roof:,.1f} GFLOP/s: "
            + (
                f"{min(speeds):.1f} to {max(speeds):.1f} MP/s"
                if len(of_roof) > 1
                else f"{speeds[0]:.1f} MP/s"
            ),
        )
    for rule, (flops, nbytes) in rules.items():
        axes.axvline(
            flops / nbytes,
            color="grey",
            linestyle=":",
            linewidth=1,
            label=f"{rule}: {flops} operations for {nbytes} bytes",
            zorder=0,
        )
    axes.set_xlim(x[0], x[-1])
    for one in (axes.xaxis, axes.yaxis):
        one.set_major_formatter("{x:g}")
    axes.set_xlabel("operations per byte of DRAM traffic (FLOP/B)")
    axes.set_ylabel("GFLOP/s of the module")
    axes.set_title(f"Roofline of the simulated AXDIMM ({grid.backend})")
    return _finished(figure, axes, markerscale=0.7)


def area(grid: Grid, rows: Sequence[Row]) -> Figure:
    """Throughput against what it costs: a mark a point, filled if no other has as much for less.

    The cost is the lookup tables of a channel's kernel if the rows have them (``--resources``),
    else the data that a channel can buffer on the chip, which leaves the logic out.
    """
    shown = [row for row in rows if row["mparams_per_s"] is not None]
    costs = [_cost(row) for row in shown]
    figure = Figure(
        figsize=(8, 4.8 + 0.2 * min(len(shown), MANY_LINES)),
        layout="constrained",
    )
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
        else "data that a channel can buffer on the chip (KiB); the logic is not counted"
    )
    axes.set_ylabel("million parameters a second (MP/s)")
    axes.set_title(
        f"The simulated AXDIMM ({grid.backend}): throughput against area\n"
        "filled: no other point has as much for less",
        fontsize=11,
    )
    return _finished(figure, axes)


def _cost(row: Row) -> float:
    return row["luts"] if "luts" in row else row["onchip_bytes"] / 1024


def write_plots(folder: Path, grid: Grid, rows: Sequence[Row]) -> list[Path]:
    """Writes what the rows can show; returns the files (PNG).

    ``throughput_AXIS.png`` for each axis, ``time_breakdown.png`` (with many points several,
    numbered), ``roofline.png`` if a rule computes anything, and ``area.png`` if the points differ
    in area. Rows without figures (failed points, untimed backends) are left out.
    """
    figures: dict[str, Figure] = {}
    timed = [row for row in rows if row["mparams_per_s"] is not None]
    if timed:
        figures |= {f"throughput_{axis}": throughput(grid, rows, axis) for axis in grid.axes}
    if any(row["flops_per_parameter"] for row in timed):
        figures["roofline"] = roofline(grid, rows)
    if len({_cost(row) for row in timed}) > 1:
        figures["area"] = area(grid, rows)
    accounted = [row for row in rows if row["data_tck"] is not None]
    parts = range(0, len(accounted), BARS_PER_FIGURE)
    for number, first in enumerate(parts, start=1):
        name = "time_breakdown" if len(parts) == 1 else f"time_breakdown_{number}"
        figures[name] = time_breakdown(grid, accounted[first : first + BARS_PER_FIGURE])
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=DPI)
    return paths
