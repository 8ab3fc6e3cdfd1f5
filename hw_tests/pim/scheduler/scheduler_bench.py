"""cocotb tests of the scheduler, with players in place of the banks and of the host's port.

Which banks work for what, in which order works start, ids, causes and idle bits are compared with
:class:`golden.pim.pool.Pool`, which is told of each acceptance and each completion, and when works
grow.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.pim.descriptor import ELEMENTWISE, Cause, Descriptor, Opcode, StridedTensor, check
from golden.pim.pool import Pool
from golden.pim.stack import StackMap
from hw.pim.config import configure
from hw.pim.scheduler.tally import bank_counts_layout
from hw.pim.work.layouts import Jobs
from hw.pim.work.status import SlotState, work_record_layout
from hw_tests.bench import bench_parameters
from hw_tests.stalls import STALLS
from hw_tests.streams import pack, unpack, value_of

CONFIG = configure("tiny", **bench_parameters()["options"])
JOBS = Jobs(CONFIG)
TENSORS = ("a", "b", "result")
BYTES = 32
WRAP = 1 << 64


@dataclass(eq=False)
class Offered:
    """A work as it is offered, and what became of it."""

    serial: int
    descriptor: Descriptor
    extents: dict[str, int]
    plan: dict[str, int]
    totals: tuple[int, int]
    cause: int = 0
    id: int = 0
    banks: int = 0
    accepted_at: int = 0
    started_at: int = 0
    completed_at: int = 0
    dealt_at: int = 0
    """When the last tile was taken."""
    place: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    """Where the next tile begins: outer2, outer1, second, first; first counts through lines."""
    line: int = 0
    """First vectors of a line, if they lie in lines."""
    ends: int = 0
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))


STACK = StackMap(banks=CONFIG.banks, bank_bytes=CONFIG.bank_bytes)
COUNTS = ("multiplications", "additions", "beats_read", "beats_written")


class Works:
    """Random works for a stack."""

    def __init__(self, rng: random.Random, *, words: int = 0) -> None:
        self.rng = rng
        self.words = CONFIG.stack_bytes // 4
        self.region = words or self.words
        """Tensors begin in the first ``words``: the fewer, the more works are in conflict."""
        self.large = self.region > 64
        self.serial = 0

    def _tensor(self, *extents: int) -> StridedTensor:
        """Dense, or with its rows far apart."""
        rng = self.rng
        address = 4 * rng.randrange(self.region)
        if self.large and rng.random() < 0.3:
            # In few of the striped memory's banks, which are near to no work.
            address = STACK.striped.start + 4 * rng.randrange(1024)
        if len(extents) == 1:
            return StridedTensor(address_bytes=address, strides=(rng.choice((1, 1, 3)),))
        apart = rng.choice((extents[1], extents[1], CONFIG.bank_bytes // 4, 37))
        return StridedTensor(address_bytes=address, strides=(max(apart, extents[1]), 1))

    def descriptor(self) -> Descriptor:
        rng = self.rng
        while True:
            opcode = rng.choice((Opcode.ADD, Opcode.SCALEADD, Opcode.DOT, Opcode.DOT, Opcode.SUM))
            rows = rng.randrange(1, 5) if self.large else 1
            banks = 0
            if rng.random() < 0.35:
                for _ in range(rng.choice((1, 1, 2, 4))):
                    banks |= 1 << rng.randrange(CONFIG.banks)
            few = rng.randrange(1, 6 * CONFIG.units // CONFIG.banks)
            units = 0 if banks else rng.choice((few, few, few, CONFIG.units))
            tensors: dict[str, Any] = {}
            if opcode in ELEMENTWISE:
                inner = rng.randrange(1, 20 if self.large else 4)
                tensors = {name: self._tensor(rows, inner) for name in TENSORS}
                if rng.random() < 0.2:
                    tensors["a"] = tensors["result"]
                sizes = {"rows": rows, "columns": inner}
            else:
                inner = rng.randrange(1, 120 if self.large else 4)
                names = ("a", "b") if opcode == Opcode.DOT else ("a",)
                tensors = {name: _sum_of(self._tensor(rows, inner)) for name in names}
                tensors["result"] = _sum_of(self._tensor(rows))
                sizes = {"images": 1, "rows": rows, "columns": 1, "length": inner}
            made = Descriptor(opcode=opcode, banks=banks, units=units, **sizes, **tensors)
            if check(made, stack=STACK, units=CONFIG.units) == Cause.NONE:
                return made

    def make(self, descriptor: Descriptor | None = None, **extents: int) -> Offered:
        rng = self.rng
        self.serial += 1
        made = descriptor or self.descriptor()
        elementwise = made.opcode in ELEMENTWISE
        sizes = {
            "first": rng.choice((1, 7, 3 * rng.randrange(1, 9), rng.randrange(1, 100)))
            << rng.choice((0, 3)) * elementwise,
            "second": 1 if elementwise else rng.choice((1, 2, rng.randrange(1, 8))),
            "outer1": rng.choice((1, 1, 2, 3)),
            "outer2": 1 if elementwise else rng.choice((1, 1, 1, 2)),
        }
        plan = {"chunk": rng.randrange(6, 10)} if elementwise else {"depth": rng.randrange(4)}
        plan |= {"seconds": 0 if elementwise else rng.randrange(5)}
        totals = rng.getrandbits(rng.choice((8, 33, 64))), rng.getrandbits(40)
        work = Offered(self.serial, made, {**sizes, **extents}, plan, totals)
        if not elementwise and "outer1" not in extents and rng.random() < 0.5:
            work.extents["outer1"] = 1
            work.line = rng.choice((1, 2, 8, rng.randrange(1, 30), 60000))
        return work

    def payload(self, work: Offered) -> int:
        """The work as the front would give it."""
        rng = self.rng
        if work.cause:
            assert JOBS.checked["cause"].offset == 0
            return rng.getrandbits(JOBS.checked.size) & ~15 | work.cause
        made = work.descriptor
        spans = 0
        for place, name in enumerate(TENSORS):
            if name in made.form.tensors:
                span = made.span(name)
                packed = pack(JOBS.span, used=1, low=span.start // 4, high=(span.stop - 1) // 4)
            else:
                packed = pack(JOBS.span, low=0, high=rng.randrange(self.words))
            spans |= packed << place * JOBS.span.size
        inner = pack(
            JOBS.work,
            alpha=work.serial,
            elementwise=int(made.opcode in ELEMENTWISE),
            lines=int(work.line > 0),
            line=work.line,
            plan=pack(JOBS.plan, **work.plan),
        )
        offered = made.units
        return pack(
            JOBS.checked,
            work=inner,
            spans=spans,
            banks=made.banks,
            units=0 if made.banks else offered,
            add_only=int(made.opcode in (Opcode.ADD, Opcode.SUM)),
            multiplications=work.totals[0],
            additions=work.totals[1],
            **work.extents,
        )


def _sum_of(lines: StridedTensor) -> StridedTensor:
    """Rows, and their elements, as a sum has them."""
    row, element, *_ = lines.strides
    return replace(lines, strides=(0, row, 0, element))


class Bank:
    """Plays a bank: takes tiles, says what it has done, and when it is done."""

    def __init__(self, tb: TB, number: int) -> None:
        self.tb = tb
        self.number = number
        self.rng = random.Random(f"{tb.pause} {number}")
        self.work: Offered | None = None
        self.ready = False
        self.ended = False
        self.holds_done = number % 3 == 0
        self.done = bool(number % 2)
        """Between works it may be anything."""
        self.counts: deque[dict[str, int]] = deque()
        self._valid = tb.signal(f"tile_{number}_valid")
        self._ready = tb.signal(f"tile_{number}_ready")
        self._payload = tb.signal(f"tile_{number}_payload")
        self._ready.value = 0

    def step(self, start: Offered | None) -> int:
        """One cycle; returns the counts that the bank gives in the next."""
        if start is not None:
            assert self.work is None, f"bank {self.number} started while it works"
            self.work, self.ended, self.done = start, False, False
        elif self.ready:
            if value_of(self._valid):
                self._ask(False)
                self._take(unpack(JOBS.tile, value_of(self._payload)))
        elif self.work is None:
            assert not value_of(self._valid), f"a tile for bank {self.number}, which has no work"
            self.done = self.done and self.holds_done
            self._ask(self.number % 3 == 1)  # Some ask before they have a work.
        elif not self.ended and self.rng.random() >= self.tb.pause:
            self._ask(True)
        return self._count()

    def _ask(self, ready: bool) -> None:
        self.ready = ready
        self._ready.value = int(ready)

    def _take(self, tile: dict[str, int]) -> None:
        assert self.work is not None, f"a tile for bank {self.number}, which has no work"
        if self.tb.check_tile(self.number, self.work, tile):
            self.ended = True
            return
        for _ in range(self.rng.randrange(4)):
            self.counts.append(
                {
                    "multiplications": self.rng.randrange(17),
                    "additions": self.rng.randrange(17),
                    "beats_read": self.rng.randrange(2),
                    "beats_written": self.rng.randrange(2),
                }
            )

    def _count(self) -> int:
        work = self.work
        if work is None:
            return 0
        given: dict[str, int] = {}
        if self.tb.most:
            self.counts = deque([dict(zip(COUNTS, (16, 16, 1, 1), strict=True))])
        if self.counts and self.rng.random() >= self.tb.pause:
            given = self.counts.popleft()
            for name, count in given.items():
                work.done[name] += count
        # The last counts may come with `done`.
        if self.ended and not self.counts and self.rng.random() >= self.tb.pause:
            self.work, self.done = None, True
        return pack(bank_counts_layout(), **given)


class TB:
    def __init__(self, dut: Any, *, stalls: str) -> None:
        self.dut = dut
        self.pause = STALLS[stalls]
        self.rng = random.Random(stalls)
        placement = CONFIG.placement
        self.golden = Pool(
            multipliers=placement.multipliers,
            adders=placement.adders,
            bank_bytes=CONFIG.bank_bytes,
            slots=CONFIG.works,
        )
        self.cycle = 0
        self.offers: deque[Offered] = deque()
        self.eager = 0.5
        """How often a work is offered."""
        self.works: dict[int, Offered] = {}
        """By serial number."""
        self.held: dict[int, Offered] = {}
        """By slot: the last work accepted there."""
        self.waiting: list[Offered] = []
        self.to_start: deque[Offered] = deque()
        self.causes: list[int] = []
        self.last_cause = self.last_id = 0
        self.completed: list[Offered] = []
        self.events: list[tuple[str, int]] = []
        """What happened in the last cycle, and to which work."""
        self.waited = 0
        """Cycles in which a work waited for room."""
        self.most = False
        """Banks do as much as they can in each cycle in which they have a work."""
        self.overtakes = self.late = self.grown = 0
        """Works that started, or completed, before an older one; how often works grew."""
        self.owners: dict[int, Offered] = {}
        """The work of each bank that has one."""
        self.busy = [0] * CONFIG.banks
        """Cycles in which each bank had a work."""
        self.tile_cycles: list[tuple[int, int]] = []
        self.players = [Bank(self, number) for number in range(CONFIG.banks)]
        self.gate_opens_after = 0

    def signal(self, name: str) -> Any:
        return getattr(self.dut, name)

    def value(self, name: str) -> int:
        return int(self.signal(name).value)

    async def reset(self) -> None:
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, 3200, unit="ps").start())
        dut.rst.value = 1
        for name in ("i_valid", "done", "counts", "gate_closed", "status_select", "status_bank"):
            self.signal(name).value = 0
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        cocotb.start_soon(self._run())

    async def run(self, works: Iterator[Offered], count: int, limit: int = 20_000) -> None:
        """Offers works until ``count`` have been offered and all accepted ones completed."""
        for _ in range(count):
            self.offers.append(next(works))
        for _ in range(limit):
            await RisingEdge(self.dut.clk)
            if len(self.causes) == count and len(self.completed) == len(self.works):
                break
        else:
            raise AssertionError(f"{len(self.completed)} of {len(self.works)} works completed")
        await ClockCycles(self.dut.clk, 3 * CONFIG.banks)
        assert self.value("status_idle") == (1 << CONFIG.banks) - 1
        assert not any(player.work for player in self.players)

    # What is seen.

    def _settled(self) -> None:
        """Before something new is accepted or completed all that could start has started, and all
        that could grow has grown."""
        assert not self.to_start, f"work {self.to_start[0].id} has not started"
        grown = self.golden.grow(self._dealt())
        assert grown is None, f"work {grown} has not grown"
        assert self.value("status_idle") == self.golden.idle, "idle bits"

    def _dealt(self) -> set[int]:
        """Works of which no tile is left."""
        return {work.id for work in self.held.values() if work.place is None}

    def _grow(self, work: Offered, mask: int) -> None:
        """Banks joined a running work."""
        assert not self.to_start, f"work {work.id} grew before work {self.to_start[0].id} started"
        dealt = self._dealt()
        if work.place is None and self.cycle - work.dealt_at <= CONFIG.banks + 5:
            dealt.remove(work.id)  # Its last tile was taken while banks were chosen.
        assert self.golden.grow(dealt) == work.id, f"work {work.id} grew, which must not"
        banks = sum(1 << bank for bank in self.golden.banks_of(work.id))
        assert mask == banks & ~work.banks, f"{mask:b} joined work {work.id}, not {banks:b}"
        work.banks = banks
        self.grown += 1

    def _expect_starts(self) -> None:
        for work in list(self.waiting):
            banks = self.golden.banks_of(work.id)
            if banks:
                work.banks = sum(1 << bank for bank in banks)
                self.to_start.append(work)
                self.waiting.remove(work)

    def _taken(self, work: Offered) -> None:
        """A work was taken from the scheduler's input."""
        self._settled()
        if work.cause:
            self.last_cause = work.cause
        else:
            work.id = self.last_id = self.golden.submit(work.descriptor)
            work.accepted_at = self.cycle
            self.last_cause = 0
            self.works[work.serial] = work
            self.held[work.id % CONFIG.works] = work
            self.waiting.append(work)
            self._expect_starts()
        self.causes.append(self.last_cause)
        self.events.append(("taken", work.id))

    def _complete(self, slot: int) -> None:
        work = self.held[slot]
        self._settled()
        assert work.ends == work.banks.bit_count(), "a work completed before all banks were done"
        assert work.place is None
        for player in self.players:
            assert player.work is not work, f"bank {player.number} was not done"
        work.completed_at = self.cycle + 1
        self.completed.append(work)
        self.late += any(
            other.completed_at == 0 and other.serial < work.serial for other in self.works.values()
        )
        self.events.append(("completed", work.id))
        self.golden.finish(work.id)
        self._expect_starts()

    def _check_events(self) -> None:
        """What is told of works, a cycle after it."""
        told, self.events = self.events, []
        assert self.value("events_cause") == self.last_cause
        assert self.value("events_id") == self.last_id
        assert len(told) <= 1, "two at once"
        for name in ("taken", "completed"):
            assert self.value(f"events_{name}") == any(name == each for each, _ in told)
        if "completed" in dict(told):
            assert self.value("events_completed_id") == dict(told)["completed"]

    def _start(self, mask: int) -> Offered:
        serial = unpack(JOBS.work, self.value("work"))["alpha"]
        work = self.works[serial]
        if work.started_at:
            self._grow(work, mask)
            return work
        assert self.to_start, f"work {work.id} started, which must wait"
        expected = self.to_start.popleft()
        self.overtakes += any(other.id and other.serial < serial for other in self.waiting)
        assert work is expected, f"work {work.id} started before {expected.id}"
        assert mask == work.banks, f"work {work.id} started on {mask:b}, not on {work.banks:b}"
        work.started_at = self.cycle
        return work

    def check_tile(self, bank: int, work: Offered, tile: dict[str, int]) -> bool:
        """Checks that a tile is what follows in its work; whether it was the end."""
        self.tile_cycles.append((self.cycle, bank))
        if tile["end"]:
            assert work.place is None, "an end before the last tile"
            work.ends += 1
            return True
        assert work.place is not None, "a tile after the last one"
        outer2, outer1, second, first = work.place
        extents, plan = work.extents, work.plan
        if "chunk" in plan:
            limit = 1 << plan["chunk"]
        else:
            adders = CONFIG.placement.adders[bank]
            multipliers = CONFIG.placement.multipliers[bank]
            lanes = adders if work.descriptor.opcode == Opcode.SUM else min(multipliers, adders)
            limit = lanes << plan["depth"]
            left = extents["first"] - first
            if plan["seconds"] >= 3:
                # A power of two of vectors a lane, if so many are left.
                needed = -(-left // lanes)
                limit = lanes * max(each for each in (1, 2, 4, 8) if each <= needed)
                limit = min(limit, lanes << plan["depth"])
        first_count = min(limit, extents["first"] - first)
        second_count = min(1 << plan["seconds"], extents["second"] - second)
        line, in_line = divmod(first, work.line or 1 << 24)
        assert tile == {
            "end": 0,
            "outer1": outer1 + line,
            "outer2": outer2,
            "first": in_line,
            "first_count": first_count,
            "second": second,
            "second_count": second_count,
        }
        first += first_count
        if first == extents["first"]:
            first, second = 0, second + second_count
        if second == extents["second"]:
            second, outer1 = 0, outer1 + 1
        if outer1 == extents["outer1"]:
            outer1, outer2 = 0, outer2 + 1
        work.place = None if outer2 == extents["outer2"] else (outer2, outer1, second, first)
        work.dealt_at = self.cycle
        return False

    def _check_status(self, slot: int) -> None:
        """The pool's registers, and those of a slot."""
        completed = sum(1 << slot for slot, work in self.held.items() if work.completed_at)
        assert self.value("status_completed") == completed
        record = self.value("status_record")
        layout = work_record_layout(CONFIG)
        seen = unpack(layout, record)
        counts = unpack(layout["counts"].shape, seen["counts"])
        work = self.held.get(slot)
        if work is None:
            assert record == 0, "registers of a slot that has had no work"
            return
        assert seen["id"] == work.id
        for place, name in enumerate(COUNTS[:2]):
            done = counts[f"{name}_done"]
            assert (done + counts[f"{name}_left"]) % WRAP == work.totals[place]
            assert done <= work.done[name]
        if work.completed_at:
            state, banks, cycles = SlotState.COMPLETED, work.banks, work.completed_at
            for name in COUNTS[:2]:
                assert counts[f"{name}_done"] == work.done[name], "a count is not complete"
            assert counts["bytes_read"] == BYTES * work.done["beats_read"]
            assert counts["bytes_written"] == BYTES * work.done["beats_written"]
            cycles -= work.started_at
        elif work.started_at:
            state, banks, cycles = SlotState.RUNNING, work.banks, self.cycle - work.started_at + 1
        else:
            state, banks, cycles = SlotState.WAITING, 0, 0
            assert not any(counts[name] for name in ("bytes_read", "bytes_written"))
        assert (seen["state"], seen["banks"], counts["cycles"]) == (state.value, banks, cycles)

    def _play_gate(self) -> None:
        """Plays the host's port, which may take a while to close."""
        if not self.value("gate_closing"):
            self.gate_opens_after = self.rng.choice((0, 0, 0, 3, 20))
            self.signal("gate_closed").value = int(self.gate_opens_after == 0)
            return
        starting, closed = self.value("gate_start"), self.value("gate_closed")
        assert starting == closed
        if starting:
            assert self.to_start, "a work starts that must wait"
            work = self.to_start[0]
            span = unpack(JOBS.span, self.value("gate_span"))
            expected = work.descriptor.span("result")
            assert (span["low"], span["high"]) == (expected.start // 4, (expected.stop - 1) // 4)
            assert self.value("gate_slot") == work.id % CONFIG.works
        self.gate_opens_after -= 1
        self.signal("gate_closed").value = int(self.gate_opens_after <= 0)

    async def _run(self) -> None:
        works = Works(self.rng)
        offering: Offered | None = None
        select = 0
        bits = bank_counts_layout().size
        while True:
            await RisingEdge(self.dut.clk)
            self.cycle += 1
            mask = self.value("start")
            started = self._start(mask) if mask else None
            self._check_status(select % CONFIG.works)
            self._check_events()
            assert self.value("status_busy") == self.busy[select % CONFIG.banks], "busy cycles"
            select = self.rng.randrange(CONFIG.works * CONFIG.banks)
            self.signal("status_select").value = select % CONFIG.works
            self.signal("status_bank").value = select % CONFIG.banks
            if started is not None:
                self.owners |= {bank: started for bank in range(CONFIG.banks) if mask >> bank & 1}
            for bank in self.owners:
                self.busy[bank] += 1
            for slot in range(CONFIG.works):
                if self.value("gate_completed") >> slot & 1:
                    self._complete(slot)
                    done = self.held[slot]
                    self.owners = {
                        bank: work for bank, work in self.owners.items() if work is not done
                    }
            full = len(self.works) - len(self.completed) == CONFIG.works
            self.waited += full and offering is not None and not offering.cause
            if offering is not None and self.value("i_ready"):
                assert not full or offering.cause, "accepted without room"
                self._taken(offering)
                offering = None
            self._play_gate()
            counts = 0
            for number, player in enumerate(self.players):
                given = player.step(started if mask >> number & 1 else None)
                counts |= given << number * bits
            self.signal("counts").value = counts
            done = sum(player.done << player.number for player in self.players)
            self.signal("done").value = done
            if offering is None and self.offers and self.rng.random() < self.eager:
                offering = self.offers.popleft()
                self.signal("i_payload").value = works.payload(offering)
            self.signal("i_valid").value = int(offering is not None)


def random_works(tb: TB, words: int) -> Iterator[Offered]:
    works = Works(tb.rng, words=words)
    while True:
        work = works.make()
        if tb.rng.random() < 0.1:
            work.cause = tb.rng.randrange(1, len(Cause))
        yield work


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize((("stalls", "words"), [("none", 0), ("random", 48), ("heavy", 2000)]))
async def random_sequences(dut: Any, stalls: str, words: int) -> None:
    """Works of all kinds, refused ones too, offered faster than the pool can take them."""
    tb = TB(dut, stalls=stalls)
    await tb.reset()
    await tb.run(random_works(tb, words), 100 if words else 300)
    dut._log.info(
        f"{tb.cycle} cycles, {len(tb.completed)} works, {tb.overtakes} started and {tb.late} "
        f"completed before an older one, {tb.grown} grew, {tb.waited} cycles full"
    )
    assert tb.overtakes
    assert tb.late
    assert tb.grown or words == 48  # whose works are too small
    assert tb.waited
    assert set(Cause) >= set(tb.causes) > {Cause.NONE}


def sum_on(works: Works, banks: int, place: int, **extents: int) -> Offered:
    """A work for these banks that is in the way of no other with another ``place``; without banks
    for all units."""
    made = Descriptor(
        opcode=Opcode.SUM,
        banks=banks,
        units=0 if banks else CONFIG.units,
        images=1,
        rows=1,
        columns=1,
        length=1 if banks else CONFIG.units,
        a=StridedTensor(address_bytes=0),
        result=StridedTensor(address_bytes=4 * (1 + place)),
    )
    work = works.make(made, **extents)
    work.plan = {"depth": 0, "seconds": 1}
    return work


async def unstalled(dut: Any) -> TB:
    """A bench without stalls whose host always has a work to offer."""
    tb = TB(dut, stalls="none")
    tb.eager = 1.0
    await tb.reset()
    return tb


def long_and_short(works: Works, first: int) -> list[Offered]:
    """A work of two banks with so many first vectors, and 59 that come and go on four others."""
    sizes = {"second": 1, "outer1": 1, "outer2": 1}
    long = sum_on(works, 0b110000, 0, first=first, **sizes)
    return [
        long,
        *(sum_on(works, 1 << place % 4, place, first=3, **sizes) for place in range(1, 60)),
    ]


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def tiles_fill_the_turns_of_lanes(dut: Any) -> None:
    """What is left of the first vectors is at, below and above each number of vectors a lane."""
    tb = await unstalled(dut)
    works = Works(tb.rng)
    offered = []
    for vectors in range(1, 10):
        for more in (-1, 0, 1):
            bank = len(offered) % CONFIG.banks
            sizes = {"second": 9, "outer1": 1, "outer2": 1}
            lanes = CONFIG.placement.adders[bank]
            work = sum_on(works, 1 << bank, bank, first=vectors * lanes + more, **sizes)
            work.plan = {"depth": 3 - len(offered) % 2, "seconds": 3}
            offered.append(work)
    await tb.run(iter(offered), len(offered))


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def tiles_are_shared_out(dut: Any) -> None:
    """Two works at once, with banks that always ask: a tile every four cycles, in turn."""
    tb = await unstalled(dut)
    works = Works(tb.rng)
    banks = CONFIG.banks
    half = (1 << banks // 2) - 1
    sizes = {"first": 100, "second": 3, "outer1": 2, "outer2": 1}
    pair = [
        sum_on(works, mask, place, **sizes) for place, mask in enumerate((half, half << banks // 2))
    ]
    await tb.run(iter(pair), 2)
    first, second = pair
    assert second.started_at < first.completed_at
    busy = [each for each in tb.tile_cycles if each[0] > second.started_at + 4]
    dut._log.info(f"{len(busy)} tiles in {busy[-1][0] - busy[0][0]} cycles")
    assert busy[-1][0] - busy[0][0] == 4 * (len(busy) - 1)
    turns = [bank for _, bank in busy[: 3 * banks]]
    assert all(len({*turns[at : at + banks]}) == banks for at in range(2 * banks))


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def lines_are_passed(dut: Any) -> None:
    """A tile that reaches the end of a line costs a cycle for each line, and one more."""
    tb = await unstalled(dut)
    banks, line, first = CONFIG.banks, 9, 1000
    sizes = {"first": first, "second": 1, "outer1": 1, "outer2": 1}
    work = sum_on(Works(tb.rng), (1 << banks) - 1, 0, **sizes)
    work.line = line
    await tb.run(iter([work]), 1)
    begin = 0
    for (cycle, bank), (following, _) in itertools.pairwise(tb.tile_cycles):
        end = begin + CONFIG.placement.adders[bank]
        passed = 0
        if end < first:
            passed = end // line - begin // line
        assert following - cycle == 4 + passed + (begin < first and end // line > begin // line)
        begin = end


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def a_long_line_is_passed(dut: Any) -> None:
    """One that 16 bits cannot count."""
    tb = await unstalled(dut)
    sizes = {"first": (1 << 16) + 300, "second": 1, "outer1": 1, "outer2": 1}
    work = sum_on(Works(tb.rng), (1 << CONFIG.banks) - 1, 0, **sizes)
    work.line = (1 << 16) + 5
    work.plan = {"depth": 3, "seconds": 1}
    await tb.run(iter([work]), 1)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def lines_are_passed_while_works_come(dut: Any) -> None:
    tb = await unstalled(dut)
    long, *short = long_and_short(Works(tb.rng), first=2000)
    long.line = 1
    await tb.run(iter([long, *short]), 60)
    assert tb.completed.index(long) > 20


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def all_is_counted(dut: Any) -> None:
    """Banks that do in each cycle as much as a bank can, while other works come and go."""
    tb = await unstalled(dut)
    tb.most = True
    long, *short = long_and_short(Works(tb.rng), first=600)
    await tb.run(iter([long, *short]), 60)
    cycles = long.completed_at - long.started_at
    count = long.done["multiplications"]
    dut._log.info(f"{count} multiplications of two banks in {cycles} cycles, among {tb.causes}")
    assert count > 2 * 16 * (cycles - 50)
    assert tb.completed.index(long) > 20


LONG = {"first": 400, "second": 1, "outer1": 1, "outer2": 1}
SHORT = {"first": 20, "second": 1, "outer1": 1, "outer2": 1}
ALL = (1 << CONFIG.banks) - 1


def begun_since(tb: TB, cycle: int, late: Offered) -> int:
    """Works younger than ``late`` that started after ``cycle`` and before it."""
    return sum(
        cycle < work.started_at < late.started_at
        for work in tb.works.values()
        if work.serial > late.serial
    )


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def idle_banks_join_a_running_work(dut: Any) -> None:
    """A work that started with one bank has all of them once the others' work is done."""
    tb = await unstalled(dut)
    works = Works(tb.rng)
    first = sum_on(works, ALL & ~1, 0, **SHORT)
    second = sum_on(works, 0, 1, **LONG)
    await tb.run(iter([first, second]), 2)
    assert second.started_at < first.completed_at
    assert (tb.grown, second.banks) == (1, ALL)
    taken = {bank for cycle, bank in tb.tile_cycles if cycle > first.completed_at}
    assert taken == set(range(CONFIG.banks))


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def a_work_that_names_all_banks_is_served(dut: Any) -> None:
    """Of a stream of small works none that comes later takes a bank before it, nor does the work
    that would grow."""
    tb = await unstalled(dut)
    works = Works(tb.rng)
    offered = [sum_on(works, ALL & ~1, 0, **SHORT), sum_on(works, 0, 1, **LONG)]
    late = sum_on(works, ALL, 2, **SHORT)
    offered += [late, *(sum_on(works, 1 << place % 5, place, **SHORT) for place in range(3, 150))]
    await tb.run(iter(offered), len(offered))
    assert begun_since(tb, late.accepted_at, late) == 0
    growing = offered[1]
    assert (growing.banks, tb.grown) == (1, 0)
    dut._log.info(f"waited {late.started_at - late.accepted_at} cycles")
    assert late.started_at - growing.completed_at < 30
    assert len(tb.completed) > 20


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def banks_are_not_kept_for_a_work_that_needs_a_result(dut: Any) -> None:
    """Others run on them meanwhile; once it needs nothing else, no more of them begin."""
    tb = await unstalled(dut)
    works = Works(tb.rng)
    first = sum_on(works, 1, 0, **LONG)
    late = sum_on(works, ALL, 0, **SHORT)
    stream = [sum_on(works, 2 << place % 5, place, **SHORT) for place in range(1, 60)]
    await tb.run(iter([first, late, *stream]), 61)
    assert begun_since(tb, late.accepted_at, late) > 5
    assert begun_since(tb, first.completed_at, late) == 0
    running = [work for work in stream if 0 < work.started_at < first.completed_at]
    last = max(work.completed_at for work in running)
    assert late.started_at - max(first.completed_at, last) < 30
