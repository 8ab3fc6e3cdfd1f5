"""RMSprop (Tieleman and Hinton, 2012), not centred, as in PyTorch's ``RMSprop``."""

from __future__ import annotations

import numpy as np

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def constants(*, lr: float, alpha: float, eps: float, weight_decay: float) -> dict[str, float]:
    complement = {"one_minus_alpha": 1 - alpha}
    return {"lam": weight_decay, "alpha": alpha, **complement, "eps": eps, "lr": lr}


def formula(p: Floats, g: Floats, v: Floats, c: Values) -> dict[str, Floats]:
    g = g + c.lam * p
    v = c.alpha * v + c.one_minus_alpha * (g * g)
    return {"p": p - c.lr * (g / (np.sqrt(v) + c.eps)), "v": v}


REFERENCE = Reference(
    inputs=("p", "g", "v"), outputs=("p", "v"), exact_constants=constants, formula=formula
)
