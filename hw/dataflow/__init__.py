"""Pipelines built from formulas over floating-point values."""
