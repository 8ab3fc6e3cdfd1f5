"""Passes of layers as works: section "Layers of networks" of ``docs/pim-spec.md``.

Activations have the shape (channels, images, height, width) or (features, samples). Weights have
the filters or outputs first. :mod:`sw_driver.pim.placing` spreads the first index over banks, and
works are cut along it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hw.pim.work.descriptor import FORMS
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_integer

from .descriptor import ELEMENT_BYTES, Opcode, StridedTensor, Work
from .layers import MOST_SIZE, Convolution, FullyConnected, Layer
from .placing import PlacedTensor, StackMemory, work_on
from .reductions import split

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["LEARNING_RATE", "PASSES", "Program", "cut", "lower"]

LEARNING_RATE = 0.01
"""Learning rate of the descent step."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A pass of a layer: its tensors, placed in the stack, and its works in order.

    The pool itself runs dependent works one after the other.
    """

    tensors: dict[str, PlacedTensor]
    """Tensors by name: ``x``, ``weights``, ``bias``, ``y``, their gradients with a leading ``d``.

    ``sums`` holds values that one work writes and the next one reads.
    """
    inputs: tuple[str, ...]
    """Names of the tensors that the host writes first; the result may be one of them."""
    result: str
    zeroed: bool
    """True if elements of the result that no work writes must be zeroed first."""
    works: tuple[Work, ...]

    @property
    def operations(self) -> tuple[int, int]:
        """Numbers of multiplications and additions of all works."""
        multiplications, additions = zip(*(work.operations for work in self.works), strict=True)
        return sum(multiplications), sum(additions)

    @property
    def least_bytes(self) -> tuple[int, int]:
        """Fewest bytes read, and fewest bytes written.

        Every tensor counts once; a tensor between two works counts as read and as written.
        """
        size = {name: ELEMENT_BYTES * tensor.elements for name, tensor in self.tensors.items()}
        between = sum(size.values()) - sum(size[name] for name in {*self.inputs, self.result})
        return sum(size[name] for name in self.inputs) + between, size[self.result] + between


class _Draft:
    """Works of a pass before :func:`lower` cuts them and assigns their units."""

    def __init__(self, layer: Layer, config: PimConfig, memory: StackMemory) -> None:
        self.config = config
        self.works: list[Work] = []
        self.tensors: dict[str, PlacedTensor] = {}
        self.zeroed = False
        self.parts = 1
        """Number of parts that each work is cut into."""
        self._shapes = _shapes(layer)
        self._memory = memory

    def place(self, *names: str, **shapes: tuple[int, ...]) -> list[PlacedTensor]:
        """Place the layer's tensors ``names``, and other tensors of these ``shapes``."""
        all_shapes = {name: self._shapes[name.removeprefix("d")] for name in names} | shapes
        placed = {name: self._memory.place(name, shape) for name, shape in all_shapes.items()}
        self.tensors |= placed
        return list(placed.values())

    def add(self, opcode: Opcode, **settings: Any) -> None:
        """Append a work of :func:`~sw_driver.pim.placing.work_on`; split a long sum in pieces."""
        self.works += split(work_on(opcode, **settings), self.config, self._scratch)

    def _scratch(self, elements: int) -> int:
        (pieces,) = self.place(**{f"pieces_{len(self.tensors)}": (elements,)})
        return pieces.address_bytes


