"""The PIM's works: bit for bit against plain loops in the stated order, and against float64."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.pim import (
    Cause,
    Descriptor,
    Opcode,
    Pool,
    StackMap,
    StridedTensor,
    check,
    compute,
    tree,
)

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
NAN = 0x7FC00000
BANKS, BANK_BYTES = 4, 1 << 14
STACK = StackMap(banks=BANKS, bank_bytes=BANK_BYTES)

SPECIALS = np.array(
    [
        *(0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF),
        *(0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001),
    ],
    np.uint32,
).view(np.float32)


# The reference: scalars and loops, written from the specification without the model's tables.


def streamed_tree(values: list[Any]) -> Any:
    """The tree as a stream makes it: whenever a level has two values, their sum moves up; at the
    end odd ones move up as they are."""
    levels: list[Any] = []
    for value in values:
        level = 0
        while level < len(levels) and levels[level] is not None:
            value, levels[level] = levels[level] + value, None
            level += 1
        levels += [None] * (level + 1 - len(levels))
        levels[level] = value
    rest = [value for value in levels if value is not None]
    result = rest[0]
    for value in rest[1:]:
        result = value + result
    return result


def running(values: list[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def expected(w: Descriptor, memory: NDArray[np.uint8]) -> Iterator[tuple[int, Any]]:
    """Address and value of each result."""
    data = memory.tobytes()

    def address(tensor: StridedTensor, *index: int) -> int:
        steps = sum(i * s for i, s in zip(index, tensor.strides, strict=False))
        return tensor.address_bytes + 4 * steps

    def at(tensor: StridedTensor, *index: int) -> Any:
        place = address(tensor, *index)
        return np.frombuffer(data[place : place + 4], "<f4")[0]

    def pixel(n: int, f: int, y: int, x: int) -> Any:
        channels = []
        for c in range(w.channels):
            taps = []
            for u, v in product(range(w.filter_height), range(w.filter_width)):
                row = w.stride * y + w.dilation * u - w.pad_top
                column = w.stride * x + w.dilation * v - w.pad_left
                inside = 0 <= row < w.height and 0 <= column < w.width
                value = at(w.a, n, c, row, column) if inside else np.float32(0)
                taps.append(value * at(w.b, f, c, u, v))
            channels.append(streamed_tree(taps))
        return running(channels)

    alpha = np.frombuffer(w.alpha_bits.to_bytes(4, "little"), "<f4")[0]
    k = range(w.length)
    values: dict[int, Any] = {
        0x01: lambda i, j: at(w.a, i, j) + at(w.b, i, j),
        0x02: lambda i, j: at(w.a, i, j) * at(w.b, i, j),
        0x04: lambda i, j: alpha * at(w.a, i, j) + at(w.b, i, j),
        0x10: lambda n, i, j: streamed_tree([at(w.a, n, i, j, t) for t in k]),
        0x11: lambda n, i, j: streamed_tree([at(w.a, n, i, j, t) * at(w.b, n, i, j, t) for t in k]),
        0x20: lambda i, j: streamed_tree([at(w.a, i, j, t) * at(w.b, j, t) for t in k]),
        0x21: lambda i, j: streamed_tree([at(w.a, i, n) * at(w.b, n, j) for n in k]),
        0x30: pixel,
    }
    sizes = [w.rows, w.columns]
    if w.opcode == 0x30:
        sizes = [w.images, w.filters, *sizes]
    if w.opcode in (0x10, 0x11):
        sizes = [w.images, *sizes]
    with np.errstate(all="ignore"):
        for index in product(*map(range, sizes)):
            yield address(w.result, *index), values[w.opcode](*index)


def bits(value: Any) -> int:
    return NAN if np.isnan(value) else int(np.array(value, np.float32).view(np.uint32))


def run_and_compare(work: Descriptor, memory: NDArray[np.uint8]) -> None:
    """Runs ``work`` in a pool with ``memory``; all of the memory must be as expected after it."""
    assert check(work, stack=STACK, units=32) == Cause.NONE
    pool = Pool(multipliers=[4] * BANKS, adders=[4] * BANKS, bank_bytes=BANK_BYTES)
    pool.memory[:] = memory
    after = memory.copy()
    for address, value in expected(work, memory):
        after[address : address + 4] = np.frombuffer(bits(value).to_bytes(4, "little"), np.uint8)
    pool.submit(work)
    pool.finish()
    wrong = np.flatnonzero(pool.memory.view(np.uint32) != after.view(np.uint32))
    assert not len(wrong), [
        f"at {4 * i:#x}: {pool.memory.view('<u4')[i]:08x}, expected {after.view('<u4')[i]:08x}"
        for i in wrong[:5]
    ]


# Random works: any shape, any layout.


class Layout:
    """Places tensors one behind the other in the stack, in random layouts."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.next = 4 * int(rng.integers(0, 50))

    def tensor(self, *extents: int, repeats: bool = True) -> StridedTensor:
        rng = self.rng
        strides, reach = [0] * len(extents), 1
        for index in rng.permutation(len(extents)):
            if repeats and rng.random() < 0.1:
                continue
            stride = reach + int(rng.integers(0, 4)) * int(rng.random() < 0.3)
            strides[index] = int(rng.choice([stride, -stride], p=[0.8, 0.2]))
            reach += stride * (extents[index] - 1)
        low = sum(min(0, s * (n - 1)) for s, n in zip(strides, extents, strict=True))
        address = self.next - 4 * low
        self.next += 4 * (reach + int(rng.integers(0, 4)))
        return StridedTensor(address_bytes=address, strides=tuple(strides))


