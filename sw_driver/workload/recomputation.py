"""Activation checkpointing: a step that keeps only the tensors passed between segments."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from .trace import LASTING, Op, Tensor, Trace

__all__ = ["recomputed"]


def recomputed(trace: Trace) -> Trace:
    """Return the same step with activations recomputed.

    The forward pass is divided into consecutive segments. Tensors that only one segment accesses
    are freed at its end. Before the backward pass first needs one of them, the segment's operations
    that made them run again from kept tensors. They have the backward phase and stage, as if
    captured from ``torch.utils.checkpoint``. A segment that the backward pass follows at once keeps
    everything. Dropout's masks are made again, too.

    A segment is a module of a given depth in the model with everything inside, such as a
    transformer block; or a number of layers, a power of two. The division that needs the fewest
    bytes is taken: those kept, plus those inside the largest segment.

    ``origin`` lists the ids of the repeated operations as ``recomputed``. A step that has them
    already is returned as it is.
    """
    if "recomputed" in trace.origin:
        return trace
    segments = _segments(trace)
    local = {
        tensor.id: segments[first]
        for tensor, first, last in _made_forward(trace)
        if segments[first] == segments[last]
    }
    keeping = {one for one, following in pairwise([*segments, -1]) if following < 0}
    dropped = set[int]()
    due: dict[int, int] = {}
    for tensor, segment in local.items():
        if trace.tensors[tensor].kind == "activation" and segment not in keeping:
            needed = next(n for n in trace.accesses[tensor] if trace.ops[n].phase != "forward")
            dropped.add(tensor)
            due[segment] = min(due.get(segment, needed), needed)
    # Backwards from the last operation: those that have to run again in each segment.
    needed = set(dropped)
    repeats: dict[int, list[Op]] = {}
    for op in reversed(trace.ops):
        segment = segments[op.id]
        if segment in due and not needed.isdisjoint(op.writes):
            needed.update(read for read in op.reads if local.get(read) == segment)
            repeats.setdefault(due[segment], []).insert(0, op)
    return _with(trace, repeats, dropped)


def _segments(trace: Trace) -> list[int]:
    """Return the number of each operation's segment, -1 outside the forward pass."""
    made = _made_forward(trace)

    def most_bytes(segments: Sequence[int]) -> int:
        inside = dict.fromkeys(segments, 0)
        kept = 0
        for tensor, first, last in made:
            if segments[first] != segments[last]:
                kept += tensor.nbytes
            elif tensor.kind == "activation":
                inside[segments[first]] += tensor.nbytes
        return kept + max(inside.values(), default=0)

    names = [layer.split(".") for layer in trace.layers]
    groupings: list[list[Hashable]] = [
        [tuple(names[op.layer][:depth]) for op in trace.ops]
        for depth in range(1, max(map(len, names), default=0) + 1)
    ]
    for power in range(len(trace.stages).bit_length()):
        groupings.append([op.stage >> power for op in trace.ops])
    return min((_runs(trace, keys) for keys in groupings), key=most_bytes)


def _runs(trace: Trace, keys: Sequence[Hashable]) -> list[int]:
    """Return, by operation, the index of its run of equal keys; -1 outside the forward pass."""
    runs, number, before = [], -1, None
    for op, key in zip(trace.ops, keys, strict=True):
        forward = op.phase == "forward"
        number += forward and key != before
        before = key if forward else None
        runs.append(number if forward else -1)
    return runs


def _made_forward(trace: Trace) -> list[tuple[Tensor, int, int]]:
    """Return tensors made in the forward pass, with their first and last operation in it."""
    made = []
    for tensor, accesses in zip(trace.tensors, trace.accesses, strict=True):
        forward = [op for op in accesses if trace.ops[op].phase == "forward"]
        if tensor.kind not in LASTING and accesses[:1] == tuple(forward[:1]) and forward:
            made.append((tensor, forward[0], forward[-1]))
    return made


def _with(trace: Trace, repeats: Mapping[int, Sequence[Op]], dropped: Collection[int]) -> Trace:
    """Return the step with ``repeats[n]`` inserted before operation ``n``."""
    ops: list[Op] = []
    sources = list(trace.tensors)
    starts: list[int] = []  # new ids of operations, or of the first one repeated before it
    places: list[int] = []  # new ids of the operations themselves
    remade: dict[int, int] = {}
    repeated: list[int] = []
    for op in trace.ops:
        starts.append(len(ops))
        copies: dict[int, int] = {}
        for repeat in repeats.get(op.id, ()):
            for tensor in repeat.writes:
                if tensor not in copies and trace.tensors[tensor].kind not in LASTING:
                    copies[tensor] = len(sources)
                    sources.append(trace.tensors[tensor])
            repeated.append(len(ops))
            stage = len(trace.stages) - 1 - repeat.stage
            again = replace(repeat, phase="backward", stage=stage)
            ops.append(_renumbered(again, len(ops), copies))
        remade |= {tensor: copy for tensor, copy in copies.items() if tensor in dropped}
        places.append(len(ops))
        ops.append(_renumbered(op, len(ops), remade))
    starts.append(len(ops))
    places.append(len(ops))
    first, last = dict[int, Op](), dict[int, Op]()
    for op in ops:
        for tensor in op.reads + op.writes:
            first.setdefault(tensor, op)
            last[tensor] = op

    def placed(number: int, source: Tensor) -> Tensor:
        copy, freed, kind = number >= len(trace.tensors), source.freed, source.kind
        begin = first[number].id if copy else places[source.allocated]
        end = last[number].id + 1 if number in last else begin
        # Dropped tensors, and copies of kept ones, end with their last access.
        if (source.id in dropped) != copy:
            freed = end
        elif freed is not None:
            freed = max(starts[freed], end)
        if kind in ("activation", "temporary") and number in last:
            phases = first[number].phase, last[number].phase
            kind = "activation" if phases == ("forward", "backward") else "temporary"
        return replace(source, id=number, kind=kind, allocated=begin, freed=freed)

    tensors = tuple(placed(*numbered) for numbered in enumerate(sources))
    origin = {**trace.origin, "recomputed": repeated}
    return replace(trace, tensors=tensors, ops=tuple(ops), origin=origin)


def _renumbered(op: Op, number: int, tensors: Mapping[int, int]) -> Op:
    reads, writes = (tuple(tensors.get(n, n) for n in ids) for ids in (op.reads, op.writes))
    return replace(op, id=number, reads=reads, writes=writes)
