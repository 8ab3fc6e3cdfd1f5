// Models of the clock buffers that hw/clock_gate.v names: the enable counts while the clock is low.
// Blocking and continuous assignments only, as in every clock gate: see hw/clock_gate.py.
module BUFGCE (input wire I, input wire CE, output wire O);
  reg open = 1'b0;
  // verilator lint_off LATCH
  always @(I or CE) if (!I) open = CE;
  // verilator lint_on LATCH
  assign O = I & open;
endmodule

module DCCA (input wire CLKI, input wire CE, output wire CLKO);
  reg open = 1'b0;
  // verilator lint_off LATCH
  always @(CLKI or CE) if (!CLKI) open = CE;
  // verilator lint_on LATCH
  assign CLKO = CLKI & open;
endmodule
