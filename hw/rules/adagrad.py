"""Adagrad (Duchi, Hazan and Singer)."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue, sqrt
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def adagrad(
    *,
    p: FlowValue,
    g: FlowValue,
    s: FlowValue,
    lam: FlowValue,
    eps: FlowValue,
    lr: FlowValue,
) -> dict[str, FlowValue]:
    g = g + lam * p
    s = s + g * g
    p = p - lr * (g / (sqrt(s) + eps))
    return {"p": p, "s": s}


RULE = UpdateRule(
    name="adagrad",
    title="Adagrad",
    tensors={"p": "parameters", "g": "gradients", "s": "sums of squared gradients"},
    inputs=("p", "g", "s"),
    constants={
        "lam": "weight_decay",
        "eps": "eps",
        "lr": "lr / (1 + (t - 1) * lr_decay)",
    },
    outputs=("p", "s"),
    formula=adagrad,
)
