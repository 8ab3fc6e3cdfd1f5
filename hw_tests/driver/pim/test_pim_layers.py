"""Layers as the PIM's works: every pass bit for bit in the specified order, and near to float64."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.pim import tree
from hw.pim.config import PIM_PRESETS
from sw_driver.device.errors import InvalidArgumentError, OutOfMemoryError, RefusedWorkError
from sw_driver.pim.backends import open_pim
from sw_driver.pim.descriptor import Opcode
from sw_driver.pim.device import Pim
from sw_driver.pim.layers import Convolution, FullyConnected, Layer
from sw_driver.pim.lowering import LEARNING_RATE, PASSES, cut, lower

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
CONFIG = PIM_PRESETS["tiny"]

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Tensors = dict[str, Floats]


def convolution(
    n: int, c: int, h: int, w: int, f: int, kh: int, kw: int, s: int, p: int, g: int = 1
) -> Convolution:
    return Convolution(
        images=n,
        channels=c,
        height=h,
        width=w,
        filters=f,
        filter_height=kh,
        filter_width=kw,
        stride=s,
        padding=p,
        groups=g,
    )


LAYERS: list[Layer] = [
    convolution(1, 3, 15, 19, 2, 11, 11, 4, 0),
    convolution(1, 2, 14, 17, 2, 11, 11, 4, 2),
    convolution(2, 2, 6, 5, 3, 3, 3, 1, 1),
    convolution(1, 2, 9, 8, 3, 3, 3, 2, 1),
    convolution(1, 1, 8, 8, 1, 2, 2, 3, 0),  # of which some inputs meet no filter
    convolution(2, 2, 7, 7, 2, 1, 1, 2, 0),
    convolution(1, 2, 4, 9, 1, 2, 2, 1, 3),
    convolution(2, 4, 9, 7, 4, 5, 2, 2, 1, 2),
    convolution(1, 1, 33, 20, 3, 1, 1, 1, 0),  # pixels enough for pieces
    convolution(1, 1, 5, 5, 1, 5, 5, 1, 4),
    FullyConnected(samples=3, inputs=37, outputs=21),
    FullyConnected(samples=1, inputs=70, outputs=9),
]

# The passes by definition, in float64: each product goes where it belongs.


def meetings(layer: Convolution) -> Iterator[tuple[int, ...]]:
    """Row and column of the result, the filter and the input that belong together."""
    for y, x, u, v in product(
        range(layer.rows),
        range(layer.columns),
        range(layer.filter_height),
        range(layer.filter_width),
    ):
        i, j = layer.stride * y + u - layer.padding, layer.stride * x + v - layer.padding
        if 0 <= i < layer.height and 0 <= j < layer.width:
            yield y, x, u, v, i, j


def groups(layer: Convolution) -> Iterator[tuple[slice, slice]]:
    """The channels and the filters of each group."""
    channels, filters = layer.channels // layer.groups, layer.filters // layer.groups
    for group in range(layer.groups):
        yield (
            slice(group * channels, (group + 1) * channels),
            slice(group * filters, (group + 1) * filters),
        )


def forward(layer: Layer, x: Doubles, weights: Doubles) -> Doubles:
    if isinstance(layer, FullyConnected):
        return weights @ x
    y = np.zeros((layer.filters, layer.images, layer.rows, layer.columns))
    for (c, f), (r, q, u, v, i, j) in product(groups(layer), list(meetings(layer))):
        y[f, :, r, q] += weights[f, :, u, v] @ x[c, :, i, j]
    return y


def filter_gradient(layer: Layer, x: Doubles, dy: Doubles) -> Doubles:
    if isinstance(layer, FullyConnected):
        return dy @ x.T
    dw = np.zeros((layer.filters, layer.group_channels, layer.filter_height, layer.filter_width))
    for (c, f), (r, q, u, v, i, j) in product(groups(layer), list(meetings(layer))):
        dw[f, :, u, v] += dy[f, :, r, q] @ x[c, :, i, j].T
    return dw


def input_gradient(layer: Layer, dy: Doubles, weights: Doubles) -> Doubles:
    if isinstance(layer, FullyConnected):
        return weights.T @ dy
    dx = np.zeros((layer.channels, layer.images, layer.height, layer.width))
    for (c, f), (r, q, u, v, i, j) in product(groups(layer), list(meetings(layer))):
        dx[c, :, i, j] += weights[f, :, u, v].T @ dy[f, :, r, q]
    return dx


def across(values: Doubles, like: Doubles) -> Doubles:
    """``values``, one for each first index of ``like``, so that both can be added."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def exact(layer: Layer, name: str, given: Tensors, magnitudes: bool = False) -> Doubles:
    """The pass in float64; with ``magnitudes`` that of the magnitudes, for a bound of the error."""
    t = {
        key: (np.abs(value) if magnitudes else value).astype(float) for key, value in given.items()
    }
    rate = float(np.float32(LEARNING_RATE)) * (1 if magnitudes else -1)
    match name:
        case "forward":
            return forward(layer, t["x"], t["weights"])
        case "backward-filter":
            return filter_gradient(layer, t["x"], t["dy"])
        case "backward-input":
            return input_gradient(layer, t["dy"], t["weights"])
        case "bias":
            return t["y"] + across(t["bias"], t["y"])
        case "backward-bias":
            return t["dy"].sum(tuple(range(1, t["dy"].ndim)))
        case _:
            return t["weights"] + rate * t["dweights"]


