"""Passes of layers as works: the table "Layers of networks" of ``docs/pim.md``.

Activations have their channels or features first, then the images or samples: (channels, images,
height, width) and (features, samples). Weights have the filters or outputs first. This index is the
one that :mod:`sw_driver.pim.placing` spreads over banks, and works are cut along it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from .descriptor import ELEMENT_BYTES, Opcode, Tensor, Work
from .errors import LayerError
from .layers import Convolution, FullyConnected, Layer
from .placing import PlacedTensor, StripedMemory
from .reductions import piece_for, pieces_of, split_reduction

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["LEARNING_RATE", "PASSES", "Program", "cut", "lower"]

LEARNING_RATE = 0.01
"""Of the descent step."""

_INTERLEAVE = 8
"""Results on which a lane works in turn."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A pass of a layer: its tensors, placed in the stack, and its works in their order.

    The pool itself keeps works apart that depend on each other.
    """

    tensors: dict[str, PlacedTensor]
    """By name; ``x``, ``weights``, ``bias``, ``y``, their gradients with a ``d`` before them, and
    ``sums`` for what is between two works."""
    inputs: tuple[str, ...]
    """What must be written before; a tensor may be among these and be the result, too."""
    result: str
    zeroed: bool
    """Whether places of the result that no work writes must hold zero before."""
    works: tuple[Work, ...]

    @property
    def operations(self) -> tuple[int, int]:
        """Multiplications and additions of all works."""
        multiplications, additions = zip(*(work.operations for work in self.works), strict=True)
        return sum(multiplications), sum(additions)

    @property
    def least_bytes(self) -> tuple[int, int]:
        """Bytes that have to be read and written at least: each tensor once, what is between two
        works both ways."""
        size = {name: ELEMENT_BYTES * each.elements for name, each in self.tensors.items()}
        between = sum(size.values()) - sum(size[name] for name in {*self.inputs, self.result})
        return sum(size[name] for name in self.inputs) + between, size[self.result] + between


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """Works before they are cut and given units."""

    tensors: dict[str, PlacedTensor]
    inputs: tuple[str, ...]
    result: str
    works: list[Work]
    zeroed: bool = False
    parts: int = 1
    """Into how many parts each work is cut unless the caller says otherwise."""
    together: int = 1
    """Works that do not depend on each other."""


class _Places:
    """Places tensors in ``memory``."""

    def __init__(self, config: PimConfig, memory: StripedMemory) -> None:
        self.config = config
        self._memory = memory

    def __call__(self, **shapes: tuple[int, ...]) -> dict[str, PlacedTensor]:
        """Tensors of these shapes."""
        return {name: self._memory.place(name, shape) for name, shape in shapes.items()}


def lower(
    layer: Layer,
    pass_name: str,
    config: PimConfig,
    *,
    parts: int | None = None,
    memory: StripedMemory | None = None,
) -> Program:
    """The pass ``pass_name`` of ``layer`` as works for a pool of ``config``.

    ``parts``: into how many works each one is cut, so that they run side by side; by default one,
    of which the pool spreads the tiles over the banks, unless the pass's works follow each other
    and their parts do not. Units are shared out evenly to works that run side by side.

    ``memory``: gives the tensors their places; by default all of the striped memory.

    Raises :class:`~sw_driver.pim.errors.LayerError` for an unknown pass,
    :class:`~sw_driver.errors.OutOfMemoryError` if the stack is too small.
    """
    passes = _CONVOLUTION if isinstance(layer, Convolution) else _FULLY_CONNECTED
    if pass_name not in passes:
        raise LayerError(
            f"no pass {pass_name!r}: expected one of {', '.join(passes)}", name=pass_name
        )
    draft: _Draft = passes[pass_name](layer, _Places(config, memory or StripedMemory(config)))
    wanted = draft.parts if parts is None else parts
    works = [part for work in draft.works for part in cut(work, wanted)]
    most = max(len(cut(work, wanted)) for work in draft.works)
    units = max(1, config.units // min(config.works, most * draft.together))
    return Program(
        tensors=draft.tensors,
        inputs=draft.inputs,
        result=draft.result,
        zeroed=draft.zeroed,
        works=tuple(replace(work, units=units) for work in works),
    )


def cut(work: Work, parts: int) -> list[Work]:
    """``work`` in ``parts`` of about the same size, or fewer if it has not as many results, along
    the index of the result with the largest stride: so no part's span meets another's result."""
    extents = work.extents("result")
    indices = range(2 if work.opcode == Opcode.CONV2D else len(extents))
    index = max(indices, key=lambda i: (extents[i] > 1, abs(work.result.strides[i])))
    extent = extents[index]
    parts = min(parts, extent)
    bounds = [extent * part // parts for part in range(parts + 1)]
    return [work.part(index, first, end - first) for first, end in pairwise(bounds)]


# Convolutions.


def _x_shape(layer: Convolution) -> tuple[int, ...]:
    return layer.channels, layer.images, layer.height, layer.width


def _y_shape(layer: Convolution) -> tuple[int, ...]:
    return layer.filters, layer.images, layer.rows, layer.columns


def _weights_shape(layer: Convolution) -> tuple[int, ...]:
    return layer.filters, layer.group_channels, layer.filter_height, layer.filter_width


def _starts(layer: Convolution) -> list[tuple[int, int]]:
    """The first channel and the first filter of each group."""
    filters = layer.filters // layer.groups
    return [(group * layer.group_channels, group * filters) for group in range(layer.groups)]


def _forward(layer: Convolution, place: _Places) -> _Draft:
    tensors = place(x=_x_shape(layer), weights=_weights_shape(layer), y=_y_shape(layer))
    works = [
        Work(
            opcode=Opcode.CONV2D,
            a=tensors["x"].view(1, 0, 2, 3, start=[channel]),
            b=tensors["weights"].view(0, 1, 2, 3, start=[first]),
            result=tensors["y"].view(1, 0, 2, 3, start=[first]),
            rows=layer.rows,
            columns=layer.columns,
            images=layer.images,
            filters=layer.filters // layer.groups,
            channels=layer.group_channels,
            height=layer.height,
            width=layer.width,
            filter_height=layer.filter_height,
            filter_width=layer.filter_width,
            stride=layer.stride,
            dilation=1,
            pad_top=layer.padding,
            pad_left=layer.padding,
        )
        for channel, first in _starts(layer)
    ]
    return _Draft(tensors=tensors, inputs=("x", "weights"), result="y", works=works)


def _filter_gradient(layer: Convolution, place: _Places) -> _Draft:
    tensors = place(x=_x_shape(layer), dy=_y_shape(layer), dweights=_weights_shape(layer))
    works = [
        Work(
            opcode=Opcode.CONV2D,
            a=tensors["x"].view(0, 1, 2, 3, start=[channel]),
            b=tensors["dy"].view(0, 1, 2, 3, start=[first]),
            result=tensors["dweights"].view(1, 0, 2, 3, start=[first]),
            rows=layer.filter_height,
            columns=layer.filter_width,
            images=layer.group_channels,
            filters=layer.filters // layer.groups,
            channels=layer.images,
            height=layer.height,
            width=layer.width,
            filter_height=layer.rows,
            filter_width=layer.columns,
            stride=1,
            dilation=layer.stride,
            pad_top=layer.padding,
            pad_left=layer.padding,
        )
        for channel, first in _starts(layer)
    ]
    return _Draft(tensors=tensors, inputs=("x", "dy"), result="dweights", works=works)


@dataclass(frozen=True, kw_only=True)
class _Remainder:
    """The rows, or columns, of the input's gradient that use the same ones of the filter."""

    taps: int
    last_tap: int
    """Of the filter; it comes first, since the filter is reversed."""
    first: int
    """The first of the gradient's rows."""
    outputs: int
    padding: int
    skipped: int
    """Rows of dy that none of these outputs meets, at its beginning."""


