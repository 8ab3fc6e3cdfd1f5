// The clock gate of an ECP5, made of that of an AMD FPGA.
module DCCA (input wire CLKI, input wire CE, output wire CLKO);
  BUFGCE gate (.I(CLKI), .CE(CE), .O(CLKO));
endmodule
