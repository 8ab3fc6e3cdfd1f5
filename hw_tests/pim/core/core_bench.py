"""cocotb tests of a core, with players in place of the memory, the pool's registers and the host.

The memory answers late and, for different vaults, in any order.

Parameter: ``core_clock_ratio``, by default 1.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict, deque
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.pim import StackMap
from hw.pim.config import configure
from hw.pim.core.layouts import CoreCause, core_control_layout, core_status_layout
from hw.pim.memory.memory_port import HOST_TAG_BITS, host_response_layout, memory_request_layout
from hw_tests.bench import bench_parameters
from hw_tests.pim.core.program import (
    COMMANDS,
    OWN,
    POOL,
    PROGRAM,
    RESULTS,
    SCRATCHPAD,
    UNCACHED,
    Command,
    Op,
    commands,
    window,
)
from hw_tests.streams import pack, unpack, value_of

RATIO = bench_parameters().get("core_clock_ratio", 1)
CONFIG = configure("tiny", cores=1)
STACK = StackMap(banks=CONFIG.banks, bank_bytes=CONFIG.bank_bytes)
REQUEST = memory_request_layout(CONFIG, tag_bits=HOST_TAG_BITS)
RESPONSE = host_response_layout(tag_bits=HOST_TAG_BITS)
BASE, DATA, OTHER = 0x2000, 0x10000, 0x14000
"""In the stack: where window 0 begins, and what windows 1 and 2 show."""
STRIPED = STACK.striped.start
OWN_RING = 0x800 + 2 * 64
HEAD, TAIL, IDLE, STOP, REASON, TIME = (OWN + 4 * number for number in range(1, 7))


def start_clocks(dut: Any, core_clock_ratio: int) -> None:
    """The pool's clock, and the cores' own one, if they have one."""
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    if core_clock_ratio > 1:
        cocotb.start_soon(Clock(dut.core_clk, 2000 // core_clock_ratio, unit="ps").start())


class TB:
    def __init__(self, dut: Any, *, pause: float = 0.3) -> None:
        self.dut = dut
        self.pause = pause
        self.rng = random.Random(pause)
        self.memory = bytearray(STACK.striped.stop)
        self.queues: list[deque[tuple[int, dict[str, int]]]] = [deque() for _ in range(3)]
        self.cycle = self.head = self.notices = 0
        self.requests: list[dict[str, int]] = []
        self.registers: dict[int, int] = defaultdict(int)
        """Of the pool, by byte offset, 64 bits each."""
        self.written: list[tuple[int, int, int, bytes]] = []
        """Writes to these: offset, data, strobe, and what was in memory at ``DATA`` then."""
        self.base, self.window_bytes, self.limit = BASE, 0x8000, 0
        self.memory[BASE : BASE + len(PROGRAM)] = PROGRAM

    async def reset(self) -> None:
        dut = self.dut
        start_clocks(dut, RATIO)
        dut.rst.value = 1
        dut.number.value = 1
        for name in ("awready", "wready", "arready", "bvalid", "rvalid", "bresp", "rresp"):
            getattr(dut, f"m_axi_{name}").value = 0
        dut.overfilled.value, dut.resting.value = 0, 1
        dut.request_ready.value = dut.response_valid.value = 0
        self.control(run=0)
        await ClockCycles(dut.clk, 3)
        dut.rst.value = 0
        cocotb.start_soon(self._memory())
        cocotb.start_soon(self._registers())

    def control(self, *, run: int) -> None:
        size = self.window_bytes // 32
        values = {"base": self.base // 32, "size": size, "limit": self.limit, "head": self.head}
        self.dut.control.value = pack(core_control_layout(), run=run, **values)

    def status(self) -> dict[str, int]:
        return unpack(core_status_layout(), value_of(self.dut.status))

    async def start(self) -> None:
        """Lets it run, and its windows 1 and 2 be open."""
        self.control(run=1)
        sizes = (0x1000, 0x800)
        for number, (base, size) in enumerate(zip((DATA, OTHER), sizes, strict=True), start=1):
            where = OWN + 4 * (16 + 2 * number)
            stores = (Op.STORE, where, base // 32), (Op.STORE, where + 4, size // 32)
            await self.run(*stores)

    async def run(self, *several: Command, limit: int = 60_000) -> list[int]:
        """Does commands; what each of them gave."""
        text = commands(*several)
        assert len(text) <= RESULTS - COMMANDS
        self.memory[self.base + COMMANDS : self.base + COMMANDS + len(text)] = text
        self.head = (self.head + 1) % (1 << 16)
        self.control(run=1)
        for _ in range(limit):
            await RisingEdge(self.dut.clk)
            status = self.status()
            if status["tail"] == self.head or status["cause"]:
                break
        else:
            raise AssertionError(f"it goes on and on: {status}")
        # A notice may come a cycle later.
        await RisingEdge(self.dut.clk)
        place = self.base + RESULTS
        return list(struct.unpack_from(f"<{len(several)}I", self.memory, place))

    async def fault(self, *several: Command) -> tuple[CoreCause, int, int]:
        """Does commands that stop the core; why, where, its reason. Then it is started again."""
        notices = self.notices
        await self.run(*several)
        status = self.status()
        assert not status["running"], several
        await ClockCycles(self.dut.clk, 60)
        assert self.notices == notices + bool(several)
        assert self.status() == status
        self.control(run=0)
        await ClockCycles(self.dut.clk, 5)
        assert self.status()["cause"] == 0
        self.head = 0
        await self.start()
        return CoreCause(status["cause"]), status["address"], status["reason"]

    async def _memory(self) -> None:
        dut, rng = self.dut, self.rng
        ready = answering = False
        while True:
            await RisingEdge(dut.clk)
            self.cycle += 1
            self.notices += value_of(dut.notice)
            if ready and value_of(dut.request_valid):
                asked = unpack(REQUEST, value_of(dut.request_payload))
                assert asked["tag"] == 0
                assert STACK.holds(range(32 * asked["address"], 32 * asked["address"] + 32))
                self.requests.append(asked)
                delay = self.cycle + (rng.choice((3, 20, 60)) if self.pause else 1)
                self.queues[asked["address"] % 3].append((delay, asked))
            assert not answering or value_of(dut.response_ready)
            due = [queue for queue in self.queues if queue and queue[0][0] <= self.cycle]
            answering = bool(due) and rng.random() >= self.pause
            dut.response_valid.value = int(answering)
            if answering:
                _, asked = rng.choice(due).popleft()
                place = 32 * asked["address"]
                if asked["write"]:
                    for byte in range(32):
                        if asked["strobe"] >> byte & 1:
                            self.memory[place + byte] = asked["data"] >> 8 * byte & 255
                data = int.from_bytes(self.memory[place : place + 32], "little")
                write = asked["write"]
                dut.response_payload.value = pack(RESPONSE, data=0 if write else data, write=write)
            ready = rng.random() >= self.pause
            dut.request_ready.value = int(ready)

    async def _registers(self) -> None:
        """One access at a time: its address, and data, are taken some time, then it is answered."""
        dut, rng, edge = self.dut, self.rng, RisingEdge(self.dut.clk)
        wait: dict[str, int] = {}
        while True:
            await edge
            for channel in ("ar", "aw", "w"):
                valid = value_of(getattr(dut, f"m_axi_{channel}valid"))
                ready = getattr(dut, f"m_axi_{channel}ready")
                ready.value = 0
                if valid and channel not in wait and rng.random() >= self.pause:
                    ready.value = 1
                    wait[channel] = 1
                    await edge
                    ready.value = 0
                    if channel == "ar":
                        address = value_of(dut.m_axi_araddr)
                    elif channel == "aw":
                        address = value_of(dut.m_axi_awaddr)
                    else:
                        data, strobe = value_of(dut.m_axi_wdata), value_of(dut.m_axi_wstrb)
            dut.m_axi_rvalid.value = dut.m_axi_bvalid.value = 0
            if "ar" in wait:
                dut.m_axi_rdata.value = self.registers[address & ~7]
                dut.m_axi_rresp.value = 2 * (address >= 0x1000)
                dut.m_axi_rvalid.value = 1
                wait = {}
            if "aw" in wait and "w" in wait:
                self.written.append((address, data, strobe, bytes(self.memory[DATA : DATA + 64])))
                dut.m_axi_bvalid.value = 1
                wait = {}


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def it_begins_and_stops(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    await ClockCycles(dut.clk, 200)
    assert not tb.requests
    await tb.start()
    assert tb.status()["running"]
    (value,) = await tb.run((Op.LOAD, OWN, 0))
    assert value == 1 << 8 | 1
    assert await tb.run((Op.LOAD, SCRATCHPAD + 0x1000, 0)) == [struct.unpack("<I", PROGRAM[:4])[0]]
    assert tb.notices == 4
    # It is idle when it waits, and what its registers say stays when it is held.
    await ClockCycles(dut.clk, 100)
    assert tb.status()["idle"]
    tb.control(run=0)
    await ClockCycles(dut.clk, 5)
    status = tb.status()
    assert (status["running"], status["tail"]) == (0, tb.head)


@cocotb.test(timeout_time=4, timeout_unit="ms")
@cocotb.parametrize(pause=[0.0, 0.6])
async def what_is_read_was_written(dut: Any, pause: float) -> None:
    """In the scratchpad, in windows, cached or not, in words and parts of words."""
    tb = TB(dut, pause=pause)
    await tb.reset()
    await tb.start()
    rng = tb.rng
    places = {
        SCRATCHPAD: bytearray(0x100),
        window(1): bytearray(tb.memory[DATA : DATA + 0x1000]),
        window(2) + UNCACHED: bytearray(tb.memory[OTHER : OTHER + 0x800]),
    }
    await tb.run(*((Op.STORE, SCRATCHPAD + each, 0) for each in range(0, 0x100, 4)))
    ops = {Op.LOAD: 4, Op.LOAD_HALF: 2, Op.LOAD_BYTE: 1}
    for _ in range(3):
        several, expected = [], []
        for _ in range(100):
            place, model = rng.choice(list(places.items()))
            load = rng.choice(list(ops))
            size = ops[load]
            offset = size * rng.randrange(rng.choice((16, len(model) // 4)))
            value = rng.getrandbits(32)
            stores = rng.random() < 0.5
            if stores:
                model[offset : offset + size] = value.to_bytes(4, "little")[:size]
            several.append((Op(load + stores), place + offset, value))
            expected.append(
                0 if stores else int.from_bytes(model[offset : offset + size], "little")
            )
        assert await tb.run(*several) == expected
        assert tb.memory[DATA : DATA + 0x1000] == places[window(1)]
        assert tb.memory[OTHER : OTHER + 0x800] == places[window(2) + UNCACHED]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_bell_comes_after_what_was_written(dut: Any) -> None:
    """Whoever sees a register, or an uncached word, sees what the core wrote before it."""
    tb = TB(dut)
    await tb.reset()
    await tb.start()
    for value in range(1, 12):
        bell = POOL + OWN_RING + 16
        await tb.run(
            (Op.STORE, window(1, 4), value),
            (Op.STORE, window(1, 40), value),
            (Op.STORE, bell, value),
        )
        offset, data, strobe, seen = tb.written[-1]
        assert (offset, data >> 32, data & 0xFFFFFFFF, strobe) == (OWN_RING + 16, value, value, 0xF)
        assert seen[4:8] == seen[40:44] == struct.pack("<I", value)
        tb.requests.clear()
        await tb.run((Op.STORE, window(1, 8), value), (Op.STORE, window(2) + UNCACHED, value))
        beats = [each["address"] for each in tb.requests if each["write"]]
        assert beats.index(DATA // 32) < beats.index(OTHER // 32)
    # It does not wait for another access.
    cocotb.start_soon(tb.run((Op.ENDLESS, window(2) + UNCACHED, 99)))
    await ClockCycles(dut.clk, 3000)
    assert tb.memory[OTHER] == 99


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_others_wrote_is_seen_after_an_invalidation(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    await tb.start()
    place, flag = window(1, 0x44), window(2) + UNCACHED
    for number in range(1, 8):
        load: Command = (Op.LOAD, place, 0)
        wait: Command = (Op.WAIT, flag, number)
        done = cocotb.start_soon(tb.run(load, wait, load, (Op.INVALIDATE, 0, 0), load))
        await ClockCycles(dut.clk, 3000)
        tb.memory[DATA + 0x44] = tb.memory[OTHER] = number
        assert await done == [number - 1, 0, number - 1, 0, number]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def writes_of_a_beat_are_one(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    await tb.start()
    values = [tb.rng.getrandbits(32) for _ in range(64)]
    struct.pack_into("<64I", tb.memory, DATA, *values)
    tb.requests.clear()
    await tb.run((Op.INVALIDATE, 0, 0), (Op.RELU, window(1), window(1, 256)))
    within = range(DATA // 32, DATA // 32 + 16)
    asked = [(each["address"], each["write"]) for each in tb.requests if each["address"] in within]
    assert sorted(asked) == [(beat, int(beat >= DATA // 32 + 8)) for beat in within]
    expected = [0 if value >> 31 else value for value in values]
    assert list(struct.unpack_from("<64I", tb.memory, DATA + 256)) == expected
    # And those of others are not.
    await tb.run((Op.SPREAD, window(1, 0x800), 1000))
    model = bytearray(64 * 20)
    for number in range(64):
        struct.pack_into("<I", model, 20 * number, 1000 + number)
    assert tb.memory[DATA + 0x800 :][: len(model)] == model


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def it_computes_with_floats(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    await tb.start()
    assert await tb.run((Op.SUBTRACT, 0x40490FDB, 0x3F800000)) == [0x40090FDB]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_it_may_not_touch(dut: Any) -> None:
    """Stops it, and tells of the cause and the address."""
    tb = TB(dut, pause=0.0)
    await tb.reset()
    await tb.start()
    load, store, byte = Op.LOAD, Op.STORE, Op.STORE_BYTE
    base_3, size_3 = OWN + 4 * 22, OWN + 4 * 23
    end = SCRATCHPAD + (1 << 13)
    refused = {
        CoreCause.UNMAPPED: [
            (load, 0), (store, 0), (load, SCRATCHPAD - 4), (store, end), (load, end),
            (load, 0x2000_0000), (load, OWN + 4 * 8), (load, OWN + 0x80), (store, OWN + 0x4000),
            (load, POOL + 0x2000), (load, 0x9000_0000),
        ],
        CoreCause.WINDOW: [
            (load, window(1, 0x1000)), (store, window(1, 0x1000)), (load, window(3)),
            (store, window(2, 0x800) + UNCACHED), (load, window(7)), (load, window(0, 0x8000)),
        ],
        CoreCause.REGISTER: [
            (store, OWN), (byte, TAIL), (store, TIME), (store, OWN + 4 * 16),
            (store, POOL + OWN_RING - 64 + 16), (store, POOL + OWN_RING + 64),
            (store, POOL + OWN_RING + 0x20), (store, POOL + OWN_RING + 0x28),
            (store, POOL + 0x48), (byte, POOL + OWN_RING), (load, POOL + 0x1000),
        ],
    }  # fmt: skip
    for cause, accesses in refused.items():
        for op, address in accesses:
            found = await tb.fault((op, address, 1))
            line = 31 if op is load and not address & UNCACHED else 0
            assert found == (cause, address & ~line, 0), f"{op.name} {address:#x}"
    # Windows that show what is not there: between the memories, and behind the last one.
    for beat in (STACK.local.stop // 32, STACK.striped.stop // 32, 0xFFFFFFFF):
        several = (store, base_3, beat - 1), (store, size_3, 2), (load, window(3, 32), 0)
        assert await tb.fault(*several) == (CoreCause.MEMORY, window(3, 32), 0)
    # It was not in vain: all that may be done is done.
    assert await tb.run((load, window(1, 0xFFC), 0), (store, end - 4, 1)) == [0, 0]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_it_may_not_do(dut: Any) -> None:
    tb = TB(dut, pause=0.0)
    await tb.reset()
    await tb.start()
    # The stack has 4 KiB, of which a call takes less than 128 bytes.
    assert await tb.run((Op.DEEP, 0, 20)) == [210]
    cause, address, _ = await tb.fault((Op.DEEP, 0, 300))
    assert cause is CoreCause.UNMAPPED
    assert SCRATCHPAD - 128 <= address < SCRATCHPAD
    # What is fetched from nowhere are no instructions, which is cause 2 of RISC-V.
    for place in (0, window(3), OWN):
        assert await tb.fault((Op.CALL, place, 0)) == (CoreCause.STOP, place, 2)
    tb.limit = 5000
    start = tb.cycle
    assert await tb.fault((Op.ENDLESS, SCRATCHPAD, 0)) == (CoreCause.LIMIT, 0, 0)
    assert tb.cycle - start > 5000 // RATIO
    # Whoever says that it is idle is not, while a kernel is asked for.
    assert await tb.fault((Op.ENDLESS, OWN + 4 * 3, 1)) == (CoreCause.LIMIT, 0, 0)
    dut.overfilled.value = 1
    await ClockCycles(dut.clk, 5)
    assert tb.status()["cause"] == CoreCause.RING.value
    dut.overfilled.value = 0
    assert await tb.fault() == (CoreCause.RING, 0, 0)
    # It begins when its ring is at rest.
    tb.control(run=0)
    await ClockCycles(dut.clk, 5)
    tb.head, dut.resting.value = 0, 0
    tb.control(run=1)
    await ClockCycles(dut.clk, 300)
    assert not tb.status()["running"]
    dut.resting.value = 1
    await tb.start()
    # Waiting is not limited.
    await ClockCycles(dut.clk, 6000)
    assert tb.status()["running"]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_host_stops_it_at_any_time(dut: Any) -> None:
    """Whatever it is doing, and so does a reset; then it begins anew."""
    tb = TB(dut)
    await tb.reset()
    for turn in range(24):
        tb.head = 0
        await tb.start()
        text = commands(
            *((Op.STORE, window(1, 32 * each), each) for each in range(30)),
            (Op.STORE, POOL + OWN_RING, 1),
            (Op.RELU, window(1), window(1, 256)),
        )
        tb.memory[BASE + COMMANDS : BASE + COMMANDS + len(text)] = text
        tb.head = 3
        tb.control(run=1)
        resets = turn % 5 == 0
        longest = 1500
        if turn % 5 != 1:  # while it writes to the memory
            tb.requests.clear()
            while not any(request["write"] for request in tb.requests):
                await RisingEdge(dut.clk)
            longest = 300 if resets else (100, 10)[turn % 2]
        await ClockCycles(dut.clk, tb.rng.randrange(1, longest))
        tb.control(run=0)
        if resets:
            dut.rst.value = 1
            await ClockCycles(dut.clk, 2)
            for queue in tb.queues:
                queue.clear()
            dut.rst.value = 0
        await ClockCycles(dut.clk, tb.rng.choice((1, 3, 100)))
    tb.head = 0
    await tb.start()
    assert await tb.run((Op.STORE, window(1), 5), (Op.LOAD, window(1), 0)) == [0, 5]
