"""Lion (Chen et al., 2023): the sign of an interpolated momentum."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue, sign
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def lion(
    *,
    p: FlowValue,
    g: FlowValue,
    m: FlowValue,
    decay: FlowValue,
    beta1: FlowValue,
    one_minus_beta1: FlowValue,
    beta2: FlowValue,
    one_minus_beta2: FlowValue,
    lr: FlowValue,
) -> dict[str, FlowValue]:
    u = sign(beta1 * m + one_minus_beta1 * g)
    m = beta2 * m + one_minus_beta2 * g
    p = decay * p - lr * u
    return {"p": p, "m": m}


RULE = UpdateRule(
    name="lion",
    title="Lion",
    tensors={"p": "parameters", "g": "gradients", "m": "momentum"},
    inputs=("p", "g", "m"),
    constants={
        "decay": "1 - lr * weight_decay",
        "beta1": "beta1",
        "one_minus_beta1": "1 - beta1",
        "beta2": "beta2",
        "one_minus_beta2": "1 - beta2",
        "lr": "lr",
    },
    outputs=("p", "m"),
    formula=lion,
)
