"""Ways to clock parts that are often idle, such as functional units."""

from __future__ import annotations

__all__ = ["CLOCKINGS", "CLOCK_GATE_CELLS", "check_clocking"]

CLOCKINGS = ("gated", "enable")
"""Clocking of such parts. ``gated``: a :class:`~hw.logic.clock_gate.ClockGate` stops their clock
while they have no work. ``enable``: they run on the one clock, with an enable at each register.
Results and cycles are the same."""

CLOCK_GATE_CELLS = ("model", "bufgce", "dcca")
"""Cells for a clock gate. ``model``: a latch and an AND gate, for simulation. ``bufgce``: the
clock buffer of AMD's UltraScale and UltraScale+. ``dcca``: the clock gate of Lattice's ECP5."""


def check_clocking(value: str) -> None:
    """Raise ``ValueError`` if ``value`` is not one of :data:`CLOCKINGS`."""
    if value not in CLOCKINGS:
        raise ValueError(f"clocking must be one of {CLOCKINGS}, got {value!r}")
