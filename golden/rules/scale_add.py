"""``z = x + scale * y``, the triad of the STREAM benchmark (McCalpin, 1995)."""

from __future__ import annotations

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def constants(*, scale: float) -> dict[str, float]:
    return {"scale": scale}


def formula(x: Floats, y: Floats, c: Values) -> dict[str, Floats]:
    return {"z": x + c.scale * y}


REFERENCE = Reference(inputs=("x", "y"), outputs=("z",), exact_constants=constants, formula=formula)
