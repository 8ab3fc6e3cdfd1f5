"""Block transfers between memory and FIFOs, by tensor and round."""
