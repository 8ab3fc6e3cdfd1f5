"""Registers of a memory node."""
