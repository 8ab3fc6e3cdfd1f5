"""The Adam update as a formula (Kingma and Ba, with the weight decay added to the gradient)."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue, sqrt

__all__ = ["CONSTANTS", "INPUTS", "OUTPUTS", "adam"]

INPUTS = ("p", "g", "m", "v")
"""Parameter, gradient, first and second moment."""

CONSTANTS = (
    "lam",
    "beta1",
    "one_minus_beta1",
    "beta2",
    "one_minus_beta2",
    "inv_bc1",
    "inv_bc2",
    "eps",
    "lr",
)
"""Weight decay, decay rates, inverse bias corrections 1 / (1 - beta^t), epsilon, learning rate."""

OUTPUTS = ("p", "m", "v")
"""Parameter and moments after the step."""


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
    """One step for one parameter, each operation rounded on its own."""
    g = g + lam * p
    m = beta1 * m + one_minus_beta1 * g
    v = beta2 * v + one_minus_beta2 * (g * g)
    u = (m * inv_bc1) / (sqrt(v * inv_bc2) + eps)
    p = p - lr * u
    return {"p": p, "m": m, "v": v}