def random_work(rng: np.random.Generator, opcode: Opcode) -> Descriptor:
    def size(high: int) -> int:
        return int(rng.integers(1, high + 1))

    rows, columns, length = size(6), size(6), size(40)
    layout = Layout(rng)
    grid: dict[str, Any] = {"opcode": opcode, "units": 8, "rows": rows, "columns": columns}
    match opcode:
        case Opcode.ADD | Opcode.MUL | Opcode.SCALEADD:
            if opcode == Opcode.SCALEADD:
                grid["alpha_bits"] = bits(rng.standard_normal())
            a, b = layout.tensor(rows, columns), layout.tensor(rows, columns)
            result = layout.tensor(rows, columns, repeats=False)
            if rng.random() < 0.3:
                a = result  # in place
            return Descriptor(a=a, b=b, result=result, **grid)
        case Opcode.SUM | Opcode.DOT:
            images = size(3)
            a = layout.tensor(images, rows, columns, length)
            if opcode == Opcode.DOT:
                grid["b"] = layout.tensor(images, rows, columns, length)
            result = layout.tensor(images, rows, columns, repeats=False)
            return Descriptor(a=a, result=result, images=images, length=length, **grid)
        case Opcode.MATVEC:
            a, b = layout.tensor(rows, columns, length), layout.tensor(columns, length)
            result = layout.tensor(rows, columns, repeats=False)
            return Descriptor(a=a, b=b, result=result, length=length, **grid)
        case Opcode.MATMUL:
            a, b = layout.tensor(rows, length), layout.tensor(length, columns)
            result = layout.tensor(rows, columns, repeats=False)
            return Descriptor(a=a, b=b, result=result, length=length, **grid)
        case Opcode.CONV2D:
            images, filters, channels = size(2), size(3), size(3)
            height, width, filter_height, filter_width = size(6), size(6), size(4), size(4)
            return Descriptor(
                a=layout.tensor(images, channels, height, width),
                b=layout.tensor(filters, channels, filter_height, filter_width),
                result=layout.tensor(images, filters, rows, columns, repeats=False),
                images=images,
                filters=filters,
                channels=channels,
                height=height,
                width=width,
                filter_height=filter_height,
                filter_width=filter_width,
                stride=size(3),
                dilation=size(3),
                pad_top=size(4) - 1,
                pad_left=size(4) - 1,
                **grid,
            )


