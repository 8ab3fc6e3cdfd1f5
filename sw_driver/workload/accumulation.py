"""Gradient accumulation: several micro-batches, and one update of their summed gradients."""

from __future__ import annotations

from dataclasses import replace

from sw_driver.numbers import check_integer

from .rewriting import Rewriting, format_of, reduces_in_place
from .trace import LASTING, Op, Trace, TraceError

__all__ = ["MOST_OPS", "accumulated"]

MOST_OPS = 200_000
"""Most operations of a step of several micro-batches."""


def accumulated(trace: Trace, steps: int) -> Trace:
    """Return a step that runs forward and backward pass ``steps`` times before its update.

    Every micro-batch is as large as the step's batch. The first one makes the gradients. A later
    one makes others, and adds each to the sum after its last use in the backward pass. Gradients
    of several GPUs that are reduced in place are reduced once, after the last micro-batch.
    Micro-batches share the batch's tensors.

    ``origin`` has the number of micro-batches as ``accumulate``. Raises
    :class:`~sw_driver.workload.trace.TraceError` for a step with updates in its backward pass, and
    for more than :data:`MOST_OPS` operations.
    """
    check_integer("accumulate", steps, error=TraceError)
    if steps == 1:
        return trace
    end = next((op.id for op in trace.ops if op.phase == "update"), len(trace.ops))
    if any(op.phase != "update" for op in trace.ops[end:]):
        raise TraceError(
            f"accumulate is {steps}, but {trace.name} updates parameters in its backward pass, "
            f"before other micro-batches: expected 1, or updates after the backward pass"
        )
    if (count := len(trace.ops) + (steps - 1) * end) > MOST_OPS:
        raise TraceError(
            f"accumulate is {steps}, which makes {count:,} operations of {trace.name}: expected "
            f"{MOST_OPS:,} at most; take fewer, larger micro-batches"
        )
    gradients = [tensor.id for tensor in trace.tensors if tensor.kind == "gradient"]
    once = {op.id for op in trace.ops[:end] if reduces_in_place(op, trace)}
    sums: dict[int, list[int]] = {}
    for number in gradients:
        uses = [n for n in trace.accesses[number] if n < end and n not in once]
        sums.setdefault(max(uses, default=end), []).append(number)
    # Tensors of the passes; others belong to the update.
    inside = [
        tensor
        for tensor, accesses in zip(trace.tensors, trace.accesses, strict=True)
        if tensor.kind not in LASTING and min(accesses, default=tensor.allocated) < end
    ]
    step, last = Rewriting(trace), steps - 1
    of_passes = {tensor.id for tensor in inside}
    for tensor in trace.tensors:
        if tensor.id not in of_passes:
            step.change(tensor.id, (last, last))
    for number in gradients:
        step.change(number, (0, last))
    ids: dict[int, int] = {}
    for micro in range(steps):
        if micro:
            step.begin_pass()
            ids = {
                one.id: step.tensor(one, (micro, None if one.kind == "gradient" else micro))
                for one in inside
            }
            for number in gradients:
                if number in ids:
                    step.change(ids[number], kind="temporary", parameter=None)
        for op in trace.ops[:end]:
            if op.id not in once:
                step.add(_renumbered(op, ids), op.id)
            elif micro == last:
                step.add(op, op.id)
            for number in sums.get(op.id, ()) if micro else ():
                step.add(_added(trace, op, number, ids[number]))
    for op in trace.ops[end:]:
        own = {number: one for number, one in ids.items() if number not in gradients}
        step.add(_renumbered(op, own), op.id)
    return step.finish(f"accumulate={steps}", accumulate=steps)


def _renumbered(op: Op, ids: dict[int, int]) -> Op:
    reads, writes = (tuple(ids.get(n, n) for n in numbers) for numbers in (op.reads, op.writes))
    return replace(op, reads=reads, writes=writes)


def _added(trace: Trace, near: Op, gradient: int, other: int) -> Op:
    """Return the addition of a micro-batch's gradient to the sum."""
    tensor = trace.tensors[gradient]
    return replace(
        near,
        kind="add_",
        phase="backward",
        reads=(gradient, other),
        writes=(gradient,),
        read_bytes=(tensor.nbytes,) * 2,
        write_bytes=(tensor.nbytes,),
        flops=int(tensor.nbytes / tensor.element_bytes),
        geometry=None,
        dtype=format_of(tensor, near),
    )
