"""Traces with a loss that needs less memory: a fused cross entropy, or chunks of the tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sw_driver.numbers import check_integer

from .batches import scaled, scaling
from .edits import derived, marked, rebuilt
from .trace import Op, Tensor, Trace, TraceError

__all__ = ["FUSED", "chunked_loss", "fused_loss", "output_product"]

FUSED = "cross_entropy"
"""Kind of the two operations of a fused loss."""
_ENTROPY = ("_log_softmax", "nll_loss_forward", "nll_loss_backward", "_log_softmax_backward_data")
"""Kinds of the operations of PyTorch's cross entropy, which casts surround."""

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


def fused_loss(trace: Trace) -> Trace:
    """Return the step with a fused cross entropy, as flash-attention has it, instead of PyTorch's.

    The forward pass reads the logits in their own format. It keeps them, and for each token the
    logarithm of a sum in FP32. The backward pass writes the gradient in the logits' format, beside
    them. PyTorch's keeps logarithms of all probabilities and makes two gradients of their size, in
    FP32 with autocast.

    Apply it after trainable parameters and precision are chosen, and before chunks. Raises
    :class:`~sw_driver.workload.trace.TraceError` for a step without a cross entropy of the output
    layer's result, and after other transformations.
    """
    origin = marked(trace, "fused_loss", "yes", ("trainable", "precision"))
    product, tensors = output_product(trace), list(trace.tensors)
    logits = -1 if product is None else product.writes[0]
    chain, parts, gradient = [logits], list[Op](), None
    for op in trace.ops if product else ():
        if gradient is None and op.kind in (*_ENTROPY, "_to_copy") and {*chain} & {*op.reads}:
            parts.append(op)
            chain += (n for n in op.writes if tensors[n].elements == tensors[logits].elements)
            ends = op.phase == "backward" and op.kind != "nll_loss_backward"
            if ends and tensors[op.writes[0]].element_bytes == tensors[logits].element_bytes:
                gradient = op.writes[0]
    between = {*chain} - {logits, gradient}
    used = {
        op.id for number in between for op in map(trace.ops.__getitem__, trace.accesses[number])
    }
    kinds = sorted(op.kind for op in parts if op.kind != "_to_copy")
    if (
        product is None
        or product.geometry is None
        or kinds != sorted(_ENTROPY)
        or (used - {op.id for op in parts})
    ):
        raise TraceError(
            f"fused_loss is yes, but {trace.name} has no cross entropy of an output layer's "
            f"result: expected functional.cross_entropy of logits; leave the loss as it is"
        )
    rows = 4 * product.geometry.result[0]
    sums = Tensor(id=len(tensors), nbytes=rows, kind="temporary")
    groups = [[op] for op in trace.ops]
    for phase, place in (("forward", -1), ("backward", 0)):
        group = [op for op in parts if op.phase == phase]
        reads, writes = {logits: tensors[logits].nbytes}, dict[int, int]()
        (writes if phase == "forward" else reads)[sums.id] = rows
        for op in group:
            groups[op.id] = []
            reads |= dict(zip(op.reads, op.read_bytes, strict=True))
            writes |= dict(zip(op.writes, op.write_bytes, strict=True))
        reads, writes = (
            {n: moved[n] for n in moved if n not in between} for moved in (reads, writes)
        )
        work = sum(op.flops for op in group)
        groups[group[place].id] = [derived(group[place], FUSED, reads, writes, work)]
    return rebuilt(trace, groups, [*tensors, sums], origin)


