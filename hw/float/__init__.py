"""Floating-point operators."""
