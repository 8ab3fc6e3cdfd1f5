"""Hardware and memory models for simulations."""
