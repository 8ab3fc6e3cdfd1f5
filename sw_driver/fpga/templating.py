"""The files that are written from a template of ``templates/``."""

from __future__ import annotations

from pathlib import Path
from string import Template

__all__ = ["TEMPLATES", "fill"]

TEMPLATES = Path(__file__).parent / "templates"


class _Template(Template):
    """``@@name`` and ``@@{name}`` are filled in: neither Verilog nor Tcl has two of them."""

    delimiter = "@@"


def fill(template: str, **values: object) -> str:
    """The template file with its values; raises ``KeyError`` for one that is missing."""
    return _Template((TEMPLATES / template).read_text()).substitute(values)
