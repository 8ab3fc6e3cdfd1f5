"""A network as layers: its matrix products, and what little lies between them.

For systems that split a network by layers, by samples or by outputs. Sizes are of one sample, so
that any batch follows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

from .trace import Op, Trace, load_trace

__all__ = ["Layer", "layers_of", "load_layers"]

_PRODUCTS = ("convolution", "addmm", "mm")
_FP32 = 4


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

    @property
    def outputs(self) -> int:
        """Elements of the output for each sample."""
        return self.rows * self.columns

    @property
    def parameters(self) -> int:
        """Number of the layer's weights."""
        return self.columns * self.depth


@cache
def load_layers(name: str) -> tuple[Layer, ...]:
    """The layers of a trace that comes with the package."""
    return layers_of(load_trace(name))


def layers_of(trace: Trace) -> tuple[Layer, ...]:
    """The layers of a training step in FP32, whose origin says the batch.

    Raises ``ValueError`` for one whose products are not all of samples with a parameter.
    """
    batch = int(trace.origin["batch"])
    products = [op for op in trace.ops if op.phase == "forward" and op.kind in _PRODUCTS]
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
        product = op.kind in (*_PRODUCTS, "convolution_backward")
        if op.phase == "backward" and not product and not _sums(trace, op, sizes):
            shared[op.layer] += op.nbytes
    for layer, nbytes in shared.items():
        # A layer of the model may be many here, as the time steps are.
        for each in owner[layer]:
            after[each] += nbytes // len(owner[layer])
    feeding: dict[int, frozenset[int]] = {}
    found = []
    for op in trace.ops:
        if op.phase != "forward":
            continue
        needs = frozenset().union(*(feeding.get(each, frozenset()) for each in op.reads))
        if op.id in number:
            index = number[op.id]
            layer = _layer(trace, op, batch, following[index], after[index], tuple(sorted(needs)))
            found.append(layer)
            needs = frozenset({index})
        for each in op.writes:
            feeding[each] = needs
    return tuple(found)


def _layer(
    trace: Trace, op: Op, batch: int, following: int, after: int, needs: tuple[int, ...]
) -> Layer:
    read = [trace.tensors[each] for each in op.reads]
    weights = max(
        (each for each in read if each.kind == "parameter"), key=attrgetter("nbytes"), default=None
    )
    others = [each for each in read if each.kind != "parameter"]
    if weights is None or not others:
        raise ValueError(f"{trace.name}: operation {op.id} is no product of samples with weights")
    # What is added to the product is as large as it and no state; the sample's side is the last.
    values = others[-1]
    output = trace.tensors[op.writes[0]].nbytes // _FP32
    products = weights.nbytes // _FP32
    rows = op.flops // 2 // products
    columns = output // rows
    depth = products // columns
    if rows % batch or rows * columns != output or columns * depth != products:
        raise ValueError(f"{trace.name}: operation {op.id} is no product of {batch} samples")
    return Layer(
        name=trace.layers[op.layer],
        rows=rows // batch,
        columns=columns,
        depth=depth,
        weights=weights.id,
        input=values.id,
        first=not needs,
        inputs=values.nbytes // _FP32 // batch,
        needs=needs,
        between_forward=following // _FP32 // batch,
        between_backward=after // _FP32 // batch,
    )


def _sums(trace: Trace, op: Op, sizes: set[int]) -> bool:
    """Whether the operation sums gradients of a parameter, which no sample makes larger."""
    return op.kind == "add" and trace.tensors[op.writes[0]].nbytes in sizes
