"""RMSprop (Tieleman and Hinton)."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue, sqrt
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def rmsprop(
    *,
    p: FlowValue,
    g: FlowValue,
    v: FlowValue,
    lam: FlowValue,
    alpha: FlowValue,
    one_minus_alpha: FlowValue,
    eps: FlowValue,
    lr: FlowValue,
) -> dict[str, FlowValue]:
    g = g + lam * p
    v = alpha * v + one_minus_alpha * (g * g)
    p = p - lr * (g / (sqrt(v) + eps))
    return {"p": p, "v": v}


RULE = UpdateRule(
    name="rmsprop",
    title="RMSprop",
    tensors={"p": "parameters", "g": "gradients", "v": "second moments"},
    inputs=("p", "g", "v"),
    constants={
        "lam": "weight_decay",
        "alpha": "alpha",
        "one_minus_alpha": "1 - alpha",
        "eps": "eps",
        "lr": "lr",
    },
    outputs=("p", "v"),
    formula=rmsprop,
)
