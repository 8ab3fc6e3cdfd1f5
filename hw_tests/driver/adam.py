"""The golden Adam as tests of the driver call it, and the arguments of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.rules import reference

__all__ = ["ADAM", "adam_constants", "adam_step"]

Floats = NDArray[np.float32]

ADAM: dict[str, Any] = {
    "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "t": 1,
}  # fmt: skip
"""Hyper-parameters of a first step."""

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
