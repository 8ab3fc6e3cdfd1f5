"""Account of a kernel's run: its DRAM clocks by use, and its DRAM commands."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.activity import Activity
from hw.dram.controller import COUNTER_BITS
from hw.dram.interface import SLOT_BITS, SLOTS

__all__ = ["RUN_COMMANDS", "RUN_TIMES", "RunAccount", "RunCountsSignature"]

RUN_TIMES = {f"{activity.name.lower()}_tck": activity for activity in Activity}
"""Activity that each count of DRAM clocks stands for, by the count's name."""

RUN_COMMANDS = ("activates", "precharges", "refreshes", "turns")
"""Counters of the memory that are also kept for a single run."""


class RunCountsSignature(wiring.Signature):
    """Counts of a run, as their source sees them.

    They are ``idle_tck`` and those of ``RUN_TIMES`` in DRAM clocks, and ``run_NAME`` for each name
    of ``RUN_COMMANDS``.
    """

    def __init__(self) -> None:
        names = ("idle_tck", *RUN_TIMES, *(f"run_{name}" for name in RUN_COMMANDS))
        super().__init__({name: Out(COUNTER_BITS) for name in names})


class RunAccount(wiring.Component):
    """Accounts for every DRAM clock of the kernel's last run.

    The counts of :data:`RUN_TIMES` and ``idle_tck`` add up to the clocks of the run, four times
    the kernel's ``cycles``. All DRAM traffic counts, so the counts are the kernel's only while
    nothing else uses the DRAM. ``idle_tck`` counts the clocks in which the kernel checks its
    settings and requests nothing.

    Members
    -------
    begins : In(1)
        Pulse: the check is over and the run begins in the next cycle.
    check_cycles : In(8)
        Fabric cycles that the check took, in the cycle after ``begins``.
    running : In(1)
        The run is in progress.
    activity : In(:class:`~hw.dram.activity.Activity`)
        What the cycle before was used for.
    activates, precharges, refreshes, turns : In(COUNTER_BITS)
        The memory's counters.
    o : Out(:class:`RunCountsSignature`)
        The counts of the last run.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "begins": In(1),
                "check_cycles": In(8),
                "running": In(1),
                "activity": In(Activity),
                **{name: In(COUNTER_BITS) for name in RUN_COMMANDS},
                "o": Out(RunCountsSignature()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        # Activity and counters are those of the cycle before.
        begins = Signal()
        running = Signal()
        m.d.sync += [begins.eq(self.begins), running.eq(self.running)]
        with m.If(begins):
            m.d.sync += self.o.idle_tck.eq(SLOTS * self.check_cycles)
        for name, activity in RUN_TIMES.items():
            cycles = Signal(COUNTER_BITS - SLOT_BITS, name=f"{activity.name.lower()}_cycles")
            m.d.comb += getattr(self.o, name).eq(cycles * SLOTS)
            with m.If(begins):
                m.d.sync += cycles.eq(0)
            with m.Elif(running & (self.activity == activity)):
                m.d.sync += cycles.eq(cycles + 1)
        for name in RUN_COMMANDS:
            counter, result = getattr(self, name), getattr(self.o, f"run_{name}")
            before = Signal(COUNTER_BITS, name=f"{name}_before", reset_less=True)
            with m.If(begins):
                m.d.sync += [before.eq(counter), result.eq(0)]
            with m.Elif(running):
                m.d.sync += result.eq(counter - before)
        return m
