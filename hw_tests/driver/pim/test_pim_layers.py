"""Layers as the PIM's works: every pass bit for bit in the specified order, and near to float64."""

from __future__ import annotations

import os
import re
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
    n: int,
    c: int,
    h: int,
    w: int,
    f: int,
    kh: int,
    kw: int,
    s: int,
    p: int | tuple[int, int, int, int],
    g: int = 1,
    d: int = 1,
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
        dilation=d,
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
    convolution(1, 2, 9, 11, 2, 3, 2, 1, (0, 3, 2, 1), d=2),
    convolution(2, 1, 13, 10, 2, 4, 3, 3, (2, 0, 1, 5), d=2),
    convolution(1, 2, 12, 17, 2, 3, 4, 4, (1, 2, 3, 0), g=2, d=6),  # dilation and stride share 2
    convolution(1, 1, 8, 9, 1, 3, 3, 2, 3, d=4),  # every other row meets no filter
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
        i, j = (
            layer.stride * out + layer.dilation * tap - pad
            for out, tap, pad in ((y, u, layer.sides[0]), (x, v, layer.sides[2]))
        )
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
    """Each element by itself: (n, f, y, x) and (f, c, u, v) to (n, c, y, x)."""

    def met(at: int, taps: int, pad: int, outputs: int) -> list[tuple[int, int]]:
        """Rows of filter and output that an input's row meets; none if no row of its kind does."""
        rows = [
            (u, (at + pad - layer.dilation * u) // layer.stride)
            for u in reversed(range(taps))
            if not (at + pad - layer.dilation * u) % layer.stride
        ]
        return rows if rows and rows[0][1] - at // layer.stride < outputs else []

    padding = np.zeros(dy.shape[:2], np.float32)
    dx = np.zeros((len(dy), weights.shape[1], layer.height, layer.width), np.float32)
    for i, j in product(range(layer.height), range(layer.width)):
        meetings = product(
            met(i, layer.filter_height, layer.sides[0], layer.rows),
            met(j, layer.filter_width, layer.sides[2], layer.columns),
        )
        products = [
            (dy[:, :, y, x] if 0 <= y < layer.rows and 0 <= x < layer.columns else padding)[:, None]
            * weights[:, :, u, v].T
            for (u, y), (v, x) in meetings
        ]
        if products:
            dx[:, :, i, j] = np.add.accumulate(tree(np.stack(products)), axis=2)[:, :, -1]
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
                    dilation=layer.dilation,
                    pad=layer.sides[::2],
                )
                parts.append(swap(part))
            case "backward-filter":
                part = correlate(
                    t["x"][c],
                    t["dy"][f],
                    layer.filter_height,
                    layer.filter_width,
                    stride=layer.dilation,
                    dilation=layer.stride,
                    pad=layer.sides[::2],
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
        name: rng.standard_normal(program.tensors[name].shape).astype(np.float32)
        for name in program.inputs
    }
    for tensor_name, values in given.items():
        device.write_tensor(program.tensors[tensor_name], values)
    offered: list[int] = []
    for work in program.works:
        while True:
            try:
                offered.append(device.pim_fix(None, work, work.result, work.units))
                break
            except RefusedWorkError as refusal:
                if refusal.cause != "full":
                    raise
                device.wait_any([pending for pending in offered if not device.work_query(pending)])
    for pending in offered:
        device.wait(pending)
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
                for operand in (*second.operands, "result"):
                    if getattr(second, operand) == second.result and operand != "result":
                        continue
                    other = second.span(operand)
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
    sizes = {tensor_name: 4 * tensor.elements for tensor_name, tensor in program.tensors.items()}
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
    ("stride", "dilation", "padding", "rows"),
    [
        (65535, 1, 0, {0, 1, 2}),
        (1600, 1, 1, {0, 1}),
        (40000, 3, 0, {0, 3, 6}),
        (9, 3, 2, {1, 4}),
        (4, 2, 0, {0, 2}),
    ],
)
def test_an_inputs_gradient_takes_works_only_where_it_meets_the_output(
    stride: int, dilation: int, padding: int, rows: set[int]
) -> None:
    """However large the stride, what meets nothing costs nothing, not even time."""
    layer = convolution(1, 1, 7, 7, 1, 3, 3, stride, padding, d=dilation)
    program = lower(layer, "backward-input", CONFIG)
    dx = program.tensors["dx"]
    places = {(work.result.address_bytes - dx.address_bytes) // 4 for work in program.works}
    assert len(program.works) == len(rows) ** 2
    assert places == {7 * i + j for i, j in product(rows, rows)}


def test_refuses_a_padding_that_no_descriptor_holds() -> None:
    layer = convolution(1, 1, 9, 1, 1, 3, 1, 1, (0, 65535, 0, 0), d=32770)
    with pytest.raises(InvalidArgumentError, match="needs a padding of 65540: expected 65535 at"):
        lower(layer, "backward-input", CONFIG)


def test_scales_down_as_far_as_padding_lets() -> None:
    """With as much padding as the filter has, half of the rows need an image without any."""
    for height, padding, stride in product((1, 2, 5, 30), (3, 9, 40), (1, 3)):
        layer = convolution(6, 8, height, 30, 16, 3, 3, stride, padding)
        for most in (1, 1000, 10**5):
            scaled = layer.scaled(most)
            assert scaled.products <= most or scaled.images == 1
            assert min(scaled.height, scaled.width) >= 1
    with pytest.raises(InvalidArgumentError, match="most_products is 0: expected an integer of 1"):
        layer.scaled(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": 0}, "images is 0: expected an integer from 1 to 65535"),
        ({"filters": 65536}, "filters is 65536"),
        ({"channels": 2.5}, "channels is 2.5"),
        ({"padding": -1}, "padding is -1: expected an integer from 0"),
        ({"padding": (0, 1, 2)}, "(0, 1, 2): expected an integer, or four: of top, bottom, left"),
        ({"padding": (0, 1, 65536, 0)}, "padding is 65536"),
        ({"stride": True}, "stride is True"),
        ({"stride": (1, 2)}, "stride is (1, 2): expected an integer"),
        ({"dilation": 0}, "dilation is 0: expected an integer from 1"),
        ({"dilation": 6}, "a filter of 3 x 3 with a dilation of 6 does not fit"),
        ({"groups": 2}, "groups is 2: expected a divisor of channels, 3, and filters, 4"),
        ({"filter_height": 12}, "a filter of 12 x 3 does not fit into an image of 9 x 9"),
    ],
)
def test_refuses_convolutions(changes: dict[str, int], message: str) -> None:
    good = vars(convolution(1, 3, 9, 9, 4, 3, 3, 1, 1))
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
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
