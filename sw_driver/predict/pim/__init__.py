"""How many cycles works take on a stack of fixed-function PIMs.

A model of the pool at the grain of runs of beats, rounds of the lanes, loads and stores, in plain
Python: processes for each bank's sequencer and lanes, a port for its reads and writes, a vault for
each bank, and the switch between them. It computes no values. What repeats for long is
extrapolated.

Taken from the specification (docs/pim-spec.md): works, their plans, vaults' timing, the choice of
banks. From the hardware's design: the order of tiles, chunks, blocks and rounds, what a walk asks
of memory, double buffering, the policies of switch and vault controller. Fitted to the
RTL, by its source and by measurement: the latencies between these events, named constants beside
what they belong to. So agreement with the RTL says that the model predicts this machine, not that
the machine does what it should.
"""

from .pool import Pool, WorkRun

__all__ = ["Pool", "WorkRun"]
