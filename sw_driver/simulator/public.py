"""Registers of a Verilog design that a harness may change."""

from __future__ import annotations

import re

__all__ = ["public_registers"]

_MODULE = re.compile(r"^module (\w+)(.*?)^endmodule", re.MULTILINE | re.DOTALL)
_INITIAL = re.compile(r"^  initial begin.*?^  end", re.MULTILINE | re.DOTALL)
_REG = re.compile(r"\breg\s+(?:signed\s+)?(?:\[[^\]]*\]\s*)?(\w+)")
_NOT_OURS = ("dram_device", "nearmem_clock_gate")
"""Modules that stand for what is outside of the design, or for a cell of the vendor's."""


def public_registers(verilog: str) -> str:
    r"""Return Verilator settings that make all registers and memories of a design public.

    In generated Verilog a ``reg`` without a blocking assignment is a register or a memory. Any
    other is a wire, which has no state.

    Examples
    --------
    >>> public_registers('''module m (input clk, output reg  [3:0] o);
    ...   reg wire_only;
    ...   always @* wire_only = o[0];
    ...   always @(posedge clk) o <= o + 1;
    ... endmodule''')
    'public_flat_rw -module "m" -var "o"\n'
    """
    lines = []
    for module, text in _MODULE.findall(verilog):
        wires = set(re.findall(r"\b(\w+)(?:\[[^\]=]*\])* = ", _INITIAL.sub("", text)))
        names = [name for name in dict.fromkeys(_REG.findall(text)) if name not in wires]
        if module not in _NOT_OURS:
            lines += [f'public_flat_rw -module "{module}" -var "{name}"\n' for name in names]
    return "".join(lines)
