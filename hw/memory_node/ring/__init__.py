"""Ring that connects memory nodes."""
