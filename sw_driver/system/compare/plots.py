"""Plots of a comparison for a browser, to zoom and to change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, cycle
from math import isnan, nan
from statistics import median
from typing import Any

import numpy as np
from bokeh import models
from bokeh.layouts import column, row
from bokeh.plotting import figure
from matplotlib.ticker import EngFormatter

from ..outcome import Outcome, Span
from .comparison import Row, size
from .figures import FAMILY_COLORS, PART_COLORS
from .system import all_parts_ns
from .systems import DRAWN, FAMILIES
from .variation import Variation

__all__ = ["pareto", "timeline", "varied"]

_WIDTH = 1160
_MS = 10**6
_STEP = "step time, ms (logarithmic scale)"
_BUSY = {
    "forward": "#4c78a8", "backward": "#1f3f66", "update": "#f58518", "transfer": "#54a24b",
    "access": "#a9d18e", "again": "#9ecae9",
}  # fmt: skip
_OTHERS = ("#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b", "#ff9da6")
_MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex")
_DASHES = ("solid", "dashed", "dotted", "dotdash", "dashdot")
_SMALL = "11px"

_CHOOSE = """
const k = slider.categories.indexOf(slider.value)
source.data = {...source.data, right: rights[k], text: texts[k]}
line.location = places[k]
"""


def pareto(rows: Sequence[Row], memory: Variation, capacity: int) -> Any:
    """Return the plot of step time against GPU memory, with a line for each system."""
    made = [step for steps in memory.values() for step in steps if step]
    held = [capacity, *(step.peak_bytes.get("gpu", 0) for step in made)]
    plot = _plot(
        "GPU memory in use, GiB (logarithmic scale)", y_axis_label=_STEP, name="pareto",
        width=_WIDTH, height=560, x_axis_type="log", y_axis_type="log",
        title=f"dotted: this GPU, {size(capacity)}", active_drag="box_zoom",
        x_range=_around(nbytes / 2**30 for nbytes in held),
        y_range=_around(step.step_ns / _MS for step in made),
        tools="pan,box_zoom,wheel_zoom,reset,save",
    )  # fmt: skip
    points = []
    for number, (one, (color, marker, dash)) in enumerate(zip(rows, _styles(rows), strict=True)):
        own = [(nbytes, steps[number]) for nbytes, steps in memory.items()]
        own = [(nbytes, step) for nbytes, step in own if step and step.peak_bytes.get("gpu")]
        if not own:
            continue
        held = [step.peak_bytes["gpu"] for _, step in own]
        data = {
            "x": [nbytes / 2**30 for nbytes in held],
            "y": [step.step_ns / _MS for _, step in own],
            "fill": [color if nbytes <= capacity else "white" for nbytes in held],
            "size": [12 if nbytes == capacity else 6 for nbytes, _ in own],
            "on": [size(int(nbytes)) for nbytes, _ in own],
            "mostly": [_longest(step) for _, step in own],
        }
        shown: dict[str, Any] = {
            "legend_label": one.system.name,
            "name": one.system.name,
            "line_color": color,
        }
        shown |= {"visible": one.outcome is not None or one.system.name in DRAWN, "source": data}
        plot.line("x", "y", line_dash=dash, **shown)
        mark: dict[str, Any] = {"size": "size", "fill_color": "fill", "marker": marker}
        points.append(plot.scatter("x", "y", **mark, **shown))
    tips = [("", "$name"), ("step", "@y{0,0.000} ms"), ("GPU memory in use", "@x{0.000} GiB")]
    tips += [("on a GPU with", "@on"), ("mostly", "@mostly")]
    plot.add_tools(models.HoverTool(tooltips=tips, renderers=points))
    line = models.Span(location=capacity / 2**30, dimension="height", line_dash="dotted")
    plot.add_layout(line)
    if points:
        _legend(plot, "right")
    return plot


def timeline(rows: Sequence[Row]) -> Any:
    """Return the plot of the lanes of all steps, one below the other."""
    made = [(one.system.name, one.outcome) for one in rows if one.outcome]
    plot = _plot(
        "time, ms", name="timeline", width=_WIDTH, active_drag="xbox_zoom",
        x_range=(0, _far([step.step_ns / _MS for _, step in made])),
        tools="xbox_zoom,xpan,xwheel_zoom,xzoom_in,xzoom_out,reset,save",
    )  # fmt: skip
    labels: list[str] = []
    bars: dict[str, list[tuple[int, float, float, float]]] = {}
    ends: list[tuple[float, float, float]] = []
    for system, step in made:
        spans = step.spans or _in_turn(step)
        lanes = [*dict.fromkeys(span.lane for span in spans)]
        lanes.sort(key=lambda lane: lane != "gpu")
        first, last = len(labels) - 0.5, len(labels) + len(lanes) - 0.5
        for span in spans:
            begin, end = span.begin_ns / _MS, span.end_ns / _MS
            bar = len(labels) + lanes.index(span.lane), begin, end, end - begin
            bars.setdefault(span.name, []).append(bar)
        first_lane, *others = (lane.replace("_", " ") for lane in lanes)
        labels += [f"{system} \N{MIDDLE DOT} {first_lane}", *others]
        ends.append((step.step_ns / _MS, first, last))
    x, tops, bottoms = np.array(ends).reshape(-1, 3).T
    plot.hstrip(tops[1::2], bottoms[1::2], fill_color="#f3f3f3", line_color=None, level="image")
    plot.segment(x, tops, x, bottoms, line_color="black")
    more, known = cycle(_OTHERS), PART_COLORS | _BUSY
    for kind in sorted(bars, key=lambda kind: [*known, kind].index(kind)):
        color = known.get(kind) or next(more)
        keys = ("lane", "begin", "end", "took")
        source = dict(zip(keys, np.array(bars[kind]).T, strict=True))
        shape = {"line_color": color, "line_width": 0.3, "fill_color": color, "height": 0.76}
        shown = {"source": source, "name": kind, "legend_label": kind}
        plot.hbar("lane", left="begin", right="end", **shape, **shown)
    tips = [(key, f"@{key}{{0,0.000}} ms") for key in ("begin", "end", "took")]
    plot.add_tools(models.HoverTool(tooltips=[("", "$name"), *tips]))
    plot.height = 130 + 17 * len(labels)
    _name(plot, labels)
    plot.add_layout(models.LinearAxis(formatter=plot.xaxis[0].formatter), "above")
    if bars:
        _legend(plot, "above")
        plot.legend.orientation, plot.legend.spacing = "horizontal", 12
    return plot


def varied(rows: Sequence[Row], name: str, outcomes: Variation, capacity: int) -> Any:
    """Return lines of step time by the varied value, and bars for the value of a slider."""
    is_memory = name == "memory"
    words = [size(int(value)) if is_memory else f"{value:g} times" for value in outcomes]
    places = [value / 2**30 if is_memory else value for value in outcomes]
    here = [*outcomes].index(capacity if is_memory else 1)
    times = [[step.step_ns / _MS if step else nan for step in steps] for steps in outcomes.values()]
    plot = _plot(
        "GPU memory, GiB" if is_memory else f"{name}, relative", y_axis_label=_STEP,
        width=_WIDTH // 2 - 20, height=130 + 19 * len(rows), x_axis_type="log", y_axis_type="log",
        tools="box_zoom,reset,save", name=f"{name} lines", x_range=_around(places),
        y_range=_around(time for own in times for time in own),
    )  # fmt: skip
    if not is_memory:
        plot.xaxis.ticker = models.FixedTicker(ticks=places)
    styles = _styles(rows)
    drawn = [number for number, one in enumerate(rows) if one.system.name in DRAWN]
    lines = {
        "x": [places for _ in drawn],
        "y": [[own[number] for own in times] for number in drawn],
        "color": [styles[number][0] for number in drawn],
        "dash": [styles[number][2] for number in drawn],
    }
    plot.multi_line("x", "y", line_color="color", line_dash="dash", source=lines)
    at = [(number, place) for number in drawn for place in range(len(places))]
    points = {
        "x": [places[place] for _, place in at],
        "y": [times[place][number] for number, place in at],
        "color": [styles[number][0] for number, _ in at],
        "shape": [styles[number][1] for number, _ in at],
        "name": [rows[number].system.name for number, _ in at],
    }
    marks = plot.scatter("x", "y", size=6, color="color", marker="shape", source=points)
    tips = [("", "@name"), ("step", "@y{0,0.000} ms")]
    plot.add_tools(models.HoverTool(tooltips=tips, renderers=[marks]))
    far = _far([time for own in times for time in own if not isnan(time)])
    rights = [[0 if isnan(time) else min(time, far) for time in own] for own in times]
    seconds = EngFormatter("s", places=1)
    texts = [
        ["cannot" if isnan(time) else seconds(time / 1e3) + " →" * (time > far) for time in own]
        for own in times
    ]
    bars = _plot(
        "step time, ms", width=_WIDTH // 2 + 20, height=90 + 19 * len(rows), tools="save",
        x_range=(0, 1.2 * far), name=f"{name} bars",
    )  # fmt: skip
    fixed = {"at": [*range(len(rows))], "color": [color for color, *_ in styles]}
    source = models.ColumnDataSource({**fixed, "right": rights[here], "text": texts[here]})
    bars.hbar("at", 0.7, "right", color="color", source=source)
    small: dict[str, Any] = {"x_offset": 4, "text_baseline": "middle", "text_font_size": _SMALL}
    bars.text("right", "at", "text", source=source, **small)
    _name(bars, [one.system.name for one in rows])
    slider = models.CategoricalSlider(categories=words, value=words[here], title=name, width=400)
    line = models.Span(location=places[here], dimension="height", line_color="#999999")
    plot.add_layout(line)
    args: dict[str, Any] = {"slider": slider, "source": source, "line": line, "places": places}
    args |= {"rights": rights, "texts": texts}
    slider.js_on_change("value", models.CustomJS(args=args, code=_CHOOSE))
    return row(plot, column(slider, bars))


def _around(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis for values."""
    known = [value for value in values if value > 0] or [1]
    return min(known) / 1.3, 1.3 * max(known)


