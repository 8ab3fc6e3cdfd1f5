# amaranth: UnusedElaboratable=no
# A formula's latency is read from operators that are never elaborated.

"""The pipeline builder: formulas over floating-point values become balanced pipelines.

A rule is an ordinary function of :class:`FlowValue` arguments that returns a dictionary of them::

    def momentum(*, p, g, m, mu, lr):
        m_next = mu * m + g
        return {"p": p - lr * m_next, "m": m_next}

:class:`~hw.dataflow.unit.FlowUnit` turns it into a component. :class:`Flow` holds the values and
operators of the rule. Each value knows the stage (cycles after the inputs) at which it is ready,
and an operator delays the operand that is ready first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Signal

from hw.float.add import FloatAdd
from hw.float.div import FloatDiv
from hw.float.format import FP32, FloatFormat
from hw.float.maximum import FloatMaximum
from hw.float.mul import FloatMul
from hw.float.operator import FloatOperator
from hw.float.sign import FloatSign
from hw.float.sqrt import FloatSqrt

__all__ = [
    "Flow",
    "FlowError",
    "FlowValue",
    "Formula",
    "Placed",
    "build_flow",
    "maximum",
    "sign",
    "sqrt",
]


class FlowError(ValueError):
    """Error in a formula that is not a pipeline; the message names the value and the reason."""


class FlowValue:
    """A number on its way through a :class:`Flow`.

    ``+ - * /``, unary minus and :func:`sqrt` build operators; operands that are ready at
    different stages are balanced. Values of other flows, Python numbers and operations on two
    constants are refused with :class:`FlowError`.
    """

    def __init__(self, flow: Flow, name: str, stage: int | None) -> None:
        self.flow = flow
        """Pipeline of the value."""
        self.name = name
        """Name of the value in messages: the name of an input or the formula."""
        self.stage = stage
        """Cycles from the inputs until the value is ready; ``None`` for a constant: always."""
        self.taps: dict[int | None, Any] = {}
        """Signals that carry the value, by stage; empty if nothing takes it."""
        self.negative_of: FlowValue | None = None
        """Value that this one negates, or None."""
        self._negated: FlowValue | None = None

    def tap(self, stage: int | None) -> Any:
        """Return the signal that carries the value at ``stage``, when it is ready."""
        if self.stage is None:
            stage = None
        if stage not in self.taps:
            self.taps[stage] = Signal(self.flow.format.width, name=f"value_{stage}")
        return self.taps[stage]

    def __add__(self, other: FlowValue) -> FlowValue:
        return self.flow.operate(FloatAdd, "+", self, other)

    def __sub__(self, other: FlowValue) -> FlowValue:
        self.flow.check(other, f"{self.name} - ...")
        return self.flow.operate(FloatAdd, "+", self, -other)

    def __mul__(self, other: FlowValue) -> FlowValue:
        return self.flow.operate(FloatMul, "*", self, other)

    def __truediv__(self, other: FlowValue) -> FlowValue:
        return self.flow.operate(FloatDiv, "/", self, other)

    def __neg__(self) -> FlowValue:
        if self._negated is None:
            self._negated = FlowValue(self.flow, f"(-{self.name})", self.stage)
            self._negated.negative_of = self
            self.flow.values.append(self._negated)
        return self._negated

    def __radd__(self, other: object) -> FlowValue:
        raise self.flow.foreign(other, f"... + {self.name}")

    def __rsub__(self, other: object) -> FlowValue:
        raise self.flow.foreign(other, f"... - {self.name}")

    def __rmul__(self, other: object) -> FlowValue:
        raise self.flow.foreign(other, f"... * {self.name}")

    def __rtruediv__(self, other: object) -> FlowValue:
        raise self.flow.foreign(other, f"... / {self.name}")

    def _compare(self, other: object) -> bool:
        raise FlowError(
            f"{self.name} is compared with {other!r}: a value of the pipeline has no order that "
            f"Python could ask for; use maximum() or sign()"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _compare

    def __bool__(self) -> bool:
        raise FlowError(
            f"{self.name} has no truth value: a value of the pipeline is only known when it "
            f"runs; a rule computes the same for every parameter"
        )

    def __repr__(self) -> str:
        when = "constant" if self.stage is None else f"stage {self.stage}"
        return f"<FlowValue {self.name}, {when}>"


def sqrt(value: FlowValue) -> FlowValue:
    """Return the square root of ``value``."""
    return _of_flow("sqrt", value).operate(FloatSqrt, "sqrt", value)


def sign(value: FlowValue) -> FlowValue:
    """Return 1 or -1 by the sign of ``value``; a zero or a NaN stays as it is."""
    return _of_flow("sign", value).operate(FloatSign, "sign", value)


def maximum(value: FlowValue, other: FlowValue) -> FlowValue:
    """Return the larger value: NaN if one is, +0 of two zeros (IEEE 754-2019, 9.6 ``maximum``)."""
    return _of_flow("maximum", value).operate(FloatMaximum, "maximum", value, other)


def _of_flow(function: str, value: object) -> Flow:
    if not isinstance(value, FlowValue):
        raise FlowError(
            f"{function}() takes a value of a flow, got {value!r}; compute what is known before a "
            f"run in the driver and hand it in as a constant"
        )
    return value.flow


@dataclass(frozen=True, kw_only=True)
class Placed:
    """An operator in the pipeline."""

    operator: FloatOperator
    stage: int
    """Stage at which the operator takes its operands."""
    operands: tuple[Any, ...]
    """Signals of the operands at ``stage``."""
    result: FlowValue


@dataclass(kw_only=True)
class Flow:
    """A pipeline under construction.

    Inputs arrive together at stage 0. Constants hold still for as long as values are in flight,
    so they need no delay. All outputs leave at the same stage, the latency.

    Examples
    --------
    >>> from hw.dataflow.flow import build_flow
    >>> def formula(a, b):
    ...     return {"y": (a + b) * b}
    >>> pipeline = build_flow(formula, inputs=("a", "b"), constants=(), outputs=("y",))
    >>> pipeline.latency, [placed.stage for placed in pipeline.placed]
    (12, [0, 6])
    """

    format: FloatFormat = FP32
    depths: Mapping[str, int] = field(default_factory=dict)
    """Stages of operators that differ from their default, by
    :attr:`~hw.float.operator.FloatOperator.operation`."""
    inputs: dict[str, FlowValue] = field(default_factory=dict)
    constants: dict[str, FlowValue] = field(default_factory=dict)
    outputs: dict[str, FlowValue] = field(default_factory=dict)
    values: list[FlowValue] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    _operators: dict[type[FloatOperator], FloatOperator] = field(default_factory=dict)

    def input(self, name: str) -> FlowValue:
        """Return a new input, ready at stage 0."""
        return self._declare(self.inputs, name, 0)

    def constant(self, name: str) -> FlowValue:
        """Return a new per-run constant, ready at every stage."""
        return self._declare(self.constants, name, None)

    def output(self, name: str, value: FlowValue) -> None:
        """Make ``value`` a result called ``name``."""
        self.check(value, f"output {name}")
        if name in self.outputs:
            raise FlowError(f"output {name!r} is set twice; give each output one value")
        self.outputs[name] = value

    @property
    def latency(self) -> int:
        """Cycles from the inputs to the outputs: the stage of the slowest output."""
        return max((value.stage or 0 for value in self.outputs.values()), default=0)

    def operate(self, kind: type[FloatOperator], symbol: str, *operands: FlowValue) -> FlowValue:
        """Return the result of the operator of class ``kind`` on ``operands``.

        Each operand is delayed until the last of them is ready.
        """
        names = [getattr(operand, "name", repr(operand)) for operand in operands]
        function = symbol.isidentifier()
        name = f"{symbol}({', '.join(names)})" if function else f"({f' {symbol} '.join(names)})"
        for operand in operands:
            self.check(operand, name)
        operator = self._operators.get(kind)
        if operator is None:
            stages = self.depths.get(kind.operation)
            operator = self._operators[kind] = kind(format=self.format, stages=stages)
        ready = [operand.stage for operand in operands if operand.stage is not None]
        if not ready:
            raise FlowError(
                f"{name} has only constants as operands; compute it in the driver, where it is "
                f"rounded once, and hand it in as a constant"
            )
        stage = max(ready)
        result = FlowValue(self, name, stage + operator.latency)
        self.values.append(result)
        self.placed.append(
            Placed(
                operator=operator,
                stage=stage,
                operands=tuple(operand.tap(stage) for operand in operands),
                result=result,
            )
        )
        return result

    def check(self, value: object, where: str) -> None:
        """Raise :class:`FlowError` unless ``value`` belongs to this pipeline."""
        if not isinstance(value, FlowValue):
            raise self.foreign(value, where)
        if value.flow is not self:
            raise FlowError(
                f"{where}: {value.name} belongs to another pipeline; values of two pipelines are "
                f"not in step, so bring it in as an input of this one"
            )

    def foreign(self, value: object, where: str) -> FlowError:
        """Return the error for a value that does not belong to a pipeline."""
        return FlowError(
            f"{where}: {value!r} is not a value of the pipeline; declare a constant for it and let "
            f"the driver set it"
        )

    def finish(self) -> None:
        """Check that everything is connected; call it when all outputs are named.

        Raises :class:`FlowError` without an output, and for an input, constant or computed value
        that is not used.
        """
        if not self.outputs:
            raise FlowError("the pipeline has no output; name one with output()")
        latency = self.latency
        for value in self.outputs.values():
            value.tap(latency)
        for value in reversed(self.values):
            # A negated value is derived at each stage from the value that it negates.
            if value.negative_of is not None:
                for stage in list(value.taps):
                    value.negative_of.tap(stage)
        for kind, members in (("input", self.inputs), ("constant", self.constants)):
            for name, value in members.items():
                if not value.taps:
                    raise FlowError(
                        f"{kind} {name!r} is not connected; use it in the formula or remove it"
                    )
        for value in self.values:
            if not value.taps:
                raise FlowError(
                    f"{value.name} is computed but not used; name it as an output or remove it"
                )

    def _declare(self, members: dict[str, FlowValue], name: str, stage: int | None) -> FlowValue:
        if not name.isidentifier():
            raise FlowError(f"name {name!r} is not an identifier; it becomes the name of a port")
        if name in self.inputs or name in self.constants:
            raise FlowError(f"name {name!r} is taken; give each input and constant its own")
        members[name] = value = FlowValue(self, name, stage)
        return value


Formula = Callable[..., Mapping[str, FlowValue]]
"""Function that takes each input and constant as a keyword and returns the outputs by name."""


def build_flow(
    formula: Formula,
    *,
    inputs: Sequence[str],
    constants: Sequence[str],
    outputs: Sequence[str],
    format: FloatFormat = FP32,
    depths: Mapping[str, int] | None = None,
) -> Flow:
    """Return the complete pipeline that computes ``formula``.

    Raises :class:`FlowError` if the pipeline is not complete or its results are not ``outputs``.
    """
    flow = Flow(format=format, depths=depths or {})
    values = {name: flow.input(name) for name in inputs}
    values |= {name: flow.constant(name) for name in constants}
    results = formula(**values)
    if set(results) != set(outputs):
        raise FlowError(
            f"the rule sets the outputs {sorted(results)}, expected {sorted(outputs)}; return a "
            f"value for each output and nothing else"
        )
    for name in outputs:
        flow.output(name, results[name])
    flow.finish()
    return flow
