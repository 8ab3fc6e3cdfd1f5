"""Registers of the pool on AXI4-Lite, and their map, the source of driver constants and docs."""
