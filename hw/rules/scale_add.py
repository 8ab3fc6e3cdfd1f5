"""``z = x + scale * y``, the triad of the STREAM benchmark."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def scale_add(
    *,
    x: FlowValue,
    y: FlowValue,
    scale: FlowValue,
) -> dict[str, FlowValue]:
    return {"z": x + scale * y}


RULE = UpdateRule(
    name="scale_add",
    title="scale and add",
    tensors={"x": "first addend", "y": "scaled addend", "z": "sum"},
    inputs=("x", "y"),
    constants={
        "scale": "scale",
    },
    outputs=("z",),
    formula=scale_add,
)
