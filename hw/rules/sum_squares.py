"""Sum of squares of a gradient, the square of its norm."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def sum_squares(
    *,
    g: FlowValue,
) -> dict[str, FlowValue]:
    return {"squares": g * g}


RULE = UpdateRule(
    name="sum_squares",
    title="sum of squares",
    tensors={"g": "gradients"},
    inputs=("g",),
    sums=("squares",),
    formula=sum_squares,
)
