"""Fill of a tensor with one value."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue
from hw.rules.update_rule import UpdateRule

__all__ = ["RULE"]


def fill(
    *,
    value: FlowValue,
) -> dict[str, FlowValue]:
    return {"y": value}


RULE = UpdateRule(
    name="fill",
    title="fill",
    tensors={"y": "filled tensor"},
    constants={
        "value": "value",
    },
    outputs=("y",),
    formula=fill,
)
