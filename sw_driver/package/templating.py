"""The files that are written from a template of ``templates/``."""

from __future__ import annotations

from importlib.resources import files
from string import Template

__all__ = ["fill"]


class _Template(Template):
    """``@@name`` and ``@@{name}`` are filled in: neither Verilog nor Tcl has two of them."""

    delimiter = "@@"


def fill(template: str, **values: object) -> str:
    """The template file with its values; raises ``KeyError`` for one that is missing."""
    text = files(__package__).joinpath("templates", template).read_text()
    return _Template(text).substitute(values)
