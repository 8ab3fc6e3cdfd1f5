"""The hyper-parameters of Adam: their ranges, and the constants that the kernel takes for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import index

import numpy as np

from ..errors import HyperparameterError

__all__ = ["LAST_STEP", "AdamHyperparameters"]

LAST_STEP = 2**53
"""Largest step; beyond it a double does not tell steps apart."""


def _number(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise HyperparameterError(
            f"{name} is {value!r}: expected a number", name=name, value=value
        ) from None
    return number


@dataclass(frozen=True, kw_only=True)
class AdamHyperparameters:
    """Adam at step ``t``; :class:`HyperparameterError` when a value is out of its range.

    ``lr``, ``eps`` and ``weight_decay`` are finite in FP32 and not negative; ``beta1`` and
    ``beta2`` are in [0, 1); ``t`` is from 1 to :data:`LAST_STEP`.
    """

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    t: int

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay"):
            value = _number(name, getattr(self, name))
            with np.errstate(over="ignore"):
                finite = math.isfinite(np.float32(value))
            if not finite or value < 0:
                raise HyperparameterError(
                    f"{name} is {value!r}: expected a number from 0 on that FP32 can hold",
                    name=name,
                    value=value,
                )
            object.__setattr__(self, name, value)
        for name in ("beta1", "beta2"):
            value = _number(name, getattr(self, name))
            if not 0 <= value < 1:
                raise HyperparameterError(
                    f"{name} is {value!r}: expected a number from 0 to below 1",
                    name=name,
                    value=value,
                )
            object.__setattr__(self, name, value)
        try:
            step = index(self.t)
        except TypeError:
            step = None
        if step is None or not 1 <= step <= LAST_STEP:
            raise HyperparameterError(
                f"t is {self.t!r}: expected an integer from 1 to {LAST_STEP}; steps count from 1",
                name="t",
                value=self.t,
            )
        object.__setattr__(self, "t", step)

    def constants(self) -> dict[str, np.float32]:
        """The kernel's nine constants, by the names of their registers.

        Each is computed in double precision and rounded once, to the nearest FP32, ties to even;
        all are finite. The bias corrections enter as ``inv_bc = 1 / (1 - beta^t)``, which the
        kernel multiplies by.
        """
        exact = {
            "lam": self.weight_decay,
            "beta1": self.beta1,
            "one_minus_beta1": 1 - self.beta1,
            "beta2": self.beta2,
            "one_minus_beta2": 1 - self.beta2,
            "inv_bc1": 1 / (1 - self.beta1**self.t),
            "inv_bc2": 1 / (1 - self.beta2**self.t),
            "eps": self.eps,
            "lr": self.lr,
        }
        with np.errstate(under="ignore"):
            return {name: np.float32(value) for name, value in exact.items()}
