"""Rings of descriptors in the memory, with their completions."""
