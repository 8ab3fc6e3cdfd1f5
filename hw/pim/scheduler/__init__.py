"""The scheduler: which works wait, run and are done, on which banks, tile by tile."""
