// The clock gate of an ECP5, built from that of an AMD FPGA.
module DCCA (input wire CLKI, input wire CE, output wire CLKO);
  BUFGCE gate (.I(CLKI), .CE(CE), .O(CLKO));
endmodule
