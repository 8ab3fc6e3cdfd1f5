"""cocotb tests of loading and storing: every word at its place, order, cycles.

The memory answers late, and with stalls in any order.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from hw.pim.config import configure
from hw.pim.memory.memory_port import memory_request_layout, memory_response_layout
from hw.pim.work.layouts import Jobs, OperandBuffer
from hw_tests.bench import bench_parameters
from hw_tests.pim.bank.walks import Walk, elements_of, random_walk
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, pack, unpack, value_of

LANES = bench_parameters()["lanes"]
CONFIG = configure("tiny", **bench_parameters()["options"])
JOBS = Jobs(CONFIG)
WORDS = 1 << JOBS.word_bits
STACK_WORDS = CONFIG.stack_bytes // 4
# Loads take from below, stores go above.
DIVIDE = STACK_WORDS // 2
BUFFERS = ("first_0", "first_1", "second_0", "second_1")
READ_TAGS = 32
WRITES = 32
WORD = (1 << 32) - 1
READ_CYCLES = 2
FIELDS = ("half", "group", "k", "wide")


class Memory:
    """Answers each request after ``latency`` cycles, or, with stalls, in any order and later."""

    def __init__(self, dut: Any, stalls: str, latency: int) -> None:
        self._dut = dut
        self._stall = STALLS[stalls]
        self._latency = latency
        self._random = random.Random(f"memory {stalls}")
        self._response = memory_response_layout()
        self._request = memory_request_layout(CONFIG)
        self._sink = StreamSink(dut, "request", dut.clk, pause=self._stall)
        self._waiting: list[tuple[int, dict[str, int]]] = []
        self.words = self._random.choices(range(1, 1 << 32), k=STACK_WORDS)
        self.read_cycles: list[int] = []
        self.write_cycles: list[int] = []
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        dut, taken, cycle = self._dut, 0, 0
        dut.response_valid.value = 0
        while True:
            await RisingEdge(dut.clk)
            cycle += 1
            for payload in self._sink.taken[taken:]:
                self._take(unpack(self._request, payload), cycle)
            taken = len(self._sink.taken)
            answer = self._pick(cycle)
            dut.response_valid.value = int(answer is not None)
            if answer is not None:
                dut.response_payload.value = pack(self._response, **answer)

    def _take(self, request: dict[str, int], cycle: int) -> None:
        tag, write, place = request["tag"], request["write"], 8 * request["address"]
        assert write == (tag >= READ_TAGS)
        if write:
            self.write_cycles.append(cycle)
            for word in range(8):
                strobe = request["strobe"] >> 4 * word & 15
                assert strobe in (0, 15)
                if strobe:
                    self.words[place + word] = request["data"] >> 32 * word & WORD
            data = self._random.getrandbits(256)
        else:
            self.read_cycles.append(cycle)
            assert all(tag != answer["tag"] for _, answer in self._waiting), "a tag used twice"
            beat = self.words[place : place + 8]
            data = sum(value << 32 * word for word, value in enumerate(beat))
        # The request was taken a cycle ago, and the answer is there in the next one.
        ripe = cycle + self._latency - 2
        self._waiting.append((ripe, {"data": data, "tag": tag, "write": write}))
        assert self.writes_waiting <= WRITES

    def _pick(self, cycle: int) -> dict[str, int] | None:
        """What is answered, of all that has waited long enough."""
        ripe = [item for item in self._waiting if item[0] <= cycle]
        if not ripe or self._random.random() < self._stall:
            return None
        item = self._random.choice(ripe) if self._stall else ripe[0]
        self._waiting.remove(item)
        return item[1]

    @property
    def writes_waiting(self) -> int:
        """Writes that have been taken and not answered."""
        return sum(answer["write"] for _, answer in self._waiting)


class TB:
    """The design after reset, its memory, and what must be in the buffers and in memory."""

    def __init__(self, dut: Any, stalls: str = "none", *, latency: int = 20) -> None:
        self.dut = dut
        self.random = random.Random(f"mover {stalls}")
        self.memory = Memory(dut, stalls, latency)
        self.loads = StreamSource(dut, "load", dut.clk, pause=STALLS[stalls])
        self.stores = StreamSource(dut, "store", dut.clk, pause=STALLS[stalls])
        self.elements: dict[tuple[str, int, int], dict[tuple[int, int], int]] = {}
        """By buffer, half and group; then by member in the buffer, and number."""
        self.stored = list(self.memory.words)
        self.done: list[int] = []
        self.done_cycles: list[int] = []
        self.load_cycles: list[int] = []
        self.freed = 0
        self._frames = 0
        self.chunk = 3

    async def reset(self) -> None:
        cocotb.start_soon(Clock(self.dut.clk, 3200, unit="ps").start())
        for name in BUFFERS:
            getattr(self.dut, f"{name}_enable").value = 0
        self.dut.result_enable.value = 0
        self.dut.rst.value = 1
        cocotb.start_soon(self._watch())
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0

    async def _watch(self) -> None:
        cycle = 0
        while True:
            await RisingEdge(self.dut.clk)
            cycle += 1
            if value_of(self.dut.rst):
                continue
            if value_of(self.dut.load_valid) and value_of(self.dut.load_ready):
                self.load_cycles.append(cycle)
            if value_of(self.dut.done):
                self.done.append(value_of(self.dut.done_buffer))
                self.done_cycles.append(cycle)
            self.freed += value_of(self.dut.freed)

    async def until(self, holds: Any, limit: int = 30_000) -> None:
        for _ in range(limit):
            await RisingEdge(self.dut.clk)
            if holds():
                return
        raise AssertionError(f"not in {limit} cycles")

    async def set_chunk(self, chunk: int) -> None:
        """Begins with empty buffers of another shape."""
        self.chunk = chunk
        self.dut.chunk.value = chunk
        self.elements.clear()
        await ClockCycles(self.dut.clk, 2)

    def load(self, buffer: OperandBuffer, half: int, walk: Walk) -> None:
        """Queues a job, and notes what it must bring."""
        assert walk.length <= 1 << self.chunk
        job = {"buffer": int(buffer.value), "half": half, "walk": walk.packed(JOBS)}
        self.loads.queue.append(pack(JOBS.load, **job))
        for element in elements_of(walk):
            value = 0 if element.zero else self.memory.words[element.address % WORDS]
            group, member = divmod(element.vector, walk.group_size)
            upper, member = divmod(member, 8)
            name = f"{buffer.name.lower()}_{upper}"
            self.elements.setdefault((name, half, group), {})[member, element.k] = value

    def random_load(self, buffer: OperandBuffer, half: int) -> None:
        words = CONFIG.first_words if buffer is OperandBuffer.FIRST else CONFIG.second_words
        vectors = words >> self.chunk
        lanes = min(vectors, LANES)
        groups = max(1, vectors // 8)
        while True:
            walk = random_walk(self.random, WORDS, 1 << self.chunk)
            group_size = min(walk.group_size, lanes)
            walk = replace(
                walk, group_size=group_size, vectors=min(walk.vectors, group_size * groups)
            )
            elements = elements_of(walk)
            if all(each.zero or each.address % WORDS < DIVIDE for each in elements):
                break
        self.load(buffer, half, walk)

    async def loaded(self, jobs: int) -> None:
        await self.until(lambda: len(self.done) >= jobs)

    async def check_buffers(self) -> None:
        """Reads all that was loaded, from all buffers at once, a command a cycle."""
        reads: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in BUFFERS}
        for (name, half, group), values in self.elements.items():
            reads[name] += [(half, group, k, 0) for k in {k for _, k in values}]
            if group == 0:
                # Only a multiple of eight counts.
                places = {k + self.random.randrange(8) for _, k in values if k % 8 == 0}
                reads[name] += [(half, group, k, 1) for k in places]
        compared = 0
        for cycle in range(max(map(len, reads.values())) + READ_CYCLES + 1):
            for name, commands in reads.items():
                answered = cycle - READ_CYCLES - 1
                if 0 <= answered < len(commands):
                    found = int(getattr(self.dut, f"{name}_data").value)
                    compared += self._compare(name, *commands[answered], found)
                getattr(self.dut, f"{name}_enable").value = int(cycle < len(commands))
                if cycle < len(commands):
                    for field, value in zip(FIELDS, commands[cycle], strict=True):
                        getattr(self.dut, f"{name}_{field}").value = value
            await RisingEdge(self.dut.clk)
        assert compared

    def _compare(self, name: str, half: int, group: int, k: int, wide: int, found: int) -> int:
        values, compared = self.elements[name, half, group], 0
        for place in range(8):
            at = (0, k - k % 8 + place) if wide else (place, k)
            if at in values:
                value = found >> 32 * place & WORD
                assert value == values[at], f"{name} {half} {group} {at}: {value:#x}"
                compared += 1
        return compared

    async def store(self, walk: Walk, *, linear: int, interleave: int) -> None:
        """Writes results into the next frame when it is free, and queues their job."""
        frame, self._frames = self._frames % 4, self._frames + 1
        await self.until(lambda: self._frames - self.freed <= 4)
        results: dict[tuple[int, int], int] = {}
        size = 4 if linear else LANES
        self.dut.result_frame.value = frame
        self.dut.result_linear.value = linear
        self.dut.result_enable.value = 1
        for index in range(0, 64, size) if linear else range(8):
            words = [self.random.getrandbits(32) for _ in range(size)]
            for lane, word in enumerate(words):
                results[(0, index + lane) if linear else (lane, index)] = word
            self.dut.result_index.value = index
            self.dut.result_mask.value = (1 << size) - 1
            self.dut.result_data.value = sum(word << 32 * i for i, word in enumerate(words))
            await RisingEdge(self.dut.clk)
        self.dut.result_enable.value = 0
        job = {
            "frame": frame,
            "linear": linear,
            "interleave": interleave,
            "walk": walk.packed(JOBS),
        }
        self.stores.queue.append(pack(JOBS.store, **job))
        for element in elements_of(walk):
            group, lane = divmod(element.vector, walk.group_size)
            at = (0, element.k) if linear else (lane, group + (element.k << interleave))
            self.stored[element.address % WORDS] = results[at]

    async def random_store(self) -> None:
        rng = self.random
        linear, interleave = int(rng.random() < 0.3), rng.randrange(4)
        while True:
            any_walk = random_walk(rng, WORDS, 64)
            group_size = rng.randint(1, LANES)
            vectors = rng.randint(1, group_size << interleave)
            length = rng.randint(1, 8 >> interleave)
            walk = Walk(
                address=any_walk.address,
                vectors=1 if linear else vectors,
                group_size=group_size,
                vector=any_walk.vector,
                length=rng.randint(1, 64) if linear else length,
                across=0 if linear else any_walk.across,
                column=any_walk.column,
                rows=65535,
                **{name: getattr(any_walk, name) for name in ("line", "line_left", "line_wrap")},
            )
            addresses = [element.address % WORDS for element in elements_of(walk)]
            # As in every accepted work, no two results have one place.
            unique = len(set(addresses)) == len(addresses)
            if unique and all(DIVIDE <= address < STACK_WORDS for address in addresses):
                break
        await self.store(walk, linear=linear, interleave=interleave)


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def random_jobs(dut: Any, stalls: str) -> None:
    """Loads into all buffers and halves at once, and stores beside them; every word of either."""
    tb = TB(dut, stalls)
    await tb.reset()

    async def stores() -> None:
        count = bench_parameters()["stores"]
        for _ in range(count):
            await tb.random_store()
        await tb.until(lambda: tb.freed == count)
        await tb.until(lambda: value_of(dut.storer_idle))
        assert tb.memory.writes_waiting == 0
        assert tb.memory.words == tb.stored

    storing = cocotb.start_soon(stores())
    jobs: deque[int] = deque()
    for chunk in bench_parameters()["chunks"]:
        await tb.set_chunk(chunk)
        targets = [(buffer, half) for buffer in OperandBuffer for half in range(2)]
        tb.random.shuffle(targets)
        for buffer, half in targets:
            tb.random_load(buffer, half)
            jobs.append(buffer.value)
        await tb.loaded(len(jobs))
        assert tb.done == list(jobs)
        await tb.check_buffers()
    assert value_of(dut.loader_idle)
    await storing
    await ClockCycles(dut.clk, 20)
    assert tb.freed == bench_parameters()["stores"]
    assert len(tb.done) == len(jobs)


DENSE = Walk(address=64, vectors=8, group_size=8, vector=32, length=32, column=1)
ACROSS = Walk(address=64, vectors=8, group_size=8, vector=1, length=32, column=64, across=1)
# Three rows of three taps of an image, eight outputs side by side, padded by one.
IMAGE = Walk(
    address=-33, vectors=8, group_size=8, vector=1, length=27, column=1, across=1, columns=3,
    rows=3, row_wrap=30, channel_wrap=958, bounded=1, y=-1, x=-1, height=32, width=32,
)  # fmt: skip


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def cycles_of_loads(dut: Any) -> None:
    latency = 20
    tb = TB(dut, latency=latency)
    await tb.reset()
    await tb.set_chunk(5)
    for half, walk in enumerate((DENSE, replace(DENSE, address=1024))):
        tb.load(OperandBuffer.FIRST, half, walk)
    for half, walk in enumerate((ACROSS, replace(ACROSS, address=32))):
        tb.load(OperandBuffer.SECOND, half, walk)
    await tb.loaded(4)
    await tb.check_buffers()
    reads = tb.memory.read_cycles
    # Eight elements a cycle, also from job to job, but for a cycle between the last two.
    assert len(reads) == 4 * 8 * 32 // 8
    gaps = [after - before - 1 for before, after in pairwise(reads)]
    assert [number for number, gap in enumerate(gaps) if gap] == [95]
    assert gaps[95] == 1
    assert tb.done_cycles == [reads[32 * job + 31] + latency + 1 for job in range(4)]


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def cycles_of_an_image(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    await tb.set_chunk(5)
    tb.load(OperandBuffer.FIRST, 0, IMAGE)
    await tb.loaded(1)
    await tb.check_buffers()
    reads = tb.memory.read_cycles
    # 216 elements in 24 pieces of a beat, beside 15 pieces of zeros. These take a cycle each, too,
    # and wait for data that come in between.
    assert len(reads) == 24
    assert reads[-1] - reads[0] + 1 == 42


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def an_image_narrower_than_its_filter(dut: Any) -> None:
    """Its left border and its right one are in one row of taps, and of outputs."""
    tb = TB(dut)
    await tb.reset()
    await tb.set_chunk(5)
    for half in range(2):
        tb.load(OperandBuffer.FIRST, half, replace(IMAGE, across=half, width=1))
    await tb.loaded(2)
    await tb.check_buffers()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def cycles_of_stores(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    dense = Walk(address=DIVIDE, length=64, column=1)
    for number in range(4):
        walk = replace(dense, address=DIVIDE + 64 * number)
        await tb.store(walk, linear=1, interleave=0)
        # All at once.
        if number == 0:
            tb.stores.pause = 1.0
    tb.stores.pause = 0.0
    await tb.until(lambda: tb.freed == 4)
    await tb.until(lambda: value_of(dut.storer_idle))
    assert tb.memory.words == tb.stored
    writes = tb.memory.write_cycles
    assert writes == list(range(writes[0], writes[0] + 4 * 64 // 8))
