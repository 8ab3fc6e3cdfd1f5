"""cocotb tests of the rings, with players in place of the memory, the front, the scheduler and the
rings' masters."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from hw.pim.config import configure
from hw.pim.memory.memory_port import (
    HOST_TAG_BITS,
    host_response_layout,
    memory_request_layout,
)
from hw.pim.rings.layouts import ring_control_layout, ring_status_layout
from hw_tests.bench import bench_parameters
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, pack, unpack, value_of

CONFIG = configure("tiny", rings=bench_parameters()["rings"])
REQUEST = memory_request_layout(CONFIG, tag_bits=HOST_TAG_BITS)
RESPONSE = host_response_layout(tag_bits=HOST_TAG_BITS)
SLOT_BEATS, DESCRIPTOR_BEATS, DESCRIPTOR_BYTES = 8, 6, 192


@dataclass
class Ring:
    """What a ring's master knows."""

    base: int
    """In slots."""
    size: int
    head: int = 0
    fetched: int = 0
    taken: int = 0
    seen: int = 0
    """Completions of which the ring has told."""
    cause: int = 0
    id: int = 0
    ends: list[tuple[int, int, int]] = field(default_factory=list)
    """Descriptor, id, cause, as they are to be written."""

    def beat(self, count: int) -> int:
        return SLOT_BEATS * (self.base + count % (1 << self.size))


