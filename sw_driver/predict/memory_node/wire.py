"""Latency of a flit over a link of the memory-node, and interval of flits, in fabric cycles.

These are closed formulas. Phits, credits and the replay buffer are those of the specification
(docs/memory-node-spec.md). The stages between events, named constants below, are fitted to the RTL
by its source. The formulas hold for a link without traffic in the other direction and with a
receiver that takes flits at once. With one phit a flit, the other direction makes no difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from hw.memory_node.link.config import LinkConfig
from sw_driver.numbers import check_fields

__all__ = ["LinkCycles"]

# Stages of a port, in fabric cycles.
BEGIN_TO_WIRE = 4
"""Latency from the choice of a flit until its first phit is on the wire."""
CUT = 1
"""Extra latency of a flit with several phits."""
WIRE_TO_DECISION = 4
"""Latency from a flit's last phit until the receiver takes or refuses it."""
ENTRY_TO_BEGIN = 1
"""Latency from taking a flit from a user until it can be chosen."""
DECISION_TO_USER = 2
"""Latency from taking a flit from the wire until a user can have it."""
DECISION_TO_REPORT = 1
"""Latency from taking or missing a flit until the choice of a flit that reports it."""
USER_TO_REPORT = 1
"""Latency from a user's taking a flit until the choice of a flit that reports it."""
DECISION_TO_ROOM = 2
"""Latency from the arrival of a report until the sender reacts.

It then takes another flit from a user, or chooses the flit to which it goes back.
"""


@dataclass(frozen=True)
class LinkCycles:
    """Latencies and intervals of a link."""

    config: LinkConfig
    wire_cycles: int
    """Fabric cycles from one port to the other."""

    def __post_init__(self) -> None:
        check_fields(self, "wire_cycles")

    @property
    def interval_fabric_cycles(self) -> int:
        """Least interval between two flits, in fabric cycles."""
        return self.config.phits

    @property
    def latency_fabric_cycles(self) -> int:
        """Latency of a flit from a user at one end to a user at the other."""
        return ENTRY_TO_BEGIN + self._way + DECISION_TO_USER

    @property
    def acknowledged_fabric_cycles(self) -> int:
        """Time from taking a flit until its place in the replay buffer has another flit."""
        return ENTRY_TO_BEGIN + self._way + DECISION_TO_REPORT + self._way + DECISION_TO_ROOM

    @property
    def credited_fabric_cycles(self) -> int:
        """Time from taking a flit until its credit at the other end serves another flit."""
        # The flit's acknowledgement begins earlier, and has to end first.
        to_report = max(
            DECISION_TO_USER + USER_TO_REPORT, DECISION_TO_REPORT + self.interval_fabric_cycles
        )
        return ENTRY_TO_BEGIN + self._way + to_report + self._way + DECISION_TO_ROOM

    @property
    def flit_fabric_cycles(self) -> float:
        """Sustained interval between two flits, in fabric cycles.

        It is limited by a flit's phits, or by the round trip with the replay buffer or the
        receiver's buffer full.
        """
        return max(
            self.interval_fabric_cycles,
            self.acknowledged_fabric_cycles / self.config.replay_flits,
            self.credited_fabric_cycles / self.config.buffer_flits,
        )

    @property
    def _way(self) -> int:
        """Latency from the choice of a flit to the decision at the other end."""
        phits = self.interval_fabric_cycles
        cut = CUT + phits - 1 if phits > 1 else 0
        return BEGIN_TO_WIRE + cut + self.wire_cycles + WIRE_TO_DECISION
