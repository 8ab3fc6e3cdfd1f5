"""Designs placed and routed for real, small ones."""

from __future__ import annotations

import pytest

from hw.logic.clocking import CLOCK_GATE_CELLS
from hw.verilog.writer import Port, ports_of, to_verilog
from hw_tests.logic.clock_gate_sample import ClockGateSample
from sw_driver.fpga.placement import place
from sw_driver.fpga.synthesis import design_cost
from sw_driver.simulator.runtime import BuildError

pytestmark = pytest.mark.soak

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
    assert placed.path


def test_levels_of_what_yosys_maps() -> None:
    resources, path = design_cost(MULTIPLY, top="multiply")
    assert resources["dsp48e2"] == 1
    assert path.levels == 0


@pytest.mark.parametrize("cell", CLOCK_GATE_CELLS)
def test_a_clock_gate_is_a_wire(cell: str) -> None:
    """So that paths between the two clocks count; all registers are there."""
    text = to_verilog(ClockGateSample(), "sample", clock_gate_cell=cell)
    placed = place(text, ports_of(ClockGateSample()), top="sample", seed=1)
    assert 16 * 5 < placed.used["flip_flops"] < 16 * 12
    assert 50 < placed.clock_mhz < 1000


def test_a_design_that_does_not_fit() -> None:
    text = "module wide(input clk, output reg y); wire gone; missing m(gone); endmodule"
    with pytest.raises(BuildError, match=r"ERROR: .*missing"):
        place(text, [PORTS[0], Port(name="y", width=1, direction="output")], top="wide", seed=1)
