"""A network as layers: its matrix products, and the smaller operations between them.

For systems that split a network by layers, by samples or by outputs. Sizes are per sample, so they
hold for any batch.
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
    """A matrix product and the operations without a product that follow it.

    It multiplies ``rows`` by ``depth`` values of each sample with ``depth`` by ``columns`` weights.
    All counts are in elements.

    Examples
    --------
    >>> first, second, *_ = load_layers("alexnet")
    >>> second.rows, second.columns, second.depth, second.weights
    (729, 192, 1600, 2)
    >>> second.outputs, second.needs
    (139968, (0,))
    """

    name: str
    rows: int
    """Rows of each sample: positions of a feature map, or 1."""
    columns: int
    depth: int
    weights: int
    """Id of the weights' tensor in the trace; time steps share one."""
    input: int
    """Id of the layer's input tensor in the trace; branches share one."""
    first: bool
    """True if the layer reads the network's input, which is there already and has no gradient."""
    inputs: int
    """Elements per sample of the input tensor; a convolution reads most of them several times."""
    needs: tuple[int, ...]
    """Indices of the layers that the input depends on."""
    between_forward: int
    """Elements per sample that the following operations move in the forward pass."""
    between_backward: int

    def __post_init__(self) -> None:
        check_fields(self, "weights", "input", "between_forward", "between_backward")

    @property
    def outputs(self) -> int:
        """Elements of the output per sample."""
        return self.rows * self.columns

    @property
    def parameters(self) -> int:
        """Number of the layer's weights, without biases."""
        return self.columns * self.depth


@cache
def load_layers(name: str) -> tuple[Layer, ...]:
    """Return the layers of a trace that comes with the package."""
    return layers_of(load_trace(name))


def layers_of(trace: Trace) -> tuple[Layer, ...]:
    """Return the layers of a training step with one forward pass.

    Counts are in elements, whatever their size in the trace. Biases, and parameters of operations
    between layers, such as normalization, belong to no layer. Groups of a convolution share its
    rows. The batch is that of the trace's origin; without one, the fewest images or rows of a
    product.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a product that does not multiply
    samples with an updated parameter; for an updated parameter of a table or of an operation that
    follows no layer; for several forward passes; and for an invalid batch.
    """
    products = [op for op in trace.ops if op.phase == "forward" and has_products(op.kind)]
    if not products:
        raise TraceError(f"{trace.name}: no operation of the forward pass is a product")
    plain = [op.geometry for op in products if op.kind in ("convolution", "addmm", "mm")]
    fewest = min((shapes.result[0] for shapes in plain if shapes is not None), default=1)
    batch = trace.origin.get("batch", fewest)
    check_integer(f"{trace.name}: the batch of its origin", batch, error=TraceError)
    between = _between(trace, [op.stage for op in products])
    feeding: dict[int, frozenset[int]] = {}
    trained = {tensor for op in trace.ops if op.phase == "update" for tensor in op.reads}
    layers: list[Layer] = []
    passed = False
    for op in trace.ops:
        if op.phase != "forward":
            passed = True
            continue
        if passed:
            raise _refusal(trace, op, "it belongs to a second forward pass")
        needs = frozenset().union(*(feeding.get(tensor, frozenset()) for tensor in op.reads))
        if has_products(op.kind):
            index = len(layers)
            moved = (between[phase, index] for phase in PHASES[:2])
            layers.append(_layer(trace, op, batch, tuple(sorted(needs)), *moved))
            if layers[-1].weights not in trained:
                raise _refusal(trace, op, "its weights are not updated")
            needs = frozenset({index})
        elif (tables := trained.intersection(op.reads)) and (not needs or op.kind in GATHERS):
            name = trace.tensors[min(tables)].name
            raise _refusal(trace, op, f"the gradient of its {name!r} would be lost")
        for tensor in op.writes:
            feeding[tensor] = needs
    return tuple(layers)


def _layer(
    trace: Trace, op: Op, batch: int, needs: tuple[int, ...], forward: int, backward: int
) -> Layer:
    # The addend is the first operand of addmm, and the last of a convolution.
    convolves, shapes = op.kind == "convolution", op.geometry
    factors = slice(2) if convolves else slice(-2, None)
    sides = [trace.tensors[tensor] for tensor in op.reads[factors]]
    right = [tensor.kind == "parameter" for tensor in sides] == [False, True]
    left = not convolves and [tensor.kind == "parameter" for tensor in sides] == [True, False]
    if op.kind in _OF_LAYERS and shapes is not None and (left or right):
        weights, values = sides[::-1] if right else sides
        one, other = shapes.operands[factors]
        if convolves:
            rows = one[0] * prod((one if shapes.transposed else shapes.result)[2:])
            depth = other[0] if shapes.transposed else prod(other[1:])
        else:
            rows = one[-2] if right else other[-1]
            depth = one[-1]
        columns = prod(other if right else one) // max(depth, 1)
        size = int(weights.element_bytes)  # products read packed weights unpacked
        # All weights are used, and each output is a single sum.
        whole = columns * depth == weights.elements
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
    raise _refusal(trace, op, f"it does not multiply {batch} samples with weights")


def _between(trace: Trace, stages: list[int]) -> Counter[tuple[str, int]]:
    """Return the bytes moved between products, by phase and layer.

    ``stages`` are the stages where the layers begin.
    """
    sizes = {tensor.nbytes for tensor in trace.tensors if tensor.kind == "parameter"}
    moved = Counter[tuple[str, int]]()
    for op in trace.ops:
        # A sum of a parameter's gradients is not larger for more samples.
        sums = op.kind == "add" and trace.tensors[op.writes[0]].nbytes in sizes
        if not has_products(op.kind) and not (sums and op.phase == "backward"):
            stage = min(op.stage, len(trace.stages) - 1 - op.stage)
            moved[op.phase, max(bisect_right(stages, stage) - 1, 0)] += op.nbytes
    return moved


def _refusal(trace: Trace, op: Op, why: str) -> TraceError:
    title = f"{op.kind} of {trace.layers[op.layer]!r}"
    return TraceError(f"{trace.name}: operation {op.id} ({title}) fits no layer: {why}")
