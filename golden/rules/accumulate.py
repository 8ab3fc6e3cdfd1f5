"""Sum of the gradients of several batches, each scaled; parameters do not change."""

from __future__ import annotations

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def constants(*, scale: float) -> dict[str, float]:
    return {"scale": scale}


def formula(a: Floats, g: Floats, c: Values) -> dict[str, Floats]:
    return {"a": a + c.scale * g}


REFERENCE = Reference(inputs=("a", "g"), outputs=("a",), exact_constants=constants, formula=formula)
