"""The kernel against a model of its update rule, on a memory with stalls and errors.

Parameters: ``lanes``, ``block_bytes``, ``memory_bytes`` as the kernel was built, ``unit``:
``adam`` or ``plain`` (:mod:`hw_tests.kernel.plain_rule`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from numpy.typing import NDArray

from golden.rules.adam import AdamConstants, adam_constants, adam_step
from hw.axdimm.registers import kernel_map
from hw_tests.axi_memory import CHANNEL_STALLS, HABITS, AxiMemory, foreign_memory
from hw_tests.bench import bench_parameters
from hw_tests.kernel.plain_rule import plain_step
from hw_tests.lite_master import LiteMaster
from hw_tests.stalls import STALLS

MAP = kernel_map()
PARAMETERS = bench_parameters()
MEMORY_BYTES: int = PARAMETERS["memory_bytes"]
BLOCK: int = PARAMETERS["block_bytes"] // 4
LANES: int = PARAMETERS["lanes"]
ADAM: bool = PARAMETERS["unit"] == "adam"
INPUTS = ("p_in", "g_in", "m_in", "v_in")
OUTPUTS = ("p_out", "m_out", "v_out")
CONSTANTS = adam_constants(lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, t=3)
CHECK_CYCLES = 22
"""Cycles that the check of the settings takes, one a tensor and one a pair."""


def lines_of(count: int) -> int:
    """Lines of 64 bytes that ``count`` parameters touch."""
    return -(-count // 16)


def place_tensors(
    rng: random.Random, count: int, *, in_place: bool, start: int = 0
) -> dict[str, int]:
    """Line-aligned addresses for all tensors, with gaps that spoil every larger alignment."""
    names = [*INPUTS, *(() if in_place else OUTPUTS)]
    rng.shuffle(names)
    addresses: dict[str, int] = {}
    line = start // 64
    for name in names:
        line += rng.randrange(0, 90)
        addresses[name] = line * 64
        line += lines_of(count)
    assert line * 64 <= MEMORY_BYTES, "the bench's tensors do not fit in its memory"
    for name in OUTPUTS:
        addresses.setdefault(name, addresses[name.replace("_out", "_in")])
    return addresses


@dataclass
class Status:
    """The status register."""

    busy: int
    done: int
    error: int
    cause: str


class Bench:
    """Clock, memory, registers and the expected contents of the memory."""

    def __init__(
        self,
        dut: Any,
        *,
        stalls: str = "none",
        memory: Callable[..., Any] = AxiMemory,
        **options: Any,
    ) -> None:
        self.dut = dut
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.numbers = np.random.default_rng(cocotb.RANDOM_SEED)
        dut.rst.value = 1
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        self.contents = self.numbers.integers(0, 256, MEMORY_BYTES, np.uint8)
        self.memory = memory(
            dut,
            "m_axi",
            dut.clk,
            self.contents,
            stalls=CHANNEL_STALLS[stalls],
            reset=dut.rst,
            seed=cocotb.RANDOM_SEED,
            **options,
        )
        self.registers = LiteMaster(dut, "s_axi", dut.clk)
        self.busy_cycles = 0

    async def reset(self) -> None:
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)
        cocotb.start_soon(self._count_busy())

    async def _count_busy(self) -> None:
        while True:
            await RisingEdge(self.dut.clk)
            self.busy_cycles += int(self.dut.busy.value)

    async def write(self, register: str, value: int) -> None:
        response = await self.registers.write(MAP[register].offset_bytes, value)
        assert response == 0, f"write of {register} was answered with {response}"

    async def read(self, register: str) -> int:
        value, response = await self.registers.read(MAP[register].offset_bytes)
        assert response == 0, f"read of {register} was answered with {response}"
        return value

    async def status(self) -> Status:
        word = await self.read("status")
        register = MAP["status"]
        names = {value: name for name, value in register["cause"].encoding}
        busy, done, error = (register[name].extract(word) for name in ("busy", "done", "error"))
        return Status(busy, done, error, names[register["cause"].extract(word)])

    async def settings(
        self, count: int, addresses: dict[str, int], constants: AdamConstants = CONSTANTS
    ) -> None:
        await self.write("count", count)
        for name, address in addresses.items():
            await self.write(name, address)
        for name, value in constants._asdict().items():
            await self.write(name, int(np.float32(value).view(np.uint32)))

    async def start(self) -> None:
        await self.write("control", 1)

    async def finish(self, limit: int = 200_000) -> None:
        for _ in range(limit):
            await RisingEdge(self.dut.clk)
            if not int(self.dut.busy.value):
                break
        else:
            raise AssertionError(f"the kernel is still busy after {limit} cycles")
        if isinstance(self.memory, AxiMemory):
            assert self.memory.quiet, "the kernel is done while the memory is not"

    def tensor(self, address: int, count: int) -> NDArray[np.float32]:
        """The bytes of a tensor in the memory, as float32."""
        return self.contents[address : address + 4 * count].view(np.float32)

    def fill(self, count: int, addresses: dict[str, int]) -> None:
        """Inputs as they are in training, for Adam with a few that are anything."""
        for name in INPUTS:
            values = self.numbers.normal(0, 0.1, count).astype(np.float32)
            if name == "v_in":
                values = np.square(values)
            odd = self.numbers.random(count) < 0.05 * ADAM
            raw = self.numbers.integers(0, 1 << 32, count, np.uint32).view(np.float32)
            self.tensor(addresses[name], count)[:] = np.where(odd, raw, values)

    def expected(
        self, count: int, addresses: dict[str, int], constants: AdamConstants = CONSTANTS
    ) -> NDArray[np.uint8]:
        """The whole memory after the run."""
        inputs = [self.tensor(addresses[name], count).copy() for name in INPUTS]
        result = self.contents.copy()
        if ADAM:
            outputs = adam_step(*inputs, constants)
        else:
            outputs = plain_step(*inputs, (constants.beta1, constants.lr))
        for name, values in zip(OUTPUTS, outputs, strict=True):
            raw = np.ascontiguousarray(values).view(np.uint8)
            result[addresses[name] : addresses[name] + 4 * count] = raw
        return result

    def compare(self, expected: NDArray[np.uint8], what: str) -> None:
        """All of the memory, byte for byte."""
        wrong = np.flatnonzero(self.contents != expected)
        assert not wrong.size, f"{what}: {wrong.size} bytes differ, the first at {wrong[0]:#x}"

    async def run(self, count: int, addresses: dict[str, int]) -> None:
        """One run, with everything that can be checked about it."""
        self.fill(count, addresses)
        expected = self.expected(count, addresses)
        memory = self.memory
        reads, writes = len(memory.read_cycles), len(memory.write_cycles)
        busy_before = self.busy_cycles
        await self.settings(count, addresses)
        await self.start()
        await self.finish()
        self.compare(expected, f"{count} parameters at {addresses}")
        status = await self.status()
        assert status == Status(0, 1, 0, "none"), status
        beats_read = len(memory.read_cycles) - reads
        beats_written = len(memory.write_cycles) - writes
        assert beats_read == 4 * lines_of(count)
        assert beats_written == 3 * lines_of(count)
        assert await self.read("beats_read") == beats_read
        assert await self.read("beats_written") == beats_written
        cycles = self.busy_cycles - busy_before
        assert await self.read("cycles") == cycles
        moving = {*memory.read_cycles[reads:], *memory.write_cycles[writes:]}
        assert await self.read("idle_cycles") == cycles - len(moving)


async def make_bench(dut: Any, **options: Any) -> Bench:
    bench = Bench(dut, **options)
    await bench.reset()
    return bench


COUNTS = [1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 4 * BLOCK + 37]


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(stalls=list(CHANNEL_STALLS))
async def counts_and_places(dut: Any, stalls: str) -> None:
    """Counts around every boundary, in place and not, at arbitrary lines."""
    bench = await make_bench(dut, stalls=stalls)
    counts = COUNTS if stalls in ("none", "random") else [1, 17, BLOCK + 1, 5 * BLOCK + 5]
    for index, count in enumerate(counts):
        in_place = (index + len(stalls)) % 2 == 0
        await bench.run(count, place_tensors(bench.rng, count, in_place=in_place))


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random"], habit=HABITS[1:])
async def memories_of_every_habit(dut: Any, stalls: str, habit: str) -> None:
    bench = await make_bench(dut, stalls=stalls, habit=habit)
    for count in (17, 3 * BLOCK + 5):
        await bench.run(count, place_tensors(bench.rng, count, in_place=count == 17))


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random"])
async def memory_of_another_make(dut: Any, stalls: str) -> None:
    bench = await make_bench(dut, stalls=stalls, memory=foreign_memory)
    for count in (17, 3 * BLOCK + 5):
        addresses = place_tensors(bench.rng, count, in_place=count == 17)
        bench.fill(count, addresses)
        expected = bench.expected(count, addresses)
        await bench.settings(count, addresses)
        await bench.start()
        await bench.finish()
        assert await bench.status() == Status(0, 1, 0, "none")
        bench.compare(expected, f"{count} parameters at {addresses}")


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def end_of_memory(dut: Any) -> None:
    """A tensor may end with the last byte of the memory."""
    bench = await make_bench(dut)
    count = 2 * BLOCK + 16
    addresses = place_tensors(bench.rng, count, in_place=True)
    for name in ("v_in", "v_out"):
        addresses[name] = MEMORY_BYTES - 4 * count
    await bench.run(count, addresses)


def wrong_settings() -> list[tuple[str, int, dict[str, int]]]:
    """Cause, count and the addresses that differ from well placed ones, in steps of 8 KB."""
    count = 3 * 16
    size = 4 * count
    cases = [("zero_count", 0, {})]
    cases += [("unaligned", count, {name: 4}) for name in (*INPUTS, *OUTPUTS)]
    cases += [("unaligned", count, {"g_in": 32})]
    for name in (*INPUTS, *OUTPUTS):
        cases.append(("out_of_range", count, {name: MEMORY_BYTES - size + 64}))
        cases.append(("out_of_range", count, {name: MEMORY_BYTES}))
        cases.append(("out_of_range", count, {name: (1 << 40) - 64}))
    cases += [
        ("out_of_range", (1 << 40) - 1, {}),
        ("out_of_range", MEMORY_BYTES // 4, {"p_in": 64}),
    ]
    for output in OUTPUTS:
        for other in (*INPUTS, *OUTPUTS):
            if output == other:
                continue
            # Address 0 of a case stands for "where the other tensor is".
            offsets = {size - 64, 64 - size, 0}
            if other == output.replace("_out", "_in"):
                offsets.remove(0)
            cases += [("overlap", count, {output: offset, "of": other}) for offset in offsets]
    return cases


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def wrong_settings_touch_nothing(dut: Any) -> None:
    """Each is refused with its cause and without a transaction; the next good start works."""
    bench = await make_bench(dut)
    before = bench.contents.copy()
    for cause, count, changes in wrong_settings():
        addresses = {name: 8192 * (index + 1) for index, name in enumerate((*INPUTS, *OUTPUTS))}
        other = changes.get("of")
        for name, value in changes.items():
            if name != "of":
                base = 0 if cause == "out_of_range" else addresses[str(other or name)]
                addresses[name] = base + value
        await bench.settings(count, addresses)
        await bench.start()
        await ClockCycles(dut.clk, CHECK_CYCLES + 4)
        status = await bench.status()
        assert status == Status(0, 0, 1, cause), f"{cause} {count} {addresses}: {status}"
        for counter in ("cycles", "beats_read", "beats_written", "idle_cycles"):
            assert await bench.read(counter) == 0
    assert not bench.memory.reads
    assert not bench.memory.writes
    bench.compare(before, "after refusals")
    count = BLOCK + 3
    await bench.run(count, place_tensors(bench.rng, count, in_place=False))
    cycles = await bench.read("cycles")
    await bench.write("count", 0)
    await bench.start()
    await ClockCycles(dut.clk, 8)
    assert await bench.status() == Status(0, 1, 1, "zero_count")
    assert await bench.read("cycles") == cycles


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def neighbours_are_no_overlap(dut: Any) -> None:
    """Tensors may follow each other without a gap."""
    bench = await make_bench(dut)
    count = BLOCK + 20
    size = 64 * lines_of(count)
    names = (*INPUTS, *OUTPUTS)
    await bench.run(count, {name: 64 + size * index for index, name in enumerate(names)})


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def start_while_busy(dut: Any) -> None:
    """Sets the cause and nothing else, whatever the registers say by then."""
    bench = await make_bench(dut, stalls="random")
    count = 3 * BLOCK + 5
    addresses = place_tensors(bench.rng, count, in_place=True)
    bench.fill(count, addresses)
    expected = bench.expected(count, addresses)
    await bench.settings(count, addresses)
    await bench.start()
    await bench.settings(
        7,
        dict.fromkeys(addresses, 0),
        adam_constants(lr=1.0, beta1=0.5, beta2=0.5, eps=1.0, weight_decay=1.0, t=1),
    )
    assert await bench.status() == Status(1, 0, 0, "none")
    await bench.start()
    assert await bench.status() == Status(1, 0, 1, "start_while_busy")
    await bench.finish()
    assert await bench.status() == Status(0, 1, 1, "start_while_busy")
    bench.compare(expected, "a run disturbed by a second start")
    await bench.run(count, addresses)


def check_stopped(
    bench: Bench, before: NDArray[np.uint8], expected: NDArray[np.uint8], what: str
) -> None:
    """Every line of the memory is as before the run or as after a complete one."""
    lines = [array.reshape(-1, 64) for array in (bench.contents, before, expected)]
    now, old, new = lines
    wrong = np.flatnonzero((now != old).any(axis=1) & (now != new).any(axis=1))
    assert not wrong.size, f"{what}: line {wrong[0]} is neither old nor new"


@cocotb.test(timeout_time=40, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS), channel=["read", "write"])
async def memory_errors(dut: Any, stalls: str, channel: str) -> None:
    """An error response ends the run cleanly, wherever it comes, and the next run works."""
    failing: set[int] = set()
    seen: list[int] = []

    def fails(index: int) -> bool:
        if index in failing:
            seen.append(bench.memory.cycle)
        return index in failing

    options: dict[str, Any] = {f"{channel}_error": fails}
    bench = await make_bench(dut, stalls=stalls, **options)
    memory = bench.memory
    count = 3 * BLOCK + 21
    total = 4 * lines_of(count) if channel == "read" else 3 * 4
    for attempt in range(8 if stalls == "none" else 4):
        addresses = place_tensors(bench.rng, count, in_place=attempt % 2 == 0)
        bench.fill(count, addresses)
        before, expected = bench.contents.copy(), bench.expected(count, addresses)
        done_before = len(memory.read_cycles if channel == "read" else memory.writes)
        # The first, the last and some between; sometimes more than one.
        at = {0: 0, 1: total - 1}.get(attempt, bench.rng.randrange(total))
        failing |= {done_before + at, done_before + at + bench.rng.randrange(1, 4)}
        seen.clear()
        await bench.settings(count, addresses)
        await bench.start()
        await bench.finish()
        what = f"{channel} error at {at} of {total}"
        assert seen, f"{what}: was never given"
        assert await bench.status() == Status(0, 1, 1, f"{channel}_error"), what
        check_stopped(bench, before, expected, what)
        if stalls == "none":
            late = [burst for burst in (*memory.reads, *memory.writes) if burst.cycle > seen[0] + 4]
            assert not late, f"{what}: a burst at cycle {late[0].cycle}, the error at {seen[0]}"
        failing.clear()
        await bench.run(BLOCK + 1, place_tensors(bench.rng, BLOCK + 1, in_place=attempt % 2 == 1))


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def reset_during_a_run(dut: Any) -> None:
    """A reset ends the run, whatever is at work; the next one is not disturbed by its remains."""
    bench = await make_bench(dut)
    count = 4 * BLOCK
    for _ in range(12):
        addresses = place_tensors(bench.rng, count, in_place=True)
        await bench.settings(count, addresses)
        await bench.start()
        await ClockCycles(dut.clk, CHECK_CYCLES + bench.rng.randrange(7 * BLOCK // 16 * 3))
        dut.rst.value = 1
        await ClockCycles(dut.clk, bench.rng.choice((1, 2, 5)))
        dut.rst.value = 0
        await RisingEdge(dut.clk)
        assert await bench.status() == Status(0, 0, 0, "none")
        await bench.run(BLOCK + 9, place_tensors(bench.rng, BLOCK + 9, in_place=False))


@cocotb.test(timeout_time=20, timeout_unit="ms", skip=LANES < 16)
async def stages_overlap(dut: Any) -> None:
    """Loading, computing and storing of different rounds go on at the same time."""
    bench = await make_bench(dut)
    rounds = 6
    count = rounds * BLOCK
    addresses = {name: 4 * BLOCK * rounds * index for index, name in enumerate((*INPUTS, *OUTPUTS))}
    await bench.run(count, addresses)
    memory = bench.memory
    # With separate channels only reading counts, and then what the last round needs to be computed
    # and stored; the units' latency and that of the memory are in the allowance.
    block_beats = BLOCK // 16
    last_round = block_beats * 16 // LANES + 3 * block_beats
    bound = CHECK_CYCLES + rounds * 4 * block_beats + last_round + 60
    cycles = await bench.read("cycles")
    assert cycles <= bound, f"{cycles} cycles, expected at most {bound}"
    gaps = np.diff(memory.read_cycles)
    assert gaps.max() == 1, f"reading paused for {gaps.max() - 1} cycles"
    # Whatever is stored while the next rounds are loaded; only the last two are not.
    both = set(memory.read_cycles) & set(memory.write_cycles)
    assert len(both) >= 3 * block_beats * (rounds - 2)


@cocotb.test(timeout_time=20, timeout_unit="ms", skip=LANES < 16)
async def shared_bus_is_the_limit(dut: Any) -> None:
    """On a bus that moves one beat a cycle, reads first, it is busy in all cycles but a few."""
    bench = await make_bench(dut, shared=True)
    rounds = 6
    count = rounds * BLOCK
    addresses = {name: 4 * BLOCK * rounds * index for index, name in enumerate((*INPUTS, *OUTPUTS))}
    await bench.run(count, addresses)
    cycles, idle = await bench.read("cycles"), await bench.read("idle_cycles")
    beats = 7 * lines_of(count)
    assert cycles == beats + idle
    memory = bench.memory
    moves = sorted((*memory.read_cycles, *memory.write_cycles))
    start, end = (moves.index(memory.read_cycles[at * BLOCK // 4]) for at in (2, rounds - 1))
    steady = moves[end] - moves[start]
    share = (end - start) / steady
    assert share >= 0.99, f"the bus is busy in {share:.3f}"
