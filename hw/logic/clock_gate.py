"""Clock gate that stops the clock of an idle part."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["CLOCK_GATE_MODULE", "ClockGate", "stopping_clock"]

CLOCK_GATE_MODULE = "nearmem_clock_gate"
"""Name of the Verilog module (``clock_gate.v``), after the platform's prefix if it has one. A
Verilog flow may replace the module by its own."""

_SOURCE = Path(__file__).parent / "clock_gate.v"


class ClockGate(wiring.Component):
    """Passes the edges of ``sync`` at whose end of cycle ``enable`` is high.

    A cycle ends with a rising edge; ``gated`` has that edge if and only if ``enable`` was high in
    the cycle, as for a clock-enable. ``enable`` must come from registers of ``sync``, without
    inputs of the chip: it has to be stable before the clock rises.

    Data may pass between ``sync`` and the gated domain in both directions without synchronizers,
    because each rising edge of ``gated`` *is* an edge of ``sync``. On the FPGA the balanced clock
    network ensures it (BUFGCE beside the BUFG of the same clock). In simulation the order of
    Verilog events does. The gated edge follows the edge of ``clk`` within the same active region,
    since the gate has only a continuous and a blocking assignment. Registers change in the
    nonblocking region, which runs when no active event is left. So registers of both domains sample
    values from before the edge, for any number of assignments and ports in each clock's way. A
    model of a cell must therefore not use a nonblocking assignment for the clock.

    The cell depends on the target: see
    :attr:`VerilogPlatform.clock_gate_cell <hw.verilog.writer.VerilogPlatform.clock_gate_cell>`.

    Members
    -------
    enable : In(1)
        Whether the edge at the end of this cycle is passed.
    gated : Out(1)
        The gated clock; use it as the ``clk`` of a clock domain.

    Examples
    --------
    >>> from hw.verilog.writer import to_verilog
    >>> text = to_verilog(ClockGate(), "gate", clock_gate_cell="bufgce")
    >>> print(*(line.strip() for line in text.splitlines() if "BUFGCE gate" in line))
    BUFGCE gate (.I(clk), .CE(enable), .O(gated));
    """

    def __init__(self) -> None:
        super().__init__({"enable": In(1), "gated": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        module = f"{platform.prefix}{CLOCK_GATE_MODULE}"
        text = re.sub(rf"\b{CLOCK_GATE_MODULE}\b", module, _SOURCE.read_text())
        platform.add_file(_SOURCE.name, text)
        m = Module()
        gated = Signal()
        m.submodules.gate = Instance(
            module,
            p_CELL=platform.clock_gate_cell,
            i_clk=ClockSignal(),
            i_enable=self.enable,
            o_gated=gated,
        )
        m.d.comb += self.gated.eq(gated)
        return m


def stopping_clock(m: Any, clocking: str, enable: Any) -> tuple[Any, Any]:
    """Return the clock of a domain that may stop while ``enable`` is low, and its enable.

    ``clocking`` is one of :data:`~hw.logic.clocking.CLOCKINGS`. ``gated`` adds a
    :class:`ClockGate` to ``m`` as ``gate`` and returns None for the enable. Otherwise each register
    needs the enable: pass it to an ``EnableInserter`` over the domain and to its
    :class:`~hw.logic.shared.Shared`.
    """
    if clocking == "gated":
        m.submodules.gate = gate = ClockGate()
        m.d.comb += gate.enable.eq(enable)
        return gate.gated, None
    return ClockSignal(), enable
