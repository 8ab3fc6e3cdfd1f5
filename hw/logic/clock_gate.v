// Clock gate without glitches: `gated` is `clk` in the cycles that begin with `enable` high.
//
// CELL is what it is made of: "model" (a latch and an AND gate, for simulation), "bufgce" (AMD
// UltraScale and UltraScale+) or "dcca" (Lattice ECP5).
module nearmem_clock_gate #(
    parameter CELL = "model"
) (
    input  wire clk,
    input  wire enable,
    output wire gated
);
  generate
    // verilator lint_off WIDTHEXPAND
    case (CELL)
      // verilator lint_on WIDTHEXPAND
      "model": begin : model
        // Blocking and continuous assignments only: see hw/logic/clock_gate.py.
        // verilator lint_off LATCH
        // verilator lint_off PROCASSINIT
        reg open = 1'b0;
        always @(clk or enable) if (!clk) open = enable;
        // verilator lint_on PROCASSINIT
        // verilator lint_on LATCH
        assign gated = clk & open;
      end
      "bufgce": begin : bufgce
        BUFGCE gate (.I(clk), .CE(enable), .O(gated));
      end
      "dcca": begin : dcca
        DCCA gate (.CLKI(clk), .CE(enable), .CLKO(gated));
      end
      default: begin : unknown
        // There is no such module: Verilog before 2009 has no other error of elaboration.
        nearmem_clock_gate_CELL_must_be_model_bufgce_or_dcca gate ();
      end
    endcase
  endgenerate
endmodule
