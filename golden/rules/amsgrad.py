"""AMSGrad (Reddi, Kale and Kumar, 2018): Adam with the largest second moment so far."""

from __future__ import annotations

import numpy as np

from golden.rules import Floats, Reference, Values, moment_constants

__all__ = ["REFERENCE"]


def constants(*, lr: float, eps: float, weight_decay: float, **betas: float) -> dict[str, float]:
    return {"lam": weight_decay, **moment_constants(**betas), "eps": eps, "lr": lr}


def formula(p: Floats, g: Floats, m: Floats, v: Floats, x: Floats, c: Values) -> dict[str, Floats]:
    g = g + c.lam * p
    m = c.beta1 * m + c.one_minus_beta1 * g
    v = c.beta2 * v + c.one_minus_beta2 * (g * g)
    # IEEE 754-2019, 9.6: +0 is larger than -0. numpy leaves it open; the sum of zeros is right.
    x = np.where((x == 0) & (v == 0), x + v, np.maximum(x, v))
    u = (m * c.inv_bc1) / (np.sqrt(x * c.inv_bc2) + c.eps)
    return {"p": p - c.lr * u, "m": m, "v": v, "x": x}


REFERENCE = Reference(
    inputs=("p", "g", "m", "v", "x"),
    outputs=("p", "m", "v", "x"),
    exact_constants=constants,
    formula=formula,
)
