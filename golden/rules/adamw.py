"""AdamW (Loshchilov and Hutter, 2019): the weight decay shrinks the parameter itself."""

from __future__ import annotations

import numpy as np

from golden.rules import Floats, Reference, Values, moment_constants

__all__ = ["REFERENCE"]


def constants(*, lr: float, eps: float, weight_decay: float, **betas: float) -> dict[str, float]:
    return {"decay": 1 - lr * weight_decay, **moment_constants(**betas), "eps": eps, "lr": lr}


def formula(p: Floats, g: Floats, m: Floats, v: Floats, c: Values) -> dict[str, Floats]:
    m = c.beta1 * m + c.one_minus_beta1 * g
    v = c.beta2 * v + c.one_minus_beta2 * (g * g)
    u = (m * c.inv_bc1) / (np.sqrt(v * c.inv_bc2) + c.eps)
    return {"p": c.decay * p - c.lr * u, "m": m, "v": v}


REFERENCE = Reference(
    inputs=("p", "g", "m", "v"),
    outputs=("p", "m", "v"),
    exact_constants=constants,
    formula=formula,
)