def chunked_loss(trace: Trace, chunks: int) -> Trace:
    """Return the step with output layer and loss computed for one chunk of tokens after another.

    A chunk's backward pass follows its forward pass at once, as in Liger's fused linear cross
    entropy, so that only logits of one chunk exist. The products are those of fewer rows; that of
    the weight's gradient adds to the chunks before, which it reads and writes. All of it belongs to
    the backward pass and to the output layer's backward stage.

    Apply it after trainable parameters and precision are chosen, since it repeats their casts of
    logits, but not those of weights. Apply it before operations are repeated and batches divided:
    these then take it for a part of the backward pass, and repeat it with a micro-batch.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a number of chunks that does not divide
    the tokens, for a step without output layer, for a loss that is no sum over tokens, for an
    output layer with an adapter, and after other transformations.
    """
    check_integer("loss_chunks", chunks, error=TraceError)
    origin = marked(trace, "loss_chunks", str(chunks), ("trainable", "precision", "fused_loss"))
    if chunks == 1:
        return trace
    product = output_product(trace)
    if product is None or product.geometry is None:
        raise TraceError(
            f"loss_chunks is {chunks}, but {trace.name} has no output layer: expected a linear "
            f"layer whose result only the loss depends on; leave the loss whole"
        )
    rows = product.geometry.result[0]
    if rows % chunks:
        raise TraceError(
            f"loss_chunks is {chunks}: expected a divisor of the {rows} tokens of {trace.name}"
        )
    loss = _Loss.of(trace, product)
    tensors, loop = list(trace.tensors), list[Op]()
    for chunk in range(chunks):
        ids = {number: len(tensors) + place for place, number in enumerate(sorted(loss.inside))}
        for number, own in ids.items():
            part = trace.tensors[number]
            tensors.append(replace(part, id=own, nbytes=part.nbytes // chunks, freed=None))
        loop += (_part(trace, op, loss, chunk, chunks, ids) for op in loss.ops)
    groups: list[list[Op]] = [[op] for op in trace.ops]
    for op in (*loss.ops, *loss.later):
        groups[op.id] = []
    groups[loss.ops[-1].id] = loop + [_backward(trace, op) for op in loss.later]
    return rebuilt(trace, groups, tensors, origin)


@dataclass(frozen=True, kw_only=True)
class _Loss:
    """Operations from the output layer to the gradients of its operands."""

    scales: list[bool]
    """Answers to whether a tensor depends on the tokens, by its id."""
    ops: list[Op]
    """Operations that are done for each chunk."""
    later: list[Op]
    """Operations among them that need the results of all chunks."""
    inside: set[int]
    """Tensors of which only a chunk exists."""

    @classmethod
    def of(cls, trace: Trace, product: Op) -> _Loss:
        """Return the operations that depend on the logits, up to the products of their gradient."""
        scales = scaling(trace)
        inside, summed, late = {*product.writes}, set[int](), set[int]()
        ops, later = [product], []
        for op in trace.ops[product.id + 1 :]:
            if not inside.isdisjoint(op.reads):
                ops.append(op)
                ends = op.phase == "backward" and op.geometry is not None
                inside.update(one for one in op.writes if scales[one] and not ends)
                summed.update(one for one in op.writes if one not in inside)
                whole = sum(product.write_bytes)
                others = [
                    one for one in op.reads
                    if one in late
                    or (scales[one] and not ends and one not in inside
                        and trace.tensors[one].nbytes >= whole)
                ]  # fmt: skip
                if others:
                    raise TraceError(
                        f"the loss of {trace.name} needs more than a chunk's logits in "
                        f"{op.kind} {op.id}: expected a sum over tokens, and an output layer "
                        f"without adapter; leave the loss whole"
                    )
            elif not (summed | late).isdisjoint(op.reads):
                later.append(op)
                late.update(op.writes)
        end = ops[-1].id
        return cls(scales=scales, ops=ops, later=[op for op in later if op.id < end], inside=inside)


def _part(trace: Trace, op: Op, loss: _Loss, chunk: int, chunks: int, ids: dict[int, int]) -> Op:
    """Return an operation on one chunk; sums over tokens add to those of the chunks before."""
    part = scaled(op, trace, loss.scales, lambda number: number // chunks)
    sums = [
        (number, nbytes)
        for number, nbytes in zip(part.writes, part.write_bytes, strict=True)
        if chunk and not loss.scales[number] and number not in part.reads
    ]
    return _backward(
        trace,
        replace(
            part,
            reads=(*(ids.get(read, read) for read in part.reads), *(one for one, _ in sums)),
            read_bytes=(*part.read_bytes, *(nbytes for _, nbytes in sums)),
            writes=tuple(ids.get(written, written) for written in part.writes),
        ),
    )


def _backward(trace: Trace, op: Op) -> Op:
    """Return an operation as one of the backward pass."""
    if op.phase != "forward":
        return op
    return replace(op, phase="backward", stage=len(trace.stages) - 1 - op.stage)
