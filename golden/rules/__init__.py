"""Reference models of the update rules in FP32, bit for bit, each a file of this folder.

The normative arithmetic: every operation is rounded to nearest even on its own, in the order in
which it is written; subnormal numbers are kept, or flushed where that is asked for; every NaN that
an operation makes or hands on is 0x7FC00000. A value that meets no operation keeps its bits.
Constants are computed in double and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CANONICAL_NAN",
    "Floats",
    "Reference",
    "UnknownRuleError",
    "Values",
    "canonical",
    "moment_constants",
    "operand",
    "ordered_sum",
    "reference",
]

CANONICAL_NAN = 0x7FC00000
"""The bits of every NaN in a result."""

Floats = NDArray[Any]
"""Arrays of FP32; the type checker takes products of those for doubles."""
Values = SimpleNamespace
"""The constants of a rule, as attributes."""

_LINE = 16
"""Values of a line, which are added up first, and accumulators of a sum."""


class UnknownRuleError(ValueError):
    """No file of this folder is of the rule, or the one that has its name is not."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A rule: what it reads and makes, and how.

    Parameters
    ----------
    inputs, outputs, sums
        Names of the tensors that are read, of those that are made, and of the sums.
    exact_constants
        Gives the constants, in double, from hyper-parameters.
    formula
        Gives outputs and sums from the inputs, each by its name, and the constants as ``c``.
    subnormals
        ``kept``, or ``flushed``: an operation takes subnormal operands as zeros of the same sign,
        and gives a zero of its sign where the exact result is nearer to zero than 2^-126.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    exact_constants: Callable[..., dict[str, float]] = dict
    formula: Callable[..., dict[str, Any]]
    subnormals: str = "kept"

    def constants(self, **hyperparameters: Any) -> dict[str, np.float32]:
        """The constants of a step, each rounded once.

        Raises ``ValueError`` for a beta that is not in [0, 1), a step ``t`` (the first is 1) that
        is less than 1, and a constant that is not finite in FP32; :class:`UnknownRuleError` for
        hyper-parameters that are missing or not the rule's.
        """
        checked = {name: _checked(name, value) for name, value in hyperparameters.items()}
        try:
            exact = self.exact_constants(**checked)
        except ZeroDivisionError:
            raise ValueError(f"with {checked} a constant would be infinite") from None
        except TypeError as error:
            raise UnknownRuleError(f"{_place(self.exact_constants)}: {error}") from error
        with np.errstate(all="ignore"):
            rounded = {name: np.float32(value) for name, value in exact.items()}
        for name, value in rounded.items():
            if not math.isfinite(value):
                raise ValueError(
                    f"{name} is {exact[name]}, expected a number that is finite in FP32; choose a "
                    f"smaller one"
                )
        return rounded

    def step(
        self, tensors: Mapping[str, Floats], constants: Mapping[str, np.float32]
    ) -> dict[str, Any]:
        """Outputs as new arrays and sums as numbers, by name; ``tensors`` stay as they are.

        ``tensors`` has all inputs, and of a rule without inputs an output, of which only the shape
        matters. Raises :class:`UnknownRuleError` for tensors that are not the rule's and a formula
        that does not give its results, ``TypeError`` for another type than float32, since numpy
        would then compute in more than FP32, and ``ValueError`` for tensors of different shapes.
        """
        for name, value in (*tensors.items(), *constants.items()):
            if value.dtype != np.float32:
                raise TypeError(f"{name} is of type {value.dtype}, expected float32; convert it")
        shape, *others = {tensor.shape for tensor in tensors.values()}
        if others:
            shapes = {name: tensor.shape for name, tensor in tensors.items()}
            raise ValueError(f"the tensors have the shapes {shapes}, expected one and the same")
        self._expect("the tensors of a step", tensors, self.inputs)
        results = self.shares(tensors, constants)
        self._expect("what the formula gives", results, (*self.outputs, *self.sums))
        outputs = {name: results[name] for name in self.outputs}
        for name, result in outputs.items():
            if result.shape != shape:  # a constant
                outputs[name] = np.full(shape, result, np.float32)
        with np.errstate(all="ignore"):
            sums = {name: ordered_sum(results[name], self.subnormals) for name in self.sums}
        return outputs | sums

    def shares(
        self, tensors: Mapping[str, Floats], constants: Mapping[str, np.float32]
    ) -> dict[str, Floats]:
        """Outputs, and what each parameter adds to sums; else as :meth:`step`, but unchecked."""
        operands = {name: operand(tensors[name], self.subnormals) for name in self.inputs}
        known = {name: operand(value, self.subnormals) for name, value in constants.items()}
        with np.errstate(all="ignore"):
            results = self.formula(**operands, c=Values(**known))
        given = {id(value) for value in (*operands.values(), *known.values())}
        return {
            name: np.array(result) if id(result) in given else canonical(result)
            for name, result in results.items()
        }

    def _expect(self, what: str, given: Mapping[str, Any], names: tuple[str, ...]) -> None:
        if not given.keys() >= set(names):
            raise UnknownRuleError(
                f"{_place(self.formula)}: {what}: {', '.join(given)}: expected {', '.join(names)}"
            )


