"""The programmable PIM: a core in the stack."""
