"""What kernels use of their tensors: the table against the kernels themselves, on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from hw.pim.config import configure
from sw_driver.device.errors import InvalidArgumentError, KernelError, RangeError
from sw_driver.pim import opencl
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.bounds import SIGNATURES, check_bounds
from sw_driver.pim.device import Pim
from sw_driver.pim.host import package_kernels
from sw_driver.pim.opencl import CommandQueue, Context, Platform
from sw_driver.pim.placing import PlacedTensor
from sw_driver.pim.programs import Firmware

CONFIG = configure(preset="tiny", bank_bytes=1 << 17)
SIZES = {
    "count": 5,
    "outer": 2,
    "channels": 3,
    "inner": 4,
    "samples": 3,
    "classes": 4,
    "planes": 2,
    "height": 4,
    "width": 6,
    "rows": 2,
    "columns": 3,
    "cores": 2,
    "window_height": 2,
    "window_width": 2,
    "stride": 2,
    "pad_top": 0,
    "pad_left": 0,
    "n0": 2,
    "n1": 3,
    "n2": 2,
    "n3": 2,
    "s0": -12,
    "s1": 4,
    "s2": 2,
    "s3": 1,
    "t0": 12,
    "t1": -4,
    "t2": 2,
    "t3": 1,
    "64": 64,
    "8": 8,
    "2": 2,
}
"""All that the windows of pooling reach is all of a plane."""
ALONE = [name for name, text in SIGNATURES.items() if ":" in text and "|" not in text]
ON_HOST = [name for name in ALONE if name in package_kernels().keys() - {"program", "compute"}]


@pytest.fixture
def context() -> Iterator[Context]:
    with Pim(GoldenPim(CONFIG)) as pim:
        yield Context(Platform(pim))


def made(context: Context, kernel: str) -> list[Any]:
    """Arguments of a kernel whose tensors are as large as they have to be."""
    arguments: list[Any] = []
    for token in SIGNATURES[kernel].replace("|", "").split():
        name, _, text = token.partition(":")
        if not text:
            arguments.append(0.5 if name[0] == "." else SIZES[name.lstrip("~")])
            continue
        low = high = 0
        for index in text.split(","):
            extent, _, stride = index.partition("@")
            reach = SIZES.get(stride, 1) * (prod(SIZES[factor] for factor in extent.split("*")) - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        buffer = context.buffer(f"{kernel} {name}", (high - low + 1,))
        context.pim.write_tensor(buffer, np.ones(buffer.shape, np.float32))
        # From the element whose indices are zero on, in both directions.
        one = buffer[-low:] if not high else buffer
        shape = (high - low + 1,)
        strides = (1,)
        if low and high:
            shape, strides = (1 - low, 1 + high), (-1, 1)
        elif low:
            shape, strides = (1 - low,), (-1,)
        arguments.append(replace(one, address_bytes=buffer.at(-low), shape=shape, strides=strides))
    return arguments


def shortened(tensor: PlacedTensor) -> list[PlacedTensor]:
    """The tensor without its last, and without its first element in memory."""
    result = []
    for index, extent in enumerate(tensor.shape):
        if extent > 1:
            shape = (*tensor.shape[:index], extent - 1, *tensor.shape[index + 1 :])
            result.append(replace(tensor, shape=shape))
    return result


def test_the_table_has_every_kernel() -> None:
    """As many arguments, and for a kernel with works the slots and their count before them."""
    of_works = {"works", "conv2d_backprop_filter", "conv2d_backprop_input", "matmul_bias_relu"}
    for name, words in Firmware.of().kernels.items():
        count = len(SIGNATURES[name].replace("|", "").split()) + 2 * (name in of_works)
        assert count == words, name
    assert SIGNATURES.keys() == Firmware.of().kernels.keys()


@pytest.mark.parametrize("kernel", ALONE)
def test_sizes_that_are_one_too_large_are_refused(context: Context, kernel: str) -> None:
    arguments = made(context, kernel)
    check_bounds(kernel, arguments, called="mine")
    for number, tensor in enumerate(arguments):
        if not isinstance(tensor, PlacedTensor):
            continue
        name = SIGNATURES[kernel].split()[number].partition(":")[0]
        for less in shortened(tensor):
            short = [*arguments[:number], less, *arguments[number + 1 :]]
            with pytest.raises(
                RangeError, match=rf"mine uses bytes .* of {name}, which has .* '{kernel} {name}'"
            ):
                check_bounds(kernel, short, called="mine")


@pytest.mark.parametrize("kernel", ON_HOST)
def test_the_kernel_uses_what_the_table_says(
    context: Context, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the host, which sees every access: all of each tensor, and nothing else."""
    arguments = made(context, kernel)
    uses = "b" * sum(isinstance(argument, PlacedTensor) for argument in arguments)
    CommandQueue(context, "cpu").enqueue_kernel(
        context.kernel("whole", kernel, arguments, uses)
    ).wait()
    monkeypatch.setattr(opencl, "check_bounds", lambda *_, **__: None)
    for number, tensor in enumerate(arguments):
        if isinstance(tensor, PlacedTensor):
            for less in shortened(tensor):
                short = [*arguments[:number], less, *arguments[number + 1 :]]
                made_short = context.kernel("short", kernel, short, uses)
                with pytest.raises(KernelError, match="short failed on the host with a") as error:
                    CommandQueue(context, "cpu").enqueue_kernel(made_short).wait()
                assert error.value.cause == "window"


