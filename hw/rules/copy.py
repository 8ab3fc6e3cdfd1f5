"""Copy within the memory, which takes nothing but bandwidth."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def copy(
    *,
    x: FlowValue,
) -> dict[str, FlowValue]:
    return {"y": x}


RULE = UpdateRule(
    name="copy",
    title="copy",
    tensors={"x": "source", "y": "copy"},
    inputs=("x",),
    outputs=("y",),
    formula=copy,
)
