# amaranth: UnusedElaboratable=no
# Operators are also made to ask a formula for its latency.

"""The pipeline builder: formulas over floating-point values become balanced pipelines.

A rule is an ordinary function of :class:`FlowValue` arguments that returns a dictionary of them::

    def momentum(*, p, g, m, mu, lr):
        m_next = mu * m + g
        return {"p": p - lr * m_next, "m": m_next}

:class:`~hw.dataflow.unit.FlowUnit` turns it into a component. :class:`Flow` holds what the rule
builds: each value knows the stage (cycles after the inputs) at which it is ready, and operators
delay the operand that is ready first.
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
    """A formula that is not a pipeline; the message says which value is wrong and why."""


class FlowValue:
    """A number on its way through a :class:`Flow`.

    ``+ - * /``, unary minus and :func:`sqrt` build operators; operands that are ready at
    different stages are balanced. Values of other flows, Python numbers and operations on two
    constants are refused with :class:`FlowError`.
    """

    def __init__(self, flow: Flow, name: str, stage: int | None) -> None:
        self._flow = flow
        self._name = name
        self._stage = stage
        self._taps: dict[int | None, Any] = {}
        self._used = False
        self._negated: FlowValue | None = None
        self._source: FlowValue | None = None

    @property
    def flow(self) -> Flow:
        """The pipeline that the value belongs to."""
        return self._flow

    @property
    def name(self) -> str:
        """What messages call it: the name of an input or the formula."""
        return self._name

    @property
    def stage(self) -> int | None:
        """Cycles after the inputs when it is ready; ``None`` for a constant, ready always."""
        return self._stage

    @property
    def taps(self) -> dict[int | None, Any]:
        """The signals that carry the value, by stage."""
        return self._taps

    @property
    def used(self) -> bool:
        """Whether an operator or an output takes it."""
        return self._used

    @property
    def negative_of(self) -> FlowValue | None:
        """The value of which this is the negative, if it is one."""
        return self._source

    def at(self, stage: int) -> FlowValue:
        """The same value delayed to ``stage``.

        Raises :class:`FlowError` if it is not ready by then. A constant stays itself.
        """
        if self._stage is None:
            return self
        if stage < self._stage:
            raise FlowError(
                f"{self._name} is ready at stage {self._stage}, expected stage {stage} or earlier; "
                f"nothing makes a value earlier, so use it at stage {self._stage} or later"
            )
        if stage == self._stage:
            return self
        return _Delayed(self, stage)

    def tap(self, stage: int | None) -> Any:
        """The signal that carries the value at ``stage``."""
        self._used = True
        if self._stage is None:
            stage = None
        if stage not in self._taps:
            self._taps[stage] = Signal(self._flow.format.width, name=f"value_{stage}")
        return self._taps[stage]

    def __add__(self, other: FlowValue) -> FlowValue:
        return self._flow.operate(FloatAdd, "+", self, other)

    def __sub__(self, other: FlowValue) -> FlowValue:
        self._flow.check(other, f"{self._name} - ...")
        return self._flow.operate(FloatAdd, "+", self, -other)

    def __mul__(self, other: FlowValue) -> FlowValue:
        return self._flow.operate(FloatMul, "*", self, other)

    def __truediv__(self, other: FlowValue) -> FlowValue:
        return self._flow.operate(FloatDiv, "/", self, other)

    def __neg__(self) -> FlowValue:
        if self._negated is None:
            self._negated = FlowValue(self._flow, f"(-{self._name})", self._stage)
            self._negated._source = self
            self._flow.register(self._negated)
        return self._negated

    def __radd__(self, other: object) -> FlowValue:
        raise self._flow.foreign(other, f"... + {self._name}")

    def __rsub__(self, other: object) -> FlowValue:
        raise self._flow.foreign(other, f"... - {self._name}")

    def __rmul__(self, other: object) -> FlowValue:
        raise self._flow.foreign(other, f"... * {self._name}")

    def __rtruediv__(self, other: object) -> FlowValue:
        raise self._flow.foreign(other, f"... / {self._name}")

    def _compare(self, other: object) -> bool:
        raise FlowError(
            f"{self._name} is compared with {other!r}: a value of the pipeline has no order that "
            f"Python could ask for; use maximum() or sign()"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _compare

    def __bool__(self) -> bool:
        raise FlowError(
            f"{self._name} is asked for its truth: a value of the pipeline is only known when it "
            f"runs; a rule computes the same for every parameter"
        )

    def __repr__(self) -> str:
        when = "constant" if self._stage is None else f"stage {self._stage}"
        return f"<FlowValue {self._name}, {when}>"


class _Delayed(FlowValue):
    """A value from a later stage on; its signals are those of the value itself."""

    def __init__(self, origin: FlowValue, stage: int) -> None:
        super().__init__(origin.flow, origin.name, stage)
        self._origin = origin

    @property
    def taps(self) -> dict[int | None, Any]:
        return self._origin.taps

    @property
    def used(self) -> bool:
        return self._origin.used

    def tap(self, stage: int | None) -> Any:
        return self._origin.tap(stage)


def sqrt(value: FlowValue) -> FlowValue:
    """The square root of ``value``."""
    return _of_flow("sqrt", value).operate(FloatSqrt, "sqrt", value)


def sign(value: FlowValue) -> FlowValue:
    """1 or -1 by the sign of ``value``; a zero or a NaN stays what it is."""
    return _of_flow("sign", value).operate(FloatSign, "sign", value)


def maximum(value: FlowValue, other: FlowValue) -> FlowValue:
    """The larger of two values, NaN if one is; of zeros +0 (IEEE 754-2019, 9.6 ``maximum``)."""
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
    """When it takes its operands."""
    operands: tuple[Any, ...]
    """Signals, at ``stage``."""
    result: FlowValue


@dataclass(kw_only=True)
class Flow:
    """A pipeline under construction.

    Inputs arrive together at stage 0. Constants hold still for as long as values are in flight,
    so they need no delay. All outputs leave at the same stage, the latency.
    """

    format: FloatFormat = FP32
    depths: Mapping[str, int] = field(default_factory=dict)
    """Stages of operators, by :attr:`~hw.float.operator.FloatOperator.operation`; the others have
    their default."""
    inputs: dict[str, FlowValue] = field(default_factory=dict)
    constants: dict[str, FlowValue] = field(default_factory=dict)
    outputs: dict[str, FlowValue] = field(default_factory=dict)
    values: list[FlowValue] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    _operators: dict[type[FloatOperator], FloatOperator] = field(default_factory=dict)

    def input(self, name: str) -> FlowValue:
        """A new input, ready at stage 0."""
        return self._declare(self.inputs, name, 0)

    def constant(self, name: str) -> FlowValue:
        """A new per-run constant, ready at every stage."""
        return self._declare(self.constants, name, None)

    def output(self, name: str, value: FlowValue) -> None:
        """Names ``value`` as a result."""
        self.check(value, f"output {name}")
        if name in self.outputs:
            raise FlowError(f"output {name!r} is set twice; give each output one value")
        self.outputs[name] = value

    @property
    def latency(self) -> int:
        """Cycles from the inputs to the outputs: the stage of the slowest output."""
        return max((value.stage or 0 for value in self.outputs.values()), default=0)

    def apply(self, operator: FloatOperator, *operands: FlowValue, name: str) -> FlowValue:
        """The result of ``operator``, without balancing its operands.

        The arithmetic of :class:`FlowValue` balances; this is for operators beyond it. Raises
        :class:`FlowError` unless the operands are ready at the same stage (:meth:`balance` them).
        """
        for operand in operands:
            self.check(operand, name)
        if operator.format != self.format:
            raise FlowError(
                f"{name}: the operator computes in {operator.format.name}, expected "
                f"{self.format.name}; make it with the format of the flow"
            )
        if len(operands) != len(operator.operands):
            raise FlowError(
                f"{name}: {operator.operation} got {len(operands)} operands, expected "
                f"{len(operator.operands)}; pass one value for each port"
            )
        stages = {operand.stage for operand in operands} - {None}
        if not stages:
            raise FlowError(
                f"{name} has only constants as operands; compute it in the driver, where it is "
                f"rounded once, and hand it in as a constant"
            )
        if len(stages) > 1:
            ready = ", ".join(f"{operand.name} at stage {operand.stage}" for operand in operands)
            raise FlowError(
                f"{name} has unbalanced operands ({ready}); delay the earlier ones with balance()"
            )
        stage = next(one for one in stages if one is not None)
        result = FlowValue(self, name, stage + operator.latency)
        self.register(result)
        self.placed.append(
            Placed(
                operator=operator,
                stage=stage,
                operands=tuple(operand.tap(stage) for operand in operands),
                result=result,
            )
        )
        return result

    def balance(self, *values: FlowValue) -> tuple[FlowValue, ...]:
        """``values`` delayed to the stage at which the last of them is ready."""
        stage = max(value.stage or 0 for value in values)
        return tuple(value.at(stage) for value in values)

    def operate(self, kind: type[FloatOperator], symbol: str, *operands: FlowValue) -> FlowValue:
        """The result of the flow's own operator of class ``kind`` on balanced ``operands``."""
        names = [getattr(operand, "name", repr(operand)) for operand in operands]
        function = symbol.isidentifier()
        name = f"{symbol}({', '.join(names)})" if function else f"({f' {symbol} '.join(names)})"
        for operand in operands:
            self.check(operand, name)
        operator = self._operators.get(kind)
        if operator is None:
            stages = self.depths.get(kind.operation)
            operator = self._operators[kind] = kind(format=self.format, stages=stages)
        return self.apply(operator, *self.balance(*operands), name=name)

    def check(self, value: object, where: str) -> None:
        """Raises :class:`FlowError` unless ``value`` belongs to this pipeline."""
        if not isinstance(value, FlowValue):
            raise self.foreign(value, where)
        if value.flow is not self:
            raise FlowError(
                f"{where}: {value.name} belongs to another pipeline; values of two pipelines are "
                f"not in step, so bring it in as an input of this one"
            )

    def foreign(self, value: object, where: str) -> FlowError:
        """The error for something that is not a value of a pipeline."""
        return FlowError(
            f"{where}: {value!r} is not a value of the pipeline; declare a constant for it and let "
            f"the driver set it"
        )

    def register(self, value: FlowValue) -> None:
        """Remembers ``value``, so that :meth:`finish` finds it if it leads nowhere."""
        self.values.append(value)

    def finish(self) -> None:
        """Checks that everything is connected; call it when all outputs are named.

        Raises :class:`FlowError` if there is no output, or an input, a constant or a computed value
        is used nowhere.
        """
        if not self.outputs:
            raise FlowError("the pipeline has no output; name one with output()")
        latency = self.latency
        for value in self.outputs.values():
            value.at(latency).tap(latency)
        for value in reversed(self.values):
            # A negative needs the value it is made of at each of its own stages.
            if value.negative_of is not None:
                for stage in list(value.taps):
                    value.negative_of.tap(stage)
        for kind, members in (("input", self.inputs), ("constant", self.constants)):
            for name, value in members.items():
                if not value.used:
                    raise FlowError(
                        f"{kind} {name!r} is not connected; use it in the formula or remove it"
                    )
        for value in self.values:
            if not value.used:
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
"""Takes each input and constant as a keyword, returns the outputs by name."""


def build_flow(
    formula: Formula,
    *,
    inputs: Sequence[str],
    constants: Sequence[str],
    outputs: Sequence[str],
    format: FloatFormat = FP32,
    depths: Mapping[str, int] | None = None,
) -> Flow:
    """The pipeline that computes ``formula``, complete.

    Raises :class:`FlowError` if it is not a complete pipeline or its results are not ``outputs``.
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
