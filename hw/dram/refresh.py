"""Refresh scheduler within the limits of JESD79-4."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.fabric_timing import FabricTiming
from hw.dram.timing import MAX_POSTPONED_REFRESHES

__all__ = ["RefreshScheduler"]


class RefreshScheduler(wiring.Component):
    """Decides when to refresh, closes all banks for it and counts what is owed.

    One refresh falls due every tREFI. Under load, refreshes are postponed until ``postpone`` of
    them are due and then issued in a batch, which closes the rows once for all of them. After
    ``idle_cycles`` without work, due refreshes are issued at once, and then up to ``pull_in`` in
    advance, one every tREFI besides those that fall due. Two refreshes are never further apart
    than 8 tREFI and the drain of the banks (the standard allows 9).

    While ``prompt`` is set, a refresh is issued when it falls due. Refreshes postponed before are
    issued one by one, with a pause of two tRFC for the requests that wait.

    Members
    -------
    prompt : In(1)
        Refreshes are not postponed, for users that can wait for one, but not for a batch.
    owing : Out(1)
        A refresh is due.
    busy : In(1)
        There are requests.
    activate, read, write : In(1)
        The command is being issued.
    any_open : In(1)
        Some bank is open.
    hold : Out(1)
        Nobody else may issue a command; also during the wait after reset.
    precharge_all, refresh : Out(1)
        Issue PREA or REF now.
    flush : Out(1)
        All banks are closed and the refresh is over; ``hold`` ends with it.
    """

    def __init__(
        self,
        *,
        timing: FabricTiming,
        enabled: bool,
        postpone: int,
        pull_in: int,
        idle_cycles: int,
        reset_cycles: int,
    ) -> None:
        self._timing = timing
        self._enabled = enabled
        self._postpone = postpone
        self._pull_in = pull_in
        self._idle_cycles = idle_cycles
        self._reset_cycles = reset_cycles
        super().__init__(
            {
                "prompt": In(1),
                "owing": Out(1),
                "busy": In(1),
                "activate": In(1),
                "read": In(1),
                "write": In(1),
                "any_open": In(1),
                "hold": Out(1),
                "precharge_all": Out(1),
                "refresh": Out(1),
                "flush": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        timing = self._timing
        m: Any = Module()

        # Cycles until PREA satisfies tRAS, tRTP and tWR of every bank.
        unsettled = Signal(range(max(timing.activate_to_precharge, timing.write_to_precharge) + 1))
        remaining = Mux(unsettled == 0, 0, unsettled - 1)
        after = Signal.like(unsettled)
        with m.If(self.write):
            m.d.comb += after.eq(timing.write_to_precharge - 1)
        with m.Elif(self.read):
            m.d.comb += after.eq(timing.read_to_precharge - 1)
        after_activate = Mux(self.activate, timing.activate_to_precharge - 1, 0)
        events = Mux(after > after_activate, after, after_activate)
        m.d.sync += unsettled.eq(Mux(events > remaining, events, remaining))

        owed = Signal(signed((2 * MAX_POSTPONED_REFRESHES).bit_length() + 1))
        # tREFI periods that began since the last refresh.
        periods = Signal(range(2 * MAX_POSTPONED_REFRESHES))
        due = Signal()
        allowance = Signal(range(3))
        elapsed = Signal(range(timing.refresh_interval))
        running = Signal()
        m.d.comb += due.eq(elapsed == timing.refresh_interval - 1)
        m.d.sync += elapsed.eq(Mux(due, 0, elapsed + 1))
        if self._enabled:
            m.d.sync += owed.eq(owed + Cat(due) - Cat(self.refresh))
        with m.If(self.refresh):
            m.d.sync += periods.eq(due)
        with m.Elif(due):
            m.d.sync += periods.eq(periods + 1)
        # Two an interval: the one that is due and one more. Together with a full batch there are
        # never more than 16 in two intervals, the limit of the standard.
        with m.If(due):
            m.d.sync += allowance.eq(2)
        with m.Elif(self.refresh & (allowance != 0)):
            m.d.sync += allowance.eq(allowance - 1)

        idle_for = Signal(range(self._idle_cycles + 1))
        idle = Signal()
        m.d.comb += idle.eq((idle_for == self._idle_cycles) & ~self.busy)
        with m.If(self.busy):
            m.d.sync += idle_for.eq(0)
        with m.Elif(~idle):
            m.d.sync += idle_for.eq(idle_for + 1)

        # Requests that waited during a refresh are served before the next refresh.
        pause = Signal(range(2 * timing.refresh_to_activate + 1))
        with m.If(self.flush):
            m.d.sync += pause.eq(2 * timing.refresh_to_activate)
        with m.Elif(pause != 0):
            m.d.sync += pause.eq(pause - 1)
        promptly = Signal()
        m.d.comb += promptly.eq(self.prompt & ((pause == 0) | ~self.busy))

        forced = Signal()
        elective = Signal()
        m.d.comb += [
            self.owing.eq(owed > 0),
            forced.eq(
                (owed >= Mux(promptly, 1, self._postpone)) | (periods >= MAX_POSTPONED_REFRESHES)
            ),
            elective.eq(idle & ((owed > 0) | ((owed > -self._pull_in) & (allowance != 0)))),
        ]

        longest = max(timing.refresh_to_activate, timing.precharge_to_activate, self._reset_cycles)
        wait = Signal(range(longest + 1), init=self._reset_cycles)
        # A batch that was forced is issued in full.
        whole_batch = Signal()
        m.d.comb += self.hold.eq(~running)
        with m.If(wait != 0):
            m.d.sync += wait.eq(wait - 1)

        with m.FSM():
            with m.State("RESET"), m.If(wait == 0):
                m.d.sync += running.eq(1)
                m.next = "RUN"
            with m.State("RUN"):
                if self._enabled:
                    with m.If(forced | elective):
                        m.d.sync += [running.eq(0), whole_batch.eq(forced & ~self.prompt)]
                        m.next = "SETTLE"
            with m.State("SETTLE"):
                with m.If(~self.any_open):
                    m.next = "REFRESH"
                with m.Elif(unsettled == 0):
                    m.d.comb += self.precharge_all.eq(1)
                    m.d.sync += wait.eq(timing.precharge_to_activate - 1)
                    m.next = "REFRESH"
            with m.State("REFRESH"), m.If(wait == 0):
                m.d.comb += self.refresh.eq(1)
                m.d.sync += wait.eq(timing.refresh_to_activate - 1)
                m.next = "RECOVER"
            with m.State("RECOVER"):
                with m.If((owed > 0) & (whole_batch | ~self.busy)):
                    m.next = "REFRESH"
                # The flush, planning and the activate itself take three more cycles.
                with m.Elif(wait <= 2):
                    m.next = "RESUME"
            with m.State("RESUME"), m.If(wait <= 1):
                m.d.comb += self.flush.eq(1)
                m.d.sync += running.eq(1)
                m.next = "RUN"
        return m
