"""Fusion of element-wise operations, as a compiler such as ``torch.compile`` makes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from .collectives import COLLECTIVES
from .edits import marked, rebuilt
from .loss import FUSED
from .products import GATHERS, has_products
from .recomputation import with_repeats
from .trace import LASTING, Op, Trace

__all__ = ["POINTWISE", "compiled"]

POINTWISE = frozenset(
    ("add", "sub", "rsub", "mul", "div", "neg", "exp", "sigmoid", "tanh", "relu", "gelu", "silu",
     "hardtanh", "leaky_relu", "elu", "masked_fill", "clone", "_to_copy", "pow", "rsqrt", "sqrt",
     "abs", "clamp", "where", "to")
)  # fmt: skip
"""Kinds of operations that are cheap to run again: one element of the result from one of each
operand."""

_APART = frozenset((*GATHERS, *COLLECTIVES))
_APART_WORDS = ("embedding", "index", "scatter", "sort", "topk", "pool", "bernoulli", FUSED)
"""Parts of the kinds of operations that compilers run alone or by a library."""


def compiled(trace: Trace) -> Trace:
    """Return the step with chains of element-wise operations fused.

    A run is a series of operations of one pass without a product, a collective, a look-up or an
    update between them. In a run, operations become one of kind ``fused`` if one reads or writes
    what another writes; norms and softmax are among them. It reads every tensor from outside
    once, and writes those that are used outside. Tensors inside vanish. Work adds up.

    Before that, a result that the forward pass keeps for the backward pass is dropped if one
    operation of :data:`POINTWISE` makes it again from kept tensors, and only operations that may
    be fused read it there. That operation runs again before the first of them, and is fused with
    it. It is a part of what PyTorch's partitioner does by minimum cuts: one operation, not a chain,
    and neither norms nor dropout. What a product reads in the backward pass is kept there, too. An
    operation without a use in its own pass is left out there.
    """
    trace = _with_cheap_repeats(trace)
    unused = {op.id for op in _unused(trace)}
    groups: list[list[Op]] = [[] for _ in trace.ops]
    for run in _runs(trace):
        for group in _groups([op for op in run if op.id not in unused]):
            groups[group[0].id] = group if len(group) == 1 else [_fused(trace, group)]
    return rebuilt(trace, groups, trace.tensors, marked(trace, "compiled", "yes"))


def _with_cheap_repeats(trace: Trace) -> Trace:
    """Return the step with activations made again that one operation makes of kept tensors."""
    dropped = set[int]()
    repeats: dict[int, list[Op]] = {}
    for op in trace.ops:
        if op.phase != "forward" or op.kind not in POINTWISE or len(op.writes) != 1:
            continue
        (made,) = op.writes
        accesses = trace.accesses[made]
        due = next((n for n in accesses if trace.ops[n].phase == "backward"), None)
        once = not any(made in trace.ops[n].writes for n in accesses if n != op.id)
        fusible = not any(_is_alone(trace.ops[n]) for n in accesses if n >= (due or 0))
        if trace.tensors[made].kind != "activation" or due is None or not (once and fusible):
            continue
        if dropped.isdisjoint(op.reads) and all(_stays(trace, one, op.id, due) for one in op.reads):
            dropped.add(made)
            repeats.setdefault(due, []).append(op)
    return with_repeats(trace, repeats, dropped, listed=False)


def _stays(trace: Trace, number: int, since: int, until: int) -> bool:
    """Return whether a tensor is kept between two operations, and nothing writes to it."""
    accesses = [n for n in trace.accesses[number] if since < n]
    kept = trace.tensors[number].kind in LASTING or accesses[-1:] >= [until]
    return kept and not any(number in trace.ops[n].writes for n in accesses if n < until)


def _unused(trace: Trace) -> list[Op]:
    """Return the cheap operations of the forward pass that nothing depends on."""
    return [
        op
        for op in trace.ops
        if op.phase == "forward"
        and op.kind in POINTWISE
        and all(
            trace.tensors[one].kind == "temporary" and trace.accesses[one] == (op.id,)
            for one in op.writes
        )
    ]


def _runs(trace: Trace) -> Iterator[list[Op]]:
    """Yield series of operations that may be fused, and other operations one by one."""

    def key(op: Op) -> tuple[str, int]:
        return op.phase, op.id if _is_alone(op) else -1

    for _, run in groupby(trace.ops, key):
        yield list(run)


def _is_alone(op: Op) -> bool:
    """Return whether an operation may not be fused."""
    product = op.geometry is not None or has_products(op.kind)
    apart = op.kind in _APART or any(word in op.kind for word in _APART_WORDS)
    return product or apart or op.phase == "update"


def _groups(run: Sequence[Op]) -> list[list[Op]]:
    """Return the operations by connection, in the order of the first of each."""
    groups: list[tuple[set[int], set[int], list[Op]]] = []
    for op in run:
        read, written, group = set(op.reads), set(op.writes), [op]
        apart = []
        for other in groups:
            if read.isdisjoint(other[1]) and written.isdisjoint(other[0] | other[1]):
                apart.append(other)
            else:
                read, written, group = read | other[0], written | other[1], other[2] + group
        groups = [*apart, (read, written, group)]
    return sorted((sorted(group, key=lambda op: op.id) for *_, group in groups), key=_first)


def _first(group: Sequence[Op]) -> int:
    return group[0].id


def _inside(trace: Trace, group: Sequence[Op]) -> set[int]:
    """Return the tensors that only the group uses."""
    own = {op.id for op in group}
    return {
        number
        for op in group
        for number in op.writes
        if trace.tensors[number].kind in ("activation", "temporary")
        and own.issuperset(trace.accesses[number])
    }


def _fused(trace: Trace, group: Sequence[Op]) -> Op:
    """Return one operation with the work of the group, and its bytes from and to outside.

    It counts as repeated if all of the group are.
    """
    repeated = {*trace.origin.get("recomputed", ())}
    inside = _inside(trace, group)
    read, written = dict[int, int](), dict[int, int]()
    for op in group:
        for number, nbytes in zip(op.reads, op.read_bytes, strict=True):
            if number not in written and number not in inside:
                read[number] = read.get(number, 0) + nbytes
        for number, nbytes in zip(op.writes, op.write_bytes, strict=True):
            if number not in inside:
                written[number] = written.get(number, 0) + nbytes
    sizes = trace.tensors
    return replace(
        group[-1],
        id=min(group, key=lambda op: op.id in repeated).id,
        kind="fused",
        reads=tuple(read),
        writes=tuple(written),
        read_bytes=tuple(min(nbytes, sizes[number].nbytes) for number, nbytes in read.items()),
        write_bytes=tuple(min(nbytes, sizes[number].nbytes) for number, nbytes in written.items()),
        flops=sum(op.flops for op in group),
    )
