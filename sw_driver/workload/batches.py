"""Traces scaled to another batch size.

The batch's tensors scale, and so does everything computed from them. Parameters, their gradients,
and tensors computed from parameters alone do not. A product of two tensors that scale sums over the
samples, as for a weight's gradient, and does not scale. A batch of products is one product per
sample, and scales, unless it is the gradient of a factor that all samples share. Inputs without a
name are taken for the batch's, except those of :data:`SHARED`. Words of noise that word2vec appends
to its batch scale as well, which is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from sw_driver.numbers import LEAST, check_number

from .products import GATHERS
from .trace import LASTING, Geometry, Op, Trace, TraceError

__all__ = ["MANY", "MATRICES", "SHARED", "batched", "factors_of", "scaled", "scaling"]

MANY = ("bmm", "baddbmm")
"""Kinds of products of several pairs of matrices."""
MATRICES = ("mm", "addmm", "_addmm_activation", *MANY)
"""Kinds of products of matrices."""
_SAME = ("add", "add_", "clone", "copy_", "_to_copy", "mul", "mul_", "div", "div_")
"""Kinds of operations that pass on all or a part of a parameter's gradient."""
_SCALAR_BYTES = 8
"""Size of a scalar, such as a loss."""
SHARED = {"gpt": 2}
"""Place of a causal mask among a model's inputs without a name."""

_Times = Callable[[int], int]


def batched(trace: Trace, factor: Fraction | float) -> Trace:
    """Return the step with ``factor`` times the samples: bytes, work and shapes.

    The operations stay the same; a framework may need others for one sample than for several.
    Raises :class:`~sw_driver.workload.trace.TraceError` for a factor that splits a sample, and
    :class:`~sw_driver.device.errors.InvalidArgumentError` for one that is no number above 0.
    """
    check_number("factor", factor, LEAST)
    ratio = Fraction(factor)

    def times(number: int) -> int:
        if (scaled := number * ratio).denominator != 1:
            raise TraceError(
                f"factor is {ratio}: expected one that keeps samples of {trace.name} whole; a size "
                f"that grows with its batch is {number}"
            )
        return int(scaled)

    scales = scaling(trace)
    batch = {name: times(number) for name, number in trace.origin.items() if name == "batch"}
    return replace(
        trace,
        tensors=tuple(
            replace(tensor, nbytes=times(tensor.nbytes)) if scales[tensor.id] else tensor
            for tensor in trace.tensors
        ),
        ops=tuple(scaled(op, trace, scales, times) for op in trace.ops),
        origin={**trace.origin, **batch},
    )


def scaled(op: Op, trace: Trace, scales: Sequence[bool], times: _Times) -> Op:
    """Return an operation with ``times`` applied to sizes and work that depend on the batch.

    ``scales`` says for each tensor of the step whether it depends on the batch.
    """
    accessed, sizes = op.reads + op.writes, op.read_bytes + op.write_bytes
    if not any(scales[tensor] for tensor in accessed):
        return op
    moved = [
        times(nbytes) if scales[tensor] else nbytes
        for tensor, nbytes in zip(accessed, sizes, strict=True)
    ]
    read, written = moved[: len(op.reads)], moved[len(op.reads) :]
    if op.kind in GATHERS and not scales[op.reads[0]]:
        rows = max(times(read[0]), sum(written))  # once each, if the whole table was read
        read[0] = min(rows, trace.tensors[op.reads[0]].nbytes)
    grows = op.geometry is not None or scales[max(zip(sizes, accessed, strict=True))[1]]
    return replace(
        op,
        read_bytes=tuple(read),
        write_bytes=tuple(written),
        flops=times(op.flops) if grows else op.flops,
        geometry=op.geometry and _shapes(op, op.geometry, scales, times),
    )


