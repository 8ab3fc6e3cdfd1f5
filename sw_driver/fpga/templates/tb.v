// Runs the self test of @@name in a simulator and prints PASS or FAIL. Plain Verilog: no Python.
`timescale 1ns / 1ps
module @@{name}_tb;
  reg clk = 0;
  reg rst = 1;
  wire done, pass;
  integer cycles = 0;

  @@{name}_selftest selftest (.clk(clk), .rst(rst), .done(done), .pass(pass));

  always #@@half_period_ns clk = !clk;
  always @(negedge clk) begin
    cycles = cycles + 1;
    rst = cycles < 8;
    if (done === 1'b1) begin
      if (pass === 1'b1) begin
        $display("PASS: @@name after %0d cycles", cycles);
        $finish;
      end else begin
        $display("FAIL: @@name");
        // The simulator's exit status shows the failure, too.
`ifdef __ICARUS__
        $finish_and_return(1);
`else
        $stop;
`endif
      end
    end
  end
endmodule
