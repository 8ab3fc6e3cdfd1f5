"""Predictor of the cycles that works take on a stack of fixed-function PIMs.

It models the pool at the grain of runs of beats, rounds of the lanes, loads and stores, in plain
Python. Processes stand for each bank's sequencer and lanes. A port serves a bank's reads and
writes; every bank has a vault, and the switch joins ports and vaults. The model computes no values.
Activity that repeats for long is extrapolated.

The specification (docs/pim-spec.md) gives works, their plans, the vaults' timing and the choice of
banks. The hardware's design gives the order of tiles, chunks, blocks and rounds, the requests of a
walk, double buffering, and the policies of switch and vault controller. The latencies between these
events are fitted to the RTL, by its source and by measurement; they are named constants beside
their use. Agreement with the RTL therefore says that the model predicts this machine, not that the
machine does what it should.
"""

from .pool import Pool, WorkRun

__all__ = ["Pool", "WorkRun"]
