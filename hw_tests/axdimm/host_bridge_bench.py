"""cocotb tests of the bridges, on an AXI4 memory and on AXI4-Lite registers that is not ours.

Parameters: ``address_width``, ``outstanding`` of the bridge to the DRAM.
"""

from __future__ import annotations

import logging
import random
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteSlave

from hw.axdimm.host_port import TAG_BITS, HostRequest, HostResult
from hw_tests.axi_memory import CHANNEL_STALLS, SUBORDINATES, AxiMemory
from hw_tests.bench import bench_parameters
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS, pause_channels
from hw_tests.streams import StreamSink, StreamSource, pack, unpack

LINE = 64
PARAMETERS = bench_parameters()
OUTSTANDING: int = PARAMETERS["outstanding"]
MEMORY_BYTES: int = 1 << PARAMETERS["address_width"]
LINES = MEMORY_BYTES // LINE
REQUEST = HostRequest(line_width=PARAMETERS["address_width"] - 6)
RESULT = HostResult()


class Bench:
    """Source of requests and sink of results of one of the bridges."""

    def __init__(self, dut: Any, name: str, *, stalls: str) -> None:
        self.dut = Side(dut, name)
        self.rng = random.Random(cocotb.RANDOM_SEED)
        dut.rst.value = 1
        cocotb.start_soon(Clock(dut.clk, 5, unit="ns").start())
        share = STALLS[stalls]
        self.requests = StreamSource(
            self.dut, "i", dut.clk, pause=share / 2, seed=cocotb.RANDOM_SEED
        )
        self.results = StreamSink(self.dut, "o", dut.clk, pause=share, seed=cocotb.RANDOM_SEED)

    async def reset(self) -> None:
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0

    def request(self, line: int, data: int | None = None, strobes: int = (1 << LINE) - 1) -> int:
        """Queues a write of ``data``, or a read if there is none, and returns its tag."""
        tag = self.rng.getrandbits(TAG_BITS)
        write = data is not None
        self.requests.queue.append(
            pack(REQUEST, write=write, line=line, tag=tag, data=data or 0, strobes=strobes)
        )
        return tag

    async def finish(self) -> list[dict[str, int]]:
        """Waits until all is done and returns the results."""
        while self.requests.queue or not int(self.dut.idle.value):
            await FallingEdge(self.dut.clk)
        await ClockCycles(self.dut.clk, 2)
        return [unpack(RESULT, payload) for payload in self.results.taken]


class DramBench(Bench):
    """With a memory, and a check in each cycle that no write is in flight beside a read."""

    def __init__(self, dut: Any, *, stalls: str = "none", **options: Any) -> None:
        super().__init__(dut, "dram", stalls=stalls)
        self.contents = np.random.default_rng(cocotb.RANDOM_SEED).integers(
            0, 256, MEMORY_BYTES, np.uint8
        )
        self.expected = self.contents.copy()
        self.memory = AxiMemory(
            self.dut,
            "axi",
            dut.clk,
            self.contents,
            stalls=CHANNEL_STALLS[stalls],
            reset=dut.rst,
            seed=cocotb.RANDOM_SEED,
            **options,
        )
        self.most = {"ar": 0, "aw": 0}
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        dut = self.dut
        ends = {"ar": "r", "aw": "b"}
        flying = {"ar": 0, "aw": 0}
        await FallingEdge(dut.rst)
        while True:
            await FallingEdge(dut.clk)
            for begin, count in flying.items():
                sent = count + int(getattr(dut, f"axi_{begin}valid").value)
                self.most[begin] = max(self.most[begin], sent)
                assert sent <= OUTSTANDING
                assert not (sent and int(dut.idle.value))
                # Also what is only offered, in the cycle in which the other ends, is too early.
                assert not (sent and any(flying[each] for each in flying if each != begin)), (
                    "a read beside a write"
                )
            for begin, end in ends.items():
                for name, step in ((begin, 1), (end, -1)):
                    valid, ready = (
                        int(getattr(dut, f"axi_{name}{part}").value) for part in ("valid", "ready")
                    )
                    flying[begin] += step * (valid and ready)

    def line(self, line: int) -> int:
        """What must be in ``line``."""
        return int.from_bytes(self.expected[LINE * line :][:LINE].tobytes(), "little")

    def write(self, line: int) -> None:
        data = self.rng.getrandbits(8 * LINE)
        strobes = self.rng.choice(((1 << LINE) - 1, self.rng.getrandbits(LINE)))
        self.request(line, data, strobes)
        written = [byte for byte in range(LINE) if strobes >> byte & 1]
        place = self.expected[LINE * line :][:LINE]
        place[written] = np.frombuffer(data.to_bytes(LINE, "little"), np.uint8)[written]


