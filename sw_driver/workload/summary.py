"""What is in a trace, as figures."""

from __future__ import annotations

from itertools import accumulate

from .trace import KINDS, PHASES, Trace

__all__ = ["peak_bytes", "summary_text"]


def peak_bytes(trace: Trace, *kinds: str) -> int:
    """Most bytes of tensors of these kinds, of all if none is given, that live at the same time.

    Parameters and optimizer state always live, and so do inputs; others from their first operation
    to their last.
    """
    changes = [0] * (len(trace.ops) + 1)
    always = 0
    for tensor in trace.tensors:
        lifetime = trace.lifetime(tensor.id)
        if kinds and tensor.kind not in kinds:
            continue
        if tensor.kind in ("parameter", "optimizer_state", "input"):
            always += tensor.nbytes
        elif lifetime:
            changes[lifetime[0]] += tensor.nbytes
            changes[lifetime[1] + 1] -= tensor.nbytes
    return always + max(accumulate(changes))


def summary_text(trace: Trace) -> str:
    """Parameters, operations by phase, bytes by kind, and most bytes at a time."""
    parameters = [each.nbytes for each in trace.tensors if each.kind == "parameter"]
    lines = [
        f"{trace.name}: {len(trace.ops)} operations, {len(trace.layers)} layers, "
        f"{len(parameters)} parameters of {sum(parameters):,} bytes"
    ]
    for phase in PHASES:
        ops = [op for op in trace.ops if op.phase == phase]
        flops, nbytes = sum(op.flops for op in ops), sum(op.nbytes for op in ops)
        lines.append(f"  {phase}: {len(ops)} operations, {flops:,} flops, {nbytes:,} bytes moved")
    for kind in KINDS:
        tensors = [each.nbytes for each in trace.tensors if each.kind == kind]
        lines.append(
            f"  {kind}: {len(tensors)} tensors of {sum(tensors):,} bytes, "
            f"at most {peak_bytes(trace, kind):,} at a time"
        )
    return "\n".join([*lines, f"  all: at most {peak_bytes(trace):,} bytes at a time"])
