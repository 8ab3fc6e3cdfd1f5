"""Works: their descriptor, their layouts inside the pool, and their status."""