@cocotb.test(timeout_time=500, timeout_unit="us")
@cocotb.parametrize((("stalls", "habit"), SUBORDINATES))
async def reads_and_writes_keep_their_order(dut: Any, stalls: str, habit: str) -> None:
    """Reads see all earlier writes and no later one; reads in error are told by their ``ok``."""
    failing = random.Random(cocotb.RANDOM_SEED)
    errors = [failing.random() < 0.1 for _ in range(400)]
    bench = DramBench(
        dut,
        stalls=stalls,
        habit=habit,
        read_error=lambda index: errors[index],
        # A write's error goes nowhere, and must not hold up what follows.
        write_error=lambda index: index % 5 == 0,
    )
    await bench.reset()
    hot = [bench.rng.randrange(LINES) for _ in range(3)] + [0, LINES - 1]
    expected = []
    kind = 0
    for _ in range(400):
        if bench.rng.random() < 0.3:
            kind = 1 - kind
        line = bench.rng.choice(hot)
        if kind:
            bench.write(line)
        else:
            content = bench.line(line)
            expected.append((bench.request(line), content))
    results = await bench.finish()
    assert [(result["tag"], result["ok"]) for result in results] == [
        (tag, not error) for (tag, _), error in zip(expected, errors[: len(expected)], strict=True)
    ]
    for result, (_, content) in zip(results, expected, strict=True):
        assert not result["ok"] or result["data"] == content
    assert np.array_equal(bench.contents, bench.expected)
    assert 10 < sum(not result["ok"] for result in results) < len(results) / 2


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(write=[False, True], stalls=list(STALLS))
async def no_more_in_flight_than_promised(dut: Any, write: bool, stalls: str) -> None:
    """With no answers exactly ``outstanding`` requests go out; with them, all."""
    bench = DramBench(dut, stalls=stalls)
    await bench.reset()
    bench.memory.stalls["b" if write else "r"] = 1.0
    for line in range(3 * OUTSTANDING):
        if write:
            bench.write(line)
        else:
            bench.request(line)
    await ClockCycles(dut.clk, 400)
    bursts = bench.memory.writes if write else bench.memory.reads
    assert len(bursts) == OUTSTANDING
    assert len(bench.requests.queue) == 2 * OUTSTANDING
    assert not int(bench.dut.idle.value)
    bench.memory.stalls["b" if write else "r"] = STALLS[stalls]
    results = await bench.finish()
    assert [burst.address for burst in bursts] == [LINE * i for i in range(3 * OUTSTANDING)]
    assert [result["data"] for result in results] == (
        [] if write else [bench.line(line) for line in range(3 * OUTSTANDING)]
    )
    assert np.array_equal(bench.contents, bench.expected)
    assert bench.most == {"ar": 0 if write else OUTSTANDING, "aw": OUTSTANDING if write else 0}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def keeps_the_links_pace(dut: Any) -> None:
    """Without stalls a request every second cycle, in either direction."""
    bench = DramBench(dut)
    await bench.reset()
    for write in (False, True):
        begin = bench.memory.cycle
        for line in range(100):
            if write:
                bench.write(line)
            else:
                bench.request(line)
        await bench.finish()
        assert bench.memory.cycle - begin < 2 * 100 + 20


class Registers:
    """64-bit registers, some of which answer with an error; what :class:`AxiLiteSlave` asks."""

    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        self.accesses: list[tuple[str, int]] = []

    @staticmethod
    def fails(address: int) -> bool:
        return address // LINE % 4 == 3

    async def read(self, address: int, length: int) -> bytes:
        self.accesses.append(("read", address))
        if self.fails(address):
            raise ValueError(address)
        return self.values.get(address, 0).to_bytes(length, "little")

    async def write(self, address: int, data: bytes) -> None:
        assert len(data) == 8, "part of a register"
        self.accesses.append(("write", address))
        if self.fails(address):
            raise ValueError(address)
        self.values[address] = int.from_bytes(data, "little")


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def registers_answer_in_order(dut: Any, stalls: str) -> None:
    """Values and errors of reads, errors of writes, one access after the other."""
    # Every error is a warning there.
    logging.getLogger("cocotb.host_bridges.registers_axi").setLevel(logging.ERROR)
    bench = Bench(dut, "registers", stalls=stalls)
    registers = Registers()
    slave = AxiLiteSlave(
        AxiLiteBus.from_prefix(dut, "registers_axi"), dut.clk, dut.rst, target=registers
    )
    pause_channels(slave, STALLS[stalls], cocotb.RANDOM_SEED)
    await bench.reset()
    errors = 0

    async def watch() -> None:
        nonlocal errors
        while True:
            await RisingEdge(dut.clk)
            errors += int(bench.dut.error.value)

    cocotb.start_soon(watch())
    values: dict[int, int] = {}
    expected: list[dict[str, int]] = []
    accesses: list[tuple[str, int]] = []
    failed = 0
    for _ in range(300):
        # The window is 4 KB; address bits above it are somebody else's.
        line = bench.rng.randrange(8) | bench.rng.randrange(LINES // 64) << 6
        address = LINE * (line % 64)
        fails = Registers.fails(address)
        failed += fails
        if bench.rng.random() < 0.5:
            data = bench.rng.getrandbits(8 * LINE)
            bench.request(line, data)
            accesses.append(("write", address))
            if not fails:
                values[address] = data & ((1 << 64) - 1)
        else:
            tag = bench.request(line)
            accesses.append(("read", address))
            data = 0 if fails else values.get(address, 0)
            expected.append({"tag": tag, "ok": int(not fails), "data": data})
    results = await bench.finish()
    assert results == expected
    assert registers.accesses == accesses
    assert registers.values == values
    assert errors == failed > 20
