"""Sweeps: a grid of points, each measured by one step of Adam on every channel."""
