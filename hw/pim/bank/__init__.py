"""A bank's part of the pool: its sequencer, and the rooms of its movers, buffers and units."""
