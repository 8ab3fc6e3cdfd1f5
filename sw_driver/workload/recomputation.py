"""Activation checkpointing: a step that keeps only the tensors passed between segments."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from .edits import marked, rebuilt
from .stages import block_of, blocks_of
from .trace import LASTING, Op, Tensor, Trace, TraceError

__all__ = ["POLICIES", "check_policy", "checkpointed", "recomputed", "with_repeats"]

POLICIES = ("none", "full", "selective", "selective:TEXT")
"""Policies of activation checkpointing; TEXT is a part of a module's name, such as ``mlp``."""

_LINEAR = ("mm", "addmm", "_addmm_activation", "_scaled_mm", "_int_mm")
"""Kinds of operations that selective checkpointing counts, and keeps every second of."""
_ATTENTION = "scaled_dot_product"
"""Part of the kinds of fused attention, which selective checkpointing keeps."""


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
    keeping = {one for one, following in pairwise([*segments, -1]) if following < 0}
    return _repeating(trace, [-1 if one in keeping else one for one in segments])


def checkpointed(trace: Trace, policy: str) -> Trace:
    """Return the same step with modules under ``torch.utils.checkpoint``.

    Like :func:`recomputed`, but with segments that a user names:

    - ``none``: the step as it is.
    - ``full``: every repeated block, such as ``layers.3``. Only what passes between blocks is kept.
    - ``selective:TEXT``: every outermost module with the text in its name.
    - ``selective``: the blocks of ``full``, and within them, the default of torchtitan. Outputs of
      fused attention are kept, and of every second linear layer, from a block's first on. Linear
      layers are ``mm`` and ``addmm``; attention made of ``bmm`` runs again.

    Unlike PyTorch, operations that no backward operation depends on are not repeated.
    Raises :class:`~sw_driver.workload.trace.TraceError` for another policy, for one that repeats
    nothing, and for a step with repeated operations.
    """
    check_policy(policy, TraceError)
    text = policy.partition(":")[2]
    if policy == "none":
        return trace
    origin = marked(trace, "checkpoint", policy)
    blocks = blocks_of(trace)
    units = [_outermost(name, text) if text else block_of(name, blocks) for name in trace.layers]
    segments = [
        segment if units[op.layer] else -1
        for op, segment in zip(
            trace.ops, _runs(trace, [units[op.layer] for op in trace.ops]), strict=True
        )
    ]
    kept = _selected(trace, segments) if policy == "selective" else set[int]()
    made = _repeating(trace, segments, kept)
    if not made.origin["recomputed"]:
        raise TraceError(
            f"checkpoint is {policy!r}, but {trace.name} has no such module with activations "
            f"inside, among {', '.join(trace.layers[:4])}, ...: expected selective:TEXT with a "
            f"part of a module's name, or none"
        )
    return replace(made, origin={**made.origin, **origin})


def check_policy(policy: str, error: type[Exception]) -> None:
    """Raise ``error`` unless ``policy`` has a form of :data:`POLICIES`."""
    kind, colon, text = policy.partition(":")
    if f"{kind}{colon}{'TEXT' if text else ''}" not in POLICIES:
        raise error(f"checkpoint is {policy!r}: expected one of {', '.join(POLICIES)}")


def _outermost(name: str, text: str) -> str:
    """Return the shortest prefix of whole names that contains ``text``, or nothing."""
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return next((prefix for prefix in prefixes if text in prefix), "")


def _selected(trace: Trace, segments: Sequence[int]) -> set[int]:
    """Return the tensors that selective checkpointing keeps."""
    linear: dict[int, int] = {}
    kept = set[int]()
    for op in trace.ops:
        segment = segments[op.id]
        if op.kind in _LINEAR:
            linear[segment] = linear.get(segment, 0) + 1
        if _ATTENTION in op.kind or (op.kind in _LINEAR and linear[segment] % 2):
            kept.update(op.writes if segment >= 0 else ())
    return kept


