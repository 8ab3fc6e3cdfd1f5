"""How many fabric cycles a flit takes over a link of the memory-node, and from one to the next.

Closed formulas. From the specification (docs/memory-node-spec.md): phits, credits, what is kept to
be sent again. Fitted to the RTL, by its source: the stages between these events, named constants
below. They hold for a link whose other direction has nothing of its own to send and whose receiver
takes flits at once; with one phit a flit the other direction makes no difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from hw.memory_node.link.config import LinkConfig
from sw_driver.numbers import check_fields

__all__ = ["LinkCycles"]

# Stages of a port, in fabric cycles.
BEGIN_TO_WIRE = 4
"""From the choice of a flit until its first phit is on the wire."""
CUT = 1
"""More, if it has several phits."""
WIRE_TO_DECISION = 4
"""From its last phit's arrival until it is decided what becomes of it."""
ENTRY_TO_BEGIN = 1
"""From taking a flit from a user until it can be chosen."""
DECISION_TO_USER = 2
"""From taking a flit from the wire until a user can have it."""
DECISION_TO_REPORT = 1
"""From taking or missing a flit until the choice of one that tells so."""
USER_TO_REPORT = 1
"""From a user's taking a flit until the choice of one that tells so."""
DECISION_TO_ROOM = 2
"""From the arrival of such a report until another flit is taken from a user, or until the choice of
the flit to which the sender goes back."""


@dataclass(frozen=True)
class LinkCycles:
    """A link, and how soon what goes over it."""

    config: LinkConfig
    wire_cycles: int
    """From a port to the other."""

    def __post_init__(self) -> None:
        check_fields(self, "wire_cycles")

    @property
    def interval_fabric_cycles(self) -> int:
        """From a flit to the next, at best."""
        return self.config.phits

    @property
    def latency_fabric_cycles(self) -> int:
        """From taking a flit from a user at one end to its being there for one at the other."""
        return ENTRY_TO_BEGIN + self._way + DECISION_TO_USER

    @property
    def acknowledged_fabric_cycles(self) -> int:
        """From taking a flit until its place in what is kept has another's."""
        return ENTRY_TO_BEGIN + self._way + DECISION_TO_REPORT + self._way + DECISION_TO_ROOM

    @property
    def credited_fabric_cycles(self) -> int:
        """From taking a flit until its place in the buffer at the other end has another's."""
        # What acknowledges the flit begins before, and has to end.
        to_report = max(
            DECISION_TO_USER + USER_TO_REPORT, DECISION_TO_REPORT + self.interval_fabric_cycles
        )
        return ENTRY_TO_BEGIN + self._way + to_report + self._way + DECISION_TO_ROOM

    @property
    def flit_fabric_cycles(self) -> float:
        """From a flit to the next, all the time: its phits, or what the way there and back leaves
        of the flits that are kept and that a receiver has room for."""
        return max(
            self.interval_fabric_cycles,
            self.acknowledged_fabric_cycles / self.config.replay_flits,
            self.credited_fabric_cycles / self.config.buffer_flits,
        )

    @property
    def _way(self) -> int:
        """From the choice of a flit to the decision at the other end."""
        phits = self.interval_fabric_cycles
        cut = CUT + phits - 1 if phits > 1 else 0
        return BEGIN_TO_WIRE + cut + self.wire_cycles + WIRE_TO_DECISION
