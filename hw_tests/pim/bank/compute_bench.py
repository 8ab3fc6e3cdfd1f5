"""The lanes of a bank between models of its buffers and of its sequencer.

Parameters: ``name`` of the bank in the design, ``multipliers``, ``adders``, ``config`` (preset),
``steady`` (whether to measure utilisation).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from numpy.typing import NDArray

from golden.pim.arithmetic import tree
from golden.rules import CANONICAL_NAN
from hw.pim.config import configure
from hw.pim.work.layouts import NO_LINE, Elementwise, Jobs, Second
from hw_tests.bench import bench_parameters
from hw_tests.float.vectors import SPECIAL, uniform_bits
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS
from hw_tests.streams import pack, unpack, value_of

Words = NDArray[np.uint32]

PARAMETERS = bench_parameters()
CONFIG = configure(PARAMETERS["config"])
JOBS = Jobs(CONFIG)
MULTIPLIERS: int = PARAMETERS["multipliers"]
ADDERS: int = PARAMETERS["adders"]
PAIRS = min(MULTIPLIERS, ADDERS)
GROUPS = -(-max(MULTIPLIERS, ADDERS) // 8)
CHUNK_BITS = max(3, (CONFIG.first_words // 32).bit_length() - 1)
ELEMENTS = min(512, CONFIG.second_words)
OPERANDS = ("first", "second")
WORD_MASK = (1 << JOBS.word_bits) - 1
POISON = int.from_bytes(np.full(8, 0x7FC0DEAD, np.uint32).tobytes(), "little")
SIGN = np.uint32(1 << 31)
SIGNED = np.concatenate([SPECIAL, SPECIAL | SIGN])


# What is computed


@dataclass
class Job:
    """A job, what it needs of the loads of each operand, and which of them it releases."""

    fields: dict[str, int]
    needs: dict[str, int]
    releases: list[str]


@dataclass
class Run:
    """A work's jobs with their operands, and what must come of them."""

    work: dict[str, int]
    jobs: list[Job] = field(default_factory=list)
    # Of each operand, what is loaded one after the other: [eight lanes, group, member, element].
    loads: dict[str, list[Words]] = field(default_factory=lambda: {name: [] for name in OPERANDS})
    results: dict[int, int] = field(default_factory=dict)
    multiplications: int = 0
    additions: int = 0


def numbers(rng: np.random.Generator, kind: str, *shape: int) -> Words:
    """Operands: ``plain``, or ``tiny`` (products and sums near the subnormal numbers), ``zero``
    (zeros of both signs and few others), ``special`` (some of all special ones), ``any`` bits."""
    count = int(np.prod(shape))
    plain = rng.normal(0, 1, count).astype(np.float32).view(np.uint32)
    match kind:
        case "plain":
            words = plain
        case "tiny":
            scale = np.exp2(rng.integers(-76, -60, count))
            words = (plain.view(np.float32) * scale).astype(np.float32).view(np.uint32)
        case "zero":
            zeros = rng.integers(0, 2, count).astype(np.uint32) << np.uint32(31)
            words = np.where(rng.random(count) < 0.05, plain, zeros)
        case "special":
            words = np.where(rng.random(count) < 0.04, rng.choice(SIGNED, count), plain)
        case _:
            words = uniform_bits(rng, count)
    return words.astype(np.uint32).reshape(shape)


KINDS = ("plain", "tiny", "zero", "special", "any")


def bits_of(values: Any) -> Words:
    """The bits of FP32 values, with the one NaN."""
    values = np.array(values, np.float32)
    bits = values.view(np.uint32)
    bits[np.isnan(values)] = CANONICAL_NAN
    return bits


def reduced(products: Any) -> Words:
    """The sums of ``products[channel, tap, ...]`` in the order of the specification."""
    total = tree(products[0])
    for channel in products[1:]:
        total = total + tree(channel)
    return bits_of(total)


