// Clock gate without glitches: `gated` is `clk` in the cycles that begin with `enable` high.
//
// On an AMD FPGA define XILINX; elsewhere replace it by the library's integrated clock gate.
module nearmem_clock_gate (
    input  wire clk,
    input  wire enable,
    output wire gated
);
`ifdef XILINX
  BUFGCE gate (.I(clk), .CE(enable), .O(gated));
`else
  // Blocking and continuous assignments only: see hw/clock_gate.py.
  reg open = 1'b0;
  // verilator lint_off LATCH
  always @(clk or enable) if (!clk) open = enable;
  // verilator lint_on LATCH
  assign gated = clk & open;
`endif
endmodule
