"""All systems on one machine: time and memory of a training step, and the largest models."""
