"""What the PIM's works amount to: operations, groups of units, bytes, banks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from golden.pim import Descriptor, Opcode, Tensor, account


def convolution(
    *, size: int, taps: int, stride: int, pad: int, filters: int, channels: int, images: int = 1
) -> Descriptor:
    outputs = (size + 2 * pad - taps) // stride + 1
    return Descriptor(
        opcode=Opcode.CONV2D,
        a=Tensor(strides=(channels * size * size, size * size, size, 1)),
        b=Tensor(strides=(channels * taps * taps, taps * taps, taps, 1)),
        result=Tensor(strides=(filters * outputs**2, outputs**2, outputs, 1)),
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
VGG_3_1 = convolution(size=56, taps=3, stride=1, pad=1, filters=256, channels=128)


def test_first_convolution_of_alexnet() -> None:
    """105,415,200 multiplications, as the literature has it for one image."""
    got = account(ALEXNET_1)
    results = 96 * 55 * 55
    assert got.multiplications == results * 363 == 105_415_200
    assert got.additions == results * 362
    assert (got.group_multipliers, got.group_adders, got.groups) == (121, 120, results)
    assert got.bytes_read == 4 * (3 * 227 * 227 + 96 * 363)
    assert got.bytes_written == 4 * results


def test_units_that_a_convolution_takes() -> None:
    eleven, three = account(ALEXNET_1), account(VGG_3_1)
    assert (eleven.group_units, three.group_units) == (241, 17)
    assert [eleven.units_of(units) for units in (444, 240, 1)] == [444, 240, 1]
    one_output = replace(VGG_3_1, rows=1, columns=1, filters=1)
    assert account(one_output).units_of(444) == 17


def test_filters_of_one_tap() -> None:
    one = convolution(size=8, taps=1, stride=1, pad=0, filters=2, channels=3)
    got = account(one)
    assert (got.group_multipliers, got.group_adders) == (1, 1)
    assert (got.multiplications, got.additions) == (8 * 8 * 2 * 3, 8 * 8 * 2 * 2)
    assert account(replace(one, channels=1)).group_adders == 0


GRID = {"a": Tensor(strides=(6, 1)), "b": Tensor(strides=(0, 1)), "rows": 5, "columns": 6}
LINES = {"a": Tensor(strides=(9, 1)), "rows": 5, "length": 9}


@pytest.mark.parametrize(
    ("fields", "operations", "group", "groups", "elements"),
    [
        ({"opcode": Opcode.ADD, **GRID}, (0, 30), (0, 1), 30, (36, 30)),
        ({"opcode": Opcode.MUL, **GRID}, (30, 0), (1, 0), 30, (36, 30)),
        ({"opcode": Opcode.MULADD, **GRID}, (30, 30), (1, 1), 30, (37, 30)),
        ({"opcode": Opcode.SCALEADD, **GRID}, (30, 30), (1, 1), 30, (36, 30)),
        ({"opcode": Opcode.SUM, **LINES}, (0, 40), (0, 1), 45, (45, 5)),
        (
            {"opcode": Opcode.DOT, "b": Tensor(strides=(9, 1)), **LINES},
            *((45, 40), (1, 1), 45, (90, 5)),
        ),
        (
            {"opcode": Opcode.MATVEC, "b": Tensor(strides=(1,)), **LINES},
            *((45, 40), (1, 1), 45, (54, 5)),
        ),
        (
            {"opcode": Opcode.MATMUL, "b": Tensor(strides=(2, 1)), "columns": 2, **LINES},
            *((90, 80), (1, 1), 90, (63, 10)),
        ),
    ],
    ids=["add", "mul", "muladd", "scaleadd", "sum", "dot", "matvec", "matmul"],
)
def test_by_hand(
    fields: dict[str, Any],
    operations: tuple[int, int],
    group: tuple[int, int],
    groups: int,
    elements: tuple[int, int],
) -> None:
    got = account(Descriptor(**fields))
    assert (got.multiplications, got.additions) == operations
    assert (got.group_multipliers, got.group_adders, got.groups) == (*group, groups)
    assert (got.bytes_read, got.bytes_written) == (4 * elements[0], 4 * elements[1])


@pytest.mark.parametrize(
    "strides", [(3, 1), (1, 1), (2, 3), (0, 1), (0, 0), (-1, 4), (5, -1), (-2, -2), (1, 5), (1, 4)]
)
def test_each_element_is_read_once(strides: tuple[int, int]) -> None:
    work = Descriptor(opcode=Opcode.SUM, a=Tensor(strides=strides), rows=5, length=4)
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