def scaling(trace: Trace) -> list[bool]:
    """Return, by tensor, whether it depends on the batch."""
    tensors = trace.tensors
    inputs = [tensor.id for tensor in tensors if tensor.kind == "input" and not tensor.name]
    shared = SHARED.get(trace.origin.get("model", ""), len(inputs))
    depends = {tensor.id: False for tensor in tensors if tensor.kind in LASTING}
    depends |= {number: place != shared for place, number in enumerate(inputs)}
    # Scalars, and tensors made of scalars or of nothing, stay undecided until they meet others.
    fixed = {*depends, *(tensor.id for tensor in tensors if tensor.nbytes <= _SCALAR_BYTES)}
    forward = [op for op in trace.ops if op.phase == "forward"]
    others = [op for op in trace.ops if op.phase != "forward"]
    _decide(trace, forward, depends, fixed, alone := dict[int, int]())
    sums = {tensor.id for tensor in tensors if tensor.kind == "gradient"}
    for op in reversed(others):
        if op.kind == "embedding_dense_backward" and not depends.get(op.reads[1], False):
            sums.add(op.reads[0])  # the gradient of rows that all samples share, such as positions
        if op.phase == "backward" and op.kind in _SAME and not sums.isdisjoint(op.writes):
            elements = tensors[op.writes[0]].elements
            sums.update(tensor for tensor in op.reads if tensors[tensor].elements == elements)
    depends |= dict.fromkeys(sums, False)
    _decide(trace, others, depends, fixed | sums, alone)
    return [depends.get(tensor.id, False) for tensor in tensors]


def _decide(
    trace: Trace,
    ops: Sequence[Op],
    depends: dict[int, bool],
    fixed: Collection[int],
    alone: dict[int, int],
) -> None:
    """Add to ``depends`` whether the tensors that ``ops`` access depend on the batch.

    ``alone`` gets the factors that a batch of products multiplies, in the forward pass, by one that
    does not depend on it, with the bytes of the latter. Tensors in ``fixed`` stay as they are.
    """
    tensors = trace.tensors
    for op in ops:
        known = [depends[tensor] for tensor in op.reads if tensor in depends]
        made = any(known) if known else None
        if op.geometry is not None:
            made = _product_depends(op, depends)
        if op.kind in MANY:
            one, other = factors_of(op)
            if op.phase == "forward" and depends.get(one, True) and not depends.get(other, True):
                alone[one] = tensors[other].nbytes
            made = made and tensors[op.writes[0]].nbytes not in (alone.get(one), alone.get(other))
        if made is None:
            continue
        for tensor in op.reads:
            if tensor not in depends and tensor not in fixed:
                alike = made and tensors[tensor].nbytes >= max(op.write_bytes, default=0)
                depends[tensor] = op.geometry is not None or alike
        for place, tensor in enumerate(n for n in op.writes if n not in fixed):
            statistic = place > 0 and "batch_norm" in op.kind
            depends[tensor] = not statistic and (made or depends.get(tensor, False))


def _product_depends(op: Op, depends: Mapping[int, bool]) -> bool:
    """Return whether a product depends on the batch; an undecided factor is taken to depend."""
    if op.kind not in MATRICES:
        sums = op.kind in ("convolution_backward_filter", "convolution_backward_bias")
        return not sums and any(depends.get(tensor, True) for tensor in op.reads)
    one, other = (depends.get(tensor, True) for tensor in factors_of(op))
    return one != other or (one and op.kind in MANY)


def factors_of(op: Op) -> tuple[int, int]:
    """Return the two factors of a product, which may be one tensor; an addend precedes them."""
    alike = op.geometry is not None and len(op.reads) < len(op.geometry.operands)
    one, other = (op.reads[-1:] * 2) if alike else op.reads[-2:]
    return one, other


def _shapes(op: Op, shapes: Geometry, scales: Sequence[bool], times: _Times) -> Geometry:
    """Return the shapes with the dimension of the samples scaled."""
    made = scales[op.writes[0]]
    every = [*shapes.operands, shapes.result]
    if op.kind in MATRICES:  # g of m by k, times k by n
        one, other = (scales[tensor] for tensor in factors_of(op))
        dimension = ("g" if one and other else "n" if other else "m") if made else "k"
        added = ["gmn" if scales[op.reads[0]] else ""] * (len(every) - 3)
        names = [*added, "gmk", "gkn", "gmn"]
        places = [
            axes[-len(shape) :].find(dimension) for axes, shape in zip(names, every, strict=True)
        ]
    else:  # the samples are the first dimension
        grows = [scales[tensor] for tensor in op.reads]  # a bias of attention is the last
        grows = [any(grows)] * (len(shapes.operands) - len(grows)) + grows
        places = [0 if scaled else -1 for scaled in (*grows, made)]
    *operands, result = (
        shape if place < 0 else (*shape[:place], times(shape[place]), *shape[place + 1 :])
        for shape, place in zip(every, places, strict=True)
    )
    return replace(shapes, operands=tuple(operands), result=result)