class TB:
    def __init__(self, dut: Any, *, stalls: str) -> None:
        self.dut = dut
        self.rng = random.Random(f"{stalls} {CONFIG.rings}")
        self.pause = STALLS[stalls]
        # The last one has but one slot.
        sizes = (3, 2, 1, 0) if CONFIG.rings == 4 else (3, 0)
        self.rings = [
            Ring(base=16 * (2 + 3 * number), size=sizes[number]) for number in range(CONFIG.rings)
        ]
        self.memory: dict[int, int] = defaultdict(lambda: self.rng.getrandbits(256))
        self.asked = StreamSink(dut, "request", dut.clk, pause=self.pause)
        self.answers = StreamSource(dut, "response", dut.clk, pause=self.pause)
        self.reads: list[dict[str, int]] = []
        """Not yet answered."""
        self.front: dict[int, int] = {}
        """Beats of the descriptor that is being filled."""
        self.checking: int | None = None
        """Cycles until the descriptor is taken, if there is room."""
        self.cause = 0
        """Why it is refused."""
        self.current = 0
        """The ring whose descriptor is fetched or checked."""
        self.running: dict[int, tuple[Ring, int]] = {}
        self.free = list(range(CONFIG.works))
        self.times = 0
        self.turns: list[int] = []
        self.most = 0
        self.hold = False
        """No work completes."""

    async def reset(self) -> None:
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        dut.rst.value = 1
        for name in ("taken", "cause", "id", "completed", "completed_id"):
            getattr(dut, f"events_{name}").value = 0
        self.show()
        await ClockCycles(dut.clk, 3)
        dut.rst.value = 0
        cocotb.start_soon(self._run())

    def show(self) -> None:
        """Shows what the masters have written to the registers."""
        layout, value = ring_control_layout(), 0
        for number, ring in enumerate(self.rings):
            # Bits of the base that lie in the ring do not count.
            base = ring.base | self.rng.randrange(1 << ring.size)
            packed = pack(layout, base=base, size=ring.size, head=ring.head % (1 << 16))
            value |= packed << layout.size * number
        self.dut.settings.value = value

    def write(self, number: int) -> bool:
        """Puts a descriptor into a ring, if there is room."""
        ring = self.rings[number]
        if ring.head - ring.seen >= 1 << ring.size:
            return False
        first = ring.beat(ring.head)
        for beat in range(first, first + DESCRIPTOR_BEATS):
            self.memory[beat] = self.rng.getrandbits(256)
        ring.head += 1
        self.show()
        return True

    def _memory(self) -> None:
        """Takes requests; answers reads in any order."""
        for payload in self.asked.taken:
            request = unpack(REQUEST, payload)
            if request["write"]:
                self._completion(request)
            else:
                self._fetch(request)
        self.asked.taken.clear()
        if self.reads and len(self.answers.queue) < 2 and self.rng.random() >= self.pause:
            request = self.reads.pop(self.rng.randrange(len(self.reads)))
            data = self.memory[request["address"]]
            self.answers.queue.append(
                pack(RESPONSE, data=data, tag=request["tag"], write=request["write"])
            )

    def _fetch(self, request: dict[str, int]) -> None:
        assert self.checking is None, "read while a descriptor is being checked"
        if request["tag"] == 0:
            (self.current,) = (
                number
                for number, ring in enumerate(self.rings)
                if ring.beat(ring.taken) == request["address"]
            )
            self.turns.append(self.current)
        ring = self.rings[self.current]
        assert ring.taken < ring.head, "there is no descriptor"
        assert request["address"] == ring.beat(ring.taken) + request["tag"]
        assert request["tag"] < DESCRIPTOR_BEATS
        self.reads.append(request)

    def _completion(self, request: dict[str, int]) -> None:
        place, beat = divmod(request["address"], SLOT_BEATS)
        (ring,) = (each for each in self.rings if 0 <= place - each.base < 1 << each.size)
        assert beat == DESCRIPTOR_BEATS
        number, descriptor, work_id, cause = (
            request["data"] >> low & (1 << bits) - 1
            for low, bits in ((0, 16), (16, 16), (32, 32), (64, 32))
        )
        assert place - ring.base == (number - 1) % (1 << ring.size)
        assert request["strobe"] == (1 << 12) - 1
        assert ring.ends[number - 1] == (descriptor, work_id, cause)
        self.reads.append(request)

    def _scheduler(self) -> None:
        """Takes a descriptor or completes a work, now and then."""
        dut, rng = self.dut, self.rng
        taken = completed = 0
        if self.checking:
            self.checking -= 1
        if self.checking == 0 and rng.random() >= self.pause:
            ring = self.rings[self.current]
            cause = self.cause
            if cause or self.free:
                taken, self.checking = 1, None
                if cause:
                    ring.ends.append((ring.taken, 0, cause))
                else:
                    self.times += 1
                    slot = self.free.pop(rng.randrange(len(self.free)))
                    ring.id = slot + CONFIG.works * self.times
                    self.running[ring.id] = ring, ring.taken
                    self.most = max(self.most, len(self.running))
                ring.cause = cause
                ring.taken += 1
                dut.events_cause.value = cause
                if not cause:
                    dut.events_id.value = ring.id
        if not taken and self.running and not self.hold and rng.random() < 0.02:
            work_id = rng.choice(list(self.running))
            ring, descriptor = self.running.pop(work_id)
            ring.ends.append((descriptor, work_id, 0))
            self.free.append(work_id % CONFIG.works)
            completed = 1
            dut.events_completed_id.value = work_id
        dut.events_taken.value, dut.events_completed.value = taken, completed

    def _told(self) -> None:
        """What the rings' registers are told."""
        layout, size = ring_status_layout(), ring_status_layout().size
        status, notice = value_of(self.dut.status), value_of(self.dut.notice)
        for number, ring in enumerate(self.rings):
            told = unpack(layout, status >> size * number)
            assert told["tail"] in (ring.taken, ring.taken - 1)
            if told["tail"] == ring.taken:
                assert (told["cause"], told["id"]) == (ring.cause, ring.id)
            assert told["completions"] == ring.seen
            assert told["completed_id"] == (ring.ends[ring.seen - 1][1] if ring.seen else 0)
            ring.seen += notice >> number & 1
            assert ring.seen <= len(ring.ends), "a completion of nothing"

    async def _run(self) -> None:
        dut, edge = self.dut, RisingEdge(self.dut.clk)
        while True:
            await edge
            self._told()
            if value_of(dut.descriptor_write_enable):
                assert self.checking is None, "written while the front is busy"
                beat = value_of(dut.descriptor_write_index)
                assert beat not in self.front
                self.front[beat] = value_of(dut.descriptor_write_data)
            resting = value_of(dut.resting)
            for number, ring in enumerate(self.rings):
                is_fetched = number == self.current and (self.front or self.checking is not None)
                if is_fetched or ring.taken > ring.seen:
                    assert not resting >> number & 1
            if value_of(dut.start):
                ring = self.rings[self.current]
                first = ring.beat(ring.taken)
                expected = {beat: self.memory[first + beat] for beat in range(DESCRIPTOR_BEATS)}
                assert self.front == expected
                self.front = {}
                self.checking = self.rng.choice((1, 3, 30))
                self.cause = self.rng.choice((0, 0, self.rng.randrange(1, 10)))
            self._memory()
            self._scheduler()

    async def until_done(self, limit: int = 60_000) -> None:
        for _ in range(limit):
            await RisingEdge(self.dut.clk)
            if all(ring.seen == ring.head for ring in self.rings):
                break
        else:
            raise AssertionError(f"not all is done: {self.rings}")
        await ClockCycles(self.dut.clk, 100)
        assert not self.running
        assert value_of(self.dut.resting) == (1 << CONFIG.rings) - 1
        for ring in self.rings:
            # Each descriptor has one completion.
            assert sorted(each for each, _, _ in ring.ends) == list(range(ring.head))


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def all_rings_at_once(dut: Any, stalls: str) -> None:
    tb = TB(dut, stalls=stalls)
    await tb.reset()
    left = 200
    while left:
        await RisingEdge(dut.clk)
        if tb.rng.random() < 0.2:
            left -= tb.write(tb.rng.randrange(CONFIG.rings))
    await tb.until_done()
    assert set(tb.turns) == set(range(CONFIG.rings))
    causes = {cause for ring in tb.rings for _, _, cause in ring.ends}
    assert 0 in causes
    assert len(causes) > 5
    assert tb.rings[0].head > 5 * (1 << tb.rings[0].size)
    dut._log.info(f"{tb.most} works at once")


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def rings_take_turns(dut: Any) -> None:
    """As long as all have descriptors, each is served in its turn, in whatever order they came."""
    tb = TB(dut, stalls="none")
    for ring in tb.rings:
        ring.size = 3
    await tb.reset()
    for number in reversed(range(CONFIG.rings)):
        while tb.write(number):
            pass
    await tb.until_done()
    first = tb.turns[0]
    assert tb.turns == [(first + turn) % CONFIG.rings for turn in range(8 * CONFIG.rings)]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_full_pool_keeps_rings_waiting(dut: Any) -> None:
    """Works that never end let refused ones through, until a good one waits; then all goes on."""
    tb = TB(dut, stalls="random")
    for ring in tb.rings:
        ring.size = 3
    await tb.reset()
    tb.hold = True
    for _ in range(4000):
        await RisingEdge(dut.clk)
        tb.write(tb.rng.randrange(CONFIG.rings))
    assert len(tb.running) == CONFIG.works
    assert sum(ring.head - ring.taken for ring in tb.rings) > 0
    before = [ring.taken for ring in tb.rings]
    await ClockCycles(dut.clk, 2000)
    assert [ring.taken for ring in tb.rings] == before
    tb.hold = False
    await tb.until_done()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_memory_that_does_not_take_keeps_rings_waiting(dut: Any) -> None:
    """Nothing is lost of the works that end meanwhile."""
    tb = TB(dut, stalls="none")
    for ring in tb.rings:
        ring.size = 3
    await tb.reset()
    for _ in range(6):
        for _ in range(150):
            await RisingEdge(dut.clk)
            tb.write(tb.rng.randrange(CONFIG.rings))
        tb.asked.pause = 1.0
        await ClockCycles(dut.clk, 1000)
        assert not tb.running
        tb.asked.pause = 0.0
    await tb.until_done()
