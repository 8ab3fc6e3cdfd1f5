"""Busy cycles of each bank."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.work.status import COUNTER_BITS

__all__ = ["BusyTime"]


class BusyTime(wiring.Component):
    """Counter of the cycles since reset in which each bank was not idle.

    One memory holds all counts; a bank's cycles are added to it in the bank's turn.

    Members
    -------
    idle : In(banks)
        Banks without a work in this cycle.
    bank : In(range(banks))
        The bank whose ``cycles`` are shown.
    cycles : Out(COUNTER_BITS)
        Cycles in which that bank was not idle, before this one.
    """

    def __init__(self, banks: int) -> None:
        self._banks = banks
        super().__init__({"idle": In(banks), "bank": In(range(banks)), "cycles": Out(COUNTER_BITS)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        banks = self._banks
        turn, cleared = Signal(range(banks)), Signal()
        m.submodules.sums = sums = memory.Memory(shape=COUNTER_BITS, depth=banks, init=[])
        write, read, shown = (
            sums.write_port(),
            sums.read_port(domain="comb"),
            sums.read_port(domain="comb"),
        )
        recent = [Signal(range(banks + 1), name=f"recent_{bank}") for bank in range(banks)]
        for bank, cycles in enumerate(recent):
            m.d.sync += cycles.eq(Mux(turn == bank, 0, cycles) + ~self.idle[bank])
        last = turn == banks - 1
        m.d.sync += [turn.eq(Mux(last, 0, turn + 1)), cleared.eq(cleared | last)]
        m.d.comb += [
            read.addr.eq(turn),
            write.addr.eq(turn),
            write.en.eq(1),
            # A reset does not clear the memory.
            write.data.eq(Mux(cleared, read.data, 0) + Array(recent)[turn]),
            shown.addr.eq(self.bank),
            self.cycles.eq(
                Mux(cleared | (self.bank < turn), shown.data, 0) + Array(recent)[self.bank]
            ),
        ]
        return m