@pytest.mark.parametrize("opcode", Opcode, ids=lambda opcode: opcode.name.lower())
@pytest.mark.parametrize("special", [0, 0.02, 0.5], ids=["normal", "few_specials", "specials"])
def test_against_plain_loops(opcode: Opcode, special: float) -> None:
    rng = np.random.default_rng([SEED, opcode, int(100 * special)])
    for _ in range(12):
        values = rng.standard_normal(STACK.striped.stop // 4).astype(np.float32)
        at = rng.random(len(values)) < special
        values[at] = rng.choice(SPECIALS, at.sum())
        run_and_compare(random_work(rng, opcode), values.view(np.uint8))


def dense(*extents: int) -> tuple[int, ...]:
    return tuple(math.prod(extents[i + 1 :]) for i in range(len(extents)))


AXES = [
    (size, taps, pad, outputs)
    for size in range(1, 5)
    for taps in range(1, 4)
    for pad in range(3)
    for outputs in (1, 3)
]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_convolutions_of_all_small_sizes(stride: int, dilation: int) -> None:
    """Rows with every combination, columns with one that goes through them in another order."""
    rng = np.random.default_rng([SEED, stride, dilation])
    memory = rng.standard_normal(STACK.striped.stop // 4).astype(np.float32).view(np.uint8)
    for number, (height, filter_height, pad_top, rows) in enumerate(AXES):
        width, filter_width, pad_left, columns = AXES[(29 * number + 7) % len(AXES)]
        work = Descriptor(
            opcode=Opcode.CONV2D,
            a=StridedTensor(strides=dense(1, 2, height, width)),
            b=StridedTensor(address_bytes=1024, strides=dense(1, 2, filter_height, filter_width)),
            result=StridedTensor(address_bytes=2048, strides=dense(1, 1, rows, columns)),
            rows=rows,
            columns=columns,
            images=1,
            filters=1,
            channels=2,
            height=height,
            width=width,
            filter_height=filter_height,
            filter_width=filter_width,
            stride=stride,
            dilation=dilation,
            pad_top=pad_top,
            pad_left=pad_left,
        )
        want = [bits(value) for _, value in expected(work, memory)]
        assert compute(work, memory).view(np.uint32).ravel().tolist() == want, work


# By hand.


def test_trees_by_hand() -> None:
    # 2^24 + 1 is no FP32 number: ones that meet it alone are lost, and together they are not.
    big, one = np.float32(1 << 24), np.float32(1)
    assert tree(np.array([big, one, one], np.float32)) == 2**24  # (big + 1) + 1
    assert tree(np.array([one, one, big], np.float32)) == 2**24 + 2  # (1 + 1) + big
    assert tree(np.array([one] * 4 + [big], np.float32)) == 2**24 + 4
    assert tree(np.array([big, one, one, 0, one], np.float32)) == 2**24  # big + (1 + 0), and + 1
    # The seventh of seven meets the fifth and the sixth before the first four.
    assert tree(np.array([big, 0, 0, 0, one, 0, one], np.float32)) == 2**24 + 2
    assert np.signbit(tree(np.array([-0.0], np.float32)))


def by_hand(opcode: Opcode, operands: dict[str, list[float]], **fields: Any) -> list[float]:
    memory = np.zeros(1024, np.uint8)
    tensors = {}
    for place, (name, values) in enumerate(operands.items()):
        memory[256 * place : 256 * place + 4 * len(values)].view(np.float32)[:] = values
        tensors[name] = StridedTensor(
            address_bytes=256 * place, strides=fields.pop(f"{name}_strides")
        )
    return compute(Descriptor(opcode=opcode, **tensors, **fields), memory).ravel().tolist()


def test_works_by_hand() -> None:
    row = {"a_strides": (0, 1), "b_strides": (0, 1), "rows": 1, "columns": 2}
    operands: dict[str, list[float]] = {"a": [1, 2], "b": [3, 5]}
    assert by_hand(Opcode.ADD, operands, **row) == [4, 7]
    assert by_hand(Opcode.MUL, operands, **row) == [3, 10]
    assert by_hand(Opcode.SCALEADD, operands, alpha_bits=0xC0000000, **row) == [1, 1]
    lines = {"a_strides": (0, 3, 0, 1), "images": 1, "rows": 2, "columns": 1, "length": 3}
    assert by_hand(Opcode.SUM, {"a": [1, 2, 3, 4, 5, 6]}, **lines) == [6, 15]
    matrix: dict[str, list[float]] = {"a": [1, 2, 3, 4, 5, 6], "b": [1, 10, 100]}
    assert by_hand(Opcode.DOT, matrix, b_strides=(0, 0, 0, 1), **lines) == [321, 654]
    grid = {"rows": 2, "length": 3, "b_strides": (0, 1)}
    assert by_hand(Opcode.MATVEC, matrix, a_strides=(3, 0, 1), columns=1, **grid) == [321, 654]
    assert by_hand(
        Opcode.MATMUL,
        {"a": [1, 2, 3, 4, 5, 6], "b": [1, 2, 10, 20, 100, 200]},
        **grid | {"b_strides": (2, 1)},
        a_strides=(3, 1),
        columns=2,
    ) == [321, 642, 654, 1308]


def test_sums_over_the_last_of_four_indices() -> None:
    """Images, rows and columns are each summed on their own; MATVEC has a vector a column."""
    a = [float(n) for n in range(16)]
    cube = {"images": 2, "rows": 2, "columns": 2, "length": 2, "a_strides": (8, 4, 2, 1)}
    assert by_hand(Opcode.SUM, {"a": a}, **cube) == [1, 5, 9, 13, 17, 21, 25, 29]
    operands = {"a": a, "b": [1.0, 10.0]}
    assert by_hand(Opcode.DOT, operands, b_strides=(0, 0, 0, 1), **cube) == [
        *(10, 32, 54, 76, 98, 120, 142, 164),
    ]
    pieces = {"rows": 2, "columns": 2, "length": 2, "a_strides": (4, 2, 1), "b_strides": (2, 1)}
    operands = {"a": a[:8], "b": [1.0, 10.0, 100.0, 1000.0]}
    assert by_hand(Opcode.MATVEC, operands, **pieces) == [10, 3200, 54, 7600]


def test_multiply_add_rounds_twice() -> None:
    # (1 + 2^-23)^2 = 1 + 2^-22 + 2^-46, which rounds to 1 + 2^-22: fused, 2^-46 would remain.
    x = 1 + 2**-23
    alpha_bits = int(np.float32(x).view(np.uint32))
    row = {"a_strides": (0, 1), "b_strides": (0, 1), "rows": 1, "columns": 1}
    operands = {"a": [x], "b": [-1 - 2**-22]}
    assert by_hand(Opcode.SCALEADD, operands, alpha_bits=alpha_bits, **row) == [0]


def test_convolution_by_hand() -> None:
    """3 x 3 input, 2 x 2 filter, padding 1 at the top and the left only, stride 2."""
    got = by_hand(
        Opcode.CONV2D,
        {"a": [1, 2, 3, 4, 5, 6, 7, 8, 9], "b": [1, 10, 100, 1000]},
        a_strides=(0, 0, 3, 1),
        b_strides=(0, 0, 2, 1),
        rows=2,
        columns=2,
        images=1,
        filters=1,
        channels=1,
        height=3,
        width=3,
        filter_height=2,
        filter_width=2,
        stride=2,
        dilation=1,
        pad_top=1,
        pad_left=1,
    )
    assert got == [1000, 3200, 7040, 9865]


def test_padding_takes_part() -> None:
    """0 * -1 = -0, and 0 * inf is no number."""
    one = {"images": 1, "filters": 1, "channels": 1, "height": 1, "width": 1}
    one |= {"rows": 1, "columns": 1, "filter_height": 1, "filter_width": 1}
    one |= {"stride": 1, "dilation": 1, "pad_top": 1, "pad_left": 0}
    strides = {"a_strides": (), "b_strides": ()}
    result = by_hand(Opcode.CONV2D, {"a": [5], "b": [-1]}, **strides, **one)
    assert result == [0]
    assert math.copysign(1, result[0]) == -1
    assert math.isnan(by_hand(Opcode.CONV2D, {"a": [5], "b": [math.inf]}, **strides, **one)[0])


# Against float64.


@pytest.mark.parametrize("length", [1, 2, 3, 100, 1000, 100_000])
def test_reductions_within_the_bound(length: int) -> None:
    rng = np.random.default_rng([SEED, length])
    memory = np.zeros(8 * length + 8, np.uint8)
    a, b = memory.view(np.float32)[: 2 * length].reshape(2, length)
    a[:], b[:] = rng.standard_normal((2, length)) * np.exp2(rng.integers(-20, 20, (2, length)))
    line = {"images": 1, "rows": 1, "columns": 1, "length": length}
    line |= {"a": StridedTensor(strides=(0, 0, 0, 1))}
    b_place = StridedTensor(address_bytes=4 * length, strides=(0, 0, 0, 1))
    dot = Descriptor(opcode=Opcode.DOT, b=b_place, **line)
    for work, terms, roundings in (
        (Descriptor(opcode=Opcode.SUM, **line), a.astype(np.float64), 0),
        (dot, a.astype(np.float64) * b, 1),
    ):
        depth = math.ceil(math.log2(length)) + roundings
        bound = depth * 2**-24 / (1 - depth * 2**-24) * math.fsum(abs(terms))
        assert abs(float(compute(work, memory)[0, 0, 0]) - math.fsum(terms)) <= bound


def test_first_convolution_of_alexnet_within_the_bound() -> None:
    """11 x 11, stride 4, three channels; 24 filters on 115 x 115 instead of 96 on 227 x 227."""
    channels, size, filters, taps, stride = 3, 115, 24, 11, 4
    outputs = (size - taps) // stride + 1
    rng = np.random.default_rng(SEED)
    a = rng.standard_normal((channels, size, size)).astype(np.float32)
    b = rng.standard_normal((filters, channels, taps, taps)).astype(np.float32)
    memory = np.concatenate([a.ravel(), b.ravel()]).view(np.uint8)
    work = Descriptor(
        opcode=Opcode.CONV2D,
        a=StridedTensor(strides=dense(1, *a.shape)),
        b=StridedTensor(address_bytes=a.nbytes, strides=dense(*b.shape)),
        rows=outputs,
        columns=outputs,
        images=1,
        filters=filters,
        channels=channels,
        height=size,
        width=size,
        filter_height=taps,
        filter_width=taps,
        stride=stride,
        dilation=1,
    )
    got = compute(work, memory)[0]
    windows = np.lib.stride_tricks.sliding_window_view(a, (taps, taps), (1, 2))
    windows = windows[:, ::stride, ::stride].astype(np.float64)
    exact = np.einsum("cyxuv,fcuv->fyx", windows, b.astype(np.float64), optimize=True)
    magnitude = np.einsum("cyxuv,fcuv->fyx", abs(windows), abs(b.astype(np.float64)), optimize=True)
    depth = math.ceil(math.log2(taps * taps)) + channels
    bound = depth * 2**-24 / (1 - depth * 2**-24) * magnitude
    assert (abs(got - exact) <= bound + 1e-12).all()
    # Each result is that of loops: some of them, since all would take minutes.
    work = replace(work, result=StridedTensor(strides=(0, 0, 0, 0)))
    for f, y, x in ((0, 0, 0), (23, 26, 26), (7, 13, 2)):
        one = replace(
            work,
            a=replace(work.a, address_bytes=4 * (stride * y * size + stride * x)),
            b=replace(work.b, address_bytes=a.nbytes + b[0].nbytes * f),
            rows=1,
            columns=1,
            filters=1,
            height=taps,
            width=taps,
        )
        assert [bits(v) for _, v in expected(one, memory)] == [bits(got[f, y, x])]
