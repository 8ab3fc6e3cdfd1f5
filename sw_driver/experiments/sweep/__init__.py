"""Sweeps: grids of points, each measured by one optimizer step on every channel."""
