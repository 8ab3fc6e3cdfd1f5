// The clock gate of an AMD FPGA, built from that of an ECP5.
module BUFGCE (input wire I, input wire CE, output wire O);
  DCCA gate (.CLKI(I), .CE(CE), .CLKO(O));
endmodule
