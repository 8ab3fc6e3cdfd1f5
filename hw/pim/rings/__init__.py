"""Rings of descriptors in the memory, and the words that tell of their works."""
