"""A network as layers: its matrix products, and what little lies between them.

For systems that split a network by layers, by samples or by outputs. Sizes are of one sample, so
that any batch follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import prod

from sw_driver.numbers import check_fields, check_integer

from .products import GATHERS, has_products
from .trace import PHASES, Op, Trace, TraceError, load_trace

__all__ = ["Layer", "layers_of", "load_layers"]

_OF_LAYERS = ("convolution", "addmm", "mm", "baddbmm", "bmm")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A product of samples' ``rows`` by ``depth`` with weights of ``depth`` by ``columns``, and
    the operations without one that follow it. All counts are of elements."""

    name: str
    rows: int
    """Rows of each sample: places of a feature map, or 1."""
    columns: int
    depth: int
    weights: int
    """Id of the weights' tensor in the trace: time steps share one."""
    input: int
    """Id of the tensor in the trace that the layer reads: branches share one."""
    first: bool
    """Whether the layer reads the network's input, which has no gradient and is there already."""
    inputs: int
    """Elements for each sample of the tensor that the layer reads; a convolution reads most of them
    several times."""
    needs: tuple[int, ...]
    """The layers on whose outputs the input depends, by their indices."""
    between_forward: int
    """Elements for each sample that the operations that follow move in the forward pass."""
    between_backward: int

    def __post_init__(self) -> None:
        check_fields(self, "weights", "input", "between_forward", "between_backward")

    @property
    def outputs(self) -> int:
        """Elements of the output for each sample."""
        return self.rows * self.columns

    @property
    def parameters(self) -> int:
        """Number of the layer's weights, without a bias."""
        return self.columns * self.depth


@cache
def load_layers(name: str) -> tuple[Layer, ...]:
    """The layers of a trace that comes with the package."""
    return layers_of(load_trace(name))


def layers_of(trace: Trace) -> tuple[Layer, ...]:
    """The layers of a training step of one forward pass.

    Counts are of elements, whatever their size in the trace. Biases, and parameters of what lies
    between layers, such as normalization, are in no layer. Groups of a convolution share its rows.
    The batch is what the origin says; without, the fewest images or rows of a product.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a product that is none of samples with
    a parameter, or whose parameter is not updated; for a parameter that is, of a table or of an
    operation that follows no layer; for several forward passes; and for a batch that is none.
    """
    products = [op for op in trace.ops if op.phase == "forward" and has_products(op.kind)]
    if not products:
        raise TraceError(f"{trace.name}: no operation of the forward pass is a product")
    plain = [op.geometry for op in products if op.kind in ("convolution", "addmm", "mm")]
    fewest = min((each.result[0] for each in plain if each is not None), default=1)
    batch = trace.origin.get("batch", fewest)
    check_integer(f"{trace.name}: the batch of its origin", batch, error=TraceError)
    between = _between(trace, [op.stage for op in products])
    feeding: dict[int, frozenset[int]] = {}
    trained = {each for op in trace.ops if op.phase == "update" for each in op.reads}
    found: list[Layer] = []
    passed = False
    for op in trace.ops:
        if op.phase != "forward":
            passed = True
            continue
        if passed:
            raise _refusal(trace, op, "it is of a second forward pass")
        needs = frozenset().union(*(feeding.get(each, frozenset()) for each in op.reads))
        if has_products(op.kind):
            index = len(found)
            moved = (between[phase, index] for phase in PHASES[:2])
            found.append(_layer(trace, op, batch, tuple(sorted(needs)), *moved))
            if found[-1].weights not in trained:
                raise _refusal(trace, op, "its weights are not updated")
            needs = frozenset({index})
        elif (tables := trained.intersection(op.reads)) and (not needs or op.kind in GATHERS):
            name = trace.tensors[min(tables)].name
            raise _refusal(trace, op, f"the gradient of its {name!r} would be lost")
        for each in op.writes:
            feeding[each] = needs
    return tuple(found)


def _layer(
    trace: Trace, op: Op, batch: int, needs: tuple[int, ...], forward: int, backward: int
) -> Layer:
    # What is added is the first of addmm, and the last of a convolution.
    convolves, shapes = op.kind == "convolution", op.geometry
    of = slice(2) if convolves else slice(-2, None)
    sides = [trace.tensors[each] for each in op.reads[of]]
    right = [each.kind == "parameter" for each in sides] == [False, True]
    left = not convolves and [each.kind == "parameter" for each in sides] == [True, False]
    if op.kind in _OF_LAYERS and shapes is not None and (left or right):
        weights, values = sides[::-1] if right else sides
        one, other = shapes.operands[of]
        if convolves:
            rows = one[0] * prod((one if shapes.transposed else shapes.result)[2:])
            depth = other[0] if shapes.transposed else prod(other[1:])
        else:
            rows = one[-2] if right else other[-1]
            depth = one[-1]
        columns = prod(other if right else one) // max(depth, 1)
        size = weights.element_bytes
        # All weights are used, and each output is one sum.
        whole = columns * depth == weights.nbytes // size
        if whole and rows * columns == prod(shapes.result) and not rows % batch:
            return Layer(
                name=trace.layers[op.layer],
                rows=rows // batch,
                columns=columns,
                depth=depth,
                weights=weights.id,
                input=values.id,
                first=not needs,
                inputs=values.nbytes // size // batch,
                needs=needs,
                between_forward=forward // size // batch,
                between_backward=backward // size // batch,
            )
    raise _refusal(trace, op, f"it is no product of {batch} samples with weights")


def _between(trace: Trace, stages: list[int]) -> Counter[tuple[str, int]]:
    """Bytes by phase and layer, which begin in these stages."""
    sizes = {each.nbytes for each in trace.tensors if each.kind == "parameter"}
    found = Counter[tuple[str, int]]()
    for op in trace.ops:
        # A sum of a parameter's gradients is not larger for more samples.
        sums = op.kind == "add" and trace.tensors[op.writes[0]].nbytes in sizes
        if not has_products(op.kind) and not (sums and op.phase == "backward"):
            stage = min(op.stage, len(trace.stages) - 1 - op.stage)
            found[op.phase, max(bisect_right(stages, stage) - 1, 0)] += op.nbytes
    return found


def _refusal(trace: Trace, op: Op, why: str) -> TraceError:
    of = f"{op.kind} of {trace.layers[op.layer]!r}"
    return TraceError(f"{trace.name}: operation {op.id} ({of}) fits no layer: {why}")