def _place(function: Callable[..., Any]) -> str:
    """File and line of a rule's function."""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


@cache
def reference(name: str, subnormals: str = "kept") -> Reference:
    """The rule called ``name``; raises :class:`UnknownRuleError` if there is none."""
    known = [module.name for module in iter_modules(__path__)]
    if name not in known:
        raise UnknownRuleError(
            f"no reference model of the rule {name!r}: write golden/rules/{name}.py; there are "
            f"{', '.join(known)}"
        )
    module = import_module(f"{__name__}.{name}")
    found = getattr(module, "REFERENCE", None)
    if not isinstance(found, Reference):
        raise UnknownRuleError(f"{module.__file__}: REFERENCE is {found!r}: expected a Reference")
    return replace(found, subnormals=subnormals)


def moment_constants(*, beta1: float, beta2: float, t: float) -> dict[str, float]:
    """The constants of the two moments of Adam and its relatives, in double."""
    return {
        "beta1": beta1,
        "one_minus_beta1": 1 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1 - beta2,
        "inv_bc1": 1 / (1 - beta1**t),
        "inv_bc2": 1 / (1 - beta2**t),
    }


def operand(value: Any, subnormals: str) -> Any:
    """``value``, of FP32, such that operations with it keep or flush subnormal numbers."""
    return value if subnormals == "kept" else np.asarray(value).view(_Flushed)


def canonical(array: Any) -> Floats:
    """``array``, of FP32, with its NaNs made canonical in place; a NaN stays one through every
    operation, so that it suffices to do this to results."""
    array = np.asarray(array)
    array.view(np.uint32)[np.isnan(array)] = CANONICAL_NAN
    return array


def ordered_sum(values: Floats, subnormals: str = "kept") -> np.float32:
    """The sum in the normative order.

    Lines of 16 values, filled up with +0, are each added as a tree of neighbours. The sum of a line
    goes to accumulator (line mod 16), in the order of the lines; the accumulators start at +0, and
    at the end they are added as a tree of neighbours.
    """
    kind = np.ndarray if subnormals == "kept" else _Flushed
    filled = np.append(values, np.zeros(-values.size % _LINE, np.float32))
    lines = np.asarray(_neighbours(filled.view(kind)))
    # A line of -0 changes no accumulator.
    rows = np.append(lines, np.full(-lines.size % _LINE, -0.0, np.float32)).reshape(-1, _LINE)
    accumulators = sum(rows.view(kind), start=np.zeros(_LINE, np.float32))
    return canonical(_neighbours(accumulators))[0]


class _Flushed(np.ndarray):
    """FP32 values, subnormal ones among them flushed by every operation."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__" or keywords:
            return NotImplemented
        operands = [_flush(np.asarray(each)) for each in inputs]
        result = np.asarray(ufunc(*operands))
        if result.dtype != np.float32:
            return result
        # In double a sum or product below 2^-126 is exact, and no quotient of FP32 numbers is so
        # close below it that it would be rounded to it.
        tiny = np.abs(ufunc(*(each.astype(np.float64) for each in operands))) < 2.0**-126
        return np.where(tiny, np.copysign(np.float32(0), result), result).view(_Flushed)


def _flush(values: NDArray[Any]) -> NDArray[Any]:
    """``values`` with subnormal numbers as zeros."""
    if values.dtype != np.float32:
        return values
    return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(0, values), values)


def _neighbours(values: Floats) -> Floats:
    """The sums of each 16 values."""
    for _ in range(_LINE.bit_length() - 1):
        values = values[::2] + values[1::2]
    return values


def _checked(name: str, value: Any) -> float:
    """A hyper-parameter in double."""
    try:
        value = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}, expected a number") from None
    if name.startswith("beta") and not 0 <= value < 1:
        raise ValueError(f"{name} is {value}, expected 0 <= {name} < 1; choose a decay rate")
    if name == "t" and not value >= 1:
        raise ValueError(f"t is {value}, expected 1 or more; count steps from 1")
    return value
