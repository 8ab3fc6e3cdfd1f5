"""cocotb tests of a host on AXI4: the arbiter between it, a kernel and a memory."""

from __future__ import annotations

import logging
import random
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, gather, with_timeout
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteRam, AxiMaster, AxiResp

from hw.axdimm.registers import arbiter_map
from hw_tests.axi_manager import ALL, FIXED, INCR, OKAY, SLVERR, WRAP, AxiManager, beat_addresses
from hw_tests.axi_memory import CHANNEL_STALLS, AxiMemory
from hw_tests.bench import bench_parameters
from hw_tests.stalls import STALLS, pause_channels

LINE = 64
PAGE = 4096
NORMAL, ACCELERATION = 0, 1


def quiet(dut: Any, *prefixes: str) -> None:
    for prefix in prefixes:
        logging.getLogger(f"cocotb.{dut._name}.{prefix}").setLevel(logging.WARNING)


class TB:
    """A host on ``s_axi``, a kernel on the kernel port, and memories behind the arbiter."""

    def __init__(self, dut: Any, *, foreign: bool = False, **options: Any) -> None:
        quiet(dut, "kernel", "kernel_csr", "s_axi")
        self.dut = dut
        self.parameters = bench_parameters()
        self.capacity = 1 << self.parameters["address_width"]
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.stalls = CHANNEL_STALLS[self.parameters["stalls"]]
        self.contents = np.random.default_rng(cocotb.RANDOM_SEED).integers(
            0, 256, self.capacity, np.uint8
        )
        self.before = self.contents.copy()
        dut.memory_idle.value = 1
        dut.kernel_busy.value = 0
        self.memory = AxiMemory(
            dut, "memory_axi", dut.clk, self.contents, stalls=self.stalls, reset=dut.rst, **options
        )
        self.kernel = AxiMaster(AxiBus.from_prefix(dut, "kernel"), dut.clk, dut.rst)
        self.kernel_registers: Any = AxiLiteRam(
            AxiLiteBus.from_prefix(dut, "kernel_csr"), dut.clk, dut.rst, size=PAGE
        )
        self.registers = arbiter_map()
        # Two managers on one port: only one of them may be there.
        self.host: Any = None
        if foreign:
            self.host = AxiMaster(AxiBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
        else:
            self.host = AxiManager(
                dut, "s_axi", dut.clk, reset=dut.rst, stalls=self.stalls, seed=cocotb.RANDOM_SEED
            )

    async def start(self) -> None:
        Clock(self.dut.clk, 5, unit="ns").start()
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        for interface in (self.kernel, self.kernel_registers):
            pause_channels(interface, STALLS[self.parameters["stalls"]], self.rng.random())

    def address(self, name: str) -> int:
        return self.capacity - PAGE + self.registers[name].offset_bytes

    async def register(self, name: str) -> int:
        value, response = await self.host.load(self.address(name), 8)
        assert response == OKAY
        return value

    async def set_mode(self, mode: int) -> None:
        assert await self.host.store(self.address("mode"), mode, 8) == OKAY
        while await self.register("status") & 3 != mode:
            pass

    def random_burst(self, page: int) -> tuple[int, int, int, int]:
        """Address, length, size and kind of a burst that is legal and stays in the page."""
        rng = self.rng
        size = rng.choice((6, 6, 6, rng.randrange(7)))
        burst = rng.choice((INCR, INCR, INCR, FIXED, WRAP))
        number_bytes = 1 << size
        if burst == WRAP:
            length = rng.choice((2, 4, 8, 16))
            address = rng.randrange(PAGE // number_bytes) * number_bytes
        elif burst == FIXED:
            length = rng.randint(1, 16)
            address = rng.randrange(PAGE)
        else:
            address = rng.randrange(PAGE)
            most = min(256, (PAGE - address // number_bytes * number_bytes) // number_bytes)
            length = rng.choice((most, 1, rng.randint(1, most)))
        return page * PAGE + address, length, size, burst

    def random_write(self, burst: tuple[int, int, int, int], expected: Any) -> Any:
        """Queues a write with random strobes, and puts it into ``expected``."""
        address, length, size, kind = burst
        beats = []
        for place in beat_addresses(address, length, size, kind):
            first = place % LINE
            beyond = first - first % (1 << size) + (1 << size)
            lanes = sum(1 << lane for lane in range(first, beyond))
            strobes = lanes & self.rng.choice((ALL, ALL, 0, self.rng.getrandbits(LINE)))
            value = self.rng.getrandbits(8 * LINE)
            beats.append((value, strobes))
            line = value.to_bytes(LINE, "little")
            for lane in range(first, beyond):
                if strobes >> lane & 1:
                    expected[place - first + lane] = line[lane]
        ident = self.rng.randrange(1 << 16)
        return self.host.write(address, beats, size=size, burst=kind, ident=ident)

    def check_read(self, transfer: Any, expected: Any) -> None:
        places = beat_addresses(transfer.address, transfer.length, transfer.size, transfer.burst)
        for place, (value, response) in zip(places, transfer.beats, strict=True):
            assert response == OKAY
            first = place % LINE
            number_bytes = 1 << transfer.size
            line = value.to_bytes(LINE, "little")
            for lane in range(first, first - first % number_bytes + number_bytes):
                assert line[lane] == expected[place - first + lane], hex(place)


@cocotb.test(timeout_time=600, timeout_unit="us")
async def every_kind_of_burst_reaches_its_bytes(dut: Any) -> None:
    """Each of some programs has pages of its own, where it writes, waits and reads."""
    tb = TB(dut)
    await tb.start()
    expected = tb.contents.copy()
    counts = {"write": 0, "read": 0}

    async def program(pages: range) -> None:
        for _ in range(5):
            bursts = [tb.random_burst(tb.rng.choice(pages)) for _ in range(6)]
            for write in [tb.random_write(burst, expected) for burst in bursts]:
                await write.ended.wait()
                assert write.response == OKAY
                counts["write"] += write.length
            bursts = [tb.random_burst(burst[0] // PAGE) for burst in bursts]
            reads = [
                tb.host.read(
                    address, length, size=size, burst=kind, ident=tb.rng.randrange(1 << 16)
                )
                for address, length, size, kind in bursts
            ]
            for read in reads:
                await read.ended.wait()
                tb.check_read(read, expected)
                counts["read"] += read.length

    pages = (tb.capacity - 2 * PAGE) // PAGE
    await gather(*(program(range(part, pages, 4)) for part in range(4)))
    assert np.array_equal(tb.contents, expected)
    assert await tb.register("host_writes") == counts["write"]
    assert await tb.register("host_reads") == counts["read"]
    for name in ("refused", "late_reads", "overflows"):
        assert await tb.register(name) == 0
    dut._log.info("beats: %s, %d cycles", counts, tb.memory.cycle)


@cocotb.test(timeout_time=600, timeout_unit="us")
async def another_manager(dut: Any) -> None:
    """That of cocotbext-axi, with unaligned bytes and all sizes."""
    tb = TB(dut, foreign=True)
    await tb.start()
    pause_channels(tb.host, STALLS[tb.parameters["stalls"]], "host")
    expected = tb.contents.copy()

    async def program(part: int) -> None:
        base = part * 0x8000
        for turn in range(6):
            size = tb.rng.choice((6, 6, tb.rng.randrange(7)))
            address = base + tb.rng.randrange(0x4000)
            data = tb.rng.randbytes(tb.rng.randint(1, 60 << size))
            written = await tb.host.write(address, data, size=size, awid=4 * part + turn % 3)
            assert written.resp == AxiResp.OKAY
            expected[address : address + len(data)] = np.frombuffer(data, np.uint8)
            start = base + tb.rng.randrange(0x4000)
            count = tb.rng.randint(1, 60 << size)
            read = await tb.host.read(start, count, size=size, arid=4 * part + turn % 3)
            assert read.resp == AxiResp.OKAY
            assert read.data == expected[start : start + count].tobytes()

    await gather(*(program(part) for part in range(4)))
    assert np.array_equal(tb.contents, expected)


@cocotb.test(timeout_time=600, timeout_unit="us")
async def registers_as_a_processor_reaches_them(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    ident = int.from_bytes(b"AXDN", "little") | 2 << 32
    for nbytes in (1, 2, 4, 8):
        parts = [
            await tb.host.load(tb.address("id") + place, nbytes) for place in range(0, 8, nbytes)
        ]
        assert all(response == OKAY for _, response in parts)
        assert sum(value << 8 * nbytes * n for n, (value, _) in enumerate(parts)) == ident
    # The rest of a line reads as zero and ignores writes.
    assert await tb.host.load(tb.address("id") + 8, 8) == (0, OKAY)
    assert await tb.host.store(tb.address("mode") + 8, 1, 8) == OKAY
    assert await tb.host.store(tb.address("mode") + 4, 1, 4) == OKAY
    assert await tb.register("mode") == NORMAL
    # Registers in a burst, and a line in narrow beats.
    whole = tb.host.read(tb.capacity - PAGE, 5)
    narrow = tb.host.read(tb.address("id"), 16, size=2)
    await narrow.ended.wait()
    names = ("id", "mode", "status", "capacity", "config")
    for name, beat in zip(names, whole.beats, strict=True):
        assert beat == (await tb.register(name), OKAY), name
    assert narrow.beats == [(ident, OKAY)] * 16
    assert whole.beats[3][0] == tb.capacity
    assert whole.beats[4][0] >> 40 & 0xFFFF == 0, "no fixed latency"

    # A mode by a byte; then the kernel's registers, by halves and bytes.
    assert await tb.host.store(tb.address("mode"), ACCELERATION, 1) == OKAY
    while await tb.register("status") & 3 != ACCELERATION:
        pass
    assert await tb.host.store(tb.address("mode") + 4, 0, 4) == OKAY
    assert await tb.register("mode") == ACCELERATION
    place = tb.capacity - 2 * PAGE + 0x80
    assert await tb.host.store(place, 0x1122334455667788, 8) == OKAY
    assert await tb.host.store(place + 4, 0xAABBCCDD, 4) == OKAY
    assert await tb.host.store(place + 1, 0xEE, 1) == OKAY
    assert await tb.host.load(place, 8) == (0xAABBCCDD5566EE88, OKAY)
    assert await tb.host.load(place + 4, 4) == (0xAABBCCDD, OKAY)
    values = [tb.rng.getrandbits(64) for _ in range(8)]
    burst = tb.host.write(place, [(value, 0xFF) for value in values])
    await burst.ended.wait()
    assert burst.response == OKAY
    for number, value in enumerate(values):
        stored = tb.kernel_registers.read(0x80 + LINE * number, LINE)
        assert stored[:8] == value.to_bytes(8, "little")
    assert await tb.register("refused") == 0


@cocotb.test(timeout_time=600, timeout_unit="us")
async def what_cannot_be_answered_is_an_error(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    refused = 0

    async def refuses(address: int, length: int, **how: int) -> None:
        nonlocal refused
        write = tb.host.write(address, [(0x55, ALL)] * length, ident=7, **how)
        read = tb.host.read(address, length, ident=9, **how)
        await write.ended.wait()
        await read.ended.wait()
        assert write.response == SLVERR
        assert read.beats == [(0, SLVERR)] * length
        refused += 2 * length
        assert await tb.register("refused") == refused

    await refuses(0x1000, 3, burst=3)
    await refuses(0x1000, 2, size=7)
    await refuses(0x1FC0, 2)  # across 4 KB
    await refuses(0x1F80, 33, size=2)
    for length in {*range(1, 20), 32, 64, 256} - {2, 4, 8, 16}:
        await refuses(0x1000, length, burst=WRAP, size=3)
    for size in range(1, 7):
        # One byte, and half the size, beyond a multiple of it.
        for beyond in {1, 1 << size - 1}:
            await refuses(0x1000 + (3 << size) + beyond, 4, burst=WRAP, size=size)
    for length in (17, 32, 256):
        await refuses(0x1000 + length, length, burst=FIXED, size=length % 7)
    await refuses(tb.capacity - 2 * PAGE, 1, size=3)  # the kernel's, in normal mode
    await refuses(tb.capacity - LINE, 1, size=3)  # no register
    await tb.set_mode(ACCELERATION)
    await refuses(0x1000, 4)
    await refuses(0, 1, size=2)
    assert np.array_equal(tb.contents, tb.before)
    # The longest that does not cross, and that after an error all is well.
    await tb.set_mode(NORMAL)
    read = tb.host.read(0x1FC0, 16, size=2)
    await read.ended.wait()
    tb.check_read(read, tb.contents)
    await tb.set_mode(ACCELERATION)
    # One bad beat makes a write an error, the others count.
    last = max(register.offset_bytes for register in tb.registers.registers)
    beats = [(0, 0xFF), (0, 0)]
    write = tb.host.write(tb.capacity - PAGE + last, beats)
    await write.ended.wait()
    assert write.response == SLVERR
    write = tb.host.write(tb.address("mode"), beats)
    await write.ended.wait()
    assert write.response == OKAY
    while await tb.register("status") != NORMAL:
        pass


@cocotb.test(timeout_time=600, timeout_unit="us")
async def errors_of_the_memory_are_passed_on(dut: Any) -> None:
    bad = {1, 6, 7, 11}
    tb = TB(dut, read_error=lambda index: index in bad, write_error=lambda index: index in bad)
    await tb.start()
    # A beat of the host is a burst of the memory.
    writes = [tb.host.write(LINE * 4 * n, [(n, ALL)] * 4, ident=n) for n in range(4)]
    reads = [tb.host.read(0x4000, 4, ident=n) for n in range(4)]
    for number, (write, read) in enumerate(zip(writes, reads, strict=True)):
        await write.ended.wait()
        await read.ended.wait()
        places = set(range(4 * number, 4 * number + 4))
        assert write.response == (SLVERR if places & bad else OKAY)
        responses = [response for _, response in read.beats]
        assert responses == [SLVERR if place in bad else OKAY for place in sorted(places)]


@cocotb.test(timeout_time=600, timeout_unit="us")
async def modes_change_under_traffic(dut: Any) -> None:
    """What was answered well was done, what was refused was not, and the kernel has its turn."""
    tb = TB(dut)
    await tb.start()
    data = tb.rng.randbytes(6 * PAGE)
    kernel = cocotb.start_soon(tb.kernel.write(0x20000, data, awid=0))
    seen = {OKAY: 0, SLVERR: 0}
    over = False

    async def traffic(base: int) -> None:
        value = 0
        while not over:
            value += 1
            line = tb.rng.randrange(32)
            write = tb.host.write(base + LINE * line, [(value, ALL)], ident=base)
            before = int.from_bytes(tb.contents[base + LINE * line :][:LINE].tobytes(), "little")
            await write.ended.wait()
            seen[write.response] += 1
            expected = value if write.response == OKAY else before
            read = tb.host.read(base + LINE * line, 1, ident=base)
            await read.ended.wait()
            found, response = read.beats[0]
            seen[response] += 1
            assert found == (expected if response == OKAY else 0)

    programs = [cocotb.start_soon(traffic(base)) for base in (0x1000, 0x3000, 0x5000)]
    for _ in range(8):
        await ClockCycles(dut.clk, tb.rng.randrange(10, 300))
        await tb.set_mode(ACCELERATION)
        await ClockCycles(dut.clk, tb.rng.randrange(10, 300))
        await tb.set_mode(NORMAL)
        before = tb.contents[0x20000:][: len(data)].copy()
        await ClockCycles(dut.clk, 50)
        assert np.array_equal(tb.contents[0x20000:][: len(data)], before), "kernel in normal mode"
    over = True
    await gather(*programs)
    await tb.set_mode(ACCELERATION)
    await kernel
    assert tb.contents[0x20000:][: len(data)].tobytes() == data
    assert min(seen.values()) > 10, seen
    assert await tb.register("refused") == seen[SLVERR]


@cocotb.test(timeout_time=600, timeout_unit="us")
async def a_switch_waits_for_the_hosts_beats(dut: Any) -> None:
    """Of a burst that is under way, what was taken is done, the rest is refused; nothing hangs."""
    tb = TB(dut)
    await tb.start()
    write = tb.host.write(0x2000, [(n + 1, ALL) for n in range(64)], ident=1)
    mode = tb.host.write(tb.address("mode"), [(ACCELERATION, 0xFF)], size=3, ident=2)
    read = tb.host.read(0x6000, 64, ident=3)
    for transfer in (write, mode, read):
        await transfer.ended.wait()
    # Writes keep their order, so the burst was before the mode.
    assert (write.response, mode.response) == (OKAY, OKAY)
    lines = tb.contents[0x2000:0x3000].reshape(64, LINE)
    assert [int(line[0]) for line in lines] == list(range(1, 65))
    done = [response == OKAY for _, response in read.beats]
    assert done == sorted(done, reverse=True), "the refused ones are the last"
    while await tb.register("status") & 3 != ACCELERATION:
        pass
    assert await tb.register("refused") == done.count(False)


@cocotb.test(timeout_time=600, timeout_unit="us")
async def no_channel_holds_up_another(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()

    async def ends(transfer: Any) -> None:
        await with_timeout(transfer.ended.wait(), 200, "us")

    host = tb.host
    # Reads go on while a write has no data, and while nobody takes its answer.
    for channel in ("w", "b"):
        host.stalls = {**tb.stalls, channel: 1.0}
        writes = [host.write(0x1000 * n, [(n, ALL)] * 32, ident=n) for n in range(6)]
        for _ in range(5):
            await ends(host.read(0x8000, 64))
        assert not any(write.ended.is_set() for write in writes)
        host.stalls = dict(tb.stalls)
        for write in writes:
            await ends(write)
    # Writes go on while nobody takes what was read.
    host.stalls = {**tb.stalls, "r": 1.0}
    reads = [host.read(0x1000 * n, 64, ident=n) for n in range(6)]
    for n in range(5):
        await ends(host.write(0x8000 + PAGE * n, [(n, ALL)] * 64))
    assert not any(read.ended.is_set() for read in reads)
    host.stalls = dict(tb.stalls)
    for read in reads:
        await ends(read)
        tb.check_read(read, tb.contents)


@cocotb.test(timeout_time=600, timeout_unit="us")
@cocotb.parametrize((("length", "outstanding", "buffer"), [(64, 8, 1), (16, 16, 3), (1, 80, 2)]))
async def copies_with_a_small_buffer(dut: Any, length: int, outstanding: int, buffer: int) -> None:
    tb = TB(dut)
    await tb.start()
    expected, size = tb.contents.copy(), LINE * length
    half = tb.capacity // 2
    pairs = [(size * n, half + size * n) for n in range(12 * 64 // length)][:100]
    await tb.host.copy(pairs, length=length, outstanding=outstanding, buffer=buffer)
    moved = len(pairs) * size
    expected[half : half + moved] = expected[:moved]
    assert np.array_equal(tb.contents, expected)


@cocotb.test(timeout_time=600, timeout_unit="us")
async def data_before_and_with_its_address(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    expected = tb.contents.copy()
    for channel in ("aw", "w"):
        for _ in range(4):
            tb.host.stalls[channel] = 1.0
            write = tb.random_write((0x3000, tb.rng.randint(1, 14), 6, INCR), expected)
            await ClockCycles(dut.clk, tb.rng.randrange(60))
            assert not write.ended.is_set()
            tb.host.stalls = dict(tb.stalls)
            await write.ended.wait()
            assert write.response == OKAY
            assert np.array_equal(tb.contents, expected)
    # Offered in the same cycle, as soon as the port is there.
    tb.host.stalls = {}
    write = tb.random_write((0x5000, 1, 6, INCR), expected)
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    await write.ended.wait()
    assert np.array_equal(tb.contents, expected)


@cocotb.test(timeout_time=600, timeout_unit="us")
async def a_burst_moves_a_line_a_cycle(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    if tb.parameters["stalls"] != "none":
        return
    for make in (
        lambda: [tb.host.read(PAGE * n, 64) for n in range(4)],
        lambda: [tb.host.write(PAGE * n, [(n, ALL)] * 64) for n in range(4)],
    ):
        begin = tb.memory.cycle
        for transfer in make():
            await transfer.ended.wait()
        assert tb.memory.cycle - begin < 1.15 * 4 * 64
