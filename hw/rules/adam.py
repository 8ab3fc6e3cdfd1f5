"""Adam (Kingma and Ba), with the weight decay added to the gradient, as in the paper (3.3)."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue, sqrt
from hw.rules.update_rule import UpdateRule

__all__ = ["MOMENTS", "RULE"]

MOMENTS = {
    "beta1": "beta1",
    "one_minus_beta1": "1 - beta1",
    "beta2": "beta2",
    "one_minus_beta2": "1 - beta2",
    "inv_bc1": "1 / (1 - beta1**t)",
    "inv_bc2": "1 / (1 - beta2**t)",
    "eps": "eps",
    "lr": "lr",
}
"""Constants of a step with moments; the weight decay differs between such rules."""


def adam(
    *,
    p: FlowValue,
    g: FlowValue,
    m: FlowValue,
    v: FlowValue,
    lam: FlowValue,
    beta1: FlowValue,
    one_minus_beta1: FlowValue,
    beta2: FlowValue,
    one_minus_beta2: FlowValue,
    inv_bc1: FlowValue,
    inv_bc2: FlowValue,
    eps: FlowValue,
    lr: FlowValue,
) -> dict[str, FlowValue]:
    g = g + lam * p
    m = beta1 * m + one_minus_beta1 * g
    v = beta2 * v + one_minus_beta2 * (g * g)
    u = (m * inv_bc1) / (sqrt(v * inv_bc2) + eps)
    p = p - lr * u
    return {"p": p, "m": m, "v": v}


RULE = UpdateRule(
    name="adam",
    title="Adam",
    tensors={"p": "parameters", "g": "gradients", "m": "first moments", "v": "second moments"},
    inputs=("p", "g", "m", "v"),
    constants={"lam": "weight_decay", **MOMENTS},
    outputs=("p", "m", "v"),
    states={"m": "signed", "v": "unsigned"},
    formula=adam,
)
