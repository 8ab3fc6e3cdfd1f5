"""A step with another batch, from the trace of one: what depends on the batch is scaled.

The batch's tensors do, and what is made of them; parameters, what is made of them alone, and their
gradients do not. A product of two that do sums over the samples, as for a weight's gradient, but a
batch of products is one for each sample. That of what all samples share, such as Transformer-XL's
table of distances, is taken for that, too, which makes 3 % more work. Inputs without a name are
taken for the batch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from sw_driver.numbers import LEAST, check_number

from .products import GATHERS
from .trace import LASTING, Geometry, Op, Trace, TraceError

__all__ = ["batched"]

_MANY = ("bmm", "baddbmm")
_MATRICES = ("mm", "addmm", "_addmm_activation", *_MANY)
_SAME = ("add", "add_", "clone", "copy_", "_to_copy", "mul", "mul_", "div", "div_")
"""Kinds of operations that give on parts of a parameter's gradient, or all of it."""
_SCALAR_BYTES = 8
"""Of a loss and the like."""

_Times = Callable[[int], int]


def batched(trace: Trace, factor: Fraction | float) -> Trace:
    """The step with ``factor`` times the samples in its batch: bytes, work and shapes.

    It has the same operations; a framework may need others for one sample than for several. Raises
    :class:`~sw_driver.workload.trace.TraceError` for a factor that leaves parts of a sample, and
    :class:`~sw_driver.device.errors.InvalidArgumentError` for one that is no number above 0.
    """
    check_number("factor", factor, LEAST)
    ratio = Fraction(factor)

    def times(number: int) -> int:
        if (scaled := number * ratio).denominator != 1:
            raise TraceError(
                f"factor is {ratio}: expected one that leaves whole samples of {trace.name}, where "
                f"something that grows with the batch is {number}"
            )
        return int(scaled)

    scales = _scaling(trace)
    batch = {name: times(number) for name, number in trace.origin.items() if name == "batch"}
    return replace(
        trace,
        tensors=tuple(
            replace(each, nbytes=times(each.nbytes)) if scales[each.id] else each
            for each in trace.tensors
        ),
        ops=tuple(_scaled(op, trace, scales, times) for op in trace.ops),
        origin={**trace.origin, **batch},
    )


def _scaled(op: Op, trace: Trace, scales: Sequence[bool], times: _Times) -> Op:
    accessed, sizes = op.reads + op.writes, op.read_bytes + op.write_bytes
    if not any(scales[each] for each in accessed):
        return op
    moved = [
        times(nbytes) if scales[each] else nbytes
        for each, nbytes in zip(accessed, sizes, strict=True)
    ]
    read, written = moved[: len(op.reads)], moved[len(op.reads) :]
    if op.kind in GATHERS and not scales[op.reads[0]]:
        rows = max(times(read[0]), sum(written))  # each once, if all of the table was read
        read[0] = min(rows, trace.tensors[op.reads[0]].nbytes)
    grows = op.geometry is not None or scales[max(zip(sizes, accessed, strict=True))[1]]
    return replace(
        op,
        read_bytes=tuple(read),
        write_bytes=tuple(written),
        flops=times(op.flops) if grows else op.flops,
        geometry=op.geometry and _shapes(op, op.geometry, scales, times),
    )


def _scaling(trace: Trace) -> list[bool]:
    """By tensor, whether it depends on the batch."""
    tensors = trace.tensors
    sums = {each.id for each in tensors if each.kind == "gradient"}
    for op in reversed(trace.ops):
        if op.phase == "backward" and op.kind in _SAME and not sums.isdisjoint(op.writes):
            nbytes = tensors[op.writes[0]].nbytes
            sums.update(each for each in op.reads if tensors[each].nbytes == nbytes)
    found = dict.fromkeys(sums, False) | {
        each.id: each.kind == "input" and not each.name for each in tensors if each.kind in LASTING
    }
    # Nothing is known of scalars, nor of what is made of them or of nothing until it meets more.
    decided = {*found, *(each.id for each in tensors if each.nbytes <= _SCALAR_BYTES)}
    for op in trace.ops:
        known = [found[each] for each in op.reads if each in found]
        made = any(known) if known else None
        if op.geometry is not None:
            made = _of_product(op, found)
        if made is None:
            continue
        for each in op.reads:
            if each not in found and each not in decided:
                alike = made and tensors[each].nbytes >= max(op.write_bytes, default=0)
                found[each] = op.geometry is not None or alike
        for place, each in enumerate(n for n in op.writes if n not in decided):
            statistic = place > 0 and "batch_norm" in op.kind
            found[each] = not statistic and (made or found.get(each, False))
    return [found.get(each.id, False) for each in tensors]


def _of_product(op: Op, found: Mapping[int, bool]) -> bool:
    """Whether a product depends on the batch. A factor of which nothing is known does."""
    if op.kind not in _MATRICES:
        sums = op.kind in ("convolution_backward_filter", "convolution_backward_bias")
        return not sums and any(found.get(each, True) for each in op.reads)
    one, other = (found.get(each, True) for each in _factors(op))
    return one != other or (one and op.kind in _MANY)


def _factors(op: Op) -> tuple[int, int]:
    """The two tensors that are multiplied, which may be one. What is added is before them."""
    alike = op.geometry is not None and len(op.reads) < len(op.geometry.operands)
    one, other = (op.reads[-1:] * 2) if alike else op.reads[-2:]
    return one, other


def _shapes(op: Op, shapes: Geometry, scales: Sequence[bool], times: _Times) -> Geometry:
    """Shapes with the dimension of the samples scaled."""
    made = scales[op.writes[0]]
    every = [*shapes.operands, shapes.result]
    if op.kind in _MATRICES:  # g of m by k, times k by n
        one, other = (scales[each] for each in _factors(op))
        dimension = ("g" if one and other else "n" if other else "m") if made else "k"
        added = ["gmn" if scales[op.reads[0]] else ""] * (len(every) - 3)
        names = [*added, "gmk", "gkn", "gmn"]
        places = [each[-len(of) :].find(dimension) for each, of in zip(names, every, strict=True)]
    else:  # the first
        grows = [scales[each] for each in op.reads]
        grows += [any(grows)] * (len(shapes.operands) - len(grows))
        places = [0 if each else -1 for each in (*grows, made)]
    *operands, result = (
        shape if place < 0 else (*shape[:place], times(shape[place]), *shape[place + 1 :])
        for shape, place in zip(every, places, strict=True)
    )
    return replace(shapes, operands=tuple(operands), result=result)
