"""Vault of a bank: its interface to the DRAM, timing and controller."""
