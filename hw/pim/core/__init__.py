"""Programmable PIM: RISC-V cores in the stack."""
