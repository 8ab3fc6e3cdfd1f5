"""A network as layers: its matrix products, and what little lies between them.

For systems that split a network by layers, by samples or by outputs. Sizes are of one sample, so
that any batch follows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

from sw_driver.numbers import check_fields

from .products import GATHERS, has_products
from .trace import Op, Trace, TraceError, load_trace

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
    """The layers of a training step of one forward pass, whose origin says the batch.

    Counts are of elements, whatever their size in the trace. Biases, and parameters of what lies
    between layers, such as normalization, are in no layer. Groups of a convolution share its rows.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a product that is none of samples with
    a parameter, or whose parameter is not updated; for a parameter that is, of a table or of an
    operation that follows no layer; for several forward passes; and for an origin without a batch.
    """
    batch = trace.origin.get("batch")
    if not isinstance(batch, int) or batch < 1:
        raise TraceError(
            f"{trace.name}: the batch is {batch!r}: capture it with origin={{'batch': ...}}, an "
            f"integer from 1 on"
        )
    products = [op for op in trace.ops if op.phase == "forward" and has_products(op.kind)]
    if not products:
        raise TraceError(f"{trace.name}: no operation of the forward pass is a product")
    number = {op.id: index for index, op in enumerate(products)}
    following, after = Counter[int](), Counter[int]()
    owner: dict[int, list[int]] = {}
    latest = 0
    for op in trace.ops:
        if op.phase == "forward":
            latest = number.get(op.id, latest)
            owners = owner.setdefault(op.layer, [])
            if latest not in owners:
                owners.append(latest)
            if op.id not in number:
                following[latest] += op.nbytes
    sizes = {each.nbytes for each in trace.tensors if each.kind == "parameter"}
    shared = Counter[int]()
    for op in trace.ops:
        if op.phase == "backward" and not has_products(op.kind) and not _sums(trace, op, sizes):
            shared[op.layer] += op.nbytes
    for layer, nbytes in shared.items():
        # A layer of the model may be many here, as the time steps are.
        owners = owner.get(layer, [latest])
        for each in owners:
            after[each] += nbytes // len(owners)
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
        if op.id in number:
            index = number[op.id]
            layer = _layer(trace, op, batch, following[index], after[index], tuple(sorted(needs)))
            if layer.weights not in trained:
                raise _refusal(trace, op, "its weights are not updated")
            found.append(layer)
            needs = frozenset({index})
        elif (tables := trained.intersection(op.reads)) and (not needs or op.kind in GATHERS):
            name = trace.tensors[min(tables)].name
            raise _refusal(trace, op, f"the gradient of its {name!r} would be lost")
        for each in op.writes:
            feeding[each] = needs
    return tuple(found)


def _layer(
    trace: Trace, op: Op, batch: int, following: int, after: int, needs: tuple[int, ...]
) -> Layer:
    # What is added is the first of addmm, and the last of a convolution.
    reads = op.reads[:2] if op.kind == "convolution" else op.reads[-2:]
    sides = [trace.tensors[each] for each in reads]
    if op.kind not in _OF_LAYERS or sorted(each.kind == "parameter" for each in sides) != [0, 1]:
        raise _refusal(trace, op, "it is no product of samples with weights")
    weights, values = sides if sides[0].kind == "parameter" else reversed(sides)
    size = weights.element_bytes
    output = trace.tensors[op.writes[0]].nbytes // size
    products = weights.nbytes // size
    rows = op.flops // 2 // max(products, 1)
    columns = output // max(rows, 1)
    depth = products // max(columns, 1)
    fits = rows and not rows % batch and rows * columns == output and columns * depth == products
    if op.kind in ("mm", "addmm"):  # of a part of the weights only, the rest is not read
        added = op.nbytes - size * (rows * depth + products + output)
        fits = fits and added in (0, size * columns, size * output)
    if not fits:
        raise _refusal(trace, op, f"it is no product of {batch} samples")
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
        between_forward=following // size // batch,
        between_backward=after // size // batch,
    )


def _refusal(trace: Trace, op: Op, why: str) -> TraceError:
    of = f"{op.kind} of {trace.layers[op.layer]!r}"
    return TraceError(f"{trace.name}: operation {op.id} ({of}) fits no layer: {why}")


def _sums(trace: Trace, op: Op, sizes: set[int]) -> bool:
    """Whether the operation sums gradients of a parameter, which no sample makes larger."""
    return op.kind == "add" and trace.tensors[op.writes[0]].nbytes in sizes
