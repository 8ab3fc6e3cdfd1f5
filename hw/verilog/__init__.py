"""Verilog generation."""
