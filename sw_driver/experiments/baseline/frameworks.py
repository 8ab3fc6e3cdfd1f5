"""The same step as users of numpy and of PyTorch take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_TORCH", "numpy_adam", "torch_adam"]

NO_TORCH = "torch is not installed, so its fused Adam was not measured: pip install -e '.[torch]'"

Floats = NDArray[np.float32]
Constants = Mapping[str, np.float32]


def numpy_adam(p: Floats, g: Floats, m: Floats, v: Floats) -> Callable[[Constants], None]:
    """A step in place; one pass over memory an operation, two arrays of scratch.

    The operations and their order are the normative ones, so all but the bits of NaNs agree.
    """
    gradient, scratch = np.empty_like(p), np.empty_like(p)

    def step(c: Constants) -> None:
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


def torch_adam(
    p: Floats, g: Floats, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> Callable[[int], None] | None:
    """``torch.optim.Adam(fused=True)`` on the CPU: a step with that many threads.

    ``p`` is updated in place; the moments are the optimizer's own and start at zero. Not
    bit-exact: the same formula in another order. None where torch is not installed.
    """
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    library: Any = torch
    parameter = library.nn.Parameter(library.from_numpy(p))
    parameter.grad = library.from_numpy(g)
    optimizer = library.optim.Adam(
        [parameter], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay, fused=True
    )

    def step(threads: int) -> None:
        library.set_num_threads(threads)
        optimizer.step()

    return step
