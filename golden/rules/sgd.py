"""Stochastic gradient descent with weight decay."""

from __future__ import annotations

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def constants(*, lr: float, weight_decay: float) -> dict[str, float]:
    return {"lam": weight_decay, "lr": lr}


def formula(p: Floats, g: Floats, c: Values) -> dict[str, Floats]:
    g = g + c.lam * p
    return {"p": p - c.lr * g}


REFERENCE = Reference(inputs=("p", "g"), outputs=("p",), exact_constants=constants, formula=formula)