def in_buffer(vectors: Words, lanes: int, buffers: int) -> Words:
    """``vectors[v, k]`` as they lie in ``buffers`` of groups of eight; the rest is poison."""
    words = np.full((buffers, 8, 8, vectors.shape[1]), 0x7FC0DEAD, np.uint32)
    for number, vector in enumerate(vectors):
        group, lane = divmod(number, lanes)
        words[lane // 8, group, lane % 8] = vector
    return words


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A tile of a reduction, and how it is cut."""

    kind: Second
    firsts: int
    seconds: int
    channels: int
    taps: int
    chunk: int
    # Second vectors of a job.
    block: int
    values: str = "plain"
    first_stride: int = 1
    second_stride: int = 1000
    address: int = 5
    # First vectors of a line, if they lie in lines, and up to the first line's end.
    line: int = 0
    line_left: int = 0
    line_wrap: int = 0

    @property
    def lanes(self) -> int:
        return ADDERS if self.kind is Second.NONE else PAIRS

    @property
    def depth(self) -> int:
        return (-(-self.firsts // self.lanes) - 1).bit_length()

    @property
    def whole_channels(self) -> int:
        return (1 << self.chunk) // self.taps

    @property
    def levels(self) -> int:
        if self.whole_channels:
            return 0
        return (((self.taps - 1) >> self.chunk).bit_length()).bit_length()

    @property
    def fits(self) -> bool:
        """Whether the lanes' state has room for it, and the buffer for a block."""
        places = self.seconds << self.depth + self.levels
        return places <= CONFIG.state_words and self.depth <= 3

    def chunks(self) -> Iterator[tuple[int, int, int, int]]:
        """(channel, tap, channels, taps) of each chunk."""
        if whole := self.whole_channels:
            for channel in range(0, self.channels, whole):
                yield channel, 0, min(whole, self.channels - channel), self.taps
            return
        for channel in range(self.channels):
            for tap in range(0, self.taps, 1 << self.chunk):
                yield channel, tap, 1, min(1 << self.chunk, self.taps - tap)

    def offset(self, first: int) -> int:
        """Of a first vector's results from those of vector 0."""
        lines = (first + self.line - self.line_left) // self.line if self.line else 0
        return (first - lines) * self.first_stride + lines * self.line_wrap

    def work(self) -> dict[str, int]:
        return {
            "lines": int(self.line > 0),
            "line": self.line,
            "result_line_wrap": self.line_wrap & WORD_MASK,
            "second_kind": self.kind.value,
            "channels": self.channels,
            "taps": self.taps,
            "tap_columns": self.taps,
            "tap_rows": 1,
            "result": pack(
                JOBS.result,
                first=self.first_stride & WORD_MASK,
                second=self.second_stride & WORD_MASK,
            ),
            "plan": pack(JOBS.plan, chunk=self.chunk, depth=self.depth, levels=self.levels),
        }

    def add_to(self, run: Run, rng: np.random.Generator) -> None:
        """Adds the tile's jobs, operands and results."""
        shape = (self.channels, self.taps)
        first = numbers(rng, self.values, self.firsts, *shape)
        count = self.firsts if self.kind is Second.PRIVATE else self.seconds
        second = numbers(rng, self.values, count, *shape)
        a = first.view(np.float32).transpose(1, 2, 0)[..., None]
        b = second.view(np.float32).transpose(1, 2, 0)
        with np.errstate(all="ignore"):
            match self.kind:
                case Second.NONE:
                    results = reduced(a + np.float32(-0.0))
                case Second.PRIVATE:
                    results = reduced(a * b[..., None])
                case _:
                    results = reduced(a * b[..., None, :])
        for p, s in np.ndindex(results.shape):
            address = self.address + self.offset(p) + s * self.second_stride
            assert address & WORD_MASK not in run.results
            run.results[address & WORD_MASK] = int(results[p, s])
        products = results.size * self.channels * self.taps
        run.multiplications += products if self.kind is not Second.NONE else 0
        run.additions += products - results.size

        chunks, blocks = list(self.chunks()), list(range(0, self.seconds, self.block))
        order = [(chunk, block) for chunk in chunks for block in blocks]
        loaded = None
        for number, (chunk, start) in enumerate(order):
            channel, tap, channels, taps = chunk

            def part(vectors: Words, chunk: tuple[int, ...] = chunk) -> Words:
                channel, tap, channels, taps = chunk
                some = vectors[:, channel : channel + channels, tap : tap + taps]
                return some.reshape(len(vectors), -1)

            if chunk != loaded:
                run.loads["first"].append(in_buffer(part(first), self.lanes, GROUPS))
                loaded = chunk
            size = min(self.block, self.seconds - start)
            needs = {"first": len(run.loads["first"]) - 1}
            releases = []
            if number + 1 == len(order) or order[number + 1][0] != chunk:
                releases.append("first")
            if self.kind is not Second.NONE:
                shared = self.kind is Second.SHARED
                vectors = second[start : start + size] if shared else second
                words = in_buffer(part(vectors), 8 if shared else self.lanes, GROUPS)
                needs["second"] = len(run.loads["second"])
                run.loads["second"].append(words)
                releases.append("second")
            fields = {
                "length": channels * taps,
                "channel": channel,
                "tap": tap,
                "first_count": self.firsts,
                "second": start,
                "second_count": size,
                "address": self.address & WORD_MASK,
                "line_left": min(self.line_left, NO_LINE) if self.line else NO_LINE,
            }
            run.jobs.append(Job(fields, needs, releases))


def elementwise(
    operation: Elementwise,
    lengths: list[int],
    rng: np.random.Generator,
    values: str,
    stride: int,
    *,
    repeated: Sequence[str] = (),
) -> Run:
    """A row of results for each of ``lengths``; the operands ``repeated`` have one element."""
    alpha = numbers(rng, values, 1)
    run = Run(
        {
            "elementwise": 1,
            "operation": operation.value,
            "second_kind": int(rng.integers(3)),
            "alpha": int(alpha[0]),
            "result": pack(JOBS.result, first=stride & WORD_MASK),
            **{f"{name}_repeats": 1 for name in repeated},
        }
    )
    end = 3
    for length in lengths:
        words = {
            name: numbers(rng, values, 1).repeat(length)
            if name in repeated
            else numbers(rng, values, length)
            for name in OPERANDS
        }
        a, b, factor = (each.view(np.float32) for each in (*words.values(), alpha))
        with np.errstate(all="ignore"):
            results = {
                Elementwise.ADD: lambda a=a, b=b: a + b,
                Elementwise.MUL: lambda a=a, b=b: a * b,
                Elementwise.SCALEADD: lambda a=a, b=b, factor=factor: factor * a + b,
            }[operation]()
        # Rows of results lie one after the other, whatever the direction in each.
        address = end if stride > 0 else end + (1 - length) * stride
        end += length * abs(stride)
        for number, result in enumerate(bits_of(results)):
            run.results[address + number * stride & WORD_MASK] = int(result)
        run.multiplications += length * (operation is not Elementwise.ADD)
        run.additions += length * (operation is not Elementwise.MUL)
        needs = {}
        for name in OPERANDS:
            buffer = np.full((GROUPS, 8, 8, length), 0x7FC0DEAD, np.uint32)
            copies = 8 if name in repeated else length
            buffer[0, 0, 0, :copies] = words[name][:copies]
            needs[name] = len(run.loads[name])
            run.loads[name].append(buffer)
        fields = {"length": length, "first_count": length, "second_count": 1, "address": address}
        fields["line_left"] = NO_LINE
        run.jobs.append(Job(fields, needs, list(OPERANDS)))
    return run


# The bank around it


class BufferRead:
    """Answers reads, two cycles later; what was not read is poison."""

    def __init__(self, dut: Any, name: str) -> None:
        self._members = {
            key: getattr(dut, f"{name}_{key}") for key in ("enable", "half", "group", "k", "wide")
        }
        self._data = getattr(dut, f"{name}_data")
        self._next = self._shown = POISON
        self.reads = 0

    def cycle(self, halves: list[Words | None]) -> None:
        """``halves``: [group, member, element] of the half, or nothing if it is not loaded."""
        if self._next != self._shown:
            self._shown = self._data.value = self._next
        self._next = POISON
        asked = self._members
        if not value_of(asked["enable"]):
            return
        self.reads += 1
        words = halves[value_of(asked["half"])]
        assert words is not None, "read of a half that is not loaded"
        k = value_of(asked["k"])
        if value_of(asked["wide"]):
            row = np.full(8, 0x7FC0DEAD, np.uint32)
            some = words[0, 0, k & ~7 : (k & ~7) + 8]
            row[: len(some)] = some
        else:
            row = words[value_of(asked["group"]), :, k]
        self._next = int.from_bytes(row.tobytes(), "little")


class Bank:
    """Buffers, sequencer and storer."""

    def __init__(self, dut: Any, *, stalls: str = "none", seed: int = 1) -> None:
        self.dut = dut
        self.pause = STALLS[stalls]
        # At the beginning of a run the storer does nothing for so long.
        self.hold_cycles = 0
        self._random = random.Random(f"{stalls} {seed}")
        self.buffers = {
            name: [BufferRead(dut, f"{name}_{group}") for group in range(GROUPS)]
            for name in OPERANDS
        }
        for name in ("job_valid", "store_ready", "frame_freed", "work"):
            getattr(dut, name).value = 0
        dut.rst.value = 1
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())

    async def reset(self, cycles: int = 3) -> None:
        self.dut.rst.value = 1
        for name in ("job_valid", "store_ready", "frame_freed"):
            getattr(self.dut, name).value = 0
        await ClockCycles(self.dut.clk, cycles)
        self.dut.rst.value = 0
        self.next_frame = 0
        await RisingEdge(self.dut.clk)

    def _begin(self, run: Run) -> None:
        self.run = run
        self.halves: dict[str, list[list[Words | None]]] = {
            name: [[None, None] for _ in self.buffers[name]] for name in OPERANDS
        }
        self.loaded = dict.fromkeys(OPERANDS, 0)
        self.released = dict.fromkeys(OPERANDS, 0)
        self.to_release: dict[str, int] = dict.fromkeys(OPERANDS, 0)
        self.offered = 0
        self.offering = False
        self.frames: list[dict[tuple[int, int], int] | None] = [{} for _ in range(4)]
        self.storing: deque[int] = deque()
        self.results: dict[int, int] = {}
        self.multiplications: list[int] = []
        self.additions: list[int] = []
        self.stored = 0
        self.store_ready = False
        self.full_cycles = self.held = 0

    async def play(self, run: Run, *, limit: int = 20_000) -> None:
        """Has all of ``run`` done and checks it."""
        self._begin(run)
        dut = self.dut
        dut.work.value = pack(JOBS.work, **run.work)
        edge = RisingEdge(dut.clk)
        for _ in range(limit):
            await edge
            self._reads()
            self._results()
            self._stores()
            self._releases()
            self._loads()
            if self.offered == len(run.jobs) and value_of(dut.idle):
                break
            self._jobs()
        else:
            raise AssertionError(f"not done after {limit} cycles")
        while self.storing:
            await edge
            self._stores()
        await edge
        dut.frame_freed.value = 0
        dut.store_ready.value = 0
        self.store_ready = False
        await edge
        wrong = {
            address: (f"{value:08x}", f"{self.results.get(address, 0):08x}")
            for address, value in run.results.items()
            if self.results.get(address) != value
        }
        assert not wrong, f"{len(wrong)} of {len(run.results)} wrong: {list(wrong.items())[:4]}"
        assert self.results.keys() == run.results.keys()
        assert sum(self.multiplications) == run.multiplications
        assert sum(self.additions) == run.additions
        assert self.released == {name: len(run.loads[name]) for name in OPERANDS}

    def _pauses(self) -> bool:
        return self._random.random() < self.pause

    def _storer_pauses(self) -> bool:
        return self.held < self.hold_cycles or self._pauses()

    def _reads(self) -> None:
        for name, buffers in self.buffers.items():
            for buffer, halves in zip(buffers, self.halves[name], strict=True):
                buffer.cycle(halves)
        self.multiplications.append(value_of(self.dut.multiplications))
        self.additions.append(value_of(self.dut.additions))

    def _results(self) -> None:
        dut = self.dut
        if not value_of(dut.result_enable):
            return
        contents = self.frames[value_of(dut.result_frame)]
        assert contents is not None, "a result for a frame that is not free"
        words = value_of(dut.result_data)
        mask, index = value_of(dut.result_mask), value_of(dut.result_index)
        linear = value_of(dut.result_linear)
        for lane in range(max(MULTIPLIERS, ADDERS)):
            if mask >> lane & 1:
                place = (0, index + lane) if linear else (lane, index)
                assert place not in contents, f"two results at {place}"
                contents[place] = words >> 32 * lane & 0xFFFFFFFF

    def _stores(self) -> None:
        dut = self.dut
        if self.store_ready and value_of(dut.store_valid):
            store = unpack(JOBS.store, value_of(dut.store_payload))
            assert store["frame"] == self.next_frame, "frames out of turn"
            self.next_frame = (self.next_frame + 1) % 4
            self._store(store)
        self.store_ready = not self._storer_pauses()
        dut.store_ready.value = int(self.store_ready)
        freed = bool(self.storing) and not self._storer_pauses()
        if freed:
            self.frames[self.storing.popleft()] = {}
        dut.frame_freed.value = int(freed)
        self.held += 1
        # A frame is empty, has results, or is being stored.
        self.full_cycles += all(contents != {} for contents in self.frames)

    def _store(self, store: dict[str, int]) -> None:
        walk = unpack(JOBS.walk, store["walk"])
        contents = self.frames[store["frame"]]
        assert contents is not None
        self.stored += 1
        across = (walk["vector"] in (1, WORD_MASK)) and not store["linear"]
        assert walk["across"] == across
        assert not walk["bounded"]
        assert walk["tap_column"] + walk["length"] < walk["columns"]
        assert walk["rows"]
        assert walk["line"]
        assert store["linear"] == self.run.work.get("elementwise", 0)
        for vector in range(walk["vectors"]):
            lines = (vector + walk["line"] - walk["line_left"]) // walk["line"]
            offset = (vector - lines) * walk["vector"] + lines * walk["line_wrap"]
            turn, lane = divmod(vector, walk["group_size"])
            for number in range(walk["length"]):
                place = (lane, turn + (number << store["interleave"]))
                address = walk["address"] + offset + number * walk["column"]
                assert address & WORD_MASK not in self.results, "stored twice"
                self.results[address & WORD_MASK] = contents[place]
        self.frames[store["frame"]] = None
        self.storing.append(store["frame"])

    def _releases(self) -> None:
        for place, name in enumerate(OPERANDS):
            if value_of(self.dut.release) >> place & 1:
                half = self.released[name] % 2
                self.released[name] += 1
                assert self.released[name] <= self.to_release[name], f"{name} released too early"
                for halves in self.halves[name]:
                    halves[half] = None

    def _loads(self) -> None:
        for name, loads in self.run.loads.items():
            number = self.loaded[name]
            if number < len(loads) and number < self.released[name] + 2 and not self._pauses():
                for halves, words in zip(self.halves[name], loads[number], strict=True):
                    halves[number % 2] = words
                self.loaded[name] += 1

    def _jobs(self) -> None:
        dut = self.dut
        if self.offering and value_of(dut.job_ready):
            self.offering = False
            for name in self.run.jobs[self.offered].releases:
                self.to_release[name] += 1
            self.offered += 1
            dut.job_valid.value = 0
        if self.offering or self.offered == len(self.run.jobs):
            return
        job = self.run.jobs[self.offered]
        if any(self.loaded[name] <= number for name, number in job.needs.items()):
            return
        if self._pauses():
            return
        self.offering = True
        halves = sum(number % 2 << OPERANDS.index(name) for name, number in job.needs.items())
        release = sum(1 << OPERANDS.index(name) for name in job.releases)
        fields = {**job.fields, "halves": halves, "release": release}
        dut.job_payload.value = pack(JOBS.compute, **fields)
        dut.job_valid.value = 1


