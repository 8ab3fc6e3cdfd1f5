"""All systems on one machine: what a training step takes each, and what fits."""