# The passes in FP32, in the order that docs/pim-spec.md states, on arrays instead of addresses.


def dot(a: Floats, b: Floats) -> Floats:
    """Products over the last index, and their tree."""
    return tree(np.moveaxis(a * b, -1, 0))


def correlate(
    a: Floats, b: Floats, rows: int, columns: int, *, stride: int = 1, dilation: int = 1, pad: tuple
) -> Floats:
    """A CONV2D of a (n, c, y, x) with b (f, c, u, v): r (n, f, y, x)."""
    (top, left), (fh, fw) = pad, b.shape[2:]
    below = max(0, stride * (rows - 1) + dilation * (fh - 1) - top - a.shape[2] + 1)
    right = max(0, stride * (columns - 1) + dilation * (fw - 1) - left - a.shape[3] + 1)
    padded = np.pad(a, ((0, 0), (0, 0), (top, below), (left, right)))
    result = np.empty((len(a), len(b), rows, columns), np.float32)
    for y, x in product(range(rows), range(columns)):
        window = padded[
            :,
            :,
            stride * y : stride * y + dilation * (fh - 1) + 1 : dilation,
            stride * x : stride * x + dilation * (fw - 1) + 1 : dilation,
        ].reshape(len(a), 1, a.shape[1], -1)
        channels = dot(window, b.reshape(1, *b.shape[:2], -1))
        result[:, :, y, x] = np.add.accumulate(channels, axis=2)[:, :, -1]
    return result


