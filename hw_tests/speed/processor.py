"""The cost model of a processor with a cache, beside this machine's CPU, on one thread.

``python -m hw_tests.speed.processor`` measures a product of matrices and a copy, of which
the model has its rates, then other operations, and prints what the model predicts of these.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from sw_driver.machine import Device, assumed, calibrated
from sw_driver.numbers import parse_integer
from sw_driver.workload import Op
from sw_driver.workload.cache import past_cache
from sw_driver.workload.capture import capture

__all__ = ["main"]

Operation = tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]
"""A function, and the shapes of what it is called with."""


def _add(one: Tensor, other: Tensor, result: Tensor) -> Tensor:
    return torch.add(one, other, out=result)


PRODUCT: Operation = (lambda a, b, c: torch.mm(a, b, out=c)), ((2048, 2048),) * 3
COPY: Operation = (lambda a, b: a.copy_(b)), ((1 << 26,),) * 2
PREDICTED: dict[str, Operation] = {
    "addmm of 256 x 256": (
        lambda bias, a, b, c: torch.addmm(bias, a, b, out=c), ((256,), *((256, 256),) * 3)
    ),
    "convolution 3 x 3 of 16 x 256 x 14 x 14": (
        lambda a, b: functional.conv2d(a, b, padding=1), ((16, 256, 14, 14), (256, 256, 3, 3))
    ),
    "addition of 256 MiB": (_add, ((1 << 26,),) * 3),
    "addition of 1 MiB": (_add, ((1 << 18,),) * 3),
    "layer normalization of 6144 x 1024": (
        lambda a: functional.layer_norm(a, (1024,)), ((6144, 1024),)
    ),
    "softmax of 16384 x 1024": (lambda a, b: torch.softmax(a, 1, out=b), ((16384, 1024),) * 2),
}  # fmt: skip


def in_a_row(operation: Operation, cache_bytes: int) -> Op:
    """The operation when it runs over and over, with the bytes that go past the cache."""
    function, shapes = operation

    def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
        return nn.Linear(1, 1), tuple(torch.empty(each) for each in shapes)

    def step(model: nn.Module, *tensors: Tensor) -> Tensor:
        function(*tensors)
        return model(torch.ones(1))

    trace = capture(build, step, name="operation")
    tensors = tuple(replace(each, allocated=0, freed=None) for each in trace.tensors)
    ops = tuple(replace(trace.ops[0], id=number) for number in range(3))
    return past_cache(replace(trace, tensors=tensors, ops=ops), cache_bytes).ops[1]


def measured_ns(operation: Operation) -> float:
    """The median that it takes in two seconds, both of the thread's own time."""
    function, shapes = operation
    tensors = [torch.rand(each) for each in shapes]
    times_s = [time.thread_time()]
    with torch.no_grad():
        while times_s[-1] < times_s[0] + 2:
            function(*tensors)
            times_s.append(time.thread_time())
    return median(after - before for before, after in pairwise(times_s)) * 1e9


def main(cache: str = "") -> None:
    """Measures and prints. ``cache`` is the size of its last level, if Linux does not tell it."""
    levels = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    found = f"{levels[-1].read_text().strip()}iB" if levels else ""
    cache_bytes = parse_integer(cache or found)
    if cache_bytes is None:
        sys.exit(f"the size of the cache is {cache or found!r}: give it, such as 32MiB")
    torch.set_num_threads(1)
    product, copy = (in_a_row(each, cache_bytes) for each in (PRODUCT, COPY))
    tflop_per_s = product.flops / measured_ns(PRODUCT) / 1000
    gb_per_s = copy.nbytes / measured_ns(COPY)
    cpu = Device(
        name="cpu",
        memory="memory",
        tflop_per_s=calibrated(tflop_per_s, "a product of matrices"),
        gb_per_s=calibrated(gb_per_s, "a copy"),
        launch_ns=assumed(0, "a call of a function"),
    )
    print(f"{1000 * tflop_per_s:.1f} GFLOP/s, {gb_per_s:.1f} GB/s past {cache_bytes:,} bytes")
    for name, operation in PREDICTED.items():
        us = measured_ns(operation) / 1000
        predicted_us = cpu.cost(in_a_row(operation, cache_bytes)) / 1000
        error = f"{predicted_us / us - 1:+.0%}"
        print(f"{name:>40}: {us:8,.0f} us, predicted {predicted_us:8,.0f}, {error}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
