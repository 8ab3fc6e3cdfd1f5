"""Operand and result buffers of a bank, and their interfaces."""
