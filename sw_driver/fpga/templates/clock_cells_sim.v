// Models of the FPGAs' clock gates, for simulators and linters. The enable counts while the clock is
// low. There are only blocking and continuous assignments, so the gated clock is not an event later.
// Each package has these models; a project needs them once.
`ifndef NEARMEM_CLOCK_CELLS
`define NEARMEM_CLOCK_CELLS
module BUFGCE (input wire I, input wire CE, output wire O);
  // verilator lint_off LATCH
  // verilator lint_off PROCASSINIT
  reg open = 1'b0;
  always @(I or CE) if (!I) open = CE;
  // verilator lint_on PROCASSINIT
  // verilator lint_on LATCH
  assign O = I & open;
endmodule

module DCCA (input wire CLKI, input wire CE, output wire CLKO);
  BUFGCE gate (.I(CLKI), .CE(CE), .O(CLKO));
endmodule
`endif