BAD_SIZES = [
    (1 << 27, RangeError, r"bytes 0 to 536870911 of x, which has 1024 of the buffer 'x'"),
    (257, RangeError, r"bytes 0 to 1027 of x, which has 1024 .* count 257"),
    ((1 << 31) - 1, RangeError, "count 2147483647"),
    (1 << 31, InvalidArgumentError, "mine's count is 2147483648: expected an integer from 0 to"),
    (-1, InvalidArgumentError, "mine's count is -1"),
    (64.0, InvalidArgumentError, r"mine's count is 64\.0"),
]


@pytest.mark.parametrize(("count", "error", "message"), BAD_SIZES)
def test_sizes(context: Context, count: Any, error: type[Exception], message: str) -> None:
    x, y = (context.buffer(label, (16, 16)) for label in "xy")
    with pytest.raises(error, match=message):
        context.kernel("mine", "relu", (x, y, count), "rw")


def test_products_do_not_wrap(context: Context) -> None:
    """Sizes whose product is small modulo 2^32, and a tensor that is none, or at no element."""
    x, y = (context.buffer(label, (4, 4)) for label in "xy")
    with pytest.raises(RangeError, match="outer 65536, channels 65536, inner 1"):
        context.kernel("mine", "bias", (x, y, x, 1 << 16, 1 << 16, 1), "rwb")
    with pytest.raises(InvalidArgumentError, match="mine's y is 134217728: expected a buffer"):
        context.kernel("mine", "relu", (x, 1 << 27, 4), "r")
    odd = replace(x, address_bytes=x.address_bytes + 2)
    with pytest.raises(InvalidArgumentError, match=r"mine's x is at 0x.*: expected a multiple"):
        context.kernel("mine", "relu", (odd, y, 4), "rw")


def test_parts_of_a_recursive_kernel(context: Context) -> None:
    """Each is checked; those that are left out are not."""
    x, y = (context.buffer(label, (4, 4)) for label in "xy")
    left_out, copy = [0] * 14, [x, y, 1, 1, 1, 16, 0, 0, 0, 1, 0, 0, 0, 1]
    check_bounds("conv2d_backprop_filter", [*left_out, *left_out, *copy], called="mine")
    copy[5] = 17
    with pytest.raises(RangeError, match="mine uses bytes 0 to 67 of x"):
        check_bounds("conv2d_backprop_filter", [*left_out, *left_out, *copy], called="mine")
