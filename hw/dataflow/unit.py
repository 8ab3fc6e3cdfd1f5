"""Pipelines as components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dataflow.flow import FlowValue, Formula, build_flow
from hw.float.format import FP32, FloatFormat
from hw.logic.delay import shared_delay
from hw.logic.shared import Shared

__all__ = ["FlowUnit", "UnitSignature"]


class UnitSignature(wiring.Signature):
    """A functional unit: takes a set of operands a cycle, and has no stall.

    A component with this signature also has ``latency``, the cycles from operands to results, and
    ``module_name``, the name of its Verilog module.

    Parameters
    ----------
    inputs, constants, outputs
        Names of operands, constants and results.
    width
        Bits of each operand, constant and result.

    Members
    -------
    i_valid, i_NAME of each input : In(1), In(width)
        Operands.
    NAME of each constant : In(width)
        Must hold still from the first operand of a run to its last result.
    o_valid, o_NAME of each output : Out(1), Out(width)
        Results, ``latency`` cycles after their operands; meaningful only with ``o_valid``.
    """

    def __init__(
        self,
        *,
        inputs: Sequence[str],
        constants: Sequence[str] = (),
        outputs: Sequence[str],
        width: int = FP32.width,
    ) -> None:
        super().__init__(
            {
                "i_valid": In(1),
                **{f"i_{name}": In(width) for name in inputs},
                **{name: In(width) for name in constants},
                "o_valid": Out(1),
                **{f"o_{name}": Out(width) for name in outputs},
            }
        )


class FlowUnit(wiring.Component):
    """The pipeline that computes ``rule``: one set of operands a cycle, no stall.

    The reset clears ``o_valid`` for everything in flight. The clock may stop at any time. Raises
    :class:`~hw.dataflow.flow.FlowError` if the formula is not a complete pipeline or its results
    are not ``outputs``. The members are those of a :class:`UnitSignature`.

    Parameters
    ----------
    rule
        The formula.
    inputs, constants, outputs
        Names of the arguments and results of ``rule``, in the order of the ports.
    format
        Format of all numbers.
    depths
        Stages of operators that differ from their default, by operation.
    name
        Name of the rule in the name of the Verilog module; the function's name by default.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> def mean(a, b, half):
    ...     return {"y": (a + b) * half}
    >>> unit = FlowUnit(mean, inputs=("a", "b"), constants=("half",), outputs=("y",))
    >>> one_and_three = {"i_a": 0x3F80_0000, "i_b": 0x4040_0000, "half": 0x3F00_0000}
    >>> unit.latency, hex(outputs(unit, unit.latency, **one_and_three)["o_y"])  # 2.0
    (12, '0x40000000')
    """

    def __init__(
        self,
        rule: Formula,
        *,
        inputs: Sequence[str],
        constants: Sequence[str] = (),
        outputs: Sequence[str],
        format: FloatFormat = FP32,
        depths: Mapping[str, int] | None = None,
        name: str | None = None,
    ) -> None:
        self.flow = build_flow(
            rule,
            inputs=inputs,
            constants=constants,
            outputs=outputs,
            format=format,
            depths=depths,
        )
        """Pipeline of the unit."""
        self._name = f"{name or rule.__name__}_unit"
        super().__init__(
            UnitSignature(inputs=inputs, constants=constants, outputs=outputs, width=format.width)
        )

    @property
    def module_name(self) -> str:
        """Name of the Verilog module: the rule, a format other than FP32, and given depths."""
        name = self._name if self.format == FP32 else f"{self._name}_{self.format.name}"
        return "_".join([name, *(f"{operation}{n}" for operation, n in self.flow.depths.items())])

    @property
    def format(self) -> FloatFormat:
        """Format of all numbers."""
        return self.flow.format

    @property
    def latency(self) -> int:
        """Cycles from operands to results."""
        return self.flow.latency

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        flow = self.flow

        valid = Signal(self.latency)
        valid_at = Cat(self.i_valid, valid)
        m.d.sync += valid.eq(valid_at)
        m.d.comb += self.o_valid.eq(valid_at[-1])

        for name, value in flow.inputs.items():
            self._delays(m, value, getattr(self, f"i_{name}"), name)
        for name, value in flow.constants.items():
            self._delays(m, value, getattr(self, name), name)
        for value in flow.values:
            # Negation flips the sign bit and follows the delays of the value that it negates.
            if value.negative_of is not None:
                for stage, tap in value.taps.items():
                    source = value.negative_of.taps[stage]
                    m.d.comb += tap.eq(Cat(source[:-1], ~source[-1]))

        count: dict[str, int] = {}
        for placed in flow.placed:
            operation = placed.operator.operation
            index = count[operation] = count.get(operation, -1) + 1
            name = f"{operation}_{index}"
            shared: Any = Shared(placed.operator, name=placed.operator.module_name)
            m.submodules[name] = shared
            m.d.comb += shared.i_valid.eq(valid_at[placed.stage])
            for port, operand in zip(placed.operator.operands, placed.operands, strict=True):
                m.d.comb += getattr(shared, f"i_{port}").eq(operand)
            self._delays(m, placed.result, shared.o_y, name)

        for name, value in flow.outputs.items():
            stage = None if value.stage is None else self.latency
            m.d.comb += getattr(self, f"o_{name}").eq(value.taps[stage])
        return m

    def _delays(self, m: Module, value: FlowValue, source: Any, name: str) -> None:
        """Drive the taps of ``value`` from ``source``, each from the tap before it."""
        before = value.stage
        for stage in sorted(value.taps, key=lambda stage: stage or 0):
            if stage == before:
                m.d.comb += value.taps[stage].eq(source)
                continue
            assert stage is not None
            assert before is not None
            delay = shared_delay(width=self.format.width, cycles=stage - before)
            m.submodules[f"{name}_to_{stage}"] = delay
            m.d.comb += [delay.i.eq(source), value.taps[stage].eq(delay.o)]
            source, before = delay.o, stage
