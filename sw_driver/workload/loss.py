"""Traces with the loss computed in chunks of the tokens, so that few logits exist at a time."""

from __future__ import annotations

from .trace import Op, Trace

__all__ = ["output_product"]

_LINEAR = ("mm", "addmm")


def output_product(trace: Trace) -> Op | None:
    """Return the product of the output layer, if there is one.

    It is the linear layer's product of the largest result that no other product of the forward
    pass depends on.
    """
    followed = set[int]()  # tensors that products depend on
    outputs = []
    for op in reversed(trace.ops):
        if op.phase != "forward":
            continue
        if not followed.isdisjoint(op.writes):
            followed.update(op.reads)
        elif op.geometry is not None:
            followed.update(op.reads)
            outputs.append(op)
    linear = (op for op in outputs if op.kind in _LINEAR)
    return max(linear, key=lambda op: sum(op.write_bytes), default=None)