def _plot(label: str, **options: Any) -> Any:
    plot: Any = figure(x_axis_label=label, toolbar_location="above", **options)
    plot.toolbar.logo = plot.outline_line_color = None
    plot.grid.grid_line_color = "#eeeeee"
    for axis, ends in ((plot.xaxis[0], plot.x_range), (plot.yaxis[0], plot.y_range)):
        axis.formatter = models.PrintfTickFormatter(format="%g")
        # Bokeh's own ticks leave out most labels of a short logarithmic axis.
        if isinstance(axis, models.LogAxis) and ends.end < 1000 * ends.start:
            digits = (1, 2, 5) if ends.end > 30 * ends.start else (1, 1.5, 2, 3, 5, 7)
            ticks = [float(f"{one}e{power}") for power in range(-7, 9) for one in digits]
            axis.update(ticker=models.FixedTicker(ticks=ticks))
    return plot


def _legend(plot: Any, place: str) -> None:
    plot.add_layout(plot.legend[0], place)
    plot.legend.click_policy = "hide"
    plot.legend.label_text_font_size = _SMALL
    plot.legend.spacing, plot.legend.padding, plot.legend.glyph_height = 0, 2, 16


def _name(plot: Any, labels: Sequence[str]) -> None:
    """Write a label at each whole number of the vertical axis, from the top."""
    plot.y_range.start, plot.y_range.end = len(labels) - 0.4, -0.6
    axis = plot.yaxis[0]
    axis.ticker = models.FixedTicker(ticks=[*range(len(labels))])
    axis.major_label_overrides = dict(enumerate(labels))
    axis.major_label_text_font_size = _SMALL
    axis.major_tick_line_color = axis.axis_line_color = None


