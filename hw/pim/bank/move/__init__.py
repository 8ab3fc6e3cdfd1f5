"""Loader and storer, which move data between a bank's buffers and the memory, and their port."""