def _repeating(trace: Trace, segments: Sequence[int], kept: Collection[int] = frozenset()) -> Trace:
    """Return the step with segments repeated that have no negative number.

    Tensors in ``kept`` stay until the backward pass of their segment, even if it needs none.
    """
    local = {
        tensor.id: segments[first]
        for tensor, first, last in _made_forward(trace)
        if segments[first] == segments[last] >= 0
    }
    dropped = set[int]()
    due: dict[int, int] = {}
    for tensor, segment in local.items():
        if trace.tensors[tensor].kind == "activation":
            needed = next(n for n in trace.accesses[tensor] if trace.ops[n].phase != "forward")
            dropped.add(tensor)
            due[segment] = min(due.get(segment, needed), needed)
    held = {tensor: due[local[tensor]] for tensor in kept if local.get(tensor) in due}
    dropped -= held.keys()
    # Backwards from the last operation: those that have to run again in each segment.
    needed = set(dropped)
    repeats: dict[int, list[Op]] = {}
    for op in reversed(trace.ops):
        segment = segments[op.id]
        if segment in due and not needed.isdisjoint(op.writes):
            inside = (read for read in op.reads if local.get(read) == segment)
            needed.update(read for read in inside if read not in held)
            repeats.setdefault(due[segment], []).insert(0, op)
    # PyTorch's cache of a segment gives out what is needed, and holds the rest to the end.
    read = {number for some in repeats.values() for op in some for number in op.reads}
    for tensor in held.keys() - read:
        uses = (trace.accesses[one] for one in dropped if local[one] == local[tensor])
        held[tensor] = max((ids[-1] + 1 for ids in uses), default=0)
    return with_repeats(trace, repeats, dropped, held)


def _segments(trace: Trace) -> list[int]:
    """Return the number of each operation's segment, -1 outside the forward pass."""
    made = _made_forward(trace)
    passes = _runs(trace, [0] * len(trace.ops))  # one for each micro-batch

    def most_bytes(segments: Sequence[int]) -> int:
        inside, kept = dict.fromkeys(segments, 0), dict.fromkeys(passes, 0)
        for tensor, first, last in made:
            if segments[first] != segments[last]:
                kept[passes[first]] += tensor.nbytes
            elif tensor.kind == "activation":
                inside[segments[first]] += tensor.nbytes
        return max(kept.values(), default=0) + max(inside.values(), default=0)

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


def with_repeats(
    trace: Trace,
    repeats: Mapping[int, Sequence[Op]],
    dropped: Collection[int],
    held: Mapping[int, int] | None = None,
    *,
    listed: bool = True,
) -> Trace:
    """Return the step with ``repeats[n]`` inserted before operation ``n``.

    Tensors in ``held`` are freed no earlier than the operation that it names. The repeated
    operations are ``listed`` in the origin.
    """
    held = held or {}
    tensors, groups, before = list(trace.tensors), list[list[Op]](), dict[int, list[Op]]()
    remade, released, repeated = dict[int, int](), set(dropped), list[int]()
    for op in trace.ops:
        copies: dict[int, int] = {}
        for repeat in repeats.get(op.id, ()):
            for tensor in repeat.writes:
                if tensor not in copies and trace.tensors[tensor].kind not in LASTING:
                    copies[tensor] = len(tensors)
                    tensors.append(replace(trace.tensors[tensor], id=len(tensors)))
            repeated.append(op.id + len(repeated))
            stage = len(trace.stages) - 1 - repeat.stage
            again = replace(repeat, phase="backward", stage=stage)
            before.setdefault(op.id, []).append(_with(again, copies))
        remade |= {tensor: copy for tensor, copy in copies.items() if tensor in dropped}
        # Copies of kept tensors end with their last use, as dropped tensors do.
        released |= {copy for tensor, copy in copies.items() if tensor not in dropped}
        groups.append([_with(op, remade)])
    for number, until in held.items():
        tensors[number] = replace(tensors[number], freed=max(tensors[number].freed or 0, until))
    made = rebuilt(trace, groups, tensors, trace.origin, released, before)
    tensors = [replace(one, kind="activation") if one.id in held else one for one in made.tensors]
    listing = [*made.origin.get("recomputed", ()), *(repeated if listed else ())]
    origin = {**made.origin, "recomputed": sorted(listing)} if listed or listing else made.origin
    return replace(made, tensors=tuple(tensors), origin=origin)


def _with(op: Op, tensors: Mapping[int, int]) -> Op:
    """Return the operation with other tensors, by id."""
    reads, writes = (tuple(tensors.get(n, n) for n in ids) for ids in (op.reads, op.writes))
    return replace(op, reads=reads, writes=writes)
