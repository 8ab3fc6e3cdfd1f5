"""Loader and storer: the walks between a bank's buffers and the memory, and its port to it."""
