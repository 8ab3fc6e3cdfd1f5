"""Adam (Kingma and Ba, 2015), with weight decay in the gradient as in PyTorch's ``Adam``."""

from __future__ import annotations

import numpy as np

from golden.rules import Floats, Reference, Values, moment_constants

__all__ = ["REFERENCE"]


def constants(*, lr: float, eps: float, weight_decay: float, **betas: float) -> dict[str, float]:
    return {"lam": weight_decay, **moment_constants(**betas), "eps": eps, "lr": lr}


def formula(p: Floats, g: Floats, m: Floats, v: Floats, c: Values) -> dict[str, Floats]:
    g = g + c.lam * p
    m = c.beta1 * m + c.one_minus_beta1 * g
    v = c.beta2 * v + c.one_minus_beta2 * (g * g)
    u = (m * c.inv_bc1) / (np.sqrt(v * c.inv_bc2) + c.eps)
    return {"p": p - c.lr * u, "m": m, "v": v}


REFERENCE = Reference(
    inputs=("p", "g", "m", "v"),
    outputs=("p", "m", "v"),
    exact_constants=constants,
    formula=formula,
)
