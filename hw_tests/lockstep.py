"""Designs that must do the same in every cycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import ClockSignal, Elaboratable, Instance, Module, Value
from amaranth.lib import wiring

from hw.verilog.writer import flat_ports

__all__ = ["Lockstep"]

_CHECK = """
module lockstep_check #(parameter WIDTH = 1, parameter MESSAGE = "") (
  input clk, input [WIDTH-1:0] first, input [WIDTH-1:0] other
);
  always @(posedge clk) if (first !== other) begin
    $display("%0s: %x and %x at %0t", MESSAGE, first, other, $time);
    $fatal;
  end
endmodule
"""


class Lockstep(wiring.Component):
    """The first of some components, beside which the others get the same inputs.

    It has the ports of the first, so that its bench works on it as it is. The first edge of the
    clock before which an output of another differs ends the simulation.
    """

    def __init__(self, components: Mapping[str, wiring.Component]) -> None:
        self._components = dict(components)
        super().__init__(next(iter(components.values())).signature)

    def elaborate(self, platform: Any) -> Elaboratable:
        m: Any = Module()
        platform.add_file("lockstep_check.v", _CHECK)
        m.submodules += list(self._components.values())
        (first_name, first), *others = self._components.items()
        wiring.connect(m, wiring.flipped(self), first)
        ports = {port: value for port, value, _ in flat_ports(self)}
        for name, other in others:
            for port, value, flow in flat_ports(other):
                value, mine = Value.cast(value), Value.cast(ports[port])
                if flow is wiring.In:
                    m.d.comb += value.eq(mine)
                    continue
                m.submodules[f"check_{name}_{port}"] = Instance(
                    "lockstep_check",
                    p_WIDTH=len(mine),
                    p_MESSAGE=f"{port} of {first_name} and {name}",
                    i_clk=ClockSignal(),
                    i_first=mine,
                    i_other=value,
                )
        return m
