"""Sum of the squares of a gradient, the square of its norm."""

from __future__ import annotations

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def formula(g: Floats, c: Values) -> dict[str, Floats]:
    return {"squares": g * g}


REFERENCE = Reference(inputs=("g",), sums=("squares",), formula=formula)
