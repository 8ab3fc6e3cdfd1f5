"""Accumulation of the gradients of several batches; parameters do not change."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def accumulate(
    *,
    a: FlowValue,
    g: FlowValue,
    scale: FlowValue,
) -> dict[str, FlowValue]:
    return {"a": a + scale * g}


RULE = UpdateRule(
    name="accumulate",
    title="gradient accumulation",
    tensors={"a": "accumulated gradients", "g": "gradients"},
    inputs=("a", "g"),
    constants={
        "scale": "scale",
    },
    outputs=("a",),
    formula=accumulate,
)
