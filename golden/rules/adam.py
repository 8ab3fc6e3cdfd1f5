"""Reference model of one Adam step in FP32, bit for bit.

The normative arithmetic: FP32, every operation rounded to nearest even on its own, subnormal
numbers kept, every NaN out is 0x7FC00000::

    g  = grad + lam*p
    m' = beta1*m + (1-beta1)*g
    v' = beta2*v + (1-beta2)*(g*g)
    u  = (m' * inv_bc1) / (sqrt(v' * inv_bc2) + eps)      inv_bc = 1/(1-beta^t)
    p' = p - lr*u
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CANONICAL_NAN", "AdamConstants", "adam_constants", "adam_step", "canonical"]

CANONICAL_NAN = 0x7FC00000
"""The bits of every NaN in a result."""


class AdamConstants(NamedTuple):
    """What the arithmetic of a step needs to know, in FP32."""

    lam: np.float32
    beta1: np.float32
    one_minus_beta1: np.float32
    beta2: np.float32
    one_minus_beta2: np.float32
    inv_bc1: np.float32
    inv_bc2: np.float32
    eps: np.float32
    lr: np.float32


def adam_constants(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, t: int
) -> AdamConstants:
    """The constants of step ``t`` (the first is 1), computed in double and rounded once.

    Raises ``ValueError`` if a beta is not in [0, 1), ``t`` is less than 1, or a constant is not
    finite in FP32.
    """
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= beta < 1:
            raise ValueError(f"{name} is {beta}, expected 0 <= {name} < 1; choose a decay rate")
    if t < 1:
        raise ValueError(f"t is {t}, expected 1 or more; count steps from 1")
    exact = {
        "lam": weight_decay,
        "beta1": beta1,
        "one_minus_beta1": 1.0 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1.0 - beta2,
        "inv_bc1": 1.0 / (1.0 - float(beta1) ** t),
        "inv_bc2": 1.0 / (1.0 - float(beta2) ** t),
        "eps": eps,
        "lr": lr,
    }
    with np.errstate(all="ignore"):
        rounded = {name: np.float32(value) for name, value in exact.items()}
    for name, value in rounded.items():
        if not math.isfinite(value):
            raise ValueError(
                f"{name} is {exact[name]}, expected a number that is finite in FP32; choose a "
                f"smaller one"
            )
    return AdamConstants(**rounded)


def adam_step(
    p: NDArray[np.float32],
    g: NDArray[np.float32],
    m: NDArray[np.float32],
    v: NDArray[np.float32],
    constants: AdamConstants,
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Parameters and moments ``(p, m, v)`` after a step; ``g`` is the gradient.

    All arrays are float32 and of one shape; the arguments stay as they are. Raises ``TypeError``
    for another type, since numpy would then compute in more than FP32.
    """
    for name, array in (("p", p), ("g", g), ("m", m), ("v", v)):
        if array.dtype != np.float32:
            raise TypeError(f"{name} is of type {array.dtype}, expected float32; convert it first")
    c = constants
    with np.errstate(all="ignore"):
        gradient = g + c.lam * p
        m_next = c.beta1 * m + c.one_minus_beta1 * gradient
        v_next = c.beta2 * v + c.one_minus_beta2 * (gradient * gradient)
        u = (m_next * c.inv_bc1) / (np.sqrt(v_next * c.inv_bc2) + c.eps)
        p_next = p - c.lr * u
    return canonical(p_next), canonical(m_next), canonical(v_next)


def canonical(array: Any) -> NDArray[np.float32]:
    """``array``, of FP32, with its NaNs made canonical in place; a NaN stays one through every
    operation, so that it suffices to do this to results."""
    array = np.asarray(array)
    array.view(np.uint32)[np.isnan(array)] = CANONICAL_NAN
    return array
