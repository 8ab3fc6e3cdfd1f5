"""The Adam functional unit (AXDIMM paper, section 3.3)."""

from __future__ import annotations

from hw.dataflow.unit import FlowUnit
from hw.float.format import FP32, FloatFormat
from hw.rules.adam import CONSTANTS, INPUTS, OUTPUTS, adam

__all__ = ["AdamUnit"]


class AdamUnit(FlowUnit):
    """One Adam step for one parameter a cycle; see :mod:`hw.rules.adam` for the arithmetic.

    The members are those of a :class:`~hw.dataflow.unit.UnitSignature` with the names of
    :mod:`hw.rules.adam`. There is no stall. The clock may stop at any time; the reset clears the
    valid bits of what is in flight and nothing else.

    Parameters
    ----------
    format
        Format of all numbers.
    """

    def __init__(self, *, format: FloatFormat = FP32) -> None:
        super().__init__(adam, inputs=INPUTS, constants=CONSTANTS, outputs=OUTPUTS, format=format)
