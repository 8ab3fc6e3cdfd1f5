"""Update rule as data: the source of kernel, registers, driver and models."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any
from zlib import crc32

from hw.dataflow.flow import Flow, Formula, build_flow

__all__ = ["UpdateRule"]


_WITH_STATES = {
    "inputs": ("p", "g", "m", "v"),
    "outputs": ("p", "m", "v"),
    "sums": (),
    "states": {"m": "signed", "v": "unsigned"},
}
"""Tensors that a rule with states must have."""


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """Computation of a kernel for each parameter, and the tensors that it reads and writes.

    Raises ``ValueError`` for names that are wrong, missing or taken, for a tensor in a format that
    does not fit, and for a constant that is no expression. Raises
    :class:`~hw.dataflow.flow.FlowError` if the formula is not a complete pipeline.

    Parameters
    ----------
    name
        Identifier, used by registers, Verilog modules and the driver's calls.
    title
        Name of the rule in words.
    tensors
        Content of each tensor in words, by the tensor's name.
    inputs, outputs
        Tensors to load, and tensors to store, in the order of a round. An output with the name of
        an input may be the same tensor in place; in the driver it always is.
    sums
        Results that are not stored but added up over the run; see
        :class:`~hw.kernel.sums.LaneSums` for the order.
    constants
        FP32 values that stay constant during a run, each as a Python expression of
        hyper-parameters, such as ``"1 - beta1"``, without calls. It is computed in double and
        rounded once.
    formula
        Function that takes each input and constant as a keyword and returns outputs and sums by
        name. Each operation is rounded on its own; see :mod:`hw.dataflow.flow`.
    states
        Inputs that a run may store as codes of eight bits, each with ``"signed"`` or
        ``"unsigned"``. With them gradients ``g`` and parameters ``p`` may be in BF16; see
        :mod:`hw.narrow.formats`. Kernels support the tensors of Adam for it: a rule with states
        loads ``p, g, m, v``, stores ``p, m, v`` and has no sums; ``m`` is signed, ``v`` unsigned.

    Examples
    --------
    >>> rule = UpdateRule(
    ...     name="descent", title="Descent", tensors={"p": "parameters", "g": "gradients"},
    ...     inputs=("p", "g"), outputs=("p",), constants={"lr": "lr"},
    ...     formula=lambda p, g, lr: {"p": p - lr * g},
    ... )
    >>> rule.bytes_per_parameter, rule.latency, rule.hyperparameters
    (12, 12, ('lr',))
    """

    name: str
    title: str
    tensors: Mapping[str, str]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)
    formula: Formula
    states: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (self.name, *self.tensors, *self.sums, *self.constants):
            if not (name.isidentifier() and name.isascii()):
                raise ValueError(
                    f"{name!r} of rule {self.name!r} is not an identifier of ASCII; it becomes the "
                    f"name of registers and ports"
                )
        used = {*self.inputs, *self.outputs}
        if not used:
            raise ValueError(f"rule {self.name!r} has neither inputs nor outputs; give it a tensor")
        if used != set(self.tensors):
            raise ValueError(
                f"rule {self.name!r} loads and stores {sorted(used)} but describes "
                f"{sorted(self.tensors)}; describe each tensor that is used, and no other"
            )
        for kind, names in (
            ("input", (*self.inputs, *self.constants)),
            ("output", (*self.outputs, *self.sums)),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(
                    f"rule {self.name!r} has {twice[0]!r} twice among its {kind}s; give each its "
                    f"own name"
                )
        for which, expected in _WITH_STATES.items() if self.states else ():
            if (given := getattr(self, which)) != expected:
                raise ValueError(
                    f"rule {self.name!r} has states and the {which} {given}: rules with states "
                    f"have {expected}; leave states out"
                )
        object.__setattr__(self, "_expressions", self._compiled())
        object.__setattr__(self, "_latency", self.flow().latency)

    def _compiled(self) -> dict[str, CodeType]:
        codes = {}
        for name, expression in self.constants.items():
            try:
                tree = ast.parse(expression, mode="eval")
                if not all(map(_is_arithmetic, ast.walk(tree))):
                    raise SyntaxError("it has more than numbers, names and arithmetic")
                codes[name] = compile(tree, f"constant {name}", "eval")
            except SyntaxError as error:
                raise ValueError(
                    f"rule {self.name!r}: constant {name!r} is {expression!r}, expected a Python "
                    f"expression of hyper-parameters: {error.msg}"
                ) from None
        return codes

    def __hash__(self) -> int:
        return hash((self.name, self.formula))

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Names of the hyper-parameters in the constants, in the order of their first use."""
        codes: dict[str, CodeType] = self.__dict__["_expressions"]
        return tuple(dict.fromkeys(name for code in codes.values() for name in code.co_names))

    def constant_values(self, hyperparameters: Mapping[str, Any]) -> dict[str, float]:
        """Return the constants in double, from a value for each of :attr:`hyperparameters`."""
        codes: dict[str, CodeType] = self.__dict__["_expressions"]
        return {
            name: float(eval(code, {"__builtins__": {}}, dict(hyperparameters)))
            for name, code in codes.items()
        }

    def flow(self) -> Flow:
        """Return a new pipeline that computes the rule."""
        return build_flow(
            self.formula,
            inputs=self.inputs,
            constants=tuple(self.constants),
            outputs=(*self.outputs, *self.sums),
        )

    @property
    def latency(self) -> int:
        """Fabric cycles from the operands of a functional unit to its results."""
        return self.__dict__["_latency"]

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes loaded and stored for each parameter, all in FP32."""
        return 4 * len(self.inputs + self.outputs)

    @property
    def signature(self) -> str:
        """Names of everything that the driver sets or reads, in one line."""
        inputs, constants, outputs, sums = map(
            ",".join, (self.inputs, self.constants, self.outputs, self.sums)
        )
        return f"{self.name}({inputs};{constants})->{outputs};{sums}"

    @property
    def identifier(self) -> int:
        """CRC-32 of the :attr:`signature`, with which the driver finds the rule in a device."""
        return crc32(self.signature.encode())


_ARITHMETIC = (
    *(ast.Expression, ast.Name, ast.Load, ast.IfExp, ast.BinOp, ast.UnaryOp, ast.BoolOp),
    *(ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    return isinstance(node, _ARITHMETIC)
