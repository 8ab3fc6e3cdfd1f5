"""Common part of the floating-point operators: ports, latency, the valid bit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.float.format import FP32, FloatFormat
from hw.float.parts import Bits
from hw.logic.checks import is_int

__all__ = ["FloatOperator"]


class FloatOperator(wiring.Component):
    """An IEEE 754 operation, rounded to nearest even, one result a cycle.

    Subnormal numbers are taken and returned exactly, or flushed to zero if the format has none.
    Every NaN result is the canonical one (:attr:`FloatFormat.canonical_nan`). There is no stall: a
    result always leaves :attr:`latency` cycles after its operands. Depths do not depend on
    subnormals.

    Parameters
    ----------
    format
        Format of operands and result.
    stages
        Depth of the pipeline: one of :meth:`depths`, by default :meth:`default_depth`. A deeper
        pipeline is larger and allows a faster clock; the results are the same.

    Members
    -------
    i_valid, i_a, i_b : In(1), In(format.width), In(format.width)
        Operands (``i_b`` only if the operation has two).
    o_valid, o_y : Out(1), Out(format.width)
        Result; ``o_y`` is meaningful only with ``o_valid``. The reset clears ``o_valid`` for
        all operands in flight and leaves the data as it is.
    """

    operation: ClassVar[str]
    """Short name of the operation, used in :attr:`module_name`."""
    operands: ClassVar[tuple[str, ...]] = ("a", "b")
    """Names of the operands, in order."""
    cuts: ClassVar[Mapping[int, tuple[str, ...]]] = {1: ()}
    """Depths of the pipeline, if they are the same for all formats, each with its cuts: the places
    of :meth:`datapath` that are registers. There is one fewer than the depth, because the output
    register follows."""
    usual_depth: ClassVar[int | None] = None
    """Default depth of the pipeline, or None for the greatest."""

    def __init__(self, *, format: FloatFormat = FP32, stages: int | None = None) -> None:
        if not isinstance(format, FloatFormat):
            raise ValueError(
                f"format is {format!r}, expected a FloatFormat; pass FP32 or "
                f"FloatFormat(exponent_bits=..., fraction_bits=...)"
            )
        depths = self.depths(format)
        self.latency = self.default_depth(format) if stages is None else stages
        """Cycles from operands to result."""
        if not is_int(self.latency) or self.latency not in depths:
            raise ValueError(
                f"stages of {self.operation} is {stages!r}, expected one of "
                f"{', '.join(map(str, depths))}; leave it out for the default"
            )
        self._cuts = depths[self.latency]
        self.format = format
        """Format of operands and result."""
        super().__init__(
            {
                "i_valid": In(1),
                **{f"i_{operand}": In(format.width) for operand in self.operands},
                "o_valid": Out(1),
                "o_y": Out(format.width),
            }
        )

    @classmethod
    def depths(cls, format: FloatFormat) -> Mapping[int, tuple[str, ...]]:
        """Return the pipeline's depths, each with its cuts; see :attr:`cuts`."""
        return cls.cuts

    @classmethod
    def default_depth(cls, format: FloatFormat) -> int:
        """Return the pipeline's default depth."""
        return cls.usual_depth or max(cls.depths(format))

    def cycles(self, *cuts: str) -> int:
        """Return the total number of registers at the places ``cuts`` of the datapath."""
        return sum(cut in self._cuts for cut in cuts)

    @property
    def module_name(self) -> str:
        """Name of the Verilog module, for example ``fp32_add``; unique to the configuration."""
        name = f"{self.format.name}_{self.operation}"
        default = self.latency == self.default_depth(self.format)
        return name if default else f"{name}_{self.latency}_stages"

    @abstractmethod
    def datapath(self, m: Module) -> Bits:
        """Add the arithmetic to ``m`` and return the value of the result.

        The value is ready ``latency - 1`` cycles after the operands; the output register follows.
        """

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        y = self.datapath(m)
        o_y = Signal(self.format.width, reset_less=True)
        m.d.sync += o_y.eq(y)
        m.d.comb += self.o_y.eq(o_y)

        # Single bits instead of a word, so that tools remove them if ``o_valid`` is not used.
        valid = self.i_valid
        for cycle in range(self.latency):
            later = Signal(name=f"valid_{cycle + 1}")
            m.d.sync += later.eq(valid)
            valid = later
        m.d.comb += self.o_valid.eq(valid)
        return m