def ordered_input_gradient(layer: Convolution, dy: Floats, weights: Floats) -> Floats:
    """The table "Gradient of the input": (n, f, y, x) and (f, c, u, v) to (n, c, y, x)."""
    s, p = layer.stride, layer.padding
    dx = np.zeros((len(dy), weights.shape[1], layer.height, layer.width), np.float32)
    for q, r in product(range(s), range(s)):
        part = weights[:, :, q::s, r::s][:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
        starts = [s * max(0, -(-(p - each) // s)) + each - p for each in (q, r)]
        place = dx[:, :, starts[0] :: s, starts[1] :: s]
        if 0 in part.shape or 0 in place.shape:
            continue
        # An output at input row i meets, with the reversed part's first tap, this row of dy.
        tops = [
            (start + p - each) // s - (taps - 1)
            for start, each, taps in zip(starts, (q, r), part.shape[2:], strict=True)
        ]
        seen = dy[:, :, max(0, tops[0]) :, max(0, tops[1]) :]
        if 0 in seen.shape:
            continue
        pad = (max(0, -tops[0]), max(0, -tops[1]))
        place[...] = correlate(seen, part, *place.shape[2:], pad=pad)
    return dx


def swap(array: Floats) -> Floats:
    """Channels first to images first, and back."""
    return array.swapaxes(0, 1)


def ordered(layer: Layer, name: str, t: Tensors) -> Floats:
    match name:
        case "bias":
            return t["y"] + across(t["bias"], t["y"])
        case "descent":
            return np.float32(-LEARNING_RATE) * t["dweights"] + t["weights"]
        case "backward-bias" if isinstance(layer, Convolution):
            pixels = t["dy"].reshape(layer.filters, layer.images, -1)
            return tree(tree(np.moveaxis(pixels, -1, 0)).T)
        case "backward-bias":
            return tree(t["dy"].T)
    if isinstance(layer, FullyConnected):
        match name:
            case "forward":
                return dot(t["weights"][:, None], t["x"].T)
            case "backward-filter":
                return dot(t["dy"][:, None], t["x"])
            case _:
                return dot(t["weights"].T[:, None], t["dy"].T)
    parts = []
    for c, f in groups(layer):
        match name:
            case "forward":
                part = correlate(
                    swap(t["x"][c]),
                    t["weights"][f],
                    layer.rows,
                    layer.columns,
                    stride=layer.stride,
                    pad=(layer.padding, layer.padding),
                )
                parts.append(swap(part))
            case "backward-filter":
                part = correlate(
                    t["x"][c],
                    t["dy"][f],
                    layer.filter_height,
                    layer.filter_width,
                    dilation=layer.stride,
                    pad=(layer.padding, layer.padding),
                )
                parts.append(swap(part))
            case _:
                parts.append(swap(ordered_input_gradient(layer, swap(t["dy"][f]), t["weights"][f])))
    return np.concatenate(parts)


def execute(device: Pim, layer: Layer, name: str) -> tuple[Tensors, Floats]:
    """The inputs and the result of a pass on a device full of other values."""
    program = lower(layer, name, device.config)
    rng = np.random.default_rng(SEED)
    result = program.tensors[program.result]
    fill = np.float32(0 if program.zeroed else np.nan)
    device.write_tensor(result, np.full(result.shape, fill))
    given = {
        each: rng.standard_normal(program.tensors[each].shape).astype(np.float32)
        for each in program.inputs
    }
    for each, values in given.items():
        device.write_tensor(program.tensors[each], values)
    offered: list[int] = []
    for work in program.works:
        while True:
            try:
                offered.append(device.pim_fix(None, work, work.result, work.units))
                break
            except RefusedWorkError as refusal:
                if refusal.cause != "full":
                    raise
                device.wait_any([each for each in offered if not device.work_query(each)])
    for each in offered:
        device.wait(each)
    return given, device.read_tensor(result)


@pytest.fixture(scope="module", params=["golden", "rtl"])
def device(request: pytest.FixtureRequest) -> Iterator[Pim]:
    with Pim(open_pim(request.param, CONFIG)) as opened:
        yield opened


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.describe())
def test_passes(device: Pim, layer: Layer, name: str) -> None:
    given, result = execute(device, layer, name)
    expected = ordered(layer, name, given)
    assert expected.shape == result.shape
    assert (expected.view(np.uint32) == result.view(np.uint32)).all()
    # No result is the sum of more roundings than there are operations in all of it.
    bound = 2e-6 * exact(layer, name, given, magnitudes=True)
    assert (np.abs(result - exact(layer, name, given)) <= bound).all()


def test_parts_do_not_wait_for_each_other() -> None:
    """What a part writes is apart from all that the others read and write."""
    seen = 0
    for layer, name in product(LAYERS, PASSES):
        for work in lower(layer, name, CONFIG).works:
            works = cut(work, 4)
            for first, second in product(works, works):
                if first is second:
                    continue
                written = first.span("result")
                for each in (*second.operands, "result"):
                    if getattr(second, each) == second.result and each != "result":
                        continue
                    other = second.span(each)
                    assert written.stop <= other.start or other.stop <= written.start
                    seen += 1
    assert seen > 1000


@pytest.mark.parametrize("name", PASSES)
def test_counts_and_units(name: str) -> None:
    config = PIM_PRESETS["paper"]
    layer = convolution(8, 3, 227, 227, 96, 11, 11, 4, 0)
    program = lower(layer, name, config)
    multiplications, additions = program.operations
    outputs = 8 * 55 * 55 * 96
    expected = {
        "forward": (outputs * 363, outputs * 362),
        "backward-filter": (outputs * 363, 96 * 363 * (8 * 3025 - 1)),
        "bias": (0, outputs),
        "backward-bias": (0, outputs - 96),
        "descent": (96 * 363, 96 * 363),
    }
    if name in expected:
        assert (multiplications, additions) == expected[name]
    else:  # not all taps, but none of the zeros that a transposed convolution would insert
        assert 0.9 * outputs * 363 < multiplications < 1.1 * outputs * 363
    # Three works are side by side.
    shares = {"backward-input": 148}
    assert {work.units for work in program.works} == {shares.get(name, 444)}
    least_read, least_written = program.least_bytes
    sizes = {each: 4 * tensor.elements for each, tensor in program.tensors.items()}
    if name == "forward":
        assert (least_read, least_written) == (sizes["x"] + sizes["weights"], sizes["y"])
    if name == "backward-bias":
        between = sum(sizes[name] for name in sizes if name.startswith(("sums", "pieces")))
        assert between > sizes["sums"]
        assert (least_read, least_written) == (sizes["dy"] + between, sizes["dbias"] + between)


def test_a_sum_of_few_rows_is_cut_into_pieces() -> None:
    program = lower(LAYERS[8], "backward-bias", CONFIG)
    assert [work.opcode for work in program.works] == [Opcode.SUM] * len(program.works)
    pixels = LAYERS[8].rows * LAYERS[8].columns
    assert max(work.length for work in program.works) < pixels / 4
    assert len(program.works) > 2


def test_a_gradient_of_a_bias_has_few_works_whatever_the_images() -> None:
    config = PIM_PRESETS["paper"]
    for images in (1, 2, 32, 200):
        layer = convolution(images, 3, 35, 35, 96, 3, 3, 1, 0)
        assert len(lower(layer, "backward-bias", config).works) <= 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": 0}, "images is 0: expected an integer from 1 to 65535"),
        ({"filters": 65536}, "filters is 65536"),
        ({"channels": 2.5}, "channels is 2.5"),
        ({"padding": -1}, "padding is -1: expected an integer from 0"),
        ({"stride": True}, "stride is True"),
        ({"groups": 2}, "groups is 2: expected a divisor of channels, 3, and filters, 4"),
        ({"filter_height": 12}, "a filter of 12 x 3 does not fit into an image of 9 x 9"),
    ],
)
def test_refuses_convolutions(changes: dict[str, int], said: str) -> None:
    good = vars(convolution(1, 3, 9, 9, 4, 3, 3, 1, 1))
    with pytest.raises(InvalidArgumentError, match=said):
        Convolution(**good | changes)


def test_refuses_fully_connected_layers() -> None:
    with pytest.raises(
        InvalidArgumentError, match="inputs is 16777216: expected an integer from 1 to 1677"
    ):
        FullyConnected(samples=1, inputs=1 << 24, outputs=1)


def test_refuses_passes_and_layers_that_are_too_large() -> None:
    with pytest.raises(
        InvalidArgumentError, match="no pass 'sideways': expected one of forward, backward"
    ):
        lower(LAYERS[0], "sideways", CONFIG)
    with pytest.raises(OutOfMemoryError, match="no room for weights"):
        lower(FullyConnected(samples=1, inputs=1000, outputs=1000), "forward", CONFIG)
