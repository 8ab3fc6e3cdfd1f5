"""Activations computed again: a step that keeps only what passes from one segment to the next."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from .trace import LASTING, Op, Tensor, Trace

__all__ = ["recomputed"]


def recomputed(trace: Trace) -> Trace:
    """The same step with activations computed again.

    The forward pass is a row of segments. What only one of them accesses is freed there; before the
    backward pass first needs any of it, what made it runs again, from what the step has kept: in
    the backward phase and stage, as if captured from ``torch.utils.checkpoint``. A segment that the
    backward pass follows at once keeps all. Dropout's masks are made again, too.

    A segment is a module and all in it, of one depth in the model, such as a block of a
    transformer, or a number of layers, a power of two: of all these the one with the least bytes of
    what is kept and what the largest segment has inside.

    The ids of operations that run again are ``recomputed`` in its ``origin``. A step that has them
    stays as it is.
    """
    if "recomputed" in trace.origin:
        return trace
    segments = _segments(trace)
    local = {
        each.id: segments[first]
        for each, first, last in _made_forward(trace)
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
    # From the last back: what has to run again of each segment.
    needed = set(dropped)
    repeats: dict[int, list[Op]] = {}
    for op in reversed(trace.ops):
        segment = segments[op.id]
        if segment in due and not needed.isdisjoint(op.writes):
            needed.update(each for each in op.reads if local.get(each) == segment)
            repeats.setdefault(due[segment], []).insert(0, op)
    return _with(trace, repeats, dropped)


def _segments(trace: Trace) -> list[int]:
    """By operation the number of its segment, -1 if it is not of the forward pass."""
    made = _made_forward(trace)

    def most_bytes(segments: Sequence[int]) -> int:
        inside = dict.fromkeys(segments, 0)
        kept = 0
        for each, first, last in made:
            if segments[first] != segments[last]:
                kept += each.nbytes
            elif each.kind == "activation":
                inside[segments[first]] += each.nbytes
        return kept + max(inside.values(), default=0)

    names = [each.split(".") for each in trace.layers]
    groupings: list[list[Hashable]] = [
        [tuple(names[op.layer][:depth]) for op in trace.ops]
        for depth in range(1, max(map(len, names), default=0) + 1)
    ]
    for power in range(len(trace.stages).bit_length()):
        groupings.append([op.stage >> power for op in trace.ops])
    return min((_runs(trace, each) for each in groupings), key=most_bytes)


def _runs(trace: Trace, keys: Sequence[Hashable]) -> list[int]:
    """By operation of the forward pass the number of its run of the same key; -1 for others."""
    found, number, before = [], -1, None
    for op, key in zip(trace.ops, keys, strict=True):
        forward = op.phase == "forward"
        number += forward and key != before
        before = key if forward else None
        found.append(number if forward else -1)
    return found


def _made_forward(trace: Trace) -> list[tuple[Tensor, int, int]]:
    """Tensors that the forward pass makes, and the first and last operation of it with each."""
    found = []
    for tensor, accesses in zip(trace.tensors, trace.accesses, strict=True):
        forward = [each for each in accesses if trace.ops[each].phase == "forward"]
        if tensor.kind not in LASTING and accesses[:1] == tuple(forward[:1]) and forward:
            found.append((tensor, forward[0], forward[-1]))
    return found


def _with(trace: Trace, repeats: Mapping[int, Sequence[Op]], dropped: Collection[int]) -> Trace:
    """The step with operations repeated, those given for an operation before it."""
    ops: list[Op] = []
    sources = list(trace.tensors)
    starts: list[int] = []  # of each operation, with what is repeated for it
    places: list[int] = []  # of the operation itself
    remade: dict[int, int] = {}
    repeated: list[int] = []
    for op in trace.ops:
        starts.append(len(ops))
        copies: dict[int, int] = {}
        for each in repeats.get(op.id, ()):
            for tensor in each.writes:
                if tensor not in copies and trace.tensors[tensor].kind not in LASTING:
                    copies[tensor] = len(sources)
                    sources.append(trace.tensors[tensor])
            repeated.append(len(ops))
            stage = len(trace.stages) - 1 - each.stage
            again = replace(each, phase="backward", stage=stage)
            ops.append(_renumbered(again, len(ops), copies))
        remade |= {each: copy for each, copy in copies.items() if each in dropped}
        places.append(len(ops))
        ops.append(_renumbered(op, len(ops), remade))
    starts.append(len(ops))
    places.append(len(ops))
    first, last = dict[int, Op](), dict[int, Op]()
    for op in ops:
        for each in op.reads + op.writes:
            first.setdefault(each, op)
            last[each] = op

    def placed(number: int, source: Tensor) -> Tensor:
        copy, freed, kind = number >= len(trace.tensors), source.freed, source.kind
        begin = first[number].id if copy else places[source.allocated]
        end = last[number].id + 1 if number in last else begin
        if (source.id in dropped) != copy:  # of two of what is dropped the second lives as it did
            freed = end
        elif freed is not None:
            freed = max(starts[freed], end)
        if kind in ("activation", "temporary") and number in last:
            phases = first[number].phase, last[number].phase
            kind = "activation" if phases == ("forward", "backward") else "temporary"
        return replace(source, id=number, kind=kind, allocated=begin, freed=freed)

    tensors = tuple(placed(*each) for each in enumerate(sources))
    origin = {**trace.origin, "recomputed": repeated}
    return replace(trace, tensors=tensors, ops=tuple(ops), origin=origin)


def _renumbered(op: Op, number: int, tensors: Mapping[int, int]) -> Op:
    reads, writes = (tuple(tensors.get(n, n) for n in each) for each in (op.reads, op.writes))
    return replace(op, id=number, reads=reads, writes=writes)
