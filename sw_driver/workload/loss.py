"""Traces with the loss computed in chunks of the tokens, so that few logits exist at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sw_driver.numbers import check_integer

from .batches import scaled, scaling
from .edits import marked, rebuilt
from .trace import Op, Trace, TraceError

__all__ = ["chunked_loss", "output_product"]

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
    check_integer("chunks", chunks, error=TraceError)
    origin = marked(trace, "loss_chunks", str(chunks), ("trainable", "precision"))
    if chunks == 1:
        return trace
    product = output_product(trace)
    if product is None or product.geometry is None:
        raise TraceError(
            f"chunks is {chunks}, but {trace.name} has no output layer: expected a linear layer "
            f"whose result only the loss depends on; leave the loss whole"
        )
    rows = product.geometry.result[0]
    if rows % chunks:
        raise TraceError(
            f"chunks is {chunks}: expected a divisor of the {rows} tokens of {trace.name}"
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
