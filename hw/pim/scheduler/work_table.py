"""The works that the pool holds: which are accepted, wait, run on which banks, have completed."""

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
    """Accepts, starts and completes works (docs/pim-spec.md, "The pool" and "Consistency").

    One thing at a time: a work is accepted or completed, then those that wait are tried in the
    order of their acceptance, then those that run are given banks that nobody waits for. So all see
    the same idle banks. To accept takes ``works`` + 2 cycles, at least 5, and to complete 2. A work
    that waits then takes 2 cycles if it must go on waiting for another or if no bank is idle;
    otherwise 3, one for each bank that the pool chooses, and one to start, or more if the host's
    port is not ``closed`` at once. A work that grows takes as long as one that starts.

    Parameters
    ----------
    config
        The banks, and the works at once.

    Members
    -------
    i : In(stream of :attr:`Jobs.checked <hw.pim.work.layouts.Jobs.checked>`)
        Works that are offered.
    events : Out(:class:`~hw.pim.work.status.WorkEventsSignature`)
        A cycle after a work was taken from ``i``, or after ``complete``.
    states : Out(array of :class:`~hw.pim.work.status.SlotState`)
    idle : Out(config.banks)
        Banks that work for no work.
    working : Out(config.banks)
        Banks whose part of a work is not yet ``collected``.
    owner : Out(array of range(config.works))
        The slot for which each bank works, or did.
    collected : In(config.banks)
        Pulses: the banks have done their parts, and all is counted.
    work : Out(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
    start : Out(config.banks)
        Pulses: the banks take ``work``.
    slot : Out(range(config.works))
        The slot that the following pulses are about.
    accept, joining, starting, complete : Out(1)
        The work at ``i`` takes the slot; ``banks`` work for the slot's work from the next cycle on;
        with it, they are the first, so it starts; it has completed.
    banks : Out(config.banks)
        With ``joining``: the banks.
    dealt : In(config.works)
        Slots of whose works no tile is left, for which more banks have nothing to do.
    gate : Out(:class:`~hw.pim.memory.host_memory.GateSignature`)
    select : In(range(config.works))
        The slot of which the next two members tell.
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
        """Something of each slot, which is ``contents`` when its work is accepted."""
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
        fresh = Signal(range(works + 1))  # the lowest slot that has never been taken
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
        lacking = Signal(works)  # those that run on fewer units than they take
        reserved = Signal(self._config.banks)  # named by those that wait for nothing else
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

            # A round takes each that waits from the queue once, and puts it back if it must wait.
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

            # What nobody waits for goes to those that run, the oldest first.
            with m.State("GROW"):
                oldest = Cat(
                    each & ~(growing & others).any()
                    for each, others in zip(growing, older, strict=True)
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
        """Ids: how often the slot has been taken, then the slot's number."""
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
        """Whether the offered work and that of slot ``step`` must not overlap in time, and the
        banks that the offered work's tensor ``step`` touches."""
        jobs, banks = self._jobs, self._config.banks
        spans = self.i.payload.spans
        kept = self._memory(m, "spans", spans.shape(), spans)
        read = kept.read_port(domain="comb")
        m.d.comb += [
            # That of the work that starts, if one does.
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
        """What is kept of a work to start it, and the banks' side. Returns the banks that the
        slot's work names."""
        config, offered = self._config, self.i.payload
        wanted = data.StructLayout({"banks": config.banks, "near": config.banks})
        asked = Signal(wanted)
        m.d.comb += [asked.banks.eq(offered.banks), asked.near.eq(near)]
        wants = self._memory(m, "wants", wanted, asked).read_port(domain="comb")
        m.submodules.lacks = lacks = memory.Memory(shape=UNITS_BITS, depth=config.works, init=[])
        lack, lacked = lacks.write_port(), lacks.read_port(domain="comb")
        # Read when the banks are being chosen, so that it stands when they start, and after.
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
    """The number of the lowest bit that is set."""
    number: Any = Const(0)
    for index in reversed(range(len(bits))):
        number = Mux(bits[index], index, number)
    return number
