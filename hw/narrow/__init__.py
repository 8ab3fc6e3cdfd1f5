"""Narrow formats of numbers in memory: BF16, and codes of eight bits."""
