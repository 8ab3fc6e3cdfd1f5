"""Scheduler: starts works on banks, cuts them into tiles and counts their operations."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig
from hw.pim.memory.host_memory import GateSignature
from hw.pim.scheduler.busy_time import BusyTime
from hw.pim.scheduler.dispenser import Dispenser
from hw.pim.scheduler.tally import WorkTally, bank_counts_layout
from hw.pim.scheduler.work_table import WorkTable
from hw.pim.work.layouts import Jobs
from hw.pim.work.status import SlotState, StatusSignature, WorkEventsSignature

__all__ = ["Scheduler"]


class Scheduler(wiring.Component):
    """Scheduler of checked works on the banks (docs/pim-spec.md, "The pool").

    Parameters
    ----------
    config
        The pool.

    Members
    -------
    i : In(stream of :attr:`Jobs.checked <hw.pim.work.layouts.Jobs.checked>`)
        Works that are offered, refused ones too. A good one waits until there is a slot for it.
    work : Out(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
        The work for the banks with ``start``, in that cycle only; they must keep it.
    start : Out(config.banks)
        Pulse for each bank: begin the work.
    tile_0, tile_1, ... : Out(stream of :attr:`Jobs.tile <hw.pim.work.layouts.Jobs.tile>`)
        Tiles for each bank, after its ``start`` until it has taken ``end``. A bank that is ready
        must stay so until it has its tile.
    done : In(config.banks)
        For each bank, after ``end``: it has computed all its tiles, and all its writes have been
        answered. A pulse or longer; ignored until ``end`` has been taken.
    counts : In(array of :func:`~hw.pim.scheduler.tally.bank_counts_layout`)
        Operations and beats of each bank in this cycle, no later than ``done``.
    gate : Out(:class:`~hw.pim.memory.host_memory.GateSignature`)
        Control of the host's memory port.
    status : Out(:class:`~hw.pim.work.status.StatusSignature`)
        The state of the pool, for the registers.
    events : Out(:class:`~hw.pim.work.status.WorkEventsSignature`)
        Accepted, refused and completed works, for the rings.
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        jobs = Jobs(config)
        super().__init__(
            {
                "i": In(stream.Signature(jobs.checked)),
                "work": Out(jobs.work),
                "start": Out(config.banks),
                **{
                    f"tile_{bank}": Out(stream.Signature(jobs.tile)) for bank in range(config.banks)
                },
                "done": In(config.banks),
                "counts": In(data.ArrayLayout(bank_counts_layout(), config.banks)),
                "gate": Out(GateSignature(config)),
                "status": Out(StatusSignature(config)),
                "events": Out(WorkEventsSignature()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.table = table = WorkTable(self._config)
        m.submodules.dispenser = dispenser = Dispenser(self._config)
        m.submodules.tally = tally = WorkTally(self._config)
        m.submodules.busy = busy = BusyTime(self._config.banks)
        wiring.connect(m, wiring.flipped(self.i), table.i)
        wiring.connect(m, wiring.flipped(self.gate), table.gate)
        wiring.connect(m, table.events, wiring.flipped(self.events))
        for bank in range(self._config.banks):
            name = f"tile_{bank}"
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(dispenser, name))
        offered = self.i.payload
        m.d.comb += [
            self.work.eq(table.work),
            self.start.eq(table.start),
            dispenser.accept.eq(table.accept),
            dispenser.work.eq(offered),
            dispenser.start.eq(table.joining),
            dispenser.slot.eq(table.slot),
            dispenser.banks.eq(table.banks),
            dispenser.owner.eq(table.owner),
            tally.done.eq(self.counts),
            tally.owner.eq(table.owner),
            tally.accept.eq(table.accept),
            tally.multiplications.eq(offered.multiplications),
            tally.additions.eq(offered.additions),
            tally.start.eq(table.starting),
            tally.complete.eq(table.complete),
            tally.slot.eq(table.slot),
            table.collected.eq(tally.collected),
            table.dealt.eq(dispenser.dealt),
        ]
        working = table.working & ~dispenser.unended
        m.d.sync += tally.finished.eq(working & (tally.finished | self.done))
        m.d.comb += [
            busy.idle.eq(table.idle),
            busy.bank.eq(self.status.bank),
            self.status.busy.eq(busy.cycles),
        ]
        self._report(m, table, tally)
        return m

    def _report(self, m: Any, table: Any, tally: Any) -> None:
        status = self.status
        record = status.record
        m.d.comb += [
            status.idle.eq(table.idle),
            status.completed.eq(Cat(state == SlotState.COMPLETED for state in table.states)),
            tally.running.eq(Cat(state == SlotState.RUNNING for state in table.states)),
            table.select.eq(status.select),
            tally.select.eq(status.select),
            record.id.eq(table.selected_id),
            record.banks.eq(table.selected_banks),
            record.state.eq(table.states[status.select]),
        ]
        with m.If(record.state != SlotState.NONE):
            m.d.comb += record.counts.eq(tally.counts)
        with m.If(record.state == SlotState.WAITING):
            m.d.comb += record.counts.cycles.eq(0)
