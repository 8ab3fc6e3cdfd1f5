"""Pictures of the experiments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..plotting import ours, save, theirs
from ..reproduction import Row

__all__ = ["draw_bars", "draw_table6"]


def draw_bars(rows: Sequence[Row], folder: Path) -> list[Path]:
    """``further.svg``: a bar for each variant's time, and how busy each part is."""
    names = [str(row["variant"]) for row in rows]
    parts = [column for column in rows[0] if column.endswith("busy, %")]
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(names))
    left.barh(places, [ours(row, "total, s") for row in rows], color="#4c78a8")
    left.set_yticks(places, names)
    left.invert_yaxis()
    left.set_xlabel("s a step")
    height = 0.8 / len(parts)
    for number, part in enumerate(parts):
        shifted = [place + (number - (len(parts) - 1) / 2) * height for place in places]
        values = [ours(row, part) for row in rows]
        right.barh(shifted, values, height, label=part.removesuffix(" busy, %"))
    right.set_xlabel("% of the step that a part is busy")
    figure.legend(fontsize="small", loc="outside lower right", ncols=len(parts))
    return [save(figure, folder / "further.svg")]


def draw_table6(rows: Sequence[Row], folder: Path) -> list[Path]:
    """``table6.svg``: total times and speed-ups, ours beside the paper's."""
    by_name = {str(row[""]): row for row in rows}
    models = [column for column in rows[0] if column]
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = range(len(models))
    for what, shift, color in (("baseline", -0.1, "#f58518"), ("module", 0.1, "#4c78a8")):
        row = by_name[f"{what}: total, s"]
        beside = [place + shift for place in places]
        here = [ours(row, model) for model in models]
        paper = [theirs(row, model) for model in models]
        left.plot(beside, here, "o", color=color, label=f"{what}, here")
        circle = {"markersize": 11, "markerfacecolor": "none"}
        left.plot(beside, paper, "o", color=color, label=f"{what}, paper", **circle)
    left.set_yscale("log")
    left.set_ylabel("s a step, logarithmic")
    for what, shift, color in (("backward", -0.3, "#f58518"), ("total", 0.1, "#4c78a8")):
        row = by_name[f"speedup, {what}"]
        beside = [place + shift for place in places]
        here = [ours(row, model) for model in models]
        paper = [theirs(row, model) for model in models]
        right.bar(beside, here, 0.2, color=color, label=f"{what}, here")
        beside = [place + 0.2 for place in beside]
        right.bar(beside, paper, 0.2, color=color, hatch="///", label=f"{what}, paper")
    right.set_ylabel("speed-up over the baseline")
    for axes in (left, right):
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)
        axes.set_xticks(places, [model.removeprefix("gpt3-") for model in models])
    return [save(figure, folder / "table6.svg")]
