"""Table of the pool's works: their states, their banks and their order."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig
from hw.pim.memory.host_memory import GateSignature
from hw.pim.scheduler.bank_choice import UNITS_BITS, BankChoice
from hw.pim.work.descriptor import TENSORS, Cause
from hw.pim.work.layouts import Jobs
from hw.pim.work.status import ID_BITS, SlotState, WorkEventsSignature

__all__ = ["WorkTable"]

_RESULT = TENSORS.index("result")


class WorkTable(wiring.Component):
    """Table that accepts, starts and completes works.

    See docs/pim-spec.md, "The pool" and "Consistency". It does one thing at a time, so that all
    works see the same idle banks. First it accepts or completes a work. Then it tries to start
    waiting works, in the order of their acceptance. Then running works grow onto banks that no
    waiting work needs.

    Accepting takes ``works`` + 2 cycles, at least 5, and completing 2. Each waiting work then takes
    2 cycles if it must wait for another work or if no bank is idle. Otherwise it takes 3 cycles,
    one for each bank that the pool chooses, and one to start. The start takes longer if the host's
    port is not ``closed`` at once. A work that grows takes as long as one that starts.

    Parameters
    ----------
    config
        The pool: its banks and its works in flight.

    Members
    -------
    i : In(stream of :attr:`Jobs.checked <hw.pim.work.layouts.Jobs.checked>`)
        Works that are offered.
    events : Out(:class:`~hw.pim.work.status.WorkEventsSignature`)
        One cycle after a work was taken from ``i``, or after ``complete``.
    states : Out(array of :class:`~hw.pim.work.status.SlotState`)
    idle : Out(config.banks)
        Banks without a work.
    working : Out(config.banks)
        Banks whose part of a work is not yet ``collected``.
    owner : Out(array of range(config.works))
        The slot of each bank's present or last work.
    collected : In(config.banks)
        Pulses: the banks have done their parts, and all counts are added.
    work : Out(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
    start : Out(config.banks)
        Pulses: the banks take ``work``.
    slot : Out(range(config.works))
        The slot of the pulses below.
    accept, joining, starting, complete : Out(1)
        Pulses. ``accept``: the work at ``i`` takes the slot. ``joining``: ``banks`` work for the
        slot from the next cycle on. ``starting``, with ``joining``: they are its first banks.
        ``complete``: the slot's work has completed.
    banks : Out(config.banks)
        With ``joining``: the banks.
    dealt : In(config.works)
        Slots without tiles left; more banks cannot help them.
    gate : Out(:class:`~hw.pim.memory.host_memory.GateSignature`)
    select : In(range(config.works))
        The slot that the next two members describe.
    selected_id : Out(ID_BITS)
    selected_banks : Out(config.banks)
        The id of the selected slot's work, and the banks on which it runs or ran.
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        self._jobs = Jobs(config)
        banks, slot = config.banks, range(config.works)
        super().__init__(
            {
                "i": In(stream.Signature(self._jobs.checked)),
                "events": Out(WorkEventsSignature()),
                "states": Out(data.ArrayLayout(SlotState, config.works)),
                "idle": Out(banks, init=(1 << banks) - 1),
                "working": Out(banks),
                "owner": Out(data.ArrayLayout(slot, banks)),
                "collected": In(banks),
                "work": Out(self._jobs.work),
                "start": Out(banks),
                "slot": Out(slot),
                "accept": Out(1),
                "joining": Out(1),
                "starting": Out(1),
                "complete": Out(1),
                "banks": Out(banks),
                "dealt": In(config.works),
                "gate": Out(GateSignature(config)),
                "select": In(slot),
                "selected_id": Out(ID_BITS),
                "selected_banks": Out(banks),
            }
        )

    def _memory(self, m: Any, name: str, shape: Any, contents: Any) -> memory.Memory:
        """Place a memory with one entry per slot, set to ``contents`` when a work is accepted."""
        m.submodules[name] = kept = memory.Memory(shape=shape, depth=self._config.works, init=[])
        write = kept.write_port()
        m.d.comb += [write.addr.eq(self.slot), write.en.eq(self.accept), write.data.eq(contents)]
        return kept

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        works = self._config.works
        m.submodules.choice = choice = BankChoice(self._config)
        m.submodules.waiting = waiting = SyncFIFO(width=len(self.slot), depth=works + 1)
        m.submodules.free = free = SyncFIFO(width=len(self.slot), depth=works)
        fresh = Signal(range(works + 1))  # lowest slot that has never been taken
        active = Cat(
            (state == SlotState.WAITING) | (state == SlotState.RUNNING) for state in self.states
        )
        held_by = [Signal(self._config.banks, name=f"banks_{slot}") for slot in range(works)]
        done = Cat(
            (state == SlotState.RUNNING) & ~(banks & self.working).any()
            for state, banks in zip(self.states, held_by, strict=True)
        )
        before = [Signal(works, name=f"before_{slot}") for slot in range(works)]
        older = [Signal(works, name=f"older_{slot}") for slot in range(works)]
        running = Cat(state == SlotState.RUNNING for state in self.states)
        lacking = Signal(works)  # works that run on fewer units than they need
        reserved = Signal(self._config.banks)  # named by works that wait for banks only
        growing = Signal(works)
        spare = (self.idle & ~reserved).any()
        m.d.comb += growing.eq(Mux(spare, running & lacking & ~self.dealt, 0))
        steps = max(works, len(TENSORS))
        step = Signal(range(steps))
        conflicts, near = Signal(works), Signal(self._config.banks)
        conflict, near_span = self._compare(m, step)
        self._names(m)
        named = self._start(m, choice, near, reserved)
        tries = Signal(range(works + 1))
        m.d.comb += [waiting.w_data.eq(self.slot), free.w_data.eq(self.slot)]

        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [step.eq(0), conflicts.eq(0), near.eq(0)]
                with m.If(done.any()):
                    m.d.sync += self.slot.eq(_lowest(done))
                    m.next = "COMPLETE"
                with m.Elif(self.i.valid & (self.i.payload.cause != Cause.NONE)):
                    m.d.comb += self.i.ready.eq(1)
                    m.d.sync += self.events.cause.eq(self.i.payload.cause)
                with m.Elif(self.i.valid & ~active.all()):
                    m.d.sync += self.slot.eq(Mux(fresh == works, free.r_data, fresh))
                    m.next = "CHECK"

            with m.State("CHECK"):
                m.d.sync += [
                    step.eq(step + 1),
                    conflicts.eq(conflicts | ((conflict & (active >> step)[0]) << step)),
                    near.eq(near | near_span),
                ]
                with m.If(step == steps - 1):
                    m.next = "ACCEPT"
            with m.State("ACCEPT"):
                m.d.comb += [self.accept.eq(1), self.i.ready.eq(1), waiting.w_en.eq(1)]
                with m.If(fresh == works):
                    m.d.comb += free.r_en.eq(1)
                with m.Else():
                    m.d.sync += fresh.eq(fresh + 1)
                m.d.sync += [
                    self.events.cause.eq(Cause.NONE),
                    self.states[self.slot].eq(SlotState.WAITING),
                    Array(before)[self.slot].eq(conflicts),
                    Array(older)[self.slot].eq(active),
                    Array(held_by)[self.slot].eq(0),
                ]
                m.next = "ROUND"
            with m.State("COMPLETE"):
                ended = Signal(works)
                m.d.comb += [self.complete.eq(1), ended.eq(1 << self.slot), free.w_en.eq(1)]
                m.d.comb += self.gate.completed.eq(ended)
                m.d.sync += [
                    self.states[self.slot].eq(SlotState.COMPLETED),
                    self.idle.eq(self.idle | Array(held_by)[self.slot]),
                ]
                m.d.sync += [others.eq(others & ~ended) for others in (*before, *older)]
                m.next = "ROUND"

            # A round takes each waiting work from the queue once, and puts it back if it must wait.
            with m.State("ROUND"):
                m.d.sync += [tries.eq(waiting.level), reserved.eq(0)]
                m.next = "NEXT"
            with m.State("NEXT"):
                m.d.sync += [self.slot.eq(waiting.r_data), tries.eq(tries - 1)]
                m.next = "TRY"
                with m.If(tries == 0):
                    m.next = "GROW"
            with m.State("TRY"):
                m.d.comb += waiting.r_en.eq(1)
                with m.If(Array(before)[self.slot].any() | ~self.idle.any()):
                    m.d.comb += waiting.w_en.eq(1)
                    m.next = "NEXT"
                with m.Else():
                    m.d.comb += choice.start.eq(1)
                    m.next = "CHOOSE"
            with m.State("CHOOSE"), m.If(~choice.busy):
                with m.If(choice.banks.any()):
                    m.next = "START"
                with m.Else():
                    m.d.comb += waiting.w_en.eq(1)
                    m.d.sync += reserved.eq(reserved | named)
                    m.next = "NEXT"
            with m.State("START"):
                grows = self.states[self.slot] == SlotState.RUNNING
                m.d.comb += [
                    self.gate.closing.eq(~grows),
                    self.joining.eq(grows | self.gate.closed),
                    self.starting.eq(~grows & self.gate.closed),
                ]
                with m.If(self.joining):
                    m.d.sync += [
                        self.states[self.slot].eq(SlotState.RUNNING),
                        Array(held_by)[self.slot].eq(Array(held_by)[self.slot] | self.banks),
                        self.idle.eq(self.idle & ~self.banks),
                        lacking.bit_select(self.slot, 1).eq(choice.left.any()),
                    ]
                    m.next = "NEXT"
                    with m.If(grows):
                        m.next = "GROW"

            # Banks that no waiting work needs go to running works, the oldest first.
            with m.State("GROW"):
                oldest = Cat(
                    grows & ~(growing & others).any()
                    for grows, others in zip(growing, older, strict=True)
                )
                m.d.sync += self.slot.eq(_lowest(oldest))
                m.next = "IDLE"
                with m.If(growing.any()):
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += choice.start.eq(1)
                m.next = "CHOOSE"

        m.d.sync += [
            self.events.taken.eq(self.i.valid & self.i.ready),
            self.events.completed.eq(self.complete),
        ]
        m.d.comb += self.selected_banks.eq(Array(held_by)[self.select])
        return m

    def _names(self, m: Any) -> None:
        """Make ids: the number of times that the slot was taken, above the slot's number."""
        turns = ID_BITS - len(self.slot)
        taken, state = Signal(turns), self.states[self.slot]
        times = self._memory(m, "times", turns, taken)
        last, shown = times.read_port(domain="comb"), times.read_port(domain="comb")
        m.d.comb += [
            last.addr.eq(self.slot),
            shown.addr.eq(self.select),
            taken.eq(Mux(state == SlotState.NONE, 0, last.data) + 1),
        ]
        with m.If(self.states[self.select] != SlotState.NONE):
            m.d.comb += self.selected_id.eq(Cat(self.select, shown.data))
        with m.If(self.accept):
            m.d.sync += self.events.id.eq(Cat(self.slot, taken))
        m.d.sync += self.events.completed_id.eq(Cat(self.slot, last.data))

    def _compare(self, m: Any, step: Any) -> tuple[Any, Any]:
        """Compare the spans of the offered work with those of slot ``step``.

        Return whether the two works must not overlap in time, and the banks that the offered work's
        tensor number ``step`` touches.
        """
        jobs, banks = self._jobs, self._config.banks
        spans = self.i.payload.spans
        kept = self._memory(m, "spans", spans.shape(), spans)
        read = kept.read_port(domain="comb")
        m.d.comb += [
            # The slot of the work that starts, if one does.
            read.addr.eq(Mux(self.gate.closing, self.slot, step)),
            self.gate.slot.eq(self.slot),
            self.gate.span.eq(read.data[_RESULT]),
            self.gate.start.eq(self.starting),
        ]

        def meet(one: Any, other: Any) -> Any:
            return one.used & other.used & (one.low <= other.high) & (other.low <= one.high)

        conflict = Cat(
            *(meet(spans[_RESULT], read.data[tensor]) for tensor in range(len(TENSORS))),
            *(meet(read.data[_RESULT], spans[tensor]) for tensor in range(_RESULT)),
        ).any()

        bank_words = self._config.bank_bytes // 4
        place = bank_words.bit_length() - 1
        touched, span = Signal(banks), Signal(jobs.span)
        with m.Switch(step):
            for tensor in range(len(TENSORS)):
                with m.Case(tensor):
                    m.d.comb += span.eq(spans[tensor])
        m.d.comb += touched.eq(
            Cat(
                span.used & (span.low[place:] <= bank) & (span.high[place:] >= bank)
                for bank in range(banks)
            )
        )
        return conflict, touched

    def _start(self, m: Any, choice: Any, near: Any, reserved: Any) -> Any:
        """Keep what a work needs to start, and start its banks.

        Return the banks that the slot's work names.
        """
        config, offered = self._config, self.i.payload
        wanted = data.StructLayout({"banks": config.banks, "near": config.banks})
        wishes = Signal(wanted, name="asked")
        m.d.comb += [wishes.banks.eq(offered.banks), wishes.near.eq(near)]
        wants = self._memory(m, "wants", wanted, wishes).read_port(domain="comb")
        m.submodules.lacks = lacks = memory.Memory(shape=UNITS_BITS, depth=config.works, init=[])
        lack, lacked = lacks.write_port(), lacks.read_port(domain="comb")
        # Read while banks are chosen, so that the work is stable when they start, and after.
        work = self._memory(m, "works", self._jobs.work, offered.work).read_port(domain="sync")
        m.d.comb += [
            wants.addr.eq(self.slot),
            choice.named.eq(wants.data.banks),
            choice.near.eq(wants.data.near),
            choice.units.eq(lacked.data),
            choice.idle.eq(self.idle & ~reserved),
            lacked.addr.eq(self.slot),
            lack.addr.eq(self.slot),
            lack.en.eq(self.accept | self.joining),
            lack.data.eq(Mux(self.accept, offered.units, choice.left)),
            work.addr.eq(self.slot),
            work.en.eq(choice.start),
            self.work.eq(work.data),
            self.banks.eq(choice.banks),
        ]
        m.d.sync += self.start.eq(Mux(self.joining, self.banks, 0))
        with m.If(self.joining):
            for bank in range(config.banks):
                with m.If(self.banks[bank]):
                    m.d.sync += self.owner[bank].eq(self.slot)
        m.d.sync += self.working.eq(
            (self.working & ~self.collected) | Mux(self.joining, self.banks, 0)
        )
        return wants.data.banks


def _lowest(bits: Any) -> Any:
    """Return the number of the lowest bit that is set."""
    number: Any = Const(0)
    for index in reversed(range(len(bits))):
        number = Mux(bits[index], index, number)
    return number
