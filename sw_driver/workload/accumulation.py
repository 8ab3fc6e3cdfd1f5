"""Gradient accumulation: several micro-batches, and one update of their summed gradients."""

from __future__ import annotations

from dataclasses import replace

from sw_driver.numbers import check_integer

from .collectives import format_of, reduces_in_place
from .edits import derived, marked, rebuilt
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
    origin = {**marked(trace, "accumulate", str(steps)), "accumulate": steps}
    body = _passes(trace, end).unrolled(steps)
    ids = _copies(trace, steps)
    gradients = {one.id for one in trace.tensors if one.kind == "gradient"}
    once = {op.id for op in trace.ops[:end] if reduces_in_place(op, trace)}
    sums: dict[int, list[int]] = {}
    for number in sorted(gradients):
        uses = [n for n in trace.accesses[number] if n < end and n not in once]
        sums.setdefault(max(uses, default=end), []).append(number)
    groups: list[list[Op]] = []
    for op in body.ops:
        micro, source = divmod(op.id, end)
        groups.append([op])
        if source in once:
            groups[-1] = [replace(trace.ops[source], id=op.id)] * (micro == steps - 1)
        elif micro:
            sources = sums.get(source, ())
            groups[-1] += [_added(trace, op, one, ids[micro][one]) for one in sources]
    last = {number: one for number, one in ids[-1].items() if number not in gradients}
    for op in trace.ops[end:]:
        reads, writes = (tuple(last.get(n, n) for n in one) for one in (op.reads, op.writes))
        groups[-1].append(replace(op, id=len(body.ops), reads=reads, writes=writes))
    tensors = list(body.tensors)
    for number in gradients:
        tensors[number] = replace(tensors[number], freed=len(body.ops))
    parts = {copies[number] for copies in ids[1:] for number in gradients}
    for number in parts:
        tensors[number] = replace(tensors[number], kind="temporary", parameter=None)
    if "recomputed" in origin:
        repeated = origin["recomputed"]
        origin["recomputed"] = [n + end * micro for micro in range(steps) for n in repeated]
    return replace(rebuilt(body, groups, tensors, origin, parts), steps=1)


def _passes(trace: Trace, end: int) -> Trace:
    """Return the step without its update; tensors of the update live for no operation."""
    tensors = (
        replace(
            one,
            allocated=min(one.allocated, end),
            freed=None if one.freed is None else min(one.freed, end),
        )
        for one in trace.tensors
    )
    return replace(trace, tensors=tuple(tensors), ops=trace.ops[:end])


def _copies(trace: Trace, steps: int) -> list[dict[int, int]]:
    """Return the ids of a step's tensors in each micro-batch, as ``unrolled`` gives them."""
    own = [one.id for one in trace.tensors if one.kind not in LASTING]
    copies = (
        {number: begin + place for place, number in enumerate(own)}
        for begin in range(
            len(trace.tensors), len(trace.tensors) + (steps - 1) * len(own), len(own)
        )
    )
    return [{number: number for number in own}, *copies]


def _added(trace: Trace, near: Op, gradient: int, other: int) -> Op:
    """Return the addition of a micro-batch's gradient to the sum."""
    tensor = trace.tensors[gradient]
    return derived(
        near,
        "add_",
        dict.fromkeys((gradient, other), tensor.nbytes),
        {gradient: tensor.nbytes},
        tensor.elements,
        dtype=format_of(tensor, near),
    )
