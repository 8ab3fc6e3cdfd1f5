"""Offloading of activations: a step that keeps them on the host until the backward pass.

Sources: PyTorch's ``torch.autograd.graph.save_on_cpu``; torchtune's ``OffloadActivations``.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from .edits import derived, marked, rebuilt
from .offloading import MOVE
from .trace import Op, Trace, TraceError

__all__ = ["AHEAD", "LEAST_BYTES", "activations_offloaded"]

AHEAD = 5
"""Tensors on their way at a time, each way, at most. Given: torchtune's ``max_fwd_stash_size``."""

LEAST_BYTES = 1024
"""Bytes from which an activation is moved. Given: torchtune's ``min_offload_size``."""


def activations_offloaded(trace: Trace) -> Trace:
    """Return the step with activations on the host from their last use in the forward pass.

    They come back :data:`AHEAD` tensors before the backward pass needs them, but not before that of
    their micro-batch begins. The forward pass waits while more than :data:`AHEAD` are on their way
    to the host. Activations that the backward pass needs at once stay.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a step without such activations.
    """
    origin = marked(trace, "offload", "activations")
    tensors = list(trace.tensors)
    uses: dict[int, tuple[int, int]] = {}
    for tensor in trace.tensors:
        ids = trace.accesses[tensor.id]
        forward = [n for n in ids if trace.ops[n].phase == "forward"]
        later = [n for n in ids if trace.ops[n].phase != "forward"]
        if tensor.kind != "activation" or tensor.nbytes < LEAST_BYTES or not (forward and later):
            continue
        if later[0] - forward[-1] > AHEAD:
            uses[tensor.id] = forward[-1], later[0]
    if not uses:
        raise TraceError(f"{trace.name} has no activation that the backward pass needs later")
    groups: list[list[Op]] = [[op] for op in trace.ops]

    def added(number: int, kind: str, place: str) -> int:
        fields = {"id": len(tensors), "kind": kind, "place": place, "allocated": 0, "freed": 0}
        tensors.append(replace(trace.tensors[number], **fields))
        return len(tensors) - 1

    there = {number: added(number, "temporary", "host") for number in uses}
    back = {number: added(number, "temporary", "gpu") for number in uses}
    leaving = sorted(uses, key=lambda number: uses[number])
    for place, number in enumerate(leaving):
        size, at = {number: tensors[number].nbytes}, uses[number][0]
        groups[at].append(_move(trace.ops[at], number, there[number], size[number]))
        if place >= AHEAD:  # reads no bytes: the pass waits for an earlier move, and holds memory
            earlier = leaving[place - AHEAD]
            op, after = groups[at][0], {earlier: 0, there[earlier]: 0}
            if uses[earlier][0] < at < uses[earlier][1]:
                groups[at][0] = replace(
                    op,
                    reads=(*op.reads, *after),
                    read_bytes=(*op.read_bytes, *after.values()),
                )
    coming = sorted(uses, key=lambda number: uses[number][1])
    needs = [uses[number][1] for number in coming]
    for (op, *_), captured in zip(groups[needs[0] :], trace.ops[needs[0] :], strict=True):
        own = len(captured.reads)  # waits for moves follow
        reads, writes = (
            tuple(back[n] if n in uses and uses[n][1] <= op.id else n for n in ids)
            for ids in (op.reads[:own], op.writes)
        )
        groups[op.id][0] = replace(op, reads=(*reads, *op.reads[own:]), writes=writes)
    for place, number in enumerate(coming):
        left = uses[number][0]
        at = needs[max(place - AHEAD, 0)]
        if at <= left:  # the first of a micro-batch come as its backward pass begins
            at = needs[bisect_right(needs, left)]
        near = trace.ops[at]
        groups[at].insert(-1, _move(near, there[number], back[number], tensors[number].nbytes))
    return rebuilt(trace, groups, tensors, origin, uses)


def _move(near: Op, source: int, target: int, nbytes: int) -> Op:
    return derived(near, MOVE, {source: nbytes}, {target: nbytes})
