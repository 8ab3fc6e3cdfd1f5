"""Designs on an FPGA: packages for its tools, and what is taken, synthesized or placed."""
