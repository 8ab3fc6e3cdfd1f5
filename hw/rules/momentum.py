"""Stochastic gradient descent with momentum (Polyak), as PyTorch defines it."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def momentum(
    *,
    p: FlowValue,
    g: FlowValue,
    m: FlowValue,
    lam: FlowValue,
    mu: FlowValue,
    gain: FlowValue,
    lr: FlowValue,
) -> dict[str, FlowValue]:
    g = g + lam * p
    m = mu * m + gain * g
    p = p - lr * m
    return {"p": p, "m": m}


RULE = UpdateRule(
    name="momentum",
    title="SGD with momentum",
    tensors={"p": "parameters", "g": "gradients", "m": "momentum"},
    inputs=("p", "g", "m"),
    constants={
        "lam": "weight_decay",
        "mu": "momentum",
        "gain": "1 if t == 1 else 1 - dampening",
        "lr": "lr",
    },
    outputs=("p", "m"),
    formula=momentum,
)
