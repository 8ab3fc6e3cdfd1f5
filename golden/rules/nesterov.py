"""SGD with Nesterov's momentum as in PyTorch's ``SGD``: the step looks one momentum ahead."""

from __future__ import annotations

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def constants(*, lr: float, momentum: float, weight_decay: float) -> dict[str, float]:
    return {"lam": weight_decay, "mu": momentum, "lr": lr}


def formula(p: Floats, g: Floats, m: Floats, c: Values) -> dict[str, Floats]:
    g = g + c.lam * p
    m = c.mu * m + g
    return {"p": p - c.lr * (g + c.mu * m), "m": m}


REFERENCE = Reference(
    inputs=("p", "g", "m"), outputs=("p", "m"), exact_constants=constants, formula=formula
)
