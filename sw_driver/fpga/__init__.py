"""Designs on an FPGA: packages for its tools, resources, and placement results."""