def lower(
    layer: Layer,
    pass_name: str,
    config: PimConfig,
    *,
    memory: StackMemory | None = None,
) -> Program:
    """Return the pass ``pass_name`` of ``layer`` as works for a pool of ``config``.

    The pool spreads the tiles of a work over the banks. Works that would run one after the other
    are cut into independent parts. These run side by side and share the units evenly.

    ``memory`` places the tensors; by default all of the striped memory is free.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown pass,
    :class:`~sw_driver.device.errors.OutOfMemoryError` if the stack is too small.
    """
    if pass_name not in _PASSES:
        raise InvalidArgumentError(
            f"no pass {pass_name!r}: expected one of {', '.join(_PASSES)}", name=pass_name
        )
    inputs, result, *writers = _PASSES[pass_name]
    write: Callable[[Layer, _Draft], None] = writers[isinstance(layer, FullyConnected)]
    draft = _Draft(layer, config, memory or StackMemory(config))
    write(layer, draft)
    cuts = [cut(work, draft.parts) for work in draft.works]
    units = max(1, config.units // min(config.works, max(map(len, cuts))))
    return Program(
        tensors=draft.tensors,
        inputs=inputs,
        result=result,
        zeroed=draft.zeroed,
        works=tuple(replace(work, units=units) for works in cuts for work in works),
    )


def cut(work: Work, parts: int) -> list[Work]:
    """Return ``work`` cut into ``parts`` of about the same size, or fewer for few results.

    The cut is along the result's index with the largest stride. The results' spans of two parts
    then never meet.
    """
    check_integer("parts", parts)
    extents = work.extents("result")
    # No operand of a CONV2D is indexed by the result's rows or columns.
    indices = range(2 if work.opcode == Opcode.CONV2D else len(extents))
    index = max(indices, key=lambda i: (extents[i] > 1, abs(work.result.strides[i])))
    extent = extents[index]
    parts = min(parts, extent)
    bounds = [extent * part // parts for part in range(parts + 1)]
    return [_part(work, index, first, end - first) for first, end in pairwise(bounds)]


def _part(work: Work, index: int, start: int, count: int) -> Work:
    """Return the work on ``count`` values of one index of the result, from ``start`` on."""
    tensors = FORMS[Opcode(work.opcode)].tensors
    size = tensors["result"][index]
    changes: dict[str, Any] = {size: count}
    for name, sizes in tensors.items():
        if size in sizes:
            tensor: StridedTensor = getattr(work, name)
            step_bytes = ELEMENT_BYTES * tensor.strides[sizes.index(size)]
            changes[name] = replace(tensor, address_bytes=tensor.address_bytes + start * step_bytes)
    return replace(work, **changes)


def _shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    if isinstance(layer, FullyConnected):
        x, y = ((features, layer.samples) for features in (layer.inputs, layer.outputs))
        weights = layer.outputs, layer.inputs
    else:
        x = layer.channels, layer.images, layer.height, layer.width
        y = layer.filters, layer.images, layer.rows, layer.columns
        weights = layer.filters, layer.group_channels, layer.filter_height, layer.filter_width
    return {"x": x, "weights": weights, "bias": y[:1], "y": y}


# Convolutions. ``view(1, 0, 2, 3)`` exchanges channels, or filters, and images.


def _groups(layer: Convolution) -> list[tuple[slice, slice]]:
    """Return the channels and the filters of each group."""
    channels, filters = layer.group_channels, layer.filters // layer.groups
    return [
        (slice(n * channels, (n + 1) * channels), slice(n * filters, (n + 1) * filters))
        for n in range(layer.groups)
    ]


def _forward(layer: Convolution, draft: _Draft) -> None:
    x, weights, y = draft.place("x", "weights", "y")
    top, _, left, _ = layer.sides
    for channels, filters in _groups(layer):
        draft.add(
            Opcode.CONV2D,
            a=x[channels].view(1, 0, 2, 3),
            b=weights[filters],
            result=y[filters].view(1, 0, 2, 3),
            stride=layer.stride,
            dilation=layer.dilation,
            pad_top=top,
            pad_left=left,
        )


def _filter_gradient(layer: Convolution, draft: _Draft) -> None:
    x, dy, dweights = draft.place("x", "dy", "dweights")
    top, _, left, _ = layer.sides
    for channels, filters in _groups(layer):
        draft.add(
            Opcode.CONV2D,
            a=x[channels],
            b=dy[filters],
            result=dweights[filters].view(1, 0, 2, 3),
            stride=layer.dilation,
            dilation=layer.stride,
            pad_top=top,
            pad_left=left,
        )


class _Remainder(NamedTuple):
    """Rows, or columns, of an input's gradient that meet the same rows of the filter."""

    of_input: slice
    of_filter: slice
    of_output: slice
    """Slice from the first row that the filter's last row meets."""
    pad: int


def _remainders(
    layer: Convolution, size: int, outputs: int, filter_size: int, pad: int
) -> tuple[list[_Remainder], bool]:
    """Return one dimension's remainders that meet the output; True if they cover every row."""
    stride, dilation = layer.stride, layer.dilation
    common = gcd(stride, dilation)
    remainders, rows = [], 0
    for q in range(min(filter_size, stride // common)):
        first = (dilation * q - pad) % stride
        step = stride // common
        taps = len(range(q, filter_size, step))
        top = (first + pad - dilation * q) // stride - dilation // common * (taps - 1)
        if first >= size or top >= outputs:
            continue
        if -top > MOST_SIZE:
            raise InvalidArgumentError(
                f"the gradient of the input of {layer.describe()} needs a padding of {-top}: "
                f"expected {MOST_SIZE} at most; take a smaller filter or dilation",
                padding=-top,
            )
        reversed_taps = slice(q + step * (taps - 1), None, -step)
        seen = slice(max(0, top), None)
        of_input = slice(first, None, stride)
        remainders.append(_Remainder(of_input, reversed_taps, seen, max(0, -top)))
        rows += len(range(first, size, stride))
    return remainders, rows == size


def _input_gradient(layer: Convolution, draft: _Draft) -> None:
    dy, weights, dx = draft.place("dy", "weights", "dx")
    top, _, left, _ = layer.sides
    rows, all_rows = _remainders(layer, layer.height, layer.rows, layer.filter_height, top)
    columns, all_columns = _remainders(layer, layer.width, layer.columns, layer.filter_width, left)
    draft.zeroed = not (all_rows and all_columns)
    for row, column in product(rows, columns):
        for channels, filters in _groups(layer):
            seen = dy[filters, :, row.of_output, column.of_output]
            taps = weights[filters, :, row.of_filter, column.of_filter]
            result = dx[channels, :, row.of_input, column.of_input]
            draft.add(
                Opcode.CONV2D,
                a=seen.view(1, 0, 2, 3),
                b=taps.view(1, 0, 2, 3),
                result=result.view(1, 0, 2, 3),
                stride=1,
                dilation=layer.dilation // gcd(layer.stride, layer.dilation),
                pad_top=row.pad,
                pad_left=column.pad,
            )
    if not draft.works:
        raise InvalidArgumentError(f"no element of the input of {layer.describe()} has a gradient")
    # The results of the remainders are interleaved. Their spans overlap, so the pool runs them one
    # after the other; parts with different channels do not overlap.
    draft.parts = 1 if layer.stride == 1 else draft.config.works


def _bias_gradient(layer: Convolution, draft: _Draft) -> None:
    (dy,) = draft.place("dy")
    (sums,) = draft.place(sums=(layer.images, layer.filters))
    (dbias,) = draft.place("dbias")
    pixels = replace(
        dy,
        shape=(layer.filters, layer.images, layer.rows * layer.columns),
        strides=(*dy.strides[:2], 1),
    )
    draft.add(Opcode.SUM, a=pixels.view(1, 0, 2), result=sums)
    draft.add(Opcode.SUM, a=sums.view(1, 0), result=dbias)


# Fully connected layers.


def _forward_product(layer: FullyConnected, draft: _Draft) -> None:
    weights, x, y = draft.place("weights", "x", "y")
    _add_product(draft, weights, x, y)


def _input_gradient_product(layer: FullyConnected, draft: _Draft) -> None:
    weights, dy, dx = draft.place("weights", "dy", "dx")
    _add_product(draft, weights.view(1, 0), dy, dx)


def _add_product(
    draft: _Draft, matrix: PlacedTensor, vectors: PlacedTensor, result: PlacedTensor
) -> None:
    """Add the product of the matrix and every vector."""
    if vectors.shape[1] == 1:
        a, y = matrix.in_columns, result.view(0).in_columns
        draft.add(Opcode.MATVEC, a=a, b=vectors.view(0), result=y)
    else:
        a, b, transposed = (tensor.view(1, 0) for tensor in (vectors, matrix, result))
        draft.add(Opcode.MATMUL, a=a, b=b, result=transposed)


def _weight_gradient_product(layer: FullyConnected, draft: _Draft) -> None:
    dweights, x, dy = draft.place("dweights", "x", "dy")
    draft.add(Opcode.MATMUL, a=dy, b=x.view(1, 0), result=dweights)


def _features_bias_gradient(layer: FullyConnected, draft: _Draft) -> None:
    dy, dbias = draft.place("dy", "dbias")
    draft.add(Opcode.SUM, a=dy, result=dbias)


# Layers of both kinds.


def _bias(layer: Layer, draft: _Draft) -> None:
    y, bias = draft.place("y", "bias")
    lines = y.lines
    repeated = replace(bias, shape=lines.shape, strides=(*bias.strides, 0))
    draft.add(Opcode.ADD, a=lines, b=repeated, result=lines)


def _descent(layer: Layer, draft: _Draft) -> None:
    alpha_bits = int(np.float32(-LEARNING_RATE).view(np.uint32))
    weights, gradient = (tensor.flat for tensor in draft.place("weights", "dweights"))
    draft.add(Opcode.SCALEADD, alpha_bits=alpha_bits, a=gradient, b=weights, result=weights)


_PASSES: dict[str, tuple[tuple[str, ...], str, Callable[..., None], Callable[..., None]]] = {
    "forward": (("x", "weights"), "y", _forward, _forward_product),
    "backward-filter": (("x", "dy"), "dweights", _filter_gradient, _weight_gradient_product),
    "backward-input": (("dy", "weights"), "dx", _input_gradient, _input_gradient_product),
    "bias": (("y", "bias"), "y", _bias, _bias),
    "backward-bias": (("dy",), "dbias", _bias_gradient, _features_bias_gradient),
    "descent": (("weights", "dweights"), "weights", _descent, _descent),
}
"""Inputs and result of each pass, and its functions for convolutions and fully connected layers."""

PASSES = tuple(_PASSES)
"""Names of every layer's passes; ``backward-filter`` is the weight gradient if fully connected."""
