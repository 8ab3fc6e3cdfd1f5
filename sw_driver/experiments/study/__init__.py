"""Experiments that the paper argues from, measured on the RTL."""
