"""AMSGrad (Reddi, Kale and Kumar): Adam with a second moment that never falls."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue, maximum, sqrt
from hw.rules.adam import MOMENTS
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def amsgrad(
    *,
    p: FlowValue,
    g: FlowValue,
    m: FlowValue,
    v: FlowValue,
    x: FlowValue,
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
    x = maximum(x, v)
    u = (m * inv_bc1) / (sqrt(x * inv_bc2) + eps)
    p = p - lr * u
    return {"p": p, "m": m, "v": v, "x": x}


RULE = UpdateRule(
    name="amsgrad",
    title="AMSGrad",
    tensors={
        "p": "parameters",
        "g": "gradients",
        "m": "first moments",
        "v": "second moments",
        "x": "largest second moments",
    },
    inputs=("p", "g", "m", "v", "x"),
    constants={"lam": "weight_decay", **MOMENTS},
    outputs=("p", "m", "v", "x"),
    formula=amsgrad,
)
