"""Adam on this machine's CPU, by numpy and by PyTorch, as the paper has it beside the AXDIMM.

The paper's row is one core of a Xeon E5-2698 v4 on DDR4-800 (section 6.2, Table 5).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.rules import rule
from sw_driver.axdimm.figures import BYTES_PER_PARAMETER
from sw_driver.axdimm.hyperparameters import rule_constants
from sw_driver.axdimm.rulejob import hyperparameters_of

__all__ = ["cores", "measure_cpu", "needed_bytes", "numpy_adam", "torch_adam"]

Floats = NDArray[np.float32]


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def needed_bytes(parameters: int) -> int:
    """Host memory of a measurement: p, g, m and v, and two arrays of scratch."""
    return 6 * 4 * parameters


def numpy_adam(p: Floats, g: Floats, m: Floats, v: Floats) -> Callable[[int], None]:
    """Adam in numpy, in place: called with t, which counts from 1.

    The operations and their order are the normative ones, so all but the bits of NaNs are equal to
    the golden model's. Each operation passes over the memory once, in one thread.
    """
    adam = rule("adam")
    gradient, scratch = np.empty_like(p), np.empty_like(p)

    def step(t: int) -> None:
        c = rule_constants(adam, hyperparameters_of(adam, t))
        np.multiply(p, c["lam"], out=gradient)
        np.add(gradient, g, out=gradient)
        np.multiply(m, c["beta1"], out=m)
        np.multiply(gradient, c["one_minus_beta1"], out=scratch)
        np.add(m, scratch, out=m)
        np.multiply(v, c["beta2"], out=v)
        np.multiply(gradient, gradient, out=gradient)
        np.multiply(gradient, c["one_minus_beta2"], out=gradient)
        np.add(v, gradient, out=v)
        np.multiply(v, c["inv_bc2"], out=scratch)
        np.sqrt(scratch, out=scratch)
        np.add(scratch, c["eps"], out=scratch)
        np.multiply(m, c["inv_bc1"], out=gradient)
        np.divide(gradient, scratch, out=gradient)
        np.multiply(gradient, c["lr"], out=gradient)
        np.subtract(p, gradient, out=p)

    return step


def torch_adam(p: Floats, g: Floats, threads: int) -> Callable[[int], None]:
    """``torch.optim.Adam(fused=True)`` on the CPU, in place, from moments of zero.

    It counts its steps itself, and computes the same formula in another order. Raises
    ``ImportError`` if PyTorch is not installed.
    """
    import torch  # pyright: ignore[reportMissingImports]

    usual = hyperparameters_of(rule("adam"), 1)
    parameter = torch.nn.Parameter(torch.from_numpy(p))
    parameter.grad = torch.from_numpy(g)
    optimizer = torch.optim.Adam(
        [parameter],
        lr=usual["lr"],
        betas=(usual["beta1"], usual["beta2"]),
        eps=usual["eps"],
        weight_decay=usual["weight_decay"],
        fused=True,
    )

    def step(t: int) -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        optimizer.step()
        torch.set_num_threads(before)

    return step


def measure_cpu(parameters: int, *, repetitions: int, threads: int) -> list[dict[str, Any]]:
    """Median speed of a step by each library, PyTorch's (if it is there) on 1 and more threads.

    ``library``: with its version; ``threads`` that work; ``seconds`` of each repetition, one more
    of which comes first and does not count; ``mparams_per_s``: from their median, in 10^6
    parameters a second; ``gb_per_s``: the 28 bytes of a parameter in 10^9 a second.
    """
    rng = np.random.default_rng(1)
    p, g = (rng.random(parameters, dtype=np.float32) for _ in range(2))
    moments = [np.zeros_like(p) for _ in range(2)]
    rows = [_timed(f"numpy {np.__version__}", 1, numpy_adam(p, g, *moments), p.size, repetitions)]
    del moments
    try:
        from torch import __version__ as version  # pyright: ignore[reportMissingImports]
    except ImportError:
        return rows
    for count in sorted({1, threads}):
        name = f"torch {version}, Adam(fused=True)"
        rows.append(_timed(name, count, torch_adam(p, g, count), p.size, repetitions))
    return rows


def _timed(
    library: str, threads: int, step: Callable[[int], None], parameters: int, repetitions: int
) -> dict[str, Any]:
    step(1)
    seconds = []
    for t in range(2, repetitions + 2):
        start = time.perf_counter()
        step(t)
        seconds.append(time.perf_counter() - start)
    speed = parameters / statistics.median(seconds) / 1e6
    return {
        "library": library,
        "threads": threads,
        "mparams_per_s": speed,
        "gb_per_s": speed * BYTES_PER_PARAMETER / 1e3,
        "seconds": seconds,
    }
