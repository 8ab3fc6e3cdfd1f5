// Self test of @@name, for simulation and for an FPGA. It applies operands with idle cycles in
// between, and compares each result and its cycle with the expected ones. A model that shares nothing
// with the design has computed these.
module @@{name}_selftest (
    input  wire clk,
    input  wire rst,
    output reg  done,
    output wire pass
);
  localparam [@@{count_bits}-1:0] VECTORS = @@vectors;
  localparam LATENCY = @@latency;
  localparam COUNT_BITS = @@count_bits;

  reg [@@{operands_high}:0] operands [0:VECTORS-1];
  reg [@@{results_high}:0] results [0:VECTORS-1];
  initial begin
    $readmemh("@@{name}_operands.hex", operands);
    $readmemh("@@{name}_results.hex", results);
  end

  // The next operand and result, read ahead as block memory requires.
  reg [@@{operands_high}:0] operand;
  reg [@@{results_high}:0] expected;
  reg [COUNT_BITS-1:0] issued, taken;
  reg ready;
  reg [15:0] random;
  wire i_valid = ready && issued != VECTORS && random[1:0] != 0;
  wire o_valid;
  wire [@@{results_high}:0] found;
  wire [COUNT_BITS-1:0] next_issued = issued + {{COUNT_BITS-1{1'b0}}, i_valid};
  wire [COUNT_BITS-1:0] next_taken = taken + {{COUNT_BITS-1{1'b0}}, o_valid};
  always @(posedge clk) begin
    operand <= operands[next_issued[COUNT_BITS-2:0]];
    expected <= results[next_taken[COUNT_BITS-2:0]];
  end

  reg failed;
  // i_valid delayed by LATENCY cycles, possibly 0.
  reg [LATENCY:0] in_flight;
  wire [LATENCY:0] delayed;
  assign delayed[0] = i_valid;
  generate
    if (LATENCY > 0) begin : stages
      assign delayed[LATENCY:1] = in_flight[LATENCY-1:0];
    end
  endgenerate
  wire in_time = o_valid == delayed[LATENCY];
  wire same = !o_valid || found == expected;
  assign pass = done && !failed;
  always @(posedge clk)
    if (rst) begin
      issued <= 0;
      taken <= 0;
      ready <= 0;
      random <= 16'h1;
      in_flight <= 0;
      failed <= 0;
      done <= 0;
    end else begin
      issued <= next_issued;
      taken <= next_taken;
      ready <= 1;
      random <= {random[14:0], random[15] ^ random[13] ^ random[12] ^ random[10]};
      in_flight <= delayed;
      if (!done && !(in_time && same)) failed <= 1;
      if (next_issued == VECTORS && in_flight == 0) begin
        done <= 1;
        if (taken != VECTORS) failed <= 1;
      end
`ifndef SYNTHESIS
      if (!done && !in_time) $display("result %0d: o_valid is %b, expected %b", taken, o_valid, !o_valid);
      if (!done && in_time && !same)
        $display("result %0d: got %h, expected %h", taken, found, expected);
`endif
    end

  @@name dut (
@@connections
  );
endmodule
