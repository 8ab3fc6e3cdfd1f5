"""DRAM parts, their timing, and the controller."""
