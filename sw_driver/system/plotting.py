"""What pictures of experiments have in common."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from sw_driver.runtime.files import replacing

from .reproduction import Cell, Row

__all__ = ["ours", "save", "theirs"]


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
