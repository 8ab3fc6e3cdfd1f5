"""Files written from the templates in ``templates/``."""

from __future__ import annotations

from pathlib import Path
from string import Template

__all__ = ["TEMPLATES", "fill"]

TEMPLATES = Path(__file__).parent / "templates"


class _Template(Template):
    """Template with ``@@name`` and ``@@{name}``: neither Verilog nor Tcl uses ``@@``."""

    delimiter = "@@"


def fill(template: str, **values: object) -> str:
    """Fill in a template file; raise ``KeyError`` for a missing value."""
    return _Template((TEMPLATES / template).read_text()).substitute(values)
