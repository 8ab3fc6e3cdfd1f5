"""Lion (Chen et al., 2023): a step of one size, with the sign of an interpolated momentum."""

from __future__ import annotations

import numpy as np

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def constants(*, lr: float, beta1: float, beta2: float, weight_decay: float) -> dict[str, float]:
    betas = {"beta1": beta1, "beta2": beta2}
    complements = {f"one_minus_{name}": 1 - beta for name, beta in betas.items()}
    return {"decay": 1 - lr * weight_decay, **betas, **complements, "lr": lr}


def formula(p: Floats, g: Floats, m: Floats, c: Values) -> dict[str, Floats]:
    direction = c.beta1 * m + c.one_minus_beta1 * g
    # The sign of a zero or of a NaN is the number itself.
    signed = np.abs(direction) > 0
    u = np.where(signed, np.copysign(np.float32(1), direction), direction)
    m = c.beta2 * m + c.one_minus_beta2 * g
    return {"p": c.decay * p - c.lr * u, "m": m}


REFERENCE = Reference(
    inputs=("p", "g", "m"), outputs=("p", "m"), exact_constants=constants, formula=formula
)
