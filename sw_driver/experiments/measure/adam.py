"""Speed of Adam on this machine's CPU, with numpy and PyTorch.

The AXDIMM paper has one core of a Xeon E5-2698 v4 on DDR4-800 (section 6.2, Table 5).
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
from sw_driver.device.errors import InvalidArgumentError

from .rates import memory_bytes

__all__ = ["check_memory", "cores", "measure_cpu", "numpy_adam", "torch_adam"]

Floats = NDArray[np.float32]


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_memory(parameters: int) -> None:
    """Check that this machine has memory for p, g, m, v and two scratch arrays.

    Raise :class:`~sw_driver.device.errors.InvalidArgumentError` if it has not.
    """
    needed = 6 * 4 * parameters
    if needed > (present := memory_bytes()):
        raise InvalidArgumentError(
            f"{parameters} parameters take {needed:,} bytes, but this machine has {present:,}: "
            "measure fewer --parameters"
        )


def numpy_adam(p: Floats, g: Floats, m: Floats, v: Floats) -> Callable[[int], None]:
    """Return a function for an in-place Adam step in numpy; its argument t counts from 1.

    Operations and their order are the normative ones, so all bits except those of NaNs equal the
    golden model's. Each operation passes over the memory once, in one thread.
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
    """Return a function for an in-place step of ``torch.optim.Adam(fused=True)`` on the CPU.

    Moments start at zero. PyTorch counts the steps itself, and computes the same formula in another
    order. Raise ``ImportError`` if PyTorch is not installed.
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
    """Return the median speed of a step with numpy, and with PyTorch on 1 and ``threads`` threads.

    ``library``: name and version. ``threads``: threads in use. ``seconds``: time of each
    repetition, after one warm-up step. ``mparams_per_s``: 10^6 parameters per second, from the
    median time. ``gb_per_s``: 10^9 bytes per second, at 28 bytes per parameter.
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
