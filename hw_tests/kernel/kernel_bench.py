"""The kernel against models of its update rules, on a memory with stalls and errors.

Parameters: ``rules``, ``lanes``, ``block_bytes``, ``memory_bytes``, ``subnormals``, ``narrow``
as the kernel was built. What is not about a rule is tried with the first one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from numpy.typing import NDArray

from golden.rules import Reference, reference
from hw.kernel.registers import kernel_map
from hw_tests.axi_memory import CHANNEL_STALLS, HABITS, AxiMemory, foreign_memory
from hw_tests.bench import bench_parameters
from hw_tests.kernel.plain_rule import PLAIN_REFERENCE
from hw_tests.lite_master import LiteMaster, kept_bits
from hw_tests.rules.hyperparameters import hyperparameters
from hw_tests.stalls import STALLS

PARAMETERS = bench_parameters()
RULES: tuple[str, ...] = tuple(PARAMETERS["rules"])
NARROW: bool = PARAMETERS["narrow"]
MAP = kernel_map(RULES, NARROW)
MEMORY_BYTES: int = PARAMETERS["memory_bytes"]
BLOCK: int = PARAMETERS["block_bytes"] // 4
LANES: int = PARAMETERS["lanes"]


def reference_of(name: str) -> Reference:
    """The model of a rule."""
    return PLAIN_REFERENCE if name == "plain" else reference(name, PARAMETERS["subnormals"])


PAPERS_TENSORS = RULES[0] in ("adam", "plain")
MODEL = reference_of(RULES[0])
CHANNELS = [*(["read"] if MODEL.inputs else []), *(["write"] if MODEL.outputs else [])]


class Tensors:
    """The tensors of a rule by the names of their registers."""

    def __init__(self, name: str) -> None:
        model = reference_of(name)
        self.loaded = [f"{each}_in" for each in model.inputs]
        self.stored = [f"{each}_out" for each in model.outputs]
        self.names = [*self.loaded, *self.stored]
        # With narrow formats all places are checked.
        loads, stores = (5, 5) if NARROW else (len(self.loaded), len(self.stored))
        self.check_cycles = loads + stores + loads * stores + stores * (stores - 1) // 2
        """Cycles that the check of the settings takes, one a tensor and one a pair."""

    def in_place(self, stored: str) -> str | None:
        """The tensor that is loaded from where ``stored`` may go."""
        loaded = stored.replace("_out", "_in")
        return loaded if loaded in self.loaded else None

    def lines(self, name: str, count: int) -> int:
        """Lines of 64 bytes that ``count`` parameters of a tensor touch."""
        return lines_of(count)


def lines_of(count: int) -> int:
    """Lines of 64 bytes that ``count`` parameters in FP32 touch."""
    return -(-count // 16)


def place_tensors(
    rng: random.Random, tensors: Tensors, count: int, *, in_place: bool
) -> dict[str, int]:
    """Line-aligned addresses for all tensors, with gaps that spoil every larger alignment."""
    shared = {name: tensors.in_place(name) for name in tensors.stored if in_place}
    names = [name for name in tensors.names if not shared.get(name)]
    rng.shuffle(names)
    addresses: dict[str, int] = {}
    line = 0
    for name in names:
        line += rng.randrange(0, 90)
        addresses[name] = line * 64
        line += tensors.lines(name, count)
    assert line * 64 <= MEMORY_BYTES, "the bench's tensors do not fit in its memory"
    return addresses | {name: addresses[other] for name, other in shared.items() if other}


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
        self.stalls = stalls
        self.failing: dict[str, set[int]] = {"read": set(), "write": set()}
        """Beats read, and bursts written, by their numbers, that are answered with an error."""
        self.errors: list[int] = []
        """The cycles of the errors."""
        if memory is AxiMemory:
            options |= {f"{each}_error": partial(self._fails, each) for each in self.failing}
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
        self.select(RULES[0])

    def _fails(self, channel: str, index: int) -> bool:
        failed = index in self.failing[channel]
        if failed:
            self.errors.append(self.memory.cycle)
        return failed

    def select(self, name: str) -> None:
        """Has the next runs compute a rule."""
        self.rule = name
        self.model = reference_of(name)
        self.tensors = Tensors(name)
        self.constants = self.model.constants(**hyperparameters(name, t=3))

    def said(self, count: int, addresses: dict[str, int]) -> str:
        """Of which run something is said."""
        return f"{self.rule}: {count} parameters at {addresses}"

    def place(self, count: int, *, in_place: bool) -> dict[str, int]:
        return place_tensors(self.rng, self.tensors, count, in_place=in_place)

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

    async def settings(self, count: int, addresses: dict[str, int]) -> None:
        await self.place_of_run(count, addresses)
        for name, value in self.constants.items():
            await self.write(name, int(value.view(np.uint32)))

    async def place_of_run(self, count: int, addresses: dict[str, int]) -> None:
        """The settings but for the constants."""
        await self.write("rule", RULES.index(self.rule))
        await self.write("count", count)
        for name, address in addresses.items():
            await self.write(name, address)

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
        """Inputs as they are in training, with a few that are anything.

        But not for :mod:`~hw_tests.kernel.plain_rule`, nor for sums, where an infinity would hide
        all else.
        """
        strange = 0.05 * (self.rule != "plain" and not self.model.sums)
        for name in self.tensors.loaded:
            values = self.numbers.normal(0, 0.1, count).astype(np.float32)
            if name in ("v_in", "s_in", "x_in"):
                values = np.square(values)
            odd = self.numbers.random(count) < strange
            raw = self.numbers.integers(0, 1 << 32, count, np.uint32).view(np.float32)
            self.tensor(addresses[name], count)[:] = np.where(odd, raw, values)

    def expected(
        self, count: int, addresses: dict[str, int]
    ) -> tuple[NDArray[np.uint8], dict[str, int]]:
        """The whole memory after the run, and what registers tell of it by their names: beats, and
        bits of sums."""
        inputs = {
            name.removesuffix("_in"): self.tensor(addresses[name], count).copy()
            for name in self.tensors.loaded
        }
        result = self.contents.copy()
        given = inputs or {"y": np.empty(count, np.float32)}
        results = self.model.step(given, self.constants)
        for name in self.model.outputs:
            raw = np.ascontiguousarray(results[name]).view(np.uint8)
            address = addresses[f"{name}_out"]
            result[address : address + 4 * count] = raw
        registers = {
            "beats_read": len(self.tensors.loaded) * lines_of(count),
            "beats_written": len(self.tensors.stored) * lines_of(count),
        }
        for name in self.model.sums:
            registers[f"sum_{name}"] = int(results[name].view(np.uint32))
        return result, registers

    def compare(self, expected: NDArray[np.uint8], what: str) -> None:
        """All of the memory, byte for byte."""
        wrong = np.flatnonzero(self.contents != expected)
        assert not wrong.size, f"{what}: {wrong.size} bytes differ, the first at {wrong[0]:#x}"

    async def run(self, count: int, addresses: dict[str, int]) -> None:
        """One run, with everything that can be checked about it."""
        self.fill(count, addresses)
        await self.run_filled(count, addresses)

    async def run_filled(self, count: int, addresses: dict[str, int]) -> None:
        """:meth:`run` of the inputs that are there."""
        expected, registers = self.expected(count, addresses)
        memory = self.memory
        reads, writes = len(memory.read_cycles), len(memory.write_cycles)
        busy_before = self.busy_cycles
        await self.settings(count, addresses)
        await self.start()
        await self.finish()
        what = self.said(count, addresses)
        self.compare(expected, what)
        for name, value in registers.items():
            got = await self.read(name)
            assert got == value, f"{what}: {name} is {got:#x}, expected {value:#x}"
        status = await self.status()
        assert status == Status(0, 1, 0, "none"), f"{what}: {status}"
        assert len(memory.read_cycles) - reads == registers["beats_read"]
        assert len(memory.write_cycles) - writes == registers["beats_written"]
        cycles = self.busy_cycles - busy_before
        assert await self.read("cycles") == cycles
        moving = {*memory.read_cycles[reads:], *memory.write_cycles[writes:]}
        assert await self.read("idle_cycles") == cycles - len(moving)

    async def run_into_errors(
        self, channel: str, at: int, count: int, addresses: dict[str, int]
    ) -> int:
        """A run in which the beat, or the burst, number ``at`` fails, and one soon after; it ends
        cleanly. Return the cycles from the error to the end."""
        memory = self.memory
        self.fill(count, addresses)
        before = self.contents.copy()
        expected, _ = self.expected(count, addresses)
        at += len(memory.read_cycles if channel == "read" else memory.writes)
        self.failing[channel] = {at, at + self.rng.randrange(1, 4)}
        self.errors.clear()
        await self.settings(count, addresses)
        await self.start()
        await self.finish()
        end = memory.cycle
        what = f"{channel} error at {at}, {self.said(count, addresses)}"
        assert self.errors, f"{what}: was never given"
        assert await self.status() == Status(0, 1, 1, f"{channel}_error"), what
        # Every line of the memory is as before the run or as after a complete one.
        now, old, new = (each.reshape(-1, 64) for each in (self.contents, before, expected))
        wrong = np.flatnonzero((now != old).any(axis=1) & (now != new).any(axis=1))
        assert not wrong.size, f"{what}: line {wrong[0]} is neither old nor new"
        if self.stalls == "none":
            limit = self.errors[0] + 4
            late = [burst for burst in (*memory.reads, *memory.writes) if burst.cycle > limit]
            assert not late, f"{what}: a burst at cycle {late[0].cycle}, the error at {limit - 4}"
        self.failing[channel] = set()
        return end - self.errors[0]


async def make_bench(dut: Any, **options: Any) -> Bench:
    bench = Bench(dut, **options)
    await bench.reset()
    return bench


COUNTS = [1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 4 * BLOCK + 37]
FEW_COUNTS = [1, 17, BLOCK + 1, 5 * BLOCK + 5]


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(stalls=list(CHANNEL_STALLS))
async def counts_and_places(dut: Any, stalls: str) -> None:
    """Counts around every boundary, in place and not, at arbitrary lines.

    The rules of a kernel share what counts, but for sums: others have a count at each amount of
    stalls.
    """
    bench = await make_bench(dut, stalls=stalls)
    turn = list(CHANNEL_STALLS).index(stalls)
    for number, name in enumerate(RULES):
        bench.select(name)
        counts = COUNTS if stalls in ("none", "random") else FEW_COUNTS
        if number and not bench.model.sums:
            counts = [FEW_COUNTS[(turn + number) % len(FEW_COUNTS)]]
        for index, count in enumerate(counts, number + len(stalls)):
            await bench.run(count, bench.place(count, in_place=index % 2 == 0))


@cocotb.test(timeout_time=20, timeout_unit="ms", skip=len(RULES) == 1)
@cocotb.parametrize(stalls=["none", "random"])
async def rules_in_turn(dut: Any, stalls: str) -> None:
    """Any rule may follow any other."""
    bench = await make_bench(dut, stalls=stalls)
    for name in bench.rng.sample([*RULES, *RULES, *RULES], 3 * len(RULES)):
        bench.select(name)
        count = bench.rng.choice((1, 17, BLOCK, 2 * BLOCK + 5))
        await bench.run(count, bench.place(count, in_place=bench.rng.random() < 0.5))


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def rule_that_is_not_there(dut: Any) -> None:
    """Is refused and touches nothing."""
    bench = await make_bench(dut)
    before = bench.contents.copy()
    for number in {len(RULES), 15} - {16}:
        await bench.settings(16, bench.place(16, in_place=True))
        await bench.write("rule", number)
        await bench.start()
        await ClockCycles(dut.clk, 40)
        assert await bench.status() == Status(0, 0, 1, "no_rule")
    bench.compare(before, "after refusals")
    await bench.run(17, bench.place(17, in_place=True))


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random"], habit=HABITS[1:])
async def memories_of_every_habit(dut: Any, stalls: str, habit: str) -> None:
    bench = await make_bench(dut, stalls=stalls, habit=habit)
    for count in (17, 3 * BLOCK + 5):
        await bench.run(count, bench.place(count, in_place=count == 17))


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random"])
async def memory_of_another_make(dut: Any, stalls: str) -> None:
    bench = await make_bench(dut, stalls=stalls, memory=foreign_memory)
    for count in (17, 3 * BLOCK + 5):
        addresses = bench.place(count, in_place=count == 17)
        bench.fill(count, addresses)
        expected, _ = bench.expected(count, addresses)
        await bench.settings(count, addresses)
        await bench.start()
        await bench.finish()
        assert await bench.status() == Status(0, 1, 0, "none")
        bench.compare(expected, f"{count} parameters at {addresses}")


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def accesses_in_a_row(dut: Any) -> None:
    bench = await make_bench(dut)
    kept = kept_bits(MAP)
    reads = [place for each in MAP.registers for place in each.places if place not in kept]
    await bench.registers.in_a_row([*reads, 0xFF8], kept, seed=cocotb.RANDOM_SEED)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def end_of_memory(dut: Any) -> None:
    """A tensor may end with the last byte of the memory."""
    bench = await make_bench(dut)
    count = 2 * BLOCK + 16
    addresses = bench.place(count, in_place=True)
    last = bench.tensors.names[-1]
    for name in {last, bench.tensors.in_place(last) or last}:
        addresses[name] = MEMORY_BYTES - 4 * count
    await bench.run(count, addresses)


def wrong_settings(tensors: Tensors) -> list[tuple[str, int, dict[str, Any]]]:
    """Cause, count and the addresses that differ from well placed ones, in steps of 8 KB."""
    count = 3 * 16
    size = 4 * count
    cases: list[tuple[str, int, dict[str, Any]]] = [("zero_count", 0, {})]
    for name in tensors.names:
        cases.append(("unaligned", count, {name: 4}))
        cases.append(("unaligned", count, {name: 32}))
        cases.append(("out_of_range", count, {name: MEMORY_BYTES - size + 64}))
        cases.append(("out_of_range", count, {name: MEMORY_BYTES}))
        cases.append(("out_of_range", count, {name: (1 << 40) - 64}))
    cases += [
        ("out_of_range", (1 << 40) - 1, {}),
        ("out_of_range", MEMORY_BYTES // 4, {tensors.names[0]: 64}),
    ]
    for output in tensors.stored:
        for other in tensors.names:
            if output == other:
                continue
            # Address 0 of a case stands for "where the other tensor is".
            offsets = {size - 64, 64 - size, 0}
            if other == tensors.in_place(output):
                offsets.remove(0)
            cases += [("overlap", count, {output: offset, "of": other}) for offset in offsets]
    return cases


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def wrong_settings_touch_nothing(dut: Any) -> None:
    """Each is refused with its cause and without a transaction; the next good start works."""
    bench = await make_bench(dut)
    before = bench.contents.copy()
    for number, rule_name in enumerate(RULES):
        bench.select(rule_name)
        cases = wrong_settings(bench.tensors)
        if number:  # all of them are refused by the same logic
            cases = bench.rng.sample(cases, len(cases) // 4)
        for cause, count, changes in cases:
            addresses = {name: 8192 * (index + 1) for index, name in enumerate(bench.tensors.names)}
            other = changes.get("of")
            for name, value in changes.items():
                if name != "of":
                    base = 0 if cause == "out_of_range" else addresses[str(other or name)]
                    addresses[name] = base + value
            await bench.place_of_run(count, addresses)
            await bench.start()
            await ClockCycles(dut.clk, bench.tensors.check_cycles + 4)
            status = await bench.status()
            what = f"{rule_name}: {cause} {count} {addresses}"
            assert status == Status(0, 0, 1, cause), f"{what}: {status}"
            for counter in ("cycles", "beats_read", "beats_written", "idle_cycles"):
                assert await bench.read(counter) == 0
    assert not bench.memory.reads
    assert not bench.memory.writes
    bench.compare(before, "after refusals")
    count = BLOCK + 3
    await bench.run(count, bench.place(count, in_place=False))
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
    for rule_name in RULES:
        bench.select(rule_name)
        names = bench.tensors.names
        await bench.run(count, {name: 64 + size * index for index, name in enumerate(names)})


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def start_while_busy(dut: Any) -> None:
    """Sets the cause and nothing else, whatever the registers say by then."""
    bench = await make_bench(dut, stalls="random")
    count = 3 * BLOCK + 5
    addresses = bench.place(count, in_place=True)
    bench.fill(count, addresses)
    expected, _ = bench.expected(count, addresses)
    await bench.settings(count, addresses)
    await bench.start()
    constants = bench.constants
    bench.constants = dict.fromkeys(constants, np.float32(7))
    await bench.settings(7, dict.fromkeys(addresses, 0))
    bench.constants = constants
    assert await bench.status() == Status(1, 0, 0, "none")
    await bench.start()
    assert await bench.status() == Status(1, 0, 1, "start_while_busy")
    await bench.finish()
    assert await bench.status() == Status(0, 1, 1, "start_while_busy")
    bench.compare(expected, "a run disturbed by a second start")
    await bench.run(count, addresses)


@cocotb.test(timeout_time=40, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS), channel=CHANNELS)
async def memory_errors(dut: Any, stalls: str, channel: str) -> None:
    """An error response ends the run cleanly, wherever it comes; the next works, of any rule."""
    bench = await make_bench(dut, stalls=stalls)
    count = 3 * BLOCK + 21
    total = len(bench.tensors.loaded) * lines_of(count)
    if channel == "write":
        total = len(bench.tensors.stored) * 4
    for attempt in range(8 if stalls == "none" else 4):
        bench.select(RULES[0])
        # The first, the last and some between.
        at = {0: 0, 1: total - 1}.get(attempt, bench.rng.randrange(total))
        addresses = bench.place(count, in_place=attempt % 2 == 0)
        await bench.run_into_errors(channel, at, count, addresses)
        bench.select(RULES[-1 - attempt % len(RULES)])
        await bench.run(BLOCK + 1, bench.place(BLOCK + 1, in_place=attempt % 2 == 1))


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def start_after_an_error(dut: Any) -> None:
    """While a run that failed comes to its end, a start does not hide why."""
    bench = await make_bench(dut)
    if not bench.tensors.loaded:
        return
    count = 3 * BLOCK
    addresses = bench.place(count, in_place=True)
    bench.fill(count, addresses)
    bench.failing["read"] = {0}
    await bench.settings(count, addresses)
    await bench.start()
    while not bench.errors:
        await RisingEdge(dut.clk)
    bench.memory.stalls = {"r": 1.0}
    await bench.start()
    assert await bench.status() == Status(1, 0, 1, "read_error")
    bench.memory.stalls = {}
    await bench.finish()
    assert await bench.status() == Status(0, 1, 1, "read_error")
    bench.failing["read"] = set()
    await bench.run(count, addresses)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def reset_during_a_run(dut: Any) -> None:
    """A reset ends the run, whatever is at work; the next one is not disturbed by its remains."""
    bench = await make_bench(dut)
    count = 4 * BLOCK
    for _ in range(12):
        addresses = bench.place(count, in_place=True)
        await bench.settings(count, addresses)
        await bench.start()
        await ClockCycles(
            dut.clk, bench.tensors.check_cycles + bench.rng.randrange(7 * BLOCK // 16 * 3)
        )
        dut.rst.value = 1
        await ClockCycles(dut.clk, bench.rng.choice((1, 2, 5)))
        dut.rst.value = 0
        await RisingEdge(dut.clk)
        assert await bench.status() == Status(0, 0, 0, "none")
        await bench.run(BLOCK + 9, bench.place(BLOCK + 9, in_place=False))


@cocotb.test(timeout_time=20, timeout_unit="ms", skip=LANES < 16 or not PAPERS_TENSORS)
async def stages_overlap(dut: Any) -> None:
    """Loading, computing and storing of different rounds go on at the same time."""
    bench = await make_bench(dut)
    rounds = 6
    count = rounds * BLOCK
    addresses = {name: 4 * BLOCK * rounds * index for index, name in enumerate(bench.tensors.names)}
    await bench.run(count, addresses)
    memory = bench.memory
    # With separate channels only reading counts, and then what the last round needs to be computed
    # and stored; the units' latency and that of the memory are in the allowance.
    block_beats = BLOCK // 16
    last_round = block_beats * 16 // LANES + 3 * block_beats
    bound = bench.tensors.check_cycles + rounds * 4 * block_beats + last_round + 60
    cycles = await bench.read("cycles")
    assert cycles <= bound, f"{cycles} cycles, expected at most {bound}"
    gaps = np.diff(memory.read_cycles)
    assert gaps.max() == 1, f"reading paused for {gaps.max() - 1} cycles"
    # Whatever is stored while the next rounds are loaded; only the last two are not.
    both = set(memory.read_cycles) & set(memory.write_cycles)
    assert len(both) >= 3 * block_beats * (rounds - 2)


@cocotb.test(timeout_time=20, timeout_unit="ms", skip=LANES < 16 or not PAPERS_TENSORS)
async def shared_bus_is_the_limit(dut: Any) -> None:
    """On a bus that moves one beat a cycle, reads first, it is busy in all cycles but a few."""
    bench = await make_bench(dut, shared=True)
    rounds = 6
    count = rounds * BLOCK
    addresses = {name: 4 * BLOCK * rounds * index for index, name in enumerate(bench.tensors.names)}
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
