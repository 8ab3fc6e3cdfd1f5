"""How the parts of a design are clocked that work now and then, such as functional units."""

from __future__ import annotations

__all__ = ["CLOCKINGS", "CLOCK_GATE_CELLS", "check_clocking"]

CLOCKINGS = ("gated", "enable")
"""``gated``: their clock stops while they have no work, through a
:class:`~hw.logic.clock_gate.ClockGate`. ``enable``: they are on the one clock, with an enable at
each register. Results and cycles are the same."""

CLOCK_GATE_CELLS = ("model", "bufgce", "dcca")
"""What a clock gate is made of. ``model``: a latch and an AND gate, for simulation. ``bufgce``: the
clock buffer of AMD's UltraScale and UltraScale+. ``dcca``: that of Lattice's ECP5."""


def check_clocking(value: str) -> None:
    """Raises ``ValueError`` if ``value`` is not one of :data:`CLOCKINGS`."""
    if value not in CLOCKINGS:
        raise ValueError(f"clocking must be one of {CLOCKINGS}, got {value!r}")