def one(reduction: Reduction, rng: np.random.Generator) -> Run:
    assert reduction.fits, reduction
    run = Run(reduction.work())
    reduction.add_to(run, rng)
    return run


async def start(dut: Any, stalls: str = "none") -> tuple[Bank, np.random.Generator]:
    bank = Bank(Side(dut, PARAMETERS["name"]), stalls=stalls, seed=cocotb.RANDOM_SEED)
    await bank.reset()
    return bank, np.random.default_rng(cocotb.RANDOM_SEED)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def few_elements(dut: Any) -> None:
    """One element and few, of one result; all values."""
    bank, rng = await start(dut)
    for kind in Second:
        for taps, values in ((1, "special"), (1, "any"), (2, "any"), (3, "zero"), (5, "tiny")):
            case = Reduction(
                kind=kind, firsts=1, seconds=1, channels=1, taps=taps, chunk=3, block=1,
                values=values,
            )  # fmt: skip
            await bank.play(one(case, rng))


def random_reduction(rng: np.random.Generator, rounds: int) -> Reduction:
    """Any that fits, with ``rounds`` rounds of products or fewer."""
    while True:
        kind = Second(int(rng.integers(0, 3)))
        lanes = ADDERS if kind is Second.NONE else PAIRS
        chunk = int(rng.integers(3, CHUNK_BITS + 1))
        near = int(rng.choice([1, 2, 3, 9, 1 << chunk, 2 << chunk, 3 << chunk, 5 << chunk]))
        seconds = int(rng.integers(1, 20)) if kind is Second.SHARED else 1
        line = int(rng.choice([0, 0, 1, 2, 8, int(rng.integers(1, 40)), 300, 40000]))
        stride = int(rng.choice([1, -1, 3, 13]))
        case = Reduction(
            kind=kind,
            firsts=int(rng.integers(1, 8 * lanes + 1)),
            seconds=seconds,
            channels=int(rng.choice([1, 2, 3, 5, 7])),
            taps=max(1, near + int(rng.integers(-2, 3))),
            chunk=chunk,
            block=int(rng.integers(1, seconds + 1)),
            values=str(rng.choice(KINDS, p=[0.4, 0.2, 0.1, 0.2, 0.1])),
            first_stride=stride,
            address=int(rng.integers(0, WORD_MASK)),
            line=line,
            line_left=int(rng.integers(1, line + 1)) if line else 0,
            line_wrap=stride + int(np.sign(stride)) * int(rng.integers(0, 3)),
        )
        turns = 1 << (-(-case.firsts // lanes) - 1).bit_length()
        groups = -(-seconds * turns // 8)
        if case.fits and groups * case.channels * case.taps <= rounds:
            return case


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def reductions(dut: Any, stalls: str) -> None:
    """Random shapes, cut at random."""
    bank, rng = await start(dut, stalls)
    for _ in range(12):
        case = random_reduction(rng, 60)
        cocotb.log.info("%s", case)
        await bank.play(one(case, rng))


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(operation=list(Elementwise))
async def elementwise_operations(dut: Any, operation: Elementwise) -> None:
    """Every tail, frames that are full and not, many jobs in sequence."""
    bank, rng = await start(dut)
    await bank.play(elementwise(operation, [*range(1, 10), *range(60, 70)], rng, "special", 1))
    await bank.play(elementwise(operation, [128, 130, 191, ELEMENTS], rng, "tiny", -7))
    for count in (1, 2):
        for repeated in combinations(OPERANDS, count):
            run = elementwise(operation, [1, 5, 8, 9, 150], rng, "any", 1, repeated=repeated)
            await bank.play(run)


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(stalls=["random", "heavy"])
async def elementwise_stalls(dut: Any, stalls: str) -> None:
    bank, rng = await start(dut, stalls)
    for operation in Elementwise:
        for repeated in ((), ("second",), ("first",)):
            lengths = [3, 70, 200, 64, 1, 2, 5]
            await bank.play(elementwise(operation, lengths, rng, "any", 3, repeated=repeated))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def slow_storer(dut: Any) -> None:
    """Products wait for the adders, results for free frames, stores for the storer."""
    bank, rng = await start(dut)
    # The frames are full after four groups, and the ring after 16 rounds more.
    bank.hold_cycles = 8 * 7 * 4 + 8 * 16 + 200
    for case in (
        Reduction(
            kind=Second.SHARED, firsts=PAIRS, seconds=60, channels=1, taps=7, chunk=3, block=33,
            second_stride=100,
        ),
        Reduction(
            kind=Second.SHARED, firsts=2 * PAIRS - 1, seconds=30, channels=2, taps=1, chunk=3,
            block=30, first_stride=40, second_stride=-1,
        ),
    ):  # fmt: skip
        await bank.play(one(case, rng))
        assert bank.full_cycles, "the frames did not run out"
    await bank.play(elementwise(Elementwise.SCALEADD, [1, 200, 2, 3, 67], rng, "any", 1))
    assert bank.full_cycles, "the frames did not run out"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def long_sums(dut: Any) -> None:
    """Many levels in the state; all of its places in use; tiles one after the other."""
    bank, rng = await start(dut)
    shape: dict[str, Any] = {"kind": Second.SHARED, "channels": 1, "chunk": 3, "block": 1}
    await bank.play(one(Reduction(firsts=3, seconds=1, taps=267, **shape), rng))
    lanes = {Second.NONE: ADDERS, Second.PRIVATE: PAIRS, Second.SHARED: PAIRS}
    for kind in Second:
        for channels, taps in ((1, 21), (3, 11), (4, 2)):
            case = Reduction(
                kind=kind, firsts=4 * lanes[kind], seconds=1, channels=channels, taps=taps,
                chunk=3, block=1, first_stride=10,
            )  # fmt: skip
            run = one(case, rng)
            for number, firsts in enumerate((4 * lanes[kind] - 1, 1)):
                tile = replace(case, firsts=firsts, address=case.address + number + 1)
                tile.add_to(run, rng)
            await bank.play(run)
    seconds = min(40, CONFIG.state_words // 4)
    case = Reduction(
        kind=Second.SHARED, firsts=4 * PAIRS, seconds=seconds, channels=2, taps=5, chunk=3,
        block=seconds // 2 - 3, first_stride=1, second_stride=100,
    )  # fmt: skip
    await bank.play(one(case, rng))


STEADY = {
    "matrix": {"kind": Second.SHARED, "firsts": 8 * PAIRS, "taps": 256},
    "dot": {"kind": Second.PRIVATE, "firsts": 8 * PAIRS, "taps": 256},
    "sum": {"kind": Second.NONE, "firsts": 8 * ADDERS, "taps": 512},
    "conv3x3": {"kind": Second.SHARED, "firsts": PAIRS, "seconds": 8, "taps": 9, "channels": 25},
    "conv3x3_2": {
        "kind": Second.SHARED, "firsts": 2 * PAIRS, "seconds": 8, "taps": 9, "channels": 25,
    },
    "conv1x1": {"kind": Second.SHARED, "firsts": PAIRS, "seconds": 8, "taps": 1, "channels": 200},
    "conv5x5": {"kind": Second.SHARED, "firsts": PAIRS, "seconds": 8, "taps": 25, "channels": 9},
}  # fmt: skip


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(shape=list(STEADY))
@cocotb.skipif(not PARAMETERS["steady"])
async def steady_state(dut: Any, shape: str) -> None:
    """Multipliers (for SUM, adders) are at work in more than 97 of 100 cycles."""
    bank, rng = await start(dut)
    fields: dict[str, Any] = {"seconds": 1, "channels": 1, **STEADY[shape]}
    case = Reduction(chunk=CHUNK_BITS, block=fields["seconds"], **fields)
    await bank.play(one(case, rng))
    counts = bank.additions if case.kind is Second.NONE else bank.multiplications
    at_work = [cycle for cycle, count in enumerate(counts) if count]
    share = sum(counts) / (case.lanes * (at_work[-1] - at_work[0] + 1))
    cocotb.log.info("%s: %.1f %%", shape, 100 * share)
    assert share > 0.97, f"{shape}: {share:.1%}"
