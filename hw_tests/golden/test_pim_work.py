"""What the PIM's works amount to: operations, bytes, banks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from golden.pim import Descriptor, Opcode, StridedTensor, account


def convolution(
    *, size: int, taps: int, stride: int, pad: int, filters: int, channels: int, images: int = 1
) -> Descriptor:
    outputs = (size + 2 * pad - taps) // stride + 1
    return Descriptor(
        opcode=Opcode.CONV2D,
        a=StridedTensor(strides=(channels * size * size, size * size, size, 1)),
        b=StridedTensor(strides=(channels * taps * taps, taps * taps, taps, 1)),
        result=StridedTensor(strides=(filters * outputs**2, outputs**2, outputs, 1)),
        rows=outputs,
        columns=outputs,
        images=images,
        filters=filters,
        channels=channels,
        height=size,
        width=size,
        filter_height=taps,
        filter_width=taps,
        stride=stride,
        dilation=1,
        pad_top=pad,
        pad_left=pad,
    )


ALEXNET_1 = convolution(size=227, taps=11, stride=4, pad=0, filters=96, channels=3)


def test_first_convolution_of_alexnet() -> None:
    """105,415,200 multiplications, as the literature has it for one image."""
    got = account(ALEXNET_1)
    results = 96 * 55 * 55
    assert got.multiplications == results * 363 == 105_415_200
    assert got.additions == results * 362
    assert got.bytes_read == 4 * (3 * 227 * 227 + 96 * 363)
    assert got.bytes_written == 4 * results


GRID = {
    "a": StridedTensor(strides=(6, 1)),
    "b": StridedTensor(strides=(0, 1)),
    "rows": 5,
    "columns": 6,
}
LINES = {"a": StridedTensor(strides=(9, 1)), "rows": 5, "length": 9}
SUMS = {
    "a": StridedTensor(strides=(45, 9, 0, 1)),
    "images": 2,
    "rows": 5,
    "columns": 1,
    "length": 9,
}


@pytest.mark.parametrize(
    ("fields", "operations", "elements"),
    [
        ({"opcode": Opcode.ADD, **GRID}, (0, 30), (36, 30)),
        ({"opcode": Opcode.MUL, **GRID}, (30, 0), (36, 30)),
        ({"opcode": Opcode.SCALEADD, **GRID}, (30, 30), (36, 30)),
        ({"opcode": Opcode.SUM, **SUMS}, (0, 80), (90, 10)),
        (
            {"opcode": Opcode.DOT, "b": StridedTensor(strides=(0, 9, 0, 1)), **SUMS},
            *((90, 80), (135, 10)),
        ),
        (
            {
                "opcode": Opcode.MATVEC,
                **LINES,
                "columns": 3,
                "length": 3,
                "a": StridedTensor(strides=(9, 3, 1)),
                "b": StridedTensor(strides=(3, 1)),
            },
            *((45, 30), (54, 15)),
        ),
        (
            {"opcode": Opcode.MATMUL, "b": StridedTensor(strides=(2, 1)), "columns": 2, **LINES},
            *((90, 80), (63, 10)),
        ),
    ],
    ids=["add", "mul", "scaleadd", "sum", "dot", "matvec", "matmul"],
)
def test_by_hand(
    fields: dict[str, Any],
    operations: tuple[int, int],
    elements: tuple[int, int],
) -> None:
    got = account(Descriptor(**fields))
    assert (got.multiplications, got.additions) == operations
    assert (got.bytes_read, got.bytes_written) == (4 * elements[0], 4 * elements[1])


@pytest.mark.parametrize(
    "strides", [(3, 1), (1, 1), (2, 3), (0, 1), (0, 0), (-1, 4), (5, -1), (-2, -2), (1, 5), (1, 4)]
)
def test_each_element_is_read_once(strides: tuple[int, int]) -> None:
    sizes = {"images": 1, "rows": 5, "columns": 1, "length": 4}
    a = StridedTensor(strides=(0, strides[0], 0, strides[1]))
    work = Descriptor(opcode=Opcode.SUM, a=a, **sizes)
    places = {i * strides[0] + k * strides[1] for i, k in product(range(5), range(4))}
    assert account(work).bytes_read == 4 * len(places)


@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("pad", [0, 2, 20])
def test_elements_that_a_convolution_reads(stride: int, dilation: int, pad: int) -> None:
    work = convolution(size=9, taps=2, stride=1, pad=0, filters=1, channels=2)
    work = replace(work, rows=3, columns=2, stride=stride, dilation=dilation, pad_left=pad)
    met = {
        (stride * y + dilation * u, stride * x + dilation * v - pad)
        for y, x, u, v in product(range(3), range(2), range(2), range(2))
    }
    inside = [1 for row, column in met if row < 9 and 0 <= column < 9]
    assert account(work).bytes_read == 4 * (2 * len(inside) + 2 * 2 * 2)
