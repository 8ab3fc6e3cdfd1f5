"""Fill of a tensor with one value."""

from __future__ import annotations

import numpy as np

from golden.rules import Reference, Values

__all__ = ["REFERENCE"]


def constants(*, value: float) -> dict[str, float]:
    return {"value": value}


def formula(c: Values) -> dict[str, np.float32]:
    return {"y": c.value}


REFERENCE = Reference(outputs=("y",), exact_constants=constants, formula=formula)
