"""Layers as the PIM's works: gradients of convolutions and of fully connected layers, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.pim import Descriptor, Opcode, Pool, Tensor

Integers = NDArray[np.int64]


class Stack:
    """Whole numbers in a pool's memory, small enough for every sum to be exact."""

    def __init__(self) -> None:
        self.pool = Pool(multipliers=[4] * 4, adders=[4] * 4, bank_bytes=1 << 18)
        self.next = 0

    def put(self, values: Integers) -> int:
        """The address of a copy of ``values``."""
        address, self.next = self.next, self.next + 4 * values.size
        self.pool.memory[address : self.next].view(np.float32)[:] = values.ravel()
        return address

    def get(self, address: int, *shape: int) -> Integers:
        values = self.pool.memory[address : address + 4 * prod(shape)].view(np.float32)
        return values.reshape(shape).astype(np.int64)

    def run(self, **fields: Any) -> None:
        self.pool.submit(Descriptor(units=8, **fields))
        self.pool.finish()


def at(address: int, *strides: int) -> Tensor:
    return Tensor(address_bytes=address, strides=strides)


@dataclass
class Convolution:
    """A convolution and its gradients by definition: each product goes where it belongs."""

    n: int
    c: int
    h: int
    w: int
    f: int
    k: int
    s: int
    p: int

    def __post_init__(self) -> None:
        self.rows = (self.h + 2 * self.p - self.k) // self.s + 1
        self.columns = (self.w + 2 * self.p - self.k) // self.s + 1
        rng = np.random.default_rng(1)
        self.x = rng.integers(-9, 10, (self.n, self.c, self.h, self.w))
        self.weights = rng.integers(-9, 10, (self.f, self.c, self.k, self.k))
        self.dy = rng.integers(-9, 10, (self.n, self.f, self.rows, self.columns))

    def meetings(self) -> Iterator[tuple[int, ...]]:
        """Row and column of the result, the filter and the input that belong together."""
        for y, x, u, v in product(
            range(self.rows), range(self.columns), range(self.k), range(self.k)
        ):
            i, j = self.s * y + u - self.p, self.s * x + v - self.p
            if 0 <= i < self.h and 0 <= j < self.w:
                yield y, x, u, v, i, j

    def forward(self) -> Integers:
        result = np.zeros_like(self.dy)
        for y, x, u, v, i, j in self.meetings():
            result[:, :, y, x] += self.x[:, :, i, j] @ self.weights[:, :, u, v].T
        return result

    def filter_gradient(self) -> Integers:
        result = np.zeros_like(self.weights)
        for y, x, u, v, i, j in self.meetings():
            result[:, :, u, v] += self.dy[:, :, y, x].T @ self.x[:, :, i, j]
        return result

    def input_gradient(self) -> Integers:
        result = np.zeros_like(self.x)
        for y, x, u, v, i, j in self.meetings():
            result[:, :, i, j] += self.dy[:, :, y, x] @ self.weights[:, :, u, v]
        return result


