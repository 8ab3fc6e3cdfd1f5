"""A design as a package for FPGA tools: what ``nearmem verilog --package`` writes."""
