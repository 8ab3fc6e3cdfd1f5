"""Copy of a tensor, bit for bit."""

from __future__ import annotations

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def formula(x: Floats, c: Values) -> dict[str, Floats]:
    return {"y": x}


REFERENCE = Reference(inputs=("x",), outputs=("y",), formula=formula)
