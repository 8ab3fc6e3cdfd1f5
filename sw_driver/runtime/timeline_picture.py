"""A timeline as a picture, for those who open no browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

__all__ = ["PICTURES", "draw_timeline"]

PICTURES = (".svg", ".png")
"""How the names of pictures end."""

_COLORS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#bab0ac")
_HEIGHT = 0.7


def draw_timeline(
    file: IO[bytes],
    form: str,
    title: str,
    tracks: Mapping[str, Sequence[tuple[int, int, str]]],
) -> None:
    """Writes a row for each track, with a bar from begin to end of each of its slices.

    Parameters
    ----------
    form: ``svg`` or ``png``. The same timeline gives the same bytes.
    tracks: begin and end in nanoseconds, and the kind, which decides the colour.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(10, 1.6 + 0.45 * max(len(tracks), 1)), layout="constrained")
    axes = figure.subplots()
    kinds = sorted({kind for slices in tracks.values() for *_, kind in slices})
    colors = {kind: _COLORS[number % len(_COLORS)] for number, kind in enumerate(kinds)}
    for row, slices in enumerate(tracks.values()):
        for kind, color in colors.items():
            bars = [(begin / 1e6, (end - begin) / 1e6) for begin, end, of in slices if of == kind]
            place = (row - _HEIGHT / 2, _HEIGHT)
            if bars:  # with a white rim, which keeps apart what touches
                axes.broken_barh(bars, place, color=color, edgecolor="white", linewidth=0.3)
    axes.set_yticks(range(len(tracks)), list(tracks))
    axes.set_ylim(len(tracks) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("simulated time (ms)")
    axes.set_title(title)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=[Patch(color=color, label=kind) for kind, color in colors.items()],
        loc="outside lower center",
        ncols=max(len(kinds), 1),
        frameon=False,
    )
    # What would differ from one writing to the next, other than the timeline.
    metadata: dict[str, Any] = {"Date": None} if form == "svg" else {}
    with rc_context({"svg.hashsalt": "nearmem"}):
        figure.savefig(file, format=form, dpi=150, metadata=metadata)
