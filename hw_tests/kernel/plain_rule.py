"""A small update rule, for benches that look at the movement of data."""

from __future__ import annotations

from golden.rules import Floats, Reference, Values
from hw.dataflow.flow import FlowValue
from hw.rules import register
from hw.rules.update_rule import UpdateRule

__all__ = ["PLAIN", "PLAIN_REFERENCE"]


def plain(
    *, p: FlowValue, g: FlowValue, m: FlowValue, v: FlowValue, beta1: FlowValue, lr: FlowValue
) -> dict[str, FlowValue]:
    return {"p": p - lr * g, "m": beta1 * m + g, "v": v + g}


PLAIN = register(
    UpdateRule(
        name="plain",
        title="for benches",
        tensors=dict.fromkeys("pgmv", "anything"),
        inputs=("p", "g", "m", "v"),
        constants={"beta1": "beta1", "lr": "lr"},
        outputs=("p", "m", "v"),
        formula=plain,
    )
)


def _step(p: Floats, g: Floats, m: Floats, v: Floats, c: Values) -> dict[str, Floats]:
    return {"p": p - c.lr * g, "m": c.beta1 * m + g, "v": v + g}


PLAIN_REFERENCE = Reference(
    inputs=("p", "g", "m", "v"),
    outputs=("p", "m", "v"),
    exact_constants=lambda beta1, lr: {"beta1": beta1, "lr": lr},
    formula=_step,
)
