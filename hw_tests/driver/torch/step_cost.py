"""``python -m hw_tests.driver.torch.step_cost [PARAMETERS]``: what a step costs beside its rule.

Prints medians of a step of Adam through PyTorch on the backend ``golden``, and of the golden rule
on arrays of the same size with its results written back, taken in turns; and their ratio.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from golden.rules import reference
from sw_driver.torch import Adam

ROUNDS = 15


def main(parameters: int) -> None:
    """Measures and prints."""
    model = reference("adam")
    constants = model.constants(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0, t=3)
    numbers = np.random.default_rng(1)
    tensors = {name: numbers.random(parameters, np.float32) for name in model.inputs}

    def bare() -> None:
        for name, values in model.step(tensors, constants).items():
            tensors[name][:] = values

    parameter = torch.nn.Parameter(torch.from_numpy(tensors["p"].copy()))
    parameter.grad = torch.from_numpy(tensors["g"].copy())
    with Adam([parameter], device="golden") as optimizer:
        optimizer.step()
        times = [(_seconds(bare), _seconds(optimizer.step)) for _ in range(ROUNDS)]
    alone, step = (statistics.median(each) for each in zip(*times, strict=True))
    ratio = statistics.median(step / alone for alone, step in times)
    print(
        f"{parameters} parameters: rule {1e3 * alone:.1f} ms, step {1e3 * step:.1f} ms, {ratio:.2f}"
    )


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000)
