"""SGD with momentum (Polyak, 1964) as in PyTorch's ``SGD``: the first step is not dampened."""

from __future__ import annotations

from golden.rules import Floats, Reference, Values

__all__ = ["REFERENCE"]


def constants(
    *, lr: float, momentum: float, dampening: float, weight_decay: float, t: float
) -> dict[str, float]:
    gain = 1 if t == 1 else 1 - dampening
    return {"lam": weight_decay, "mu": momentum, "gain": gain, "lr": lr}


def formula(p: Floats, g: Floats, m: Floats, c: Values) -> dict[str, Floats]:
    g = g + c.lam * p
    m = c.mu * m + c.gain * g
    return {"p": p - c.lr * m, "m": m}


REFERENCE = Reference(
    inputs=("p", "g", "m"), outputs=("p", "m"), exact_constants=constants, formula=formula
)
