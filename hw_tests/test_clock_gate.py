"""The clock gate under Verilator and, where it is installed, Icarus Verilog."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hw.verilog import to_verilog
from hw_tests.bench import run_bench
from hw_tests.clock_gate_sample import ClockGateSample

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


def test_verilator() -> None:
    run_bench(ClockGateSample(), top="clock_gate_sample", module="hw_tests.clock_gate_bench")


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus Verilog is not installed")
def test_icarus(tmp_path: Path) -> None:
    (tmp_path / "sample.v").write_text(to_verilog(ClockGateSample(), "clock_gate_sample"))
    (tmp_path / "top.v").write_text(_ICARUS_TOP)
    sources = [str(tmp_path / name) for name in ("top.v", "sample.v")]
    program = str(tmp_path / "sample.vvp")
    subprocess.run(["iverilog", "-g2012", "-o", program, *sources], check=True)
    output = subprocess.run(
        ["vvp", "-n", program], check=True, capture_output=True, text=True
    ).stdout
    words = output.split()
    assert words[2:] == ["wrong", "0"], output
    assert int(words[1]) > 1500
