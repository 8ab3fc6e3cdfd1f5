"""Reference models of the update rules in FP32, bit for bit, each a file of this folder.

They define the arithmetic: every operation is rounded to nearest even on its own, in the order in
which it is written. Subnormal numbers are kept, or flushed on request. Every NaN that an operation
makes or passes on is 0x7FC00000. A value that meets no operation keeps its bits. Constants are
computed in double and rounded once.
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
"""Bits of every NaN in a result."""

Floats = NDArray[Any]
"""Arrays of FP32. The type is loose, as the type checker takes products of FP32 for doubles."""
Values = SimpleNamespace
"""Constants of a rule, as attributes."""

_LINE = 16
"""Values of a line, which are added first; also the accumulators of a sum."""


class UnknownRuleError(ValueError):
    """Error for a rule without a valid file in this folder."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Reference model of a rule.

    Parameters
    ----------
    inputs, outputs, sums
        Names of the tensors that are read, of those that are written, and of the sums.
    exact_constants
        Function that returns the constants, in double, from hyper-parameters.
    formula
        Function that returns outputs and sums by name, from the inputs by name and the constants
        as ``c``.
    subnormals
        ``kept``, or ``flushed``: an operation takes subnormal operands as zeros of the same sign,
        and gives a zero of its sign if the exact result is nearer to zero than 2^-126.

    Examples
    --------
    >>> import numpy as np
    >>> descent = Reference(
    ...     inputs=("p", "g"), outputs=("p",), exact_constants=lambda lr: {"lr": lr},
    ...     formula=lambda p, g, c: {"p": p - c.lr * g},
    ... )
    >>> ones = np.ones(2, np.float32)
    >>> descent.step({"p": ones, "g": ones}, descent.constants(lr=0.25))["p"]
    array([0.75, 0.75], dtype=float32)
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    exact_constants: Callable[..., dict[str, float]] = dict
    formula: Callable[..., dict[str, Any]]
    subnormals: str = "kept"

    def constants(self, **hyperparameters: Any) -> dict[str, np.float32]:
        """Return the constants of a step, each rounded once.

        Raises ``ValueError`` for a beta outside [0, 1), a step ``t`` less than 1 (the first is 1)
        and a constant that is not finite in FP32. Raises :class:`UnknownRuleError` for
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
        """Return outputs as new arrays and sums as numbers, by name; ``tensors`` do not change.

        ``tensors`` has all inputs. For a rule without inputs it has an output, which gives the
        shape. Raises :class:`UnknownRuleError` for tensors that are not the rule's and for a
        formula without the rule's results. Raises ``TypeError`` for a type other than float32,
        since numpy would then compute in more than FP32, and ``ValueError`` for different shapes.
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
        self._expect("the results of the formula", results, (*self.outputs, *self.sums))
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
        """Return outputs, and each parameter's share of sums, by name, without checks."""
        operands = {name: operand(tensors[name], self.subnormals) for name in self.inputs}
        known = {name: operand(value, self.subnormals) for name, value in constants.items()}
        with np.errstate(all="ignore"):
            results = self.formula(**operands, c=Values(**known))
        given = {id(value) for value in (*operands.values(), *known.values())}
        return {
            name: np.array(result) if id(result) in given else canonical(result)
            for name, result in results.items()
        }

    def _expect(self, content: str, given: Mapping[str, Any], names: tuple[str, ...]) -> None:
        if not given.keys() >= set(names):
            raise UnknownRuleError(
                f"{_place(self.formula)}: {content}: {', '.join(given)}: expected "
                f"{', '.join(names)}"
            )


def _place(function: Callable[..., Any]) -> str:
    """Return file and line of a rule's function."""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


@cache
def reference(name: str, subnormals: str = "kept") -> Reference:
    """Return the rule called ``name``; raise :class:`UnknownRuleError` if there is none."""
    known = [module.name for module in iter_modules(__path__)]
    if name not in known:
        raise UnknownRuleError(
            f"no reference model of the rule {name!r}: write golden/rules/{name}.py; there are "
            f"{', '.join(known)}"
        )
    module = import_module(f"{__name__}.{name}")
    model = getattr(module, "REFERENCE", None)
    if not isinstance(model, Reference):
        raise UnknownRuleError(f"{module.__file__}: REFERENCE is {model!r}: expected a Reference")
    return replace(model, subnormals=subnormals)


def moment_constants(*, beta1: float, beta2: float, t: float) -> dict[str, float]:
    """Return the constants of the two moments of Adam and its relatives, in double."""
    return {
        "beta1": beta1,
        "one_minus_beta1": 1 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1 - beta2,
        "inv_bc1": 1 / (1 - beta1**t),
        "inv_bc2": 1 / (1 - beta2**t),
    }


def operand(value: Any, subnormals: str) -> Any:
    """Return ``value``, of FP32, as a type with operations that keep or flush subnormal numbers."""
    return value if subnormals == "kept" else np.asarray(value).view(_Flushed)


def canonical(array: Any) -> Floats:
    """Return ``array``, of FP32, with its NaNs made canonical in place.

    A NaN stays one through every operation, so doing this to results is enough.
    """
    array = np.asarray(array)
    array.view(np.uint32)[np.isnan(array)] = CANONICAL_NAN
    return array


def ordered_sum(values: Floats, subnormals: str = "kept") -> np.float32:
    """Return the sum in the normative order.

    Lines of 16 values, filled up with +0, are each added as a tree of neighbours. The sum of a line
    goes to accumulator (line mod 16), in the order of the lines. The accumulators start at +0; at
    the end they are added as a tree of neighbours.
    """
    kind = np.ndarray if subnormals == "kept" else _Flushed
    filled = np.append(values, np.zeros(-values.size % _LINE, np.float32))
    lines = np.asarray(_neighbours(filled.view(kind)))
    # A line of -0 changes no accumulator.
    rows = np.append(lines, np.full(-lines.size % _LINE, -0.0, np.float32)).reshape(-1, _LINE)
    accumulators = sum(rows.view(kind), start=np.zeros(_LINE, np.float32))
    return canonical(_neighbours(accumulators))[0]


class _Flushed(np.ndarray):
    """FP32 values with operations that flush subnormal numbers."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__" or keywords:
            return NotImplemented
        operands = [_flush(np.asarray(value)) for value in inputs]
        result = np.asarray(ufunc(*operands))
        if result.dtype != np.float32:
            return result
        # In double a sum or product below 2^-126 is exact. No quotient of FP32 numbers is close
        # enough below it to be rounded to it.
        tiny = np.abs(ufunc(*(value.astype(np.float64) for value in operands))) < 2.0**-126
        return np.where(tiny, np.copysign(np.float32(0), result), result).view(_Flushed)


def _flush(values: NDArray[Any]) -> NDArray[Any]:
    """Return ``values`` with subnormal numbers as zeros."""
    if values.dtype != np.float32:
        return values
    return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(0, values), values)


def _neighbours(values: Floats) -> Floats:
    """Return the sums of each 16 values, added as a tree of neighbours."""
    for _ in range(_LINE.bit_length() - 1):
        values = values[::2] + values[1::2]
    return values


def _checked(name: str, value: Any) -> float:
    """Return a hyper-parameter in double."""
    try:
        value = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}, expected a number") from None
    if name.startswith("beta") and not 0 <= value < 1:
        raise ValueError(f"{name} is {value}, expected 0 <= {name} < 1; choose a decay rate")
    if name == "t" and not value >= 1:
        raise ValueError(f"t is {value}, expected 1 or more; count steps from 1")
    return value
