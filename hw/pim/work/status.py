"""Status of the pool and of its works, as the registers show it."""

from __future__ import annotations

from functools import cache

from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig

__all__ = [
    "CAUSE_BITS",
    "COUNTER_BITS",
    "ID_BITS",
    "SlotState",
    "StatusSignature",
    "WorkEventsSignature",
    "work_counts_layout",
    "work_record_layout",
]

CAUSE_BITS = 4
ID_BITS = 31
COUNTER_BITS = 64


class SlotState(enum.Enum, shape=2):
    """State of a slot's present or last work."""

    NONE = 0
    """No work since reset."""
    WAITING = 1
    RUNNING = 2
    COMPLETED = 3


@cache
def work_counts_layout() -> data.StructLayout:
    """Return the layout of a work's counts: operations done and left, cycles, bytes."""
    return data.StructLayout(
        dict.fromkeys(
            (
                "multiplications_done",
                "multiplications_left",
                "additions_done",
                "additions_left",
                "cycles",
                "bytes_read",
                "bytes_written",
            ),
            COUNTER_BITS,
        )
    )


@cache
def work_record_layout(config: PimConfig) -> data.StructLayout:
    """Return the layout of a slot's registers (docs/pim-spec.md, "Registers")."""
    return data.StructLayout(
        {
            "id": ID_BITS,
            "state": SlotState,
            "banks": config.banks,
            "counts": work_counts_layout(),
        }
    )


class StatusSignature(wiring.Signature):
    """State of the pool as the scheduler sees it; the registers have it as ``In``.

    Members
    -------
    idle : Out(config.banks)
        Banks without a work, a bit for each.
    completed : Out(config.works)
        A bit for each slot: its last work has completed.
    select : In(range(config.works))
        The slot whose ``record`` is shown.
    record : Out(:func:`work_record_layout`)
        The registers of that slot, in the same cycle.
    bank : In(range(config.banks))
        The bank whose ``busy`` is shown.
    busy : Out(COUNTER_BITS)
        Cycles in which that bank was not idle, since reset, in the same cycle.
    """

    def __init__(self, config: PimConfig) -> None:
        super().__init__(
            {
                "idle": Out(config.banks),
                "completed": Out(config.works),
                "select": In(range(config.works)),
                "record": Out(work_record_layout(config)),
                "bank": In(range(config.banks)),
                "busy": Out(COUNTER_BITS),
            }
        )


class WorkEventsSignature(wiring.Signature):
    """Events of works, as the scheduler sees them. No two pulses are in the same cycle.

    Members
    -------
    taken : Out(1)
        Pulse: the offered work has been accepted, or refused for ``cause``.
    cause : Out(CAUSE_BITS)
        Cause of the last offered work's refusal, or 0.
    id : Out(ID_BITS)
        Id of the last accepted work, or 0.
    completed : Out(1)
        Pulse: a work has completed, and its result is visible.
    completed_id : Out(ID_BITS)
        With ``completed``: the id of that work.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "taken": Out(1),
                "cause": Out(CAUSE_BITS),
                "id": Out(ID_BITS),
                "completed": Out(1),
                "completed_id": Out(ID_BITS),
            }
        )
