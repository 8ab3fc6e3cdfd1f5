"""Pictures of a comparison: time against memory, parts of the time, and sensitivity."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import cycle
from math import nan
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from sw_driver.files import write_picture

from .comparison import Row, size
from .system import PARTS, all_parts_ns
from .systems import DRAWN, FAMILIES
from .variation import Variation

__all__ = ["FAMILY_COLORS", "PART_COLORS", "PICTURES", "draw"]

FAMILY_COLORS = (
    "black", "#e45756", "#f58518", "#4c78a8", "#54a24b", "#b279a2", "#9d755d", "#72b7b2",
)  # fmt: skip
PART_COLORS = dict(zip(PARTS, ("#4c78a8", "#9ecae9", "#f58518", "#d5dbe1"), strict=True))
_STYLES: tuple[dict[str, Any], ...] = (
    {"marker": "o", "markersize": 4, "linewidth": 1},
    {"marker": "s", "markersize": 4, "linewidth": 1, "linestyle": "--"},
)
"""Line styles of the systems of a family."""
_LEGIBLE = 0.045
"""Least distance between two names, as a share of a picture's height."""


PICTURES = {
    "pareto": "Step time and GPU memory",
    "parts": "Parts of the step time",
    "sensitivity": "Step time with other memory, links and batches",
}
"""Titles of the pictures, by name."""


def draw(
    title: str,
    rows: Sequence[Row],
    cases: Mapping[str, Variation],
    capacity: int,
    folder: Path,
) -> list[Path]:
    """Draw all :data:`PICTURES` into a folder, and return their files.

    ``rows`` are those of one network, on a machine with ``capacity`` bytes of GPU memory. ``cases``
    are the variations of :func:`~sw_driver.system.compare.variation.varied`.
    """
    pictures = (
        _pareto(cases["memory"], capacity),
        _parts(rows),
        _sensitivity(cases),
    )
    files = []
    for figure, (name, shows) in zip(pictures, PICTURES.items(), strict=True):
        figure.suptitle(f"{shows}: {title}", fontsize="medium")
        files.append(write_picture(folder / f"{name}.svg", figure))
    return files


def _pareto(cases: Variation, capacity: int) -> Figure:
    """Draw step time against GPU memory; hollow points take more than the machine has."""
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    axes = figure.subplots()
    ends = {}
    for number, name, style in _lines():
        made = [outcomes[number] for outcomes in cases.values()]
        points = {
            (step.peak_bytes.get("gpu", 0) / 2**30, step.step_ns / 1e9) for step in made if step
        }
        if points := sorted(point for point in points if point[0]):
            axes.plot(*zip(*points, strict=True), **style, markerfacecolor="white")
            for point in points:
                if 2**30 * point[0] <= capacity:
                    axes.plot(*point, **style)
            ends[name] = points[-1]
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="GPU memory in use, GiB",
        ylabel="step time",
    )
    axes.axvline(capacity / 2**30, color="black", linewidth=0.8, linestyle=":")
    axes.text(
        capacity / 2**30, 1.01, f"this GPU, {size(capacity)}",
        ha="center", transform=axes.get_xaxis_transform(), fontsize="small",
    )  # fmt: skip
    _ticks(axes.xaxis)
    _name(axes, ends, ends)
    return figure


