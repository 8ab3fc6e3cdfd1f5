"""Groups of memory channels in a memory node."""
