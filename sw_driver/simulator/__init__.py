"""Builds of Verilated simulators, and their processes and files."""
