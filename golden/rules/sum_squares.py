"""The sum of the squares of a gradient, of which its norm is the root."""

from __future__ import annotations

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def formula(g: Floats, c: Values) -> dict[str, Floats]:
    return {"squares": g * g}


REFERENCE = Reference(inputs=("g",), sums=("squares",), formula=formula)
