"""The model of a core's kernels, beside a core in RTL, whose pool is idle.

``python -m hw_tests.speed.kernel_cycles [SHAPES [SEED]]`` runs each kernel with so many random
shapes, at random places, and prints how far off the model is. What the memory takes to answer a
core is none of the model's: it is found from a first ReLU.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sw_driver.experiments.pim.training import training_config
from sw_driver.numbers import parse_integer
from sw_driver.pim.backends.rtl import RtlPim
from sw_driver.pim.device import Pim
from sw_driver.pim.programs import WINDOW_BYTES, Window
from sw_driver.pim.ring import driver_place
from sw_driver.predict.pim.core import KERNELS, kernel_cycles, kernel_work

__all__ = ["main"]

PLACE_BYTES = 0x4000
"""What there is for a tensor."""
TENSORS = {
    "relu": 2,
    "relu_gradient": 3,
    "fill": 1,
    "copy": 2,
    "bias": 3,
    "bias_gradient": 2,
    "moments": 3,
    "normalise": 6,
    "normalise_gradient": 8,
    "max_pool": 2,
    "max_pool_gradient": 3,
    "average_pool": 2,
    "average_pool_gradient": 2,
    "softmax_cross_entropy": 4,
    "dropout": 2,
    "sgd": 2,
    "adam": 4,
}
"""That a kernel's arguments begin with."""
STEP_CYCLES = 8
"""From one look at a core to the next."""
LABELS = 1
"""Which of them are integers."""


def sizes_of(kernel: str, rng: Any) -> list[Any]:
    """A kernel's arguments behind its tensors."""

    def some(begin: int, end: int) -> int:
        # Small ones are as many as large ones.
        return int(begin * (end / begin) ** rng.random())

    count = some(1, 2000)
    if "pool" in kernel:
        side, stride = some(1, 5), some(1, 4)
        plane, pad = [some(side, 20), some(side, 20)], int(rng.integers(0, side // 2 + 1))
        results = [(size + 2 * pad - side) // stride + 1 for size in plane]
        return [some(1, 5), *plane, *results, side, side, stride, pad, pad]
    if kernel == "copy":
        sizes = np.array([some(1, 8) for _ in range(4)])
        order = rng.permutation(4) if rng.random() < 0.6 else np.arange(4)
        of_x, of_y = (np.append(np.cumprod(each[:0:-1])[::-1], 1) for each in (sizes, sizes[order]))
        return [int(each) for each in (*sizes[order], *of_x[order], *of_y)]
    if kernel == "softmax_cross_entropy":
        classes = some(2, 40)
        return [some(1, 30), classes, classes, 1, 0.1]
    if kernel == "moments" or "bias" in kernel or "normalise" in kernel:
        eps = [0.1] * (kernel == "moments")
        return [*eps, some(1, 15), some(1, 15), some(1, 15)]
    return {
        "fill": [count, 0],
        "dropout": [1 + count // 2, 1, 2, 3, 1 << 31, 2.0],
        "sgd": [count, 0.1, 0.1],
        "adam": [1 + count // 4, *[0.1] * 9],
    }.get(kernel, [count])


def main(shapes: int = 10, seed: int = 1) -> None:
    """Measures and prints."""
    rng = np.random.default_rng(seed)
    config = training_config(1)
    start = config.striped_start_bytes
    window = Window(start, driver_place(config).start - start)
    places = window.size_bytes // PLACE_BYTES
    with Pim(RtlPim(config)) as pim:

        def taken(kernel: str, arguments: list[Any]) -> int:
            """Cycles in which the core says that it is not idle."""
            number = pim.pim_prog(config.banks, kernel, arguments, windows=[window])
            while not pim.pim_status(config.banks):
                pass
            begin = pim.transport.cycles()
            while pim.pim_status(config.banks):
                pim.transport.advance(STEP_CYCLES)
            end = pim.transport.cycles()
            pim.wait(number)
            return end - begin

        def arguments_of(kernel: str) -> list[Any]:
            # Tensors push each other out of the cache more often than by chance.
            begins = rng.integers(0, 128, TENSORS[kernel]) * 32
            begins *= rng.random(len(begins)) < 0.6
            at = rng.permutation(places)[: len(begins)] * PLACE_BYTES + begins
            values = rng.standard_normal(window.size_bytes // 4, dtype=np.float32)
            pim.write_memory(start, np.abs(values) if kernel == "adam" else values)
            if kernel == "softmax_cross_entropy":
                pim.write_memory(start + int(at[LABELS]), np.zeros(30, np.uint32))
            return [*(WINDOW_BYTES + each for each in at.tolist()), *sizes_of(kernel, rng)]

        arguments = [WINDOW_BYTES, WINDOW_BYTES + PLACE_BYTES, 1000]
        taken("relu", arguments)  # the core starts
        loops = kernel_cycles("relu", tuple(arguments), read_cycles=1)
        reads = kernel_work("relu", arguments)[-1]
        read_cycles = 1 + (taken("relu", arguments) - loops) / reads
        print(f"the memory answers a core in {read_cycles:.1f} cycles (calibrated)")
        for kernel in KERNELS:
            errors = []
            for _ in range(shapes):
                arguments = arguments_of(kernel)
                model = kernel_cycles(kernel, tuple(arguments), read_cycles=read_cycles)
                errors.append(model / taken(kernel, arguments) - 1)
            mean, most = np.mean(np.abs(errors)), max(errors, key=abs)
            print(f"{kernel:>22}: {mean:6.1%} off in the mean, {most:+6.1%} at most", flush=True)


if __name__ == "__main__":
    main(*map(parse_integer, sys.argv[1:3]))
