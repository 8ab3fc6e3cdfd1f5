"""A bank of the pool: sequencer, movers, buffers and units."""
