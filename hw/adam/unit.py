"""The Adam functional unit (AXDIMM paper, section 3.3)."""

from __future__ import annotations

import gc
import warnings
from functools import cache

from amaranth.hdl import UnusedElaboratable

from hw.adam.rule import CONSTANTS, INPUTS, OUTPUTS, adam
from hw.dataflow.unit import FlowUnit
from hw.float.format import FP32, FloatFormat

__all__ = ["AdamUnit", "adam_latency"]


class AdamUnit(FlowUnit):
    """One Adam step for one parameter a cycle; see :mod:`hw.adam.rule` for the arithmetic.

    Parameters
    ----------
    format:
        Format of all numbers.

    Members
    -------
    ``i_valid``, ``i_p``, ``i_g``, ``i_m``, ``i_v``: In
        Parameter, gradient and moments.
    ``lam``, ``beta1``, ``one_minus_beta1``, ``beta2``, ``one_minus_beta2``, ``inv_bc1``, \
``inv_bc2``, ``eps``, ``lr``: In
        Constants of the step; must hold still while parameters are in flight.
    ``o_valid``, ``o_p``, ``o_m``, ``o_v``: Out
        Parameter and moments after the step, :attr:`latency` cycles later.

    There is no stall. The clock may stop at any time; the reset clears the valid bits of what is
    in flight and nothing else.
    """

    def __init__(self, *, format: FloatFormat = FP32) -> None:
        super().__init__(adam, inputs=INPUTS, constants=CONSTANTS, outputs=OUTPUTS, format=format)

    @property
    def module_name(self) -> str:
        """Name of the Verilog module: ``adam_unit``, or with the format if it is not FP32."""
        return "adam_unit" if self.format == FP32 else f"adam_unit_{self.format.name}"


@cache
def adam_latency() -> int:
    """Cycles from the operands to the results of an FP32 :class:`AdamUnit`."""
    with warnings.catch_warnings():
        # It is made to be asked, not to be built, and complains of that when it is collected.
        warnings.simplefilter("ignore", UnusedElaboratable)
        latency = AdamUnit().latency
        gc.collect()
    return latency
