"""A kernel with narrow formats against the model of their bytes in memory.

Parameters as for :mod:`~hw_tests.kernel.kernel_bench`, whose bench it is with more settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, RisingEdge
from numpy.typing import NDArray

from golden import narrow
from hw_tests.axi_memory import HABITS, foreign_memory
from hw_tests.float.vectors import SPECIAL, uniform_bits
from hw_tests.kernel.kernel_bench import (
    LANES,
    MAP,
    MEMORY_BYTES,
    PARAMETERS,
    RULES,
    Bench,
    Status,
    Tensors,
)

BLOCK = narrow.BLOCK
FIELDS = {
    "gradients": ("fp32", "bf16"),
    "parameters": ("fp32", "bf16"),
    "states": ("fp32", "dynamic", "linear"),
    "copy": ("none", "fp32", "bf16"),
}
Formats = dict[str, str]
"""One of each of :data:`FIELDS`."""
MIXTURES: list[Formats] = [
    dict(zip(FIELDS, choice, strict=True)) for choice in product(*FIELDS.values())
]
FP32 = MIXTURES[0]
NARROWEST = {"gradients": "bf16", "parameters": "bf16", "states": "dynamic", "copy": "none"}
NAMED: list[Formats] = [
    FP32,
    FP32 | {"gradients": "bf16"},
    NARROWEST | {"parameters": "fp32"},
    NARROWEST,
    NARROWEST | {"copy": "bf16"},
]
"""Those of which throughput is said."""
DTYPES: dict[str, Any] = {"fp32": np.float32, "bf16": np.uint16}
SCALES = ("m", "v")
"""The states whose scales are a pair."""


class NarrowTensors(Tensors):
    """The tensors of a run in some formats."""

    def __init__(self, name: str, formats: Formats) -> None:
        super().__init__(name)
        self.copy = formats["copy"]
        self.codes = formats["states"] != "fp32"
        self.narrow = self.codes or "bf16" in formats.values()
        """Whether the run must have whole blocks."""
        states = formats["states"]
        self.forms = {"g": formats["gradients"], "p": formats["parameters"]}
        """Of inputs and outputs that are not in FP32, perhaps, as the model names them."""
        if self.codes:
            self.forms |= {"m": f"{states}_signed", "v": f"{states}_unsigned"}
            self.loaded.append("scales_in")
            self.stored.append("scales_out")
        if self.copy != "none":
            self.stored.append("p_copy_out")
        self.names = [*self.loaded, *self.stored]

    def dtype(self, name: str) -> Any:
        """Of the elements of a tensor but the scales; codes are bytes."""
        form = self.copy if name == "p_copy" else self.forms.get(name, "fp32")
        return DTYPES.get(form, np.uint8)

    def bytes_of(self, name: str, count: int) -> int:
        """Bytes of a tensor, by the name of a register."""
        name = name.removesuffix("_in").removesuffix("_out")
        if name == "scales":
            return 4 * len(SCALES) * (count // BLOCK)
        return count * np.dtype(self.dtype(name)).itemsize

    def lines(self, name: str, count: int) -> int:
        return -(-self.bytes_of(name, count) // 64)

    def beats(self, count: int) -> tuple[int, int]:
        """Beats loaded and stored."""
        loaded, stored = (
            sum(self.lines(each, count) for each in names) for names in (self.loaded, self.stored)
        )
        return loaded, stored

    @property
    def round(self) -> int:
        """Parameters of a round: a block of the widest tensor."""
        return PARAMETERS["block_bytes"] * BLOCK // max(self.bytes_of(n, BLOCK) for n in self.names)

    def counts(self) -> list[int]:
        """Around every boundary of rounds and of lines of scales."""
        full = self.round
        return [BLOCK, 3 * BLOCK, full, full + BLOCK, 2 * full - 5 * BLOCK]


ODD_COUNTS = [1, 15, 17, 255, 2047, 2048 + 1, 2 * 2048 + 37]


class NarrowBench(Bench):
    """Runs in some formats, and the bytes that they leave in memory."""

    tensors: NarrowTensors

    def select(self, name: str) -> None:
        super().select(name)
        self.choose(FP32)

    def choose(self, formats: Formats, *, skip: bool = False, finite: bool = False) -> None:
        """Has the next runs use formats and other random words; perhaps skip those with gradients
        that are not finite, and perhaps have none of these."""
        self.formats, self.skip, self.finite = formats, skip, finite
        self.tensors = NarrowTensors(self.rule, formats)
        self.seed, self.t = self.rng.getrandbits(64), self.rng.getrandbits(32)

    def said(self, count: int, addresses: dict[str, int]) -> str:
        return f"{self.formats}, skip {self.skip}, {super().said(count, addresses)}"

    async def place_of_run(self, count: int, addresses: dict[str, int]) -> None:
        """Addresses of tensors that are not there are any, or those of others."""
        for register in MAP.registers:
            if register.name.endswith(("_in", "_out")) and register.name not in addresses:
                address = self.rng.choice((self.rng.getrandbits(64), *addresses.values()))
                await self.write(register.name, address)
        await super().place_of_run(count, addresses)
        fields = MAP["formats"]
        codes = {name: fields[name].code(choice) for name, choice in self.formats.items()}
        codes["skip_not_finite"] = self.skip
        await self.write("formats", sum(code << fields[name].lsb for name, code in codes.items()))
        await self.write("seed", self.seed)
        await self.write("step", self.t)

    def array(self, name: str, count: int, addresses: dict[str, int]) -> NDArray[Any]:
        """The elements of a loaded tensor in the memory; of the scales, a pair in a row."""
        address = addresses[f"{name}_in"]
        raw = self.contents[address : address + self.tensors.bytes_of(name, count)]
        if name == "scales":
            return raw.view(np.float32).reshape(-1, len(SCALES))
        return raw.view(self.tensors.dtype(name))

    def fill(self, count: int, addresses: dict[str, int]) -> None:
        """Blocks of every kind."""
        for name in self.model.inputs:
            form = self.tensors.forms.get(name, "fp32")
            target = self.array(name, count, addresses)
            if form not in DTYPES:
                target[:] = self.numbers.integers(0, 256, count)
                target[self.numbers.random(count) < 0.1] = narrow.code_of_zero(form)
                continue
            usual = self.finite and name == "g"
            values = np.concatenate(
                [self.block(signed=name != "v", usual=usual) for _ in range(-(-count // BLOCK))]
            )[:count]
            target[:] = values if form == "fp32" else values.view(np.uint32) >> np.uint32(16)
        if self.tensors.codes:
            scales = self.array("scales", count, addresses)
            scales[:] = 10 ** self.numbers.uniform(-8, 0, scales.shape)
            odd = self.numbers.random(scales.shape) < 0.2
            scales[odd] = self.numbers.choice(SPECIAL, scales.shape)[odd].view(np.float32)

    def block(self, *, signed: bool, usual: bool) -> NDArray[np.float32]:
        """256 numbers of a trained network; or zeros, subnormal, huge or any numbers; or the first
        with an infinity or a NaN."""
        numbers = self.numbers
        values = numbers.normal(0, 0.1, BLOCK).astype(np.float32)
        kind = 0 if usual else numbers.integers(14)
        if kind == 1:
            values[:] = numbers.choice([0.0, -0.0], BLOCK)
        elif kind == 2:
            bits = numbers.integers(0, 1 << numbers.integers(1, 24), BLOCK, np.uint32)
            values[:] = np.copysign(bits.view(np.float32), values)
        elif kind == 3:
            values *= np.float32(2e38)
        elif kind == 4:
            values[:] = uniform_bits(numbers, BLOCK).view(np.float32)
        elif kind == 5:
            values[numbers.integers(BLOCK)] = numbers.choice([np.inf, -np.inf])
        elif kind == 6:
            # Of any bits that stand for a NaN.
            nan = np.array([0x7F800001 + numbers.integers(0x7FFFFF)], np.uint32)
            values[numbers.integers(BLOCK)] = nan.view(np.float32)[0]
        return values if signed else np.abs(values)

    def expected(
        self, count: int, addresses: dict[str, int]
    ) -> tuple[NDArray[np.uint8], dict[str, int]]:
        tensors = self.tensors
        held: dict[str, Any] = {
            name: self.array(name, count, addresses).copy() for name in self.model.inputs
        }
        if tensors.codes:
            pairs = self.array("scales", count, addresses).T.copy()
            for name, scales in zip(SCALES, pairs, strict=True):
                held[name] = narrow.Quantized(codes=held[name], scales=scales)
        results, wrong = narrow.step(
            self.model,
            held,
            self.constants,
            tensors.forms,
            t=self.t,
            seed=self.seed,
            copy=tensors.copy,
            skip_not_finite=self.skip,
        )
        memory = self.contents.copy()
        loaded, stored = tensors.beats(count)
        gradients = tensors.lines("g", count) if self.skip else 0
        skipped = bool(self.skip and wrong)
        registers = {
            "not_finite": wrong,
            "beats_read": gradients if skipped else gradients + loaded,
            "beats_written": 0 if skipped else stored,
        }
        if skipped:
            return memory, registers
        if tensors.codes:
            results["scales"] = np.stack([results[name].scales for name in SCALES], axis=1)
            results |= {name: results[name].codes for name in SCALES}
        for name in tensors.stored:
            raw = np.ascontiguousarray(results[name.removesuffix("_out")]).view(np.uint8).ravel()
            assert raw.size == tensors.bytes_of(name, count)
            memory[addresses[name] : addresses[name] + raw.size] = raw
        return memory, registers

    async def run_in(self, formats: Formats, count: int, *, skip: bool = False) -> None:
        """A run in formats at any place."""
        self.choose(formats, skip=skip, finite=self.rng.random() < 0.5)
        await self.run(count, self.place(count, in_place=self.rng.random() < 0.5))


async def make_bench(dut: Any, **options: Any) -> NarrowBench:
    bench = NarrowBench(dut, **options)
    await bench.reset()
    return bench


@cocotb.test(timeout_time=40, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random", "heavy"])
async def mixtures(dut: Any, stalls: str) -> None:
    """Every mixture of formats may follow any other, with counts around every boundary."""
    bench = await make_bench(dut, stalls=stalls)
    for name in RULES:
        runs = len(MIXTURES) if stalls == "random" and name == RULES[0] else 5
        for index, formats in enumerate(bench.rng.sample(MIXTURES, runs)):
            bench.select(name)
            bench.choose(formats)
            counts = bench.tensors.counts() if bench.tensors.narrow else ODD_COUNTS
            skip = index % 3 == 0
            await bench.run_in(formats, counts[index % len(counts)], skip=skip)


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random"])
async def parts_of_lines(dut: Any, stalls: str) -> None:
    """In FP32 any count is right."""
    bench = await make_bench(dut, stalls=stalls)
    for count in ODD_COUNTS:
        await bench.run_in(FP32, count, skip=count % 4 == 1)
        await bench.run_in(FP32 | {"copy": "fp32"}, count)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def every_number_of_bf16(dut: Any) -> None:
    """As gradients and, in another order, as parameters."""
    bench = await make_bench(dut)
    bench.choose(FP32 | {"gradients": "bf16", "parameters": "bf16"})
    every = np.arange(1 << 16, dtype=np.uint16)
    for gradients, parameters in (
        bench.numbers.permuted([every, every], axis=1).reshape(2, 4, -1).swapaxes(0, 1)
    ):
        addresses = bench.place(len(gradients), in_place=True)
        bench.fill(len(gradients), addresses)
        bench.array("g", len(gradients), addresses)[:] = gradients
        bench.array("p", len(gradients), addresses)[:] = parameters
        await bench.run_filled(len(gradients), addresses)


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random"], habit=HABITS[1:])
async def memories_of_every_habit(dut: Any, stalls: str, habit: str) -> None:
    bench = await make_bench(dut, stalls=stalls, habit=habit)
    await bench.run_in(NARROWEST | {"copy": "fp32"}, 11 * BLOCK)
    await bench.run_in(bench.rng.choice(MIXTURES), 3 * BLOCK, skip=True)
    await bench.run_in(NARROWEST, 18 * BLOCK)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def memory_of_another_make(dut: Any) -> None:
    bench = await make_bench(dut, stalls="random", memory=foreign_memory)
    for formats, count in ((NARROWEST, 18 * BLOCK), (FP32 | {"copy": "bf16"}, 9 * BLOCK)):
        bench.choose(formats)
        addresses = bench.place(count, in_place=True)
        bench.fill(count, addresses)
        expected, _ = bench.expected(count, addresses)
        await bench.settings(count, addresses)
        await bench.start()
        await bench.finish()
        assert await bench.status() == Status(0, 1, 0, "none")
        bench.compare(expected, bench.said(count, addresses))


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def gradients_that_are_not_finite(dut: Any) -> None:
    """One anywhere turns the run into no change at all; what follows COUNT is none of it."""
    bench = await make_bench(dut, stalls="random")
    wrong = [0x7F800000, 0xFF800000, 0x7F800001, 0xFFC01234]  # and in BF16 the third is infinite
    for index, formats in enumerate([*NAMED, bench.rng.choice(MIXTURES)]):
        bench.choose(formats, skip=True, finite=True)
        count = bench.tensors.round + (5 * BLOCK if bench.tensors.narrow else 37)
        places = (None, 0, bench.rng.randrange(count), count - 1)
        if formats not in (FP32, NARROWEST):
            places = (bench.rng.choice(places),)
        for place in places:
            addresses = bench.place(count, in_place=index % 2 == 0)
            bench.fill(count, addresses)
            gradients = bench.array("g", count, addresses)
            dtype = gradients.dtype
            if not bench.tensors.narrow:
                end = addresses["g_in"] + 4 * count
                bench.contents[end : end + 12].view(np.uint32)[:] = wrong[:3]
            if place is not None:
                value = np.array([bench.rng.choice(wrong)], np.uint32)
                gradients[place] = (
                    value.view(np.float32) if dtype == np.float32 else value >> np.uint32(16)
                )[0]
            assert bench.expected(count, addresses)[1]["not_finite"] == (place is not None)
            await bench.run_filled(count, addresses)
    # With many of them, and without the setting.
    for skip in (True, False):
        bench.choose(NARROWEST, skip=skip)
        count = 17 * BLOCK
        addresses = bench.place(count, in_place=False)
        bench.fill(count, addresses)
        bench.array("g", count, addresses)[:] = 0x7FC0
        await bench.run_filled(count, addresses)
    before = await bench.read("not_finite")
    assert before == count
    await bench.write("count", 0)
    await bench.start()
    await ClockCycles(dut.clk, bench.tensors.check_cycles + 4)
    assert await bench.status() == Status(0, 1, 1, "zero_count")
    assert await bench.read("not_finite") == before, "a refused START changes nothing"


def cause_of(bench: NarrowBench, count: int, addresses: dict[str, int], wrong: set[str]) -> str:
    """Why a run is refused, or ``none``; ``wrong`` has what is wrong with rule and formats."""
    tensors = bench.tensors
    sizes = {name: 64 * tensors.lines(name, count) for name in tensors.names}
    pairs = chain(product(tensors.stored, tensors.loaded), combinations(tensors.stored, 2))

    def overlap(one: str, other: str) -> bool:
        first, second = addresses[one], addresses[other]
        if first == second and tensors.in_place(one) == other:
            return False
        return first < second + sizes[other] and second < first + sizes[one]

    causes = {
        "no_rule": "rule" in wrong,
        "no_format": "formats" in wrong,
        "zero_count": count == 0,
        "part_of_block": tensors.narrow and count % BLOCK != 0,
        "unaligned": any(addresses[name] % 64 for name in tensors.names),
        "out_of_range": any(addresses[name] + sizes[name] > MEMORY_BYTES for name in tensors.names),
        "overlap": any(overlap(*pair) for pair in pairs),
    }
    return next((cause for cause, there in causes.items() if there), "none")


def changes(
    bench: NarrowBench, count: int, addresses: dict[str, int]
) -> Iterator[tuple[int, dict[str, int], set[str]]]:
    """Settings that differ from good ones, in something that may be wrong; with what is wrong with
    rule and formats, for ever."""
    rng, tensors = bench.rng, bench.tensors
    while True:
        one, other = rng.sample(tensors.names, 2)
        size, others = (64 * tensors.lines(name, count) for name in (one, other))
        yield count, addresses, {"rule"}
        yield count, addresses, {"formats"}
        yield rng.choice((0, count + 1, count + 128, count - 16)), addresses, set()
        yield count, addresses | {one: addresses[one] + (1 << rng.randrange(6))}, set()
        for end in (MEMORY_BYTES, MEMORY_BYTES + 64, 1 << 40):
            yield count, addresses | {one: end - size}, set()
        yield count + (1 << rng.randrange(16, 40)), addresses, set()
        # Where the other is, next to it, and a line across.
        for offset in (0, others, others - 64, -size, 64 - size):
            if (place := addresses[other] + offset) >= 0:
                yield count, addresses | {one: place}, set()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def wrong_settings_touch_nothing(dut: Any) -> None:
    """Each is refused with the first cause that it has and without a transaction."""
    bench = await make_bench(dut)
    seen: list[str] = []
    for formats in bench.rng.sample(MIXTURES, 4):
        bench.choose(formats, skip=bench.rng.random() < 0.5)
        count = bench.rng.randrange(1, 4) * BLOCK
        good = bench.place(count, in_place=bench.rng.random() < 0.5)
        every = changes(bench, count, good)
        for _ in range(24):
            given, addresses, wrong = next(every)
            if bench.rng.random() < 0.3:  # and a second thing
                odd, more, also = next(every)
                given = odd if given == count else given
                addresses = {name: place if place != good[name] else more[name]
                             for name, place in addresses.items()}  # fmt: skip
                wrong |= also
            cause = cause_of(bench, given, addresses, wrong)
            seen.append(cause)
            if cause == "none":
                await bench.run(given, addresses)
                continue
            await refuse(bench, given, addresses, wrong, cause)
    causes = {"no_rule", "no_format", "zero_count", "part_of_block", "unaligned", "out_of_range"}
    assert {*seen} == causes | {"overlap", "none"}, seen


async def refuse(
    bench: NarrowBench, count: int, addresses: dict[str, int], wrong: set[str], cause: str
) -> None:
    before = bench.contents.copy()
    counters = ("cycles", "beats_read", "beats_written", "idle_cycles", "not_finite")
    told = [await bench.read(each) for each in counters]
    done = (await bench.status()).done
    bursts = len(bench.memory.reads) + len(bench.memory.writes)
    await bench.place_of_run(count, addresses)
    if "rule" in wrong:
        await bench.write("rule", bench.rng.randrange(len(RULES), 16))
    if "formats" in wrong:
        field = MAP["formats"][bench.rng.choice(list(FIELDS))]
        word = await bench.read("formats")
        code = bench.rng.randrange(len(FIELDS[field.name]), 1 << field.width)
        await bench.write("formats", word & ~field.mask | code << field.lsb)
    await bench.start()
    await ClockCycles(bench.dut.clk, bench.tensors.check_cycles + 4)
    status = await bench.status()
    what = f"{bench.said(count, addresses)}, {wrong or 'no more'} wrong"
    assert status == Status(0, done, 1, cause), f"{what}: {status}, expected {cause}"
    assert told == [await bench.read(each) for each in counters], what
    assert bursts == len(bench.memory.reads) + len(bench.memory.writes), what
    bench.compare(before, what)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def ends_of_memory_and_neighbours(dut: Any) -> None:
    """Tensors may follow each other without a gap, from the first line to the last."""
    bench = await make_bench(dut)
    for formats in (NARROWEST, NARROWEST | {"copy": "fp32"}, FP32 | {"parameters": "bf16"}):
        bench.choose(formats)
        names = bench.tensors.names
        count = 9 * BLOCK
        for order in (names, bench.rng.sample(names, len(names))):
            sizes = [64 * bench.tensors.lines(name, count) for name in order]
            starts = np.cumsum([0, *sizes])
            for first in (0, MEMORY_BYTES - int(starts[-1])):
                await bench.run(
                    count,
                    {name: first + int(at) for name, at in zip(order, starts, strict=False)},
                )


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(wait=[2, 150, 900])
async def start_while_busy(dut: Any, wait: int) -> None:
    """Sets the cause and nothing else, whatever the registers say by then."""
    bench = await make_bench(dut, stalls="random")
    bench.choose(NARROWEST, skip=True, finite=True)
    count = 18 * BLOCK
    addresses = bench.place(count, in_place=True)
    bench.fill(count, addresses)
    expected, registers = bench.expected(count, addresses)
    await bench.settings(count, addresses)
    await bench.start()
    await ClockCycles(dut.clk, wait)
    await bench.start()
    for register in MAP.registers:
        if register.name not in ("control", "status"):
            await bench.write(register.name, bench.rng.getrandbits(64))
    assert await bench.status() == Status(1, 0, 1, "start_while_busy")
    await bench.finish()
    assert await bench.status() == Status(0, 1, 1, "start_while_busy")
    bench.compare(expected, "a run disturbed by a second start")
    assert registers == {name: await bench.read(name) for name in registers}
    await bench.run_in(FP32, 2049)


@cocotb.test(timeout_time=40, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random"], channel=["scan", "read", "write"])
async def memory_errors(dut: Any, stalls: str, channel: str) -> None:
    """An error response ends the run cleanly, wherever it comes; the next works, in any format."""
    bench = await make_bench(dut, stalls=stalls)
    for formats in NAMED[2:] if stalls == "none" else [bench.rng.choice(NAMED[2:])]:
        bench.choose(formats, skip=channel == "scan" or bench.rng.random() < 0.5, finite=True)
        tensors = bench.tensors
        count = tensors.round + 3 * BLOCK
        scan, run = tensors.lines("g", count), tensors.beats(count)[0]
        # Of the bursts written, each tensor has one in each round and more.
        first, end = {
            "scan": (0, scan),
            "read": (scan * bench.skip, scan * bench.skip + run),
            "write": (0, 2 * len(tensors.stored)),
        }[channel]
        for at in (first, bench.rng.randrange(first, end), end - 1):
            addresses = bench.place(count, in_place=bench.rng.random() < 0.5)
            written = len(bench.memory.writes)
            kind = "write" if channel == "write" else "read"
            await bench.run_into_errors(kind, at, count, addresses)
            if channel == "scan":
                assert len(bench.memory.writes) == written
        await bench.run_in(bench.rng.choice(MIXTURES), 9 * BLOCK, skip=bench.rng.random() < 0.5)
    if channel == "scan" and stalls == "none":
        # The last beat of the only round fails: no lane has begun, and nothing else begins.
        bench.choose(NARROWEST, skip=True, finite=True)
        addresses, last = bench.place(BLOCK, in_place=True), bench.tensors.lines("g", BLOCK) - 1
        cycles = await bench.run_into_errors("read", last, BLOCK, addresses)
        assert cycles <= 3, f"a scan goes on for {cycles} cycles after an error"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def reset_during_a_run(dut: Any) -> None:
    """A reset ends the run, whatever is at work; the next one is not disturbed by its remains."""
    bench = await make_bench(dut)
    for index in range(8):
        formats = bench.rng.choice(NAMED)
        bench.choose(formats, skip=index % 2 == 0, finite=True)
        count = 2 * bench.tensors.round
        addresses = bench.place(count, in_place=True)
        bench.fill(count, addresses)
        await bench.settings(count, addresses)
        await bench.start()
        bound = max(sum(bench.tensors.beats(count)) + 200, count // LANES)
        await ClockCycles(dut.clk, bench.rng.randrange(bound))
        dut.rst.value = 1
        await ClockCycles(dut.clk, bench.rng.choice((1, 2, 5)))
        dut.rst.value = 0
        await RisingEdge(dut.clk)
        assert await bench.status() == Status(0, 0, 0, "none")
        await bench.run_in(bench.rng.choice(MIXTURES), 9 * BLOCK)


async def cycles_of(bench: NarrowBench, rounds: int) -> tuple[int, int]:
    """Cycles of a run of some rounds, and its parameters; tensors follow each other."""
    count = rounds * bench.tensors.round
    sizes = [64 * bench.tensors.lines(name, count) for name in bench.tensors.names]
    starts = np.cumsum([0, *sizes]).tolist()
    await bench.run(count, dict(zip(bench.tensors.names, starts, strict=False)))
    return await bench.read("cycles"), count


@cocotb.test(timeout_time=40, timeout_unit="ms")
@cocotb.parametrize(number=list(range(len(NAMED))))
async def steady_state(dut: Any, number: int) -> None:
    """Each round costs as many cycles as the lanes, or a channel of the memory, have beats: neither
    has a bubble."""
    bench = await make_bench(dut)
    bench.choose(NAMED[number])
    (few, some), (many, more) = [await cycles_of(bench, rounds) for rounds in (3, 6)]
    loaded, stored = bench.tensors.beats(more - some)
    limit = max((more - some) // LANES, loaded, stored)
    assert many - few == limit, f"{many - few} cycles for {more - some} parameters, not {limit}"


@cocotb.test(timeout_time=40, timeout_unit="ms", skip=LANES < 16)
@cocotb.parametrize(number=list(range(len(NAMED))))
async def shared_bus_is_the_limit(dut: Any, number: int) -> None:
    """On a bus that moves one beat a cycle, reads first, it is busy in all cycles but a few."""
    bench = await make_bench(dut, shared=True)
    bench.choose(NAMED[number])
    (few, some), (many, more) = [await cycles_of(bench, rounds) for rounds in (3, 6)]
    beats = sum(bench.tensors.beats(more - some))
    share = beats / (many - few)
    assert 0.99 <= share <= 1, f"the bus is busy in {share:.3f}"
