"""Adagrad (Duchi, Hazan and Singer, 2011), with the decaying step of PyTorch's ``Adagrad``."""

from __future__ import annotations

import numpy as np

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def constants(
    *, lr: float, lr_decay: float, eps: float, weight_decay: float, t: float
) -> dict[str, float]:
    return {"lam": weight_decay, "eps": eps, "lr": lr / (1 + (t - 1) * lr_decay)}


def formula(p: Floats, g: Floats, s: Floats, c: Values) -> dict[str, Floats]:
    g = g + c.lam * p
    s = s + g * g
    return {"p": p - c.lr * (g / (np.sqrt(s) + c.eps)), "s": s}


REFERENCE = Reference(
    inputs=("p", "g", "s"), outputs=("p", "s"), exact_constants=constants, formula=formula
)