def _styles(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return the colour of each row's family, and a marker and dashes of its own in it."""
    own = {}
    for color, systems in zip(cycle(FAMILY_COLORS), FAMILIES.values(), strict=False):
        for system, *shape in zip(systems, cycle(_MARKERS), cycle(_DASHES), strict=False):
            own[system.name] = color, *shape
    return [own.get(one.system.name, ("black", _MARKERS[0], _DASHES[0])) for one in rows]


def _far(times: Sequence[float]) -> float:
    """Return the end of an axis that cuts off times several times as long as most."""
    return 1.05 * min(max(times, default=1), 3 * median(times or [1]))


def _longest(step: Outcome) -> str:
    """Return the longest part of a step, with its share."""
    parts = all_parts_ns(step)
    longest = max(parts, key=lambda part: parts[part])
    return f"{longest}, {parts[longest] / max(step.step_ns, 1):.0%} of the step"


def _in_turn(step: Outcome) -> list[Span]:
    """Return the parts of a step without a schedule, one behind the other."""
    parts = all_parts_ns(step)
    ends = accumulate(parts.values())
    return [
        Span(lane="sum of parts", name=part, begin_ns=end_ns - parts[part], end_ns=end_ns)
        for part, end_ns in zip(parts, ends, strict=True)
        if parts[part]
    ]
