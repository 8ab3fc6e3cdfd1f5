"""A small update rule in place of Adam, for benches that look at the movement of data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hw.dataflow.flow import FlowValue
from hw.dataflow.unit import FlowUnit
from hw.rules.adam import INPUTS, OUTPUTS

__all__ = ["plain_step", "plain_unit"]


def plain(
    *, p: FlowValue, g: FlowValue, m: FlowValue, v: FlowValue, beta1: FlowValue, lr: FlowValue
) -> dict[str, FlowValue]:
    return {"p": p - lr * g, "m": beta1 * m + g, "v": v + g}


def plain_unit() -> FlowUnit:
    """A functional unit that computes :func:`plain_step`."""
    return FlowUnit(plain, inputs=INPUTS, constants=("beta1", "lr"), outputs=OUTPUTS)


def plain_step(
    p: NDArray[np.float32],
    g: NDArray[np.float32],
    m: NDArray[np.float32],
    v: NDArray[np.float32],
    constants: tuple[np.float32, np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """``(p, m, v)`` after a step; ``constants`` are beta1 and lr. Finite numbers only."""
    beta1, lr = constants
    return p - lr * g, beta1 * m + g, v + g
