"""Designs placed and routed for real, small ones."""

from __future__ import annotations

import pytest

from hw.verilog import Port
from sw_driver.simulator.placement import place
from sw_driver.simulator.synthesis import SynthesisError, design_cost

MULTIPLY = """
module multiply(input clk, input [11:0] a, input [11:0] b, output reg [23:0] y);
  reg [11:0] a_1, b_1;
  always @(posedge clk) begin
    a_1 <= a;
    b_1 <= b;
    y <= a_1 * b_1;
  end
endmodule
"""
PORTS = [
    Port(name="clk", width=1, direction="input"),
    Port(name="a", width=12, direction="input"),
    Port(name="b", width=12, direction="input"),
    Port(name="y", width=24, direction="output"),
]


def test_registers_are_those_of_the_multiplier() -> None:
    placed = place(MULTIPLY, PORTS, top="multiply", seed=1)
    # Nothing is left beside the block but the source of a constant, and what the wrapper adds is
    # not counted.
    assert placed.used == {"lut4": 1, "flip_flops": 0, "mult18": 1, "ram18": 0}
    assert placed.available["mult18"] == 156
    assert placed.clock_mhz > 250  # 150 with the registers in the fabric
    assert placed.critical_path


def test_levels_of_what_yosys_maps() -> None:
    resources, path = design_cost(MULTIPLY, top="multiply")
    assert resources["dsp48e2"] == 1
    assert path.levels == 0


def test_a_design_that_does_not_fit() -> None:
    text = "module wide(input clk, output reg y); wire gone; missing m(gone); endmodule"
    with pytest.raises(SynthesisError, match=r"ERROR: .*missing"):
        place(text, [PORTS[0], Port(name="y", width=1, direction="output")], top="wide", seed=1)
