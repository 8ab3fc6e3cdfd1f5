"""Hyper-parameters of update rules: allowed ranges, and the kernel constants computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np

from hw.rules.update_rule import UpdateRule

from ..device.errors import InvalidArgumentError

__all__ = ["LAST_STEP", "checked_hyperparameters", "rule_constants"]

LAST_STEP = 2**53
"""Largest step of an optimizer; a double cannot represent every larger integer."""

_ANY = (-math.inf, math.inf, "a number that FP32 can hold")
_NOT_NEGATIVE = (0.0, math.inf, "a number from 0 on that FP32 can hold")
_RANGES = {
    **dict.fromkeys(("lr", "eps", "weight_decay", "lr_decay", "momentum", "alpha"), _NOT_NEGATIVE),
    **dict.fromkeys(("beta1", "beta2"), (0.0, 1.0, "a number from 0 to below 1")),
}
"""Minimum, exclusive maximum and description of a hyper-parameter's range; default :data:`_ANY`."""


def checked_hyperparameters(rule: UpdateRule, given: Mapping[str, Any]) -> dict[str, float]:
    """Return a number for each hyper-parameter of ``rule``, in its range.

    The ranges are PyTorch's. ``lr``, ``eps``, ``weight_decay``, ``lr_decay``, ``momentum`` and
    ``alpha`` are not negative; ``beta1`` and ``beta2`` are in [0, 1). The step ``t`` is an integer
    from 1 to :data:`LAST_STEP`. Any other is a number. All are finite in FP32.

    Raises :class:`InvalidArgumentError` for a value out of range, or a missing or unknown name.
    """
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"hyperparameters is {given!r}: expected a mapping from names to numbers",
            rule=rule.name,
        )
    names = rule.hyperparameters
    takes = f"{rule.name} takes {', '.join(names) or 'none'}"
    for name in (*names, *given):
        if name not in given or name not in names:
            wrong = "is missing" if name not in given else "was given"
            raise InvalidArgumentError(
                f"hyper-parameter {name!r} {wrong}: {takes}", name=name, rule=rule.name
            )
    return {name: (_step if name == "t" else _number)(name, given[name]) for name in names}


def rule_constants(rule: UpdateRule, hyperparameters: Mapping[str, float]) -> dict[str, np.float32]:
    """Return the kernel's constants for checked hyper-parameters, by register name.

    Each is computed in double precision and rounded once to the nearest FP32, ties to even. Raises
    :class:`InvalidArgumentError` if a rounded constant is not finite.
    """
    try:
        exact = rule.constant_values(hyperparameters)
    except ArithmeticError as error:
        raise InvalidArgumentError(
            f"the constants of {rule.name} cannot be computed from {dict(hyperparameters)}: "
            f"{error}; choose other hyper-parameters",
            **hyperparameters,
        ) from None
    with np.errstate(over="ignore", under="ignore"):
        constants = {name: np.float32(value) for name, value in exact.items()}
    for name, value in constants.items():
        if not math.isfinite(value):
            raise InvalidArgumentError(
                f"{rule.constants[name]} is {exact[name]!r} with {dict(hyperparameters)}: expected "
                f"a value that FP32 can hold, for the constant {name} of {rule.name}",
                **hyperparameters,
            )
    return constants


def _number(name: str, value: object) -> float:
    """Return ``value`` as a number in the range of the hyper-parameter ``name``."""
    least, below, expected = _RANGES.get(name, _ANY)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise _error(name, value, "a number") from None
    with np.errstate(over="ignore"):
        finite = math.isfinite(np.float32(number))
    if not (finite and least <= number < below):
        raise _error(name, number, expected)
    return number


def _step(name: str, value: Any) -> int:
    try:
        step = index(value)
    except TypeError:
        step = 0
    if not 1 <= step <= LAST_STEP:
        raise _error(name, value, f"an integer from 1 to {LAST_STEP}; steps count from 1")
    return step


def _error(name: str, value: object, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} is {value!r}: expected {expected}", name=name, value=value)
