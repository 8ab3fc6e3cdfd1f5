"""cocotb tests of the host's memory port, with a memory and a scheduler that are played.

The played memory answers late and, for different vaults, in any order. While a work runs, the beats
of its result hold what no read may return.

Parameter: ``columns`` of the grid, which has one row.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from golden.pim import StackMap
from hw.pim.config import configure
from hw.pim.memory.host_memory import OUTSTANDING, HostCause, host_status_layout
from hw.pim.memory.memory_port import (
    HOST_TAG_BITS,
    host_response_layout,
    memory_request_layout,
    memory_response_layout,
)
from hw.pim.work.layouts import BEAT_WORDS, Jobs
from hw_tests.bench import bench_parameters
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, pack, unpack, value_of

CONFIG = configure("tiny", rows=1, columns=bench_parameters()["columns"])
STACK = StackMap(banks=CONFIG.banks, bank_bytes=CONFIG.bank_bytes)
JOBS = Jobs(CONFIG)
REQUEST, RESPONSE = memory_request_layout(CONFIG), memory_response_layout()
HOST_REQUEST = memory_request_layout(CONFIG, tag_bits=HOST_TAG_BITS)
HOST_RESPONSE = host_response_layout(tag_bits=HOST_TAG_BITS)
PARTIAL = (1 << 256) - 1
TAGS = 1 << HOST_TAG_BITS
VAULTS = 3
BEATS = 48
"""Beats that the host reads and writes; few, so that results are often met."""


def held(beat: int) -> bool:
    """Whether a bank holds it, by the golden model."""
    return STACK.holds(range(32 * beat, 32 * beat + 32))


@dataclass(eq=False)
class Work:
    slot: int
    low: int
    high: int
    """Elements."""
    left: int = 0
    """Cycles until it completes."""

    @property
    def beats(self) -> range:
        return range(self.low // BEAT_WORDS, self.high // BEAT_WORDS + 1)


class TB:
    def __init__(self, dut: Any, *, stalls: str = "none", answers: str = "none") -> None:
        self.dut = dut
        self.rng = random.Random(f"{stalls} {answers}")
        self.pause = STALLS[answers]
        self.host = StreamSource(dut, "request", dut.clk, pause=STALLS[stalls])
        self.sink = StreamSink(dut, "response", dut.clk, pause=STALLS[stalls])
        self.inner = StreamSource(dut, "inner_request", dut.clk)
        self.inner_sink = StreamSink(dut, "inner_response", dut.clk)
        self.sent: list[tuple[int, bool]] = []
        self.contents = {beat: beat for beat in range(BEATS)}
        self.queues: list[deque[tuple[int, dict[str, int]]]] = [deque() for _ in range(VAULTS)]
        self.version = BEATS
        self.running: dict[int, Work] = {}
        self.starting: Work | None = None
        self.starts = self.completions = 0
        self.waits = 0
        """Cycles in which a start waited for reads."""
        self.taken_at: list[int] = []
        self.cycle = 0
        self.stopped = False
        """The memory takes nothing."""

    async def reset(self) -> None:
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, 3200, unit="ps").start())
        dut.rst.value = 1
        for name in ("closing", "start", "slot", "span", "completed"):
            getattr(dut, f"gate_{name}").value = 0
        for name in ("memory_request_ready", "memory_response_valid"):
            getattr(dut, name).value = 0
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        cocotb.start_soon(self._memory())
        cocotb.start_soon(self._scheduler())

    def ask(self, beat: int, *, data: int | None = None) -> None:
        """A read, or a write of ``data``; the tag is the number of the request."""
        write = data is not None
        fields = {"address": beat, "write": int(write), "tag": len(self.sent) % TAGS}
        self.sent.append((beat, write))
        strobe = (1 << 32) - 1 if write else 0
        self.host.queue.append(pack(HOST_REQUEST, data=data or 0, strobe=strobe, **fields))

    async def answered(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            if len(self.sink.taken) == len(self.sent):
                return
            await FallingEdge(self.dut.clk)
        raise AssertionError(f"{len(self.sink.taken)} of {len(self.sent)} answers")

    def check(self) -> dict[int, int]:
        """All requests were answered once, none with parts of a result; what reads gave."""
        given = {}
        numbers: dict[int, deque[int]] = {}
        for number in range(len(self.sent)):
            numbers.setdefault(number % TAGS, deque()).append(number)
        for payload in self.sink.taken:
            answer = unpack(HOST_RESPONSE, payload)
            number = numbers[answer["tag"]].popleft()
            beat, write = self.sent[number]
            assert answer["write"] == write
            assert answer["error"] == (not held(beat)), f"beat {beat:#x}"
            if answer["error"]:
                assert answer["data"] == 0
            if not write:
                assert answer["data"] != PARTIAL, f"read {number} of beat {beat} gave a part"
                given[number] = answer["data"]
        assert self.status()["starts"] == self.starts
        return given

    def status(self) -> dict[str, int]:
        return unpack(host_status_layout(), value_of(self.dut.status))

    async def _memory(self) -> None:
        dut, rng = self.dut, self.rng
        ready, answering = False, False
        while True:
            await RisingEdge(dut.clk)
            self.cycle += 1
            if ready and value_of(dut.memory_request_valid):
                asked = unpack(REQUEST, value_of(dut.memory_request_payload))
                assert held(asked["address"]), f"asked for beat {asked['address']:#x}"
                delay = self.cycle + rng.choice((0, 3, 40)) * (self.pause > 0)
                self.queues[asked["address"] % VAULTS].append((delay, asked))
                self.taken_at.append(self.cycle)
                assert sum(map(len, self.queues)) <= OUTSTANDING
            assert not answering or value_of(dut.memory_response_ready)
            due = [queue for queue in self.queues if queue and queue[0][0] <= self.cycle]
            answering = bool(due) and rng.random() >= self.pause
            dut.memory_response_valid.value = int(answering)
            if answering:
                _, asked = rng.choice(due).popleft()
                if asked["write"]:
                    self.contents[asked["address"]] = asked["data"]
                fields = {"tag": asked["tag"], "write": asked["write"]}
                value = self.contents.get(asked["address"], 0)
                dut.memory_response_payload.value = pack(RESPONSE, data=value, **fields)
            ready = not self.stopped and rng.random() >= self.pause
            dut.memory_request_ready.value = int(ready)

    def start(self, work: Work) -> None:
        assert self.starting is None
        self.starting = work

    async def _scheduler(self) -> None:
        """Starts and completes works; a work has written parts of its result at once."""
        dut = self.dut
        closing = started = False
        while True:
            await RisingEdge(dut.clk)
            dut.gate_completed.value = 0
            for slot, work in list(self.running.items()):
                work.left -= 1
                if work.left == 0:
                    del self.running[slot]
                    self.version += 1
                    self._write(work, self.version)
                    dut.gate_completed.value = 1 << slot
                    self.completions += 1
            if started:
                self.starting = None
            closed = closing and bool(value_of(dut.gate_closed))
            self.waits += closing and not closed
            work = self.starting
            started = closed and work is not None
            closing = work is not None
            dut.gate_closing.value = int(closing)
            dut.gate_start.value = int(started)
            if started and work is not None:
                dut.gate_slot.value = work.slot
                dut.gate_span.value = pack(JOBS.span, used=1, low=work.low, high=work.high)
                self.running[work.slot] = work
                self.starts += 1
                self._write(work, PARTIAL)

    def _write(self, work: Work, value: int) -> None:
        for beat in work.beats:
            self.contents[beat] = value


async def random_starts(tb: TB) -> None:
    """Works on random spans, as many at once as there are slots."""
    while True:
        await ClockCycles(tb.dut.clk, tb.rng.randrange(1, 60))
        free = [slot for slot in range(CONFIG.works) if slot not in tb.running]
        if tb.starting is None and free:
            low = tb.rng.randrange(BEATS * BEAT_WORDS)
            high = min(BEATS * BEAT_WORDS - 1, low + tb.rng.choice((0, 1, 8, 60)))
            tb.start(Work(tb.rng.choice(free), low, high, tb.rng.randrange(1, 120)))


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS), answers=["none", "heavy"])
async def reads_give_no_parts(dut: Any, stalls: str, answers: str) -> None:
    tb = TB(dut, stalls=stalls, answers=answers)
    await tb.reset()
    starts = cocotb.start_soon(random_starts(tb))
    for number in range(400):
        beat = tb.rng.randrange(BEATS)
        tb.ask(beat, data=number if tb.rng.random() < 0.2 else None)
        if len(tb.sent) - len(tb.sink.taken) >= TAGS:
            await tb.answered()
    await tb.answered()
    starts.cancel()
    await ClockCycles(dut.clk, 20)
    tb.check()
    dut._log.info(f"{tb.completions} works in {tb.cycle} cycles, {tb.waits} cycles of waiting")
    assert tb.completions > 5
    assert tb.waits


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def order_is_kept(dut: Any) -> None:
    """Without works, each read gives what was last written before it."""
    tb = TB(dut, stalls="random", answers="random")
    await tb.reset()
    model = dict(tb.contents)
    expected = {}
    for number in range(TAGS * 6):
        beat = tb.rng.randrange(4)
        if tb.rng.random() < 0.4:
            model[beat] = tb.rng.getrandbits(256)
            tb.ask(beat, data=model[beat])
        else:
            expected[number] = model[beat]
            tb.ask(beat)
        if number % TAGS == TAGS - 1:
            await tb.answered()
    await tb.answered()
    assert tb.check() == expected


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def one_a_cycle(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    for number in range(TAGS):
        tb.ask(number % BEATS)
    await tb.answered()
    assert tb.taken_at[-1] - tb.taken_at[0] == TAGS - 1


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(edge=["low", "high"])
async def results_wait(dut: Any, edge: str) -> None:
    """The beats of a result, and only these, cannot be read until the work has completed."""
    tb = TB(dut)
    await tb.reset()
    work = Work(1, 8 * BEAT_WORDS + 7, 15 * BEAT_WORDS, 300)
    tb.start(work)
    await ClockCycles(dut.clk, 10)
    tb.ask(7)
    tb.ask(9, data=5)
    tb.ask(16)
    tb.ask(8 if edge == "low" else 15)
    tb.ask(0)
    await ClockCycles(dut.clk, 200)
    assert tb.running
    assert len(tb.sink.taken) == 3
    await tb.answered()
    assert tb.check() == {0: 7, 2: 16, 3: tb.version, 4: 0}


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def inside_waits_for_nothing(dut: Any) -> None:
    """Of the host's: neither for a read that waits for a result, nor for responses it leaves."""
    tb = TB(dut)
    await tb.reset()
    tb.start(Work(1, 8 * BEAT_WORDS, 9 * BEAT_WORDS, 300))
    await ClockCycles(dut.clk, 10)
    tb.ask(1)
    tb.ask(8)
    tb.ask(2)
    tb.sink.pause = 1.0
    await ClockCycles(dut.clk, 10)
    missing = next((beat for beat in range(1 << REQUEST["address"].width) if not held(beat)), None)
    for beat, write, data in ((2, 1, 77), (2, 0, 0), (9, 0, 0), (missing, 0, 0)):
        if beat is not None:
            fields = {"address": beat, "write": write, "data": data, "tag": len(tb.inner.queue)}
            tb.inner.queue.append(pack(HOST_REQUEST, strobe=(1 << 32) - 1, **fields))
    await ClockCycles(dut.clk, 30)
    assert tb.running
    given = [unpack(HOST_RESPONSE, each) for each in tb.inner_sink.taken]
    by_tag = {each["tag"]: (each["data"], each["error"]) for each in given if not each["write"]}
    expected = {1: (77, 0), 2: (PARTIAL, 0), 3: (0, 1)}
    assert by_tag == {tag: expected[tag] for tag in range(1, 3 + (missing is not None))}
    tb.sink.pause = 0.0
    await tb.answered()
    assert tb.check() == {0: 1, 1: tb.version, 2: 77}


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS), answers=list(STALLS))
async def inside_comes_after_writes_that_were_taken(dut: Any, stalls: str, answers: str) -> None:
    """And before what the host asks later: who has handed over a write may have it read."""
    tb = TB(dut, stalls=stalls, answers=answers)
    await tb.reset()
    for number in range(60):
        value, count = BEATS + number, tb.rng.randrange(1, 7)
        for _ in range(count):
            tb.ask(5, data=tb.rng.getrandbits(200) << 8)
        tb.ask(5, data=value)
        while tb.host.queue:
            await RisingEdge(dut.clk)
        fields = {"address": 5, "write": 0, "data": 0, "strobe": 0, "tag": 0}
        tb.inner.queue.append(pack(HOST_REQUEST, **fields))
        while tb.inner.queue:
            await RisingEdge(dut.clk)
        tb.ask(5, data=1)
        await tb.answered()
        while len(tb.inner_sink.taken) <= number:
            await RisingEdge(dut.clk)
        assert unpack(HOST_RESPONSE, tb.inner_sink.taken[number])["data"] == value


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def inside_waits_for_no_room(dut: Any) -> None:
    """Of the host, who asks for writes and leaves the responses where they are."""
    tb = TB(dut)
    await tb.reset()
    tb.sink.pause = 1.0
    for number in range(OUTSTANDING + 4):
        tb.ask(number % BEATS, data=number)
    await ClockCycles(dut.clk, 100)
    assert len(tb.host.queue) >= 3
    fields = {"address": 1, "write": 0, "data": 0, "strobe": 0, "tag": 0}
    tb.inner.queue.append(pack(HOST_REQUEST, **fields))
    await ClockCycles(dut.clk, 20)
    assert unpack(HOST_RESPONSE, tb.inner_sink.taken[0])["data"] == 1
    tb.sink.pause = 0.0
    await tb.answered()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def host_cannot_hold_up_works(dut: Any) -> None:
    """Neither by leaving its responses where they are nor by asking without a pause."""
    tb = TB(dut, stalls="none")
    await tb.reset()
    tb.sink.pause = 1.0
    for number in range(TAGS):
        tb.ask(number % BEATS)
    await ClockCycles(dut.clk, 100)
    assert len(tb.taken_at) == OUTSTANDING
    for slot in range(3):
        tb.start(Work(slot, 0, 7, 20))
        await ClockCycles(dut.clk, 40)
        assert tb.completions == slot + 1
    tb.sink.pause = 0.0
    await ClockCycles(dut.clk, 10)
    tb.start(Work(3, 0, 7, 20))
    await tb.answered()
    await ClockCycles(dut.clk, 40)
    assert tb.completions == 4
    tb.check()


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS), answers=["none", "heavy"])
async def beats_that_no_bank_holds(dut: Any, stalls: str, answers: str) -> None:
    """They are answered with an error, and do not reach the memory; the others are as ever."""
    tb = TB(dut, stalls=stalls, answers=answers)
    await tb.reset()
    assert tb.status() == dict.fromkeys(tb.status(), 0)
    space = 1 << REQUEST["address"].width
    edges = {
        beat
        for memory in (STACK.local, STACK.striped)
        for border in (memory.start // 32, memory.stop // 32)
        for beat in range(border - 2, border + 2)
        if 0 <= beat < space
    } | {space - 1}
    model: dict[int, int] = {}
    expected = {}
    errors: list[tuple[int, int]] = []
    for number in range(12 * TAGS):
        beat = tb.rng.choice([*edges, tb.rng.randrange(space)])
        data = tb.rng.getrandbits(256) if tb.rng.random() < 0.4 else None
        if not held(beat):
            errors.append((32 * beat, int(data is not None)))
        if data is None:
            expected[number] = model.get(beat, tb.contents.get(beat, 0)) if held(beat) else 0
        elif held(beat):
            model[beat] = data
        tb.ask(beat, data=data)
        if number % TAGS == TAGS - 1:
            await tb.answered()
    assert tb.check() == expected
    assert bool(errors) == (32 * space > len(STACK.local) + len(STACK.striped))
    status = tb.status()
    assert status["errors"] == len(errors)
    if errors:
        assert (status["address"], status["write"]) == errors[-1]
        assert status["cause"] == HostCause.NO_MEMORY.value


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def errors_wait_for_nothing(dut: Any) -> None:
    """Neither for a memory that takes nothing, nor for a work that is about to start."""
    if STACK.local.stop == STACK.striped.start:
        return
    tb = TB(dut)
    await tb.reset()
    tb.stopped = True
    tb.ask(1)
    await ClockCycles(dut.clk, 5)
    tb.start(Work(1, 0, 7, 20))
    for _ in range(TAGS - 1):
        tb.ask(STACK.local.stop // 32)
    await ClockCycles(dut.clk, 2 * TAGS)
    assert len(tb.sink.taken) == TAGS - 1
    assert tb.starting
    tb.stopped = False
    await tb.answered()
    assert tb.check()[0] == 1
    await ClockCycles(dut.clk, 40)
    assert tb.completions == 1


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def equal_starts_are_one_state(dut: Any) -> None:
    """Of several beats: those that are read between two equal readings of the starts."""
    tb = TB(dut, stalls="random", answers="heavy")
    await tb.reset()
    beats = range(16)
    for beat in beats:
        tb.contents[beat] = 0
    whole = parts = 0

    async def works() -> None:
        while True:
            await ClockCycles(dut.clk, tb.rng.randrange(1, 800))
            if tb.starting is None and not tb.running:
                tb.start(Work(0, 0, len(beats) * BEAT_WORDS - 1, tb.rng.randrange(1, 60)))

    starts = cocotb.start_soon(works())
    for _ in range(100):
        before, first = tb.status()["starts"], len(tb.sink.taken)
        for beat in beats:
            tb.ask(beat)
        await tb.answered()
        seen = {unpack(HOST_RESPONSE, each)["data"] for each in tb.sink.taken[first:]}
        if tb.status()["starts"] == before:
            assert len(seen) == 1
            whole += 1
        parts += len(seen) > 1
    starts.cancel()
    tb.check()
    dut._log.info(f"{whole} reads between equal readings, {parts} of several states")
    assert whole
    assert parts
