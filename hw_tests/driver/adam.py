"""The golden Adam as tests of the driver call it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from golden.rules import reference

__all__ = ["adam_constants", "adam_step"]

Floats = NDArray[np.float32]

_ADAM = reference("adam")


def adam_constants(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, t: int
) -> dict[str, np.float32]:
    """The constants of step ``t``."""
    return _ADAM.constants(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, t=t)


def adam_step(
    p: Floats, g: Floats, m: Floats, v: Floats, constants: Mapping[str, np.float32]
) -> tuple[Floats, Floats, Floats]:
    """``p``, ``m`` and ``v`` after a step."""
    results = _ADAM.step({"p": p, "g": g, "m": m, "v": v}, constants)
    return results["p"], results["m"], results["v"]
