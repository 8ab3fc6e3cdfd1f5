"""Operation and byte counts of each work, summed over its banks."""

from __future__ import annotations

from functools import cache
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.pim.config import BEAT_BYTES, PimConfig
from hw.pim.placement import MAX_LANES
from hw.pim.work.status import COUNTER_BITS, work_counts_layout

__all__ = ["BANK_COUNT_BITS", "WorkTally", "bank_counts_layout"]

BANK_COUNT_BITS = MAX_LANES.bit_length()
"""Width of a bank's multiplications, and of its additions, in one cycle."""


@cache
def bank_counts_layout() -> data.StructLayout:
    """Return the layout of a bank's operations and moved beats in one cycle."""
    return data.StructLayout(
        {
            "multiplications": BANK_COUNT_BITS,
            "additions": BANK_COUNT_BITS,
            "beats_read": 1,
            "beats_written": 1,
        }
    )


class WorkTally(wiring.Component):
    """Adder of the banks' counts to those of their works, one bank a cycle, in turn.

    A bank's counts reach its work ``banks`` + 3 cycles later, plus one for each ``accept``
    meanwhile.

    Parameters
    ----------
    config
        The pool: its banks and its works in flight.

    Members
    -------
    done : In(array of :func:`bank_counts_layout`)
        Counts of each bank in this cycle.
    owner : In(array of range(config.works))
        The slot of each bank's work.
    finished : In(config.banks)
        Banks that have no more counts for their work.
    collected : Out(config.banks)
        Pulse for a bank with ``finished``: its counts are added two cycles later, or three if one
        of these has ``accept``. It may repeat while the bank is ``finished``.
    accept : In(1)
        A work takes ``slot``: its counts begin. At most every other cycle.
    multiplications, additions : In(COUNTER_BITS)
        With ``accept``: operations of the whole work.
    start, complete : In(1)
        The work of ``slot`` starts or completes.
    slot : In(range(config.works))
    running : In(config.works)
        Slots with a running work; a slot's bit rises after ``start`` and falls after
        ``complete``.
    select : In(range(config.works))
        The slot whose ``counts`` are shown.
    counts : Out(:func:`~hw.pim.work.status.work_counts_layout`)
        Counts of that slot in this cycle; undefined if it has had no work, and ``cycles`` until
        ``start``.
    """

    def __init__(self, config: PimConfig) -> None:
        self._banks = config.banks
        self._works = config.works
        slot = range(config.works)
        super().__init__(
            {
                "done": In(data.ArrayLayout(bank_counts_layout(), config.banks)),
                "owner": In(data.ArrayLayout(slot, config.banks)),
                "finished": In(config.banks),
                "collected": Out(config.banks),
                "accept": In(1),
                "multiplications": In(COUNTER_BITS),
                "additions": In(COUNTER_BITS),
                "start": In(1),
                "complete": In(1),
                "slot": In(slot),
                "running": In(config.works),
                "select": In(slot),
                "counts": Out(work_counts_layout()),
            }
        )

    @property
    def _deltas(self) -> data.StructLayout:
        """Layout of a bank's counts since its last turn."""
        turns = (2 * self._banks).bit_length()  # twice the banks: `accept` may delay each turn
        return data.StructLayout(
            {name: field.width + turns for name, field in bank_counts_layout()}
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        delta, slot = self._turns(m)
        self._sum(m, delta, slot)
        self._time(m)
        return m

    def _turns(self, m: Any) -> tuple[Any, Any]:
        """Return the counts of the bank that had the last turn, and its work's slot."""
        turn = Signal(self._banks, init=1)
        delta, slot = Signal(self._deltas), Signal(range(self._works))
        for bank, done in enumerate(self.done):
            for name, field in self._deltas:
                own = Signal(field.shape, name=f"{name}_{bank}")
                m.d.sync += own.eq(Mux(turn[bank] & ~self.accept, 0, own) + done[name])
                with m.If(turn[bank] & ~self.accept):
                    m.d.sync += delta[name].eq(own)
        with m.If(~self.accept):
            m.d.sync += turn.eq(turn.rotate_left(1))
            for bank, owner in enumerate(self.owner):
                with m.If(turn[bank]):
                    m.d.sync += slot.eq(owner)
            m.d.comb += self.collected.eq(turn & self.finished)
        return delta, slot

    def _sum(self, m: Any, delta: Any, slot: Any) -> None:
        names = ("multiplications", "additions")
        layout = data.StructLayout(
            {name: field.shape for name, field in self.counts.shape() if name != "cycles"}
        )
        m.submodules.sums = sums = memory.Memory(shape=layout, depth=self._works, init=[])
        write = sums.write_port()
        read, shown = (sums.read_port(domain="comb") for _ in range(2))
        before, after = read.data, write.data
        m.d.comb += [read.addr.eq(slot), shown.addr.eq(self.select), write.en.eq(1)]
        with m.If(self.accept):
            m.d.comb += write.addr.eq(self.slot)
            m.d.comb += [after[f"{name}_left"].eq(getattr(self, name)) for name in names]
        with m.Else():
            m.d.comb += write.addr.eq(slot)
            for name in names:
                done, left = f"{name}_done", f"{name}_left"
                m.d.comb += after[done].eq(before[done] + delta[name])
                m.d.comb += after[left].eq(before[left] - delta[name])
            for name in ("read", "written"):
                moved = delta[f"beats_{name}"] << exact_log2(BEAT_BYTES)
                m.d.comb += after[f"bytes_{name}"].eq(before[f"bytes_{name}"] + moved)
        m.d.comb += [self.counts[name].eq(shown.data[name]) for name, _ in layout]

    def _time(self, m: Any) -> None:
        """Keep a running work's start cycle and a completed work's duration in cycles."""
        cycle = Signal(COUNTER_BITS)
        m.d.sync += cycle.eq(cycle + 1)
        m.submodules.times = times = memory.Memory(shape=COUNTER_BITS, depth=self._works, init=[])
        write, started, shown = (
            times.write_port(),
            times.read_port(domain="comb"),
            times.read_port(domain="comb"),
        )
        running = (self.running >> self.select)[0]
        m.d.comb += [
            write.addr.eq(self.slot),
            write.en.eq(self.start | self.complete),
            write.data.eq(Mux(self.start, cycle, cycle - started.data)),
            started.addr.eq(self.slot),
            shown.addr.eq(self.select),
            self.counts.cycles.eq(Mux(running, cycle - shown.data, shown.data)),
        ]