def _remainder(q: int, *, size: int, filter_size: int, stride: int, padding: int) -> _Remainder:
    taps = max(0, -(-(filter_size - q) // stride))
    m = max(0, -(-(padding - q) // stride))
    first = stride * m + q - padding
    margin = taps - 1 - m
    return _Remainder(
        taps=taps,
        last_tap=q + stride * (taps - 1),
        first=first,
        outputs=max(0, -(-(size - first) // stride)),
        padding=max(0, margin),
        skipped=max(0, -margin),
    )


def _input_gradient(layer: Convolution, place: _Places) -> _Draft:
    tensors = place(dy=_y_shape(layer), weights=_weights_shape(layer), dx=_x_shape(layer))
    dy, weights, dx = (tensors[name] for name in ("dy", "weights", "dx"))
    stride, works, zeroed = layer.stride, [], False
    for q, r in product(range(stride), range(stride)):
        down = _remainder(
            q,
            size=layer.height,
            filter_size=layer.filter_height,
            stride=stride,
            padding=layer.padding,
        )
        across = _remainder(
            r,
            size=layer.width,
            filter_size=layer.filter_width,
            stride=stride,
            padding=layer.padding,
        )
        height, width = layer.rows - down.skipped, layer.columns - across.skipped
        if not (down.outputs and across.outputs):
            continue
        if min(down.taps, across.taps, height, width) < 1:
            zeroed = True
            continue
        for channel, first in _starts(layer):
            b = weights.view(1, 0, 2, 3, start=[first, 0, down.last_tap, across.last_tap])
            result = dx.view(1, 0, 2, 3, start=[channel, 0, down.first, across.first])
            to_channel, to_filter, to_row, to_column = b.strides
            result_strides = result.strides
            works.append(
                Work(
                    opcode=Opcode.CONV2D,
                    a=dy.view(1, 0, 2, 3, start=[first, 0, down.skipped, across.skipped]),
                    b=replace(
                        b, strides=(to_channel, to_filter, -stride * to_row, -stride * to_column)
                    ),
                    result=replace(
                        result,
                        strides=(
                            *result_strides[:2],
                            stride * result_strides[2],
                            stride * result_strides[3],
                        ),
                    ),
                    rows=down.outputs,
                    columns=across.outputs,
                    images=layer.images,
                    filters=layer.group_channels,
                    channels=layer.filters // layer.groups,
                    height=height,
                    width=width,
                    filter_height=down.taps,
                    filter_width=across.taps,
                    stride=1,
                    dilation=1,
                    pad_top=down.padding,
                    pad_left=across.padding,
                )
            )
    if not works:
        raise LayerError(f"no element of the input of {layer.describe()} has a gradient")
    return _Draft(
        tensors=tensors,
        inputs=("dy", "weights"),
        result="dx",
        works=works,
        zeroed=zeroed,
        # The remainders' results lie between one another, so that by their spans they follow each
        # other; parts of other channels do not.
        parts=1 if stride == 1 else place.config.works,
    )


def _add_bias(y_shape: tuple[int, ...], place: _Places) -> _Draft:
    tensors = place(y=y_shape, bias=y_shape[:1])
    y, bias = tensors["y"], tensors["bias"]
    at_y = Tensor(address_bytes=y.address_bytes, strides=(y.strides[0], 1))
    work = Work(
        opcode=Opcode.ADD,
        a=at_y,
        b=Tensor(address_bytes=bias.address_bytes, strides=(bias.strides[0], 0)),
        result=at_y,
        rows=y.shape[0],
        columns=prod(y.shape[1:]),
    )
    return _Draft(tensors=tensors, inputs=("y", "bias"), result="y", works=[work])


def _bias(layer: Convolution, place: _Places) -> _Draft:
    return _add_bias(_y_shape(layer), place)


def _bias_gradient(layer: Convolution, place: _Places) -> _Draft:
    config = place.config
    together = min(config.works, layer.images)
    pixels = layer.rows * layer.columns
    piece = piece_for(
        rows=layer.filters, length=pixels, wanted_rows=_INTERLEAVE * config.units // 2 // together
    )
    pieces = pieces_of(pixels, piece)
    partial = () if pieces == 1 else (layer.images, pieces * layer.filters)
    shapes = {
        "dy": _y_shape(layer),
        "sums": (layer.images, layer.filters),
        "dbias": (layer.filters,),
    }
    if partial:
        shapes["pieces"] = partial
    tensors = place(**shapes)
    dy, sums = tensors["dy"], tensors["sums"]
    works: list[Work] = []
    for image in range(layer.images):
        whole = Work(
            opcode=Opcode.SUM,
            a=Tensor(address_bytes=dy.at(0, image), strides=(dy.strides[0], 1)),
            result=sums.view(1, start=[image]),
            rows=layer.filters,
            length=pixels,
        )
        works += split_reduction(whole, piece, tensors["pieces"].at(image)) if partial else [whole]
    works.append(
        Work(
            opcode=Opcode.SUM,
            a=sums.view(1, 0),
            result=tensors["dbias"].view(0),
            rows=layer.filters,
            length=layer.images,
        )
    )
    return _Draft(tensors=tensors, inputs=("dy",), result="dbias", works=works, together=together)


def _descent(layer: Layer, place: _Places) -> _Draft:
    if isinstance(layer, Convolution):
        shape = _weights_shape(layer)
    else:
        shape = layer.outputs, layer.inputs
    tensors = place(weights=shape, dweights=shape)
    weights, gradient = (
        Tensor(address_bytes=each.address_bytes, strides=(each.strides[0], 1))
        for each in tensors.values()
    )
    work = Work(
        opcode=Opcode.SCALEADD,
        alpha_bits=int(np.float32(-LEARNING_RATE).view(np.uint32)),
        a=gradient,
        b=weights,
        result=weights,
        rows=shape[0],
        columns=prod(shape[1:]),
    )
    return _Draft(
        tensors=tensors,
        inputs=("weights", "dweights"),
        result="weights",
        works=[work],
    )


# Fully connected layers.


def _forward_product(layer: FullyConnected, place: _Places) -> _Draft:
    tensors = place(
        weights=(layer.outputs, layer.inputs),
        x=(layer.inputs, layer.samples),
        y=(layer.outputs, layer.samples),
    )
    x, weights, y = (tensors[name] for name in ("x", "weights", "y"))
    if layer.samples == 1:
        work = Work(
            opcode=Opcode.MATVEC,
            a=weights.view(0, 1),
            b=x.view(0),
            result=y.view(0),
            rows=layer.outputs,
            length=layer.inputs,
        )
    else:
        work = Work(
            opcode=Opcode.MATMUL,
            a=x.view(1, 0),
            b=weights.view(1, 0),
            result=y.view(1, 0),
            rows=layer.samples,
            columns=layer.outputs,
            length=layer.inputs,
        )
    return _Draft(tensors=tensors, inputs=("x", "weights"), result="y", works=[work])


def _input_gradient_product(layer: FullyConnected, place: _Places) -> _Draft:
    tensors = place(
        weights=(layer.outputs, layer.inputs),
        dy=(layer.outputs, layer.samples),
        dx=(layer.inputs, layer.samples),
    )
    dy, weights, dx = (tensors[name] for name in ("dy", "weights", "dx"))
    if layer.samples == 1:
        work = Work(
            opcode=Opcode.MATVEC,
            a=weights.view(1, 0),
            b=dy.view(0),
            result=dx.view(0),
            rows=layer.inputs,
            length=layer.outputs,
        )
    else:
        work = Work(
            opcode=Opcode.MATMUL,
            a=dy.view(1, 0),
            b=weights.view(0, 1),
            result=dx.view(1, 0),
            rows=layer.samples,
            columns=layer.inputs,
            length=layer.outputs,
        )
    return _Draft(tensors=tensors, inputs=("dy", "weights"), result="dx", works=[work])


def _weight_gradient_product(layer: FullyConnected, place: _Places) -> _Draft:
    tensors = place(
        dweights=(layer.outputs, layer.inputs),
        x=(layer.inputs, layer.samples),
        dy=(layer.outputs, layer.samples),
    )
    work = Work(
        opcode=Opcode.MATMUL,
        a=tensors["dy"].view(0, 1),
        b=tensors["x"].view(1, 0),
        result=tensors["dweights"].view(0, 1),
        rows=layer.outputs,
        columns=layer.inputs,
        length=layer.samples,
    )
    return _Draft(tensors=tensors, inputs=("x", "dy"), result="dweights", works=[work])


def _features_bias(layer: FullyConnected, place: _Places) -> _Draft:
    return _add_bias((layer.outputs, layer.samples), place)


def _features_bias_gradient(layer: FullyConnected, place: _Places) -> _Draft:
    tensors = place(dy=(layer.outputs, layer.samples), dbias=(layer.outputs,))
    work = Work(
        opcode=Opcode.SUM,
        a=tensors["dy"].view(0, 1),
        result=tensors["dbias"].view(0),
        rows=layer.outputs,
        length=layer.samples,
    )
    return _Draft(tensors=tensors, inputs=("dy",), result="dbias", works=[work])


_CONVOLUTION: dict[str, Callable[..., _Draft]] = {
    "forward": _forward,
    "backward-filter": _filter_gradient,
    "backward-input": _input_gradient,
    "bias": _bias,
    "backward-bias": _bias_gradient,
    "descent": _descent,
}
_FULLY_CONNECTED: dict[str, Callable[..., _Draft]] = {
    "forward": _forward_product,
    "backward-filter": _weight_gradient_product,
    "backward-input": _input_gradient_product,
    "bias": _features_bias,
    "backward-bias": _features_bias_gradient,
    "descent": _descent,
}

PASSES = tuple(_CONVOLUTION)
"""The passes of every layer; of a fully connected one ``backward-filter`` is the weights'."""
