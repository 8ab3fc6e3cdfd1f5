"""Pictures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save"]


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of its suffix, ``.svg`` or ``.png``, and return the path.

    The file appears complete or not at all. The same figure gives the same bytes.
    """
    from matplotlib import rc_context

    kind = path.suffix[1:]
    # The salt makes the ids reproducible.
    with rc_context({"svg.hashsalt": "nearmem"}), replacing(path) as part:
        figure.savefig(part, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return path