def _parts(rows: Sequence[Row]) -> Figure:
    """Draw the parts of each step; bars several times as long as most are cut off."""
    figure = Figure(figsize=(8.6, 0.9 + 0.26 * len(rows)), layout="constrained")
    axes = figure.subplots()
    times = [row.outcome.step_ns / 1e9 for row in rows if row.outcome] or [1]
    end = min(max(times), 3 * median(times))
    for number, row in enumerate(rows):
        left, color = 0.0, "black"
        if row.outcome is not None:
            for part, ns in all_parts_ns(row.outcome).items():
                axes.barh(number, ns / 1e9, left=left, color=PART_COLORS[part], height=0.7)
                left += ns / 1e9
            label = EngFormatter("s", places=1)(left) + " →" * (left > end)
        else:
            label, color = f"cannot: {shorten(row.reason, 75, placeholder=' ...')}", "#777777"
        axes.text(
            min(left, end) + end / 100, number, label, va="center", fontsize="small", color=color,
            bbox={"color": "white", "pad": 1},
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.system.name for row in rows], fontsize="small")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.1 * end)
    axes.xaxis.set_major_formatter(EngFormatter("s"))
    handles = [Patch(color=color) for color in PART_COLORS.values()]
    figure.legend(handles, PARTS, loc="outside lower center", ncols=len(PARTS), fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _sensitivity(cases: Mapping[str, Variation]) -> Figure:
    """Draw step time against each variation; a line has a gap where a system cannot run."""
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    ends: dict[str, tuple[float, float]] = {}
    panels: Sequence[Axes] = figure.subplots(1, len(cases), sharey=True)
    for axes, (varied, outcomes) in zip(panels, cases.items(), strict=True):
        here = {}
        unit = 2**30 if varied == "memory" else 1
        places = [value / unit for value in outcomes]
        for number, name, style in _lines():
            made = zip(places, (steps[number] for steps in outcomes.values()), strict=True)
            times = {place: step.step_ns / 1e9 for place, step in made if step}
            axes.plot(places, [times.get(place, nan) for place in places], **style)
            if times:
                here[name] = [*times.items()][-1]
        ends |= here
        axes.set(xscale="log", yscale="log")
        if varied == "memory":
            axes.set(xlabel="GPU memory, GiB", ylabel="step time")
            _ticks(axes.xaxis)
        else:
            axes.set_xlabel(f"{varied}, relative")
            axes.set_xticks(places, [f"{place:g}" for place in places])
            axes.xaxis.set_minor_locator(NullLocator())
    _name(panels[-1], ends, here)
    return figure


def _lines() -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield number among all systems, name and line style of each drawn system.

    Drawn are the systems of :data:`~sw_driver.system.compare.systems.DRAWN`.
    """
    number = 0
    for color, systems in zip(FAMILY_COLORS, FAMILIES.values(), strict=False):
        styles = cycle(_STYLES)
        for system in systems:
            if system.name in DRAWN:
                yield number, system.name, {"color": color, **next(styles)}
            number += 1


def _ticks(axis: Axis) -> None:
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _name(axes: Axes, ends: Mapping[str, tuple[float, float]], lines: Collection[str]) -> None:
    """Write names at the right, apart from each other, at the heights of the lines' ends.

    A thin line leads to each end in ``lines``, the systems of this picture.
    """
    _ticks(axes.yaxis)
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.set_ylim(axes.get_ylim())
    colors = {name: style["color"] for _, name, style in _lines()}
    to_axes = (axes.transData - axes.transAxes).transform
    heights = {name: to_axes(end)[1] for name, end in ends.items()}
    for name, height in _apart(dict(sorted(heights.items(), key=lambda item: item[1]))):
        color = colors[name]
        thin = {"arrowstyle": "-", "relpos": (0, 0.5), "color": color, "linewidth": 0.4}
        axes.annotate(
            name, ends[name], (1.06, height), textcoords="axes fraction", annotation_clip=False,
            va="center", fontsize="small", color=color, arrowprops=thin if name in lines else None,
        )  # fmt: skip


def _apart(heights: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield names with heights that keep them apart, in order.

    Names first move up from the bottom as far as necessary, then down to stay below the top.
    """
    raised: dict[str, float] = {}
    for name, height in heights.items():
        raised[name] = max(height, *(below + _LEGIBLE for below in [*raised.values()][-1:]), 0)
    last = 1 + _LEGIBLE
    for name, height in reversed(raised.items()):
        last = min(height, last - _LEGIBLE)
        yield name, last
