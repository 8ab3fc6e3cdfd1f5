"""How long elementwise works take with their tensors striped or local: a formula, to choose by.

Memory is what limits them. A vault of which one bank reads long stretches closes fewer rows and
turns its bus less often than one that serves all banks in turn; but each bank then has a work of
its own, and works are offered one after the other, to as many slots as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hw.pim.config import BEAT_BYTES
from hw.pim.work.descriptor import ELEMENTWISE_OPCODES

from .descriptor import ELEMENT_BYTES, Work
from .planning import planned

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["predicted_cycles"]

# Fitted to the cycle model's passes of a thousand cycles and more, in cycles.
_STRIPED_READ, _STRIPED_WRITE = 1.3, 3.1
"""Of a vault, for a beat."""
_LOCAL_READ, _LOCAL_WRITE = 0.9, 2.2
_TILE = 4
"""To deal a tile; the works that run share the dispenser."""
_OFFER = 230
"""From a work's first write to that of the next."""
_BEGIN_AND_END = 250
"""Of a work, besides the time in which memory limits it."""


def predicted_cycles(works: Sequence[Work], config: PimConfig) -> float | None:
    """Cycles of elementwise works that do not depend on each other, from the first offer on: of one
    on striped tensors, or of one for each bank on what that has. None for works of other kinds.
    """
    if any(work.opcode not in ELEMENTWISE_OPCODES for work in works):
        return None
    local = bool(works[0].banks)
    read, write = (_LOCAL_READ, _LOCAL_WRITE) if local else (_STRIPED_READ, _STRIPED_WRITE)
    memory, tiles = 0.0, 0
    for work in works:
        beats = work.results * ELEMENT_BYTES / BEAT_BYTES
        operands = sum(bool(getattr(work, name).strides[-1]) for name in work.operands)
        cost = (operands * read + write) * beats
        memory = max(memory, cost if local else cost / config.striped_banks)
        plan = planned(work, config).plan
        tiles += work.rows * -(-work.columns >> plan.chunk) if plan else 0
    at_once = min(len(works), config.works)
    turns = -(-len(works) // config.works)
    return at_once * _OFFER + max(turns * (memory + _BEGIN_AND_END), tiles * _TILE)
