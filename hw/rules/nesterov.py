"""Stochastic gradient descent with Nesterov's momentum, as PyTorch defines it."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def nesterov(
    *,
    p: FlowValue,
    g: FlowValue,
    m: FlowValue,
    lam: FlowValue,
    mu: FlowValue,
    lr: FlowValue,
) -> dict[str, FlowValue]:
    g = g + lam * p
    m = mu * m + g
    p = p - lr * (g + mu * m)
    return {"p": p, "m": m}


RULE = UpdateRule(
    name="nesterov",
    title="SGD with Nesterov momentum",
    tensors={"p": "parameters", "g": "gradients", "m": "momentum"},
    inputs=("p", "g", "m"),
    constants={
        "lam": "weight_decay",
        "mu": "momentum",
        "lr": "lr",
    },
    outputs=("p", "m"),
    formula=nesterov,
)
