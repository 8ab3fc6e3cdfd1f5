"""How the cells that Yosys reports are counted."""

from __future__ import annotations

import pytest

from sw_driver.fpga import synthesis
from sw_driver.fpga.synthesis import (
    RESOURCES,
    count_resources,
    design_resources,
    dsp_cells,
)
from sw_driver.simulator.runtime import BuildError


def test_memories_of_lookup_tables_are_lookup_tables() -> None:
    cells = {
        "LUT2": 10, "LUT6": 5, "RAM32M16": 2, "RAM128X1S": 3, "SRL16E": 4,
        "FDRE": 7, "FDSE": 1, "DSP48E2": 36, "RAMB18E2": 3, "RAMB36E2": 2,
        "CARRY4": 9, "INV": 8, "adam_kernel.loader": 1,
    }  # fmt: skip
    counts = count_resources(cells)
    assert tuple(counts) == RESOURCES
    assert counts == {"luts": 15 + 16 + 6 + 4, "flip_flops": 8, "dsp48e2": 36, "bram18": 7}


@pytest.mark.parametrize("cell", ["URAM288", "RAM256X1D", "SRLX"])
def test_memories_that_are_not_known_are_not_left_out(cell: str) -> None:
    with pytest.raises(BuildError, match=f"2 cells {cell}"):
        count_resources({"LUT2": 10, cell: 2})


PARTS = """
module leaf (a, b, o);
  input a, b; output o;
  assign o = a & ~b;
endmodule
(* keep_hierarchy *)
module middle (a, b, clk, o);
  input a, b, clk; output reg o;
  wire t, u;
  leaf x (.a(a), .b(b), .o(t));
  leaf y (.a(t), .b(a), .o(u));
  always @(posedge clk) o <= u ^ b;
endmodule
module top (a, b, clk, o);
  input a, b, clk; output o;
  wire t, u;
  middle x (.a(a), .b(b), .clk(clk), .o(t));
  middle y (.a(t), .b(b), .clk(clk), .o(u));
  leaf z (.a(u), .b(t), .o(o));
endmodule
"""


@pytest.mark.soak
def test_modules_that_are_mapped_apart_count_as_often_as_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = {"luts": 5 + 2, "flip_flops": 2, "dsp48e2": 0, "bram18": 0}
    assert design_resources(PARTS, top="top") == counted
    monkeypatch.setattr(synthesis, "_PART_CHARACTERS", 1)
    assert design_resources(PARTS, top="top") == counted


@pytest.mark.soak
def test_failures_say_why() -> None:
    with pytest.raises(BuildError, match=r"ERROR: .*missing"):
        dsp_cells("module top;\n  missing u();\nendmodule\n", top="top")
