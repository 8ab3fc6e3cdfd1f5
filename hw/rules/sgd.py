"""Stochastic gradient descent, with the weight decay added to the gradient."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def sgd(
    *,
    p: FlowValue,
    g: FlowValue,
    lam: FlowValue,
    lr: FlowValue,
) -> dict[str, FlowValue]:
    g = g + lam * p
    p = p - lr * g
    return {"p": p}


RULE = UpdateRule(
    name="sgd",
    title="SGD",
    tensors={"p": "parameters", "g": "gradients"},
    inputs=("p", "g"),
    constants={
        "lam": "weight_decay",
        "lr": "lr",
    },
    outputs=("p",),
    formula=sgd,
)
