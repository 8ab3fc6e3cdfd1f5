"""How the cells that Yosys reports are counted."""

from __future__ import annotations

import pytest

from sw_driver.simulator.synthesis import RESOURCES, SynthesisError, count_resources, dsp_cells


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
    with pytest.raises(SynthesisError, match=f"2 cells {cell}"):
        count_resources({"LUT2": 10, cell: 2})


def test_failures_say_why() -> None:
    with pytest.raises(SynthesisError, match=r"ERROR: .*missing"):
        dsp_cells("module top;\n  missing u();\nendmodule\n", top="top")