LAYERS = [
    Convolution(n=2, c=3, h=19, w=23, f=2, k=11, s=4, p=0),
    Convolution(n=2, c=3, h=14, w=17, f=4, k=11, s=4, p=2),
    Convolution(n=3, c=2, h=6, w=5, f=4, k=3, s=1, p=1),
    Convolution(n=1, c=2, h=9, w=8, f=3, k=3, s=2, p=1),
    Convolution(n=1, c=1, h=8, w=8, f=1, k=2, s=3, p=0),
    Convolution(n=2, c=2, h=7, w=7, f=2, k=1, s=2, p=0),
    Convolution(n=1, c=1, h=5, w=5, f=1, k=5, s=1, p=4),
    Convolution(n=1, c=2, h=4, w=9, f=1, k=2, s=1, p=3),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_forward(layer: Convolution) -> None:
    n, c, h, w, f, k = layer.n, layer.c, layer.h, layer.w, layer.f, layer.k
    rows, columns = layer.rows, layer.columns
    stack = Stack()
    result = stack.put(np.full_like(layer.dy, 99))
    stack.run(
        opcode=Opcode.CONV2D,
        a=at(stack.put(layer.x), c * h * w, h * w, w, 1),
        b=at(stack.put(layer.weights), c * k * k, k * k, k, 1),
        result=at(result, f * rows * columns, rows * columns, columns, 1),
        rows=rows,
        columns=columns,
        images=n,
        filters=f,
        channels=c,
        height=h,
        width=w,
        filter_height=k,
        filter_width=k,
        stride=layer.s,
        dilation=1,
        pad_top=layer.p,
        pad_left=layer.p,
    )
    assert (stack.get(result, *layer.dy.shape) == layer.forward()).all()


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_gradient_of_the_filter(layer: Convolution) -> None:
    n, c, h, w, f, k = layer.n, layer.c, layer.h, layer.w, layer.f, layer.k
    rows, columns = layer.rows, layer.columns
    stack = Stack()
    result = stack.put(np.full_like(layer.weights, 99))
    stack.run(
        opcode=Opcode.CONV2D,
        a=at(stack.put(layer.x), h * w, c * h * w, w, 1),
        b=at(stack.put(layer.dy), rows * columns, f * rows * columns, columns, 1),
        result=at(result, k * k, c * k * k, k, 1),
        rows=k,
        columns=k,
        images=c,
        filters=f,
        channels=n,
        height=h,
        width=w,
        filter_height=rows,
        filter_width=columns,
        stride=1,
        dilation=layer.s,
        pad_top=layer.p,
        pad_left=layer.p,
    )
    assert (stack.get(result, *layer.weights.shape) == layer.filter_gradient()).all()


@dataclass
class Part:
    """Rows or columns of the input's gradient with one remainder, as the specification has it."""

    taps: int
    """Rows of the filter that take part."""
    last_tap: int
    """The last of them in the filter, which comes first here."""
    first: int
    """The first row of the gradient."""
    outputs: int
    pad: int
    skipped: int
    """Rows of dy that are left out at its beginning."""


def part(q: int, *, size: int, k: int, s: int, p: int) -> Part:
    taps = -(-(k - q) // s) if q < k else 0
    m = -(-(p - q) // s) if p > q else 0
    first = s * m + q - p
    pad = taps - 1 - m
    outputs = max(0, -(-(size - first) // s))
    return Part(taps, q + s * (taps - 1), first, outputs, max(0, pad), max(0, -pad))


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_gradient_of_the_input(layer: Convolution) -> None:
    n, c, h, w, f, k, s = layer.n, layer.c, layer.h, layer.w, layer.f, layer.k, layer.s
    rows, columns = layer.rows, layer.columns
    stack = Stack()
    result = stack.put(np.zeros_like(layer.x))
    dy, weights = stack.put(layer.dy), stack.put(layer.weights)
    for q, r in product(range(s), range(s)):
        down = part(q, size=h, k=k, s=s, p=layer.p)
        across = part(r, size=w, k=k, s=s, p=layer.p)
        height, width = rows - down.skipped, columns - across.skipped
        if min(down.taps, across.taps, down.outputs, across.outputs, height, width) < 1:
            continue
        first_tap = k * down.last_tap + across.last_tap
        stack.run(
            opcode=Opcode.CONV2D,
            a=at(
                dy + 4 * (columns * down.skipped + across.skipped),
                *(f * rows * columns, rows * columns, columns, 1),
            ),
            b=at(weights + 4 * first_tap, k * k, c * k * k, -s * k, -s),
            result=at(result + 4 * (w * down.first + across.first), c * h * w, h * w, s * w, s),
            rows=down.outputs,
            columns=across.outputs,
            images=n,
            filters=c,
            channels=f,
            height=height,
            width=width,
            filter_height=down.taps,
            filter_width=across.taps,
            stride=1,
            dilation=1,
            pad_top=down.pad,
            pad_left=across.pad,
        )
    assert (stack.get(result, *layer.x.shape) == layer.input_gradient()).all()


def test_fully_connected() -> None:
    samples, inputs, outputs = 3, 7, 5
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 10, (samples, inputs))
    weights = rng.integers(-9, 10, (outputs, inputs))
    bias = rng.integers(-9, 10, outputs)
    dy = rng.integers(-9, 10, (samples, outputs))
    stack = Stack()
    at_x, at_w, at_b, at_dy = map(stack.put, (x, weights, bias, dy))
    y, dx, dw, db = map(stack.put, (0 * dy, 0 * x, 0 * weights, 0 * bias))
    sizes = {"rows": samples, "columns": outputs}
    stack.run(
        opcode=Opcode.MATMUL,
        a=at(at_x, inputs, 1),
        b=at(at_w, 1, inputs),
        result=at(y, outputs, 1),
        length=inputs,
        **sizes,
    )
    stack.run(
        opcode=Opcode.ADD,
        a=at(y, outputs, 1),
        b=at(at_b, 0, 1),
        result=at(y, outputs, 1),
        **sizes,
    )
    stack.run(
        opcode=Opcode.MATMUL,
        a=at(at_dy, outputs, 1),
        b=at(at_w, inputs, 1),
        result=at(dx, inputs, 1),
        rows=samples,
        columns=inputs,
        length=outputs,
    )
    stack.run(
        opcode=Opcode.MATMUL,
        a=at(at_dy, 1, outputs),
        b=at(at_x, inputs, 1),
        result=at(dw, inputs, 1),
        rows=outputs,
        columns=inputs,
        length=samples,
    )
    stack.run(
        opcode=Opcode.SUM,
        a=at(at_dy, 0, 0, 1, outputs),
        result=at(db, 0, 0, 1),
        images=1,
        rows=1,
        columns=outputs,
        length=samples,
    )
    assert (stack.get(y, samples, outputs) == x @ weights.T + bias).all()
    assert (stack.get(dx, samples, inputs) == dy @ weights).all()
    assert (stack.get(dw, outputs, inputs) == dy.T @ x).all()
    assert (stack.get(db, outputs) == dy.sum(0)).all()


def test_bias_of_images() -> None:
    images, channels, pixels = 3, 4, 6
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 10, (images, channels, pixels))
    bias = rng.integers(-9, 10, channels)
    stack = Stack()
    at_x, at_b = stack.put(x), stack.put(bias)
    sums, gradient = stack.put(np.zeros((images, channels), int)), stack.put(0 * bias)
    stack.run(
        opcode=Opcode.SUM,
        a=at(at_x, channels * pixels, pixels, 0, 1),
        result=at(sums, channels, 1, 0),
        images=images,
        rows=channels,
        columns=1,
        length=pixels,
    )
    stack.run(
        opcode=Opcode.SUM,
        a=at(sums, 0, 0, 1, channels),
        result=at(gradient, 0, 0, 1),
        images=1,
        rows=1,
        columns=channels,
        length=images,
    )
    for image in range(images):
        place = at(at_x + 4 * image * channels * pixels, pixels, 1)
        stack.run(
            opcode=Opcode.ADD,
            a=place,
            b=at(at_b, 1, 0),
            result=place,
            rows=channels,
            columns=pixels,
        )
    assert (stack.get(at_x, *x.shape) == x + bias[:, None]).all()
    assert (stack.get(gradient, channels) == x.sum((0, 2))).all()


def test_descent_in_place() -> None:
    stack = Stack()
    p, g = stack.put(np.array([10, 20, 30])), stack.put(np.array([1, 2, 3]))
    place = at(p, 0, 1)
    stack.run(
        opcode=Opcode.SCALEADD,
        a=at(g, 0, 1),
        b=place,
        result=place,
        rows=1,
        columns=3,
        alpha_bits=int(np.float32(-4).view(np.uint32)),
    )
    assert stack.get(p, 3).tolist() == [6, 12, 18]
