"""Multipliers and adders of a bank, in lanes, and the issue of products and sums to them."""
