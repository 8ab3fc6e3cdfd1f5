"""AdamW (Loshchilov and Hutter): the weight decay shrinks the parameter itself."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue, sqrt
from hw.rules.adam import MOMENTS
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def adamw(
    *,
    p: FlowValue,
    g: FlowValue,
    m: FlowValue,
    v: FlowValue,
    decay: FlowValue,
    beta1: FlowValue,
    one_minus_beta1: FlowValue,
    beta2: FlowValue,
    one_minus_beta2: FlowValue,
    inv_bc1: FlowValue,
    inv_bc2: FlowValue,
    eps: FlowValue,
    lr: FlowValue,
) -> dict[str, FlowValue]:
    m = beta1 * m + one_minus_beta1 * g
    v = beta2 * v + one_minus_beta2 * (g * g)
    u = (m * inv_bc1) / (sqrt(v * inv_bc2) + eps)
    p = decay * p - lr * u
    return {"p": p, "m": m, "v": v}


RULE = UpdateRule(
    name="adamw",
    title="AdamW, decoupled weight decay",
    tensors={"p": "parameters", "g": "gradients", "m": "first moments", "v": "second moments"},
    inputs=("p", "g", "m", "v"),
    constants={"decay": "1 - lr * weight_decay", **MOMENTS},
    outputs=("p", "m", "v"),
    states={"m": "signed", "v": "unsigned"},
    formula=adamw,
)
