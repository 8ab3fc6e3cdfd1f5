"""Operations in which all GPUs take part, as operations of one GPU's step."""

from __future__ import annotations

from .trace import DTYPES, Op, Tensor, Trace

__all__ = ["COLLECTIVES", "format_of", "reduces_in_place"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds of collectives.

A collective does no arithmetic of the step. It reads and writes whole tensors on one side at least:
the larger side is the size of the message.
"""

_FORMATS = {8: "fp64", 4: "fp32", 2: "bf16", 1: "fp8"}


def format_of(tensor: Tensor, near: Op) -> str:
    """Return the format of a tensor: that of an operation near it, if the element's size fits."""
    fits = near.dtype != "tf32" and DTYPES[near.dtype] == tensor.element_bytes
    return near.dtype if fits else _FORMATS.get(int(tensor.element_bytes), "fp32")


def reduces_in_place(op: Op, trace: Trace) -> bool:
    """Return whether an operation adds up gradients of all GPUs where they are."""
    gradients = all(trace.tensors[tensor].kind == "gradient" for tensor in op.writes)
    return op.kind in COLLECTIVES and op.writes == op.reads and gradients
