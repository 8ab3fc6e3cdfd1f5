"""The compressor and the expander beside the golden model, and how fast they are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles

from golden.memory_node.compression import compressed
from hw.memory_node.compression.words import BlockLine, StoredLine
from hw_tests.bench import bench_parameters
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, pack, unpack, value_of

PARAMETERS = bench_parameters()
LINE_BYTES = 64
SHARES = {"zeros": 0.0, "one": 1 / 1024, "sparse": 0.1, "relu": 0.45, "most": 0.95, "dense": 1.0}
"""Of words that are not zero."""
KINDS = [*SHARES, "dense first", "dense last"]
ODD = np.array([0x80000000, 0x7FC00000, 0xFFC00001, 1, 0xFF, 0x00800000, 0x01000000], np.uint32)
"""Minus zero, NaNs, and words of few bits: none of them is zero."""


def a_block(rng: np.random.Generator, lines: int, kind: str) -> bytes:
    """Words of a kind: a share of :data:`SHARES`, or what gets in the way of itself."""
    words = rng.integers(1, 1 << 32, 16 * lines, np.uint32)
    words[rng.random(len(words)) < 0.3] = rng.choice(ODD)
    if kind == "dense first":
        words[len(words) - 16 * (3 + lines // 32) :] = 0
    elif kind == "dense last":
        words[: 16 * (3 + lines // 32)] = 0
    else:
        words[rng.random(len(words)) >= SHARES[kind]] = 0
    return words.tobytes()


def lines_of(data: bytes) -> list[int]:
    """Lines as numbers."""
    return [int.from_bytes(data[at : at + LINE_BYTES], "little") for at in range(0, len(data), 64)]


def plain(block: bytes) -> list[int]:
    """A block as payloads."""
    lines = lines_of(block)
    return [
        pack(BlockLine, line=line, last=number == len(lines) - 1)
        for number, line in enumerate(lines)
    ]


def stored(block: bytes) -> list[dict[str, int]]:
    """What is stored of a block, by the golden model."""
    lines = lines_of(compressed(block))
    sizes = {"lines": len(block) // LINE_BYTES, "stored": len(lines)}
    return [
        {"line": line, "last": int(number == len(lines) - 1), **sizes}
        for number, line in enumerate(lines)
    ]


class Bench:
    """Both, each with its streams."""

    def __init__(self, dut: Any, stalls: str) -> None:
        self.dut = dut
        pause = STALLS[stalls]
        self.sides = {name: Side(dut, name) for name in ("compressor", "expander")}
        self.sources = {
            name: StreamSource(side, "i", dut.clk, pause=pause, seed=len(name))
            for name, side in self.sides.items()
        }
        self.sinks = {
            name: StreamSink(side, "o", dut.clk, pause=pause, seed=len(name))
            for name, side in self.sides.items()
        }

    async def start(self) -> None:
        cocotb.start_soon(Clock(self.dut.clk, 2, unit="ns").start())
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0

    async def until(self, name: str, count: int) -> list[dict[str, int]]:
        """What a side gives, so many lines and no more."""
        sink = self.sinks[name]
        quiet = 0
        while quiet < 500:
            before = len(sink.taken)
            await ClockCycles(self.dut.clk, 50)
            quiet = quiet + 50 if len(sink.taken) == before else 0
        layout = BlockLine if name == "expander" else StoredLine
        assert len(sink.taken) == count, f"{name} gave {len(sink.taken)} of {count}"
        return [unpack(layout, payload) for payload in sink.taken]

    def counts(self, name: str) -> tuple[int, int]:
        side = self.sides[name]
        return value_of(side.lines_in), value_of(side.lines_out)


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(("stalls", list(STALLS)))
async def there_and_back(dut: Any, stalls: str) -> None:
    """Blocks of all sizes and kinds; what the compressor gave goes through the expander."""
    bench = Bench(dut, stalls)
    await bench.start()
    rng = np.random.default_rng(len(stalls))
    blocks = [a_block(rng, lines, KINDS[lines % len(KINDS)]) for lines in range(1, 65)]
    blocks += [a_block(rng, 64, kind) for kind in KINDS]
    if stalls != "heavy":
        blocks += [a_block(rng, rng.integers(1, 65), rng.choice(KINDS)) for _ in range(60)]
        blocks += [a_block(rng, rng.integers(1, 4), rng.choice(KINDS)) for _ in range(100)]
    blocks = [blocks[index] for index in rng.permutation(len(blocks))]
    whole = sum(len(block) // LINE_BYTES for block in blocks)
    bench.sources["compressor"].queue.extend(line for block in blocks for line in plain(block))
    want = [line for block in blocks for line in stored(block)]
    have = await bench.until("compressor", len(want))
    assert have == want
    assert bench.counts("compressor") == (whole, len(want))
    assert {len(compressed(block)) < len(block) for block in blocks} == {False, True}

    bench.sources["expander"].queue.extend(bench.sinks["compressor"].taken)
    back = await bench.until("expander", whole)
    assert b"".join(each["line"].to_bytes(64, "little") for each in back) == b"".join(blocks)
    ends = np.cumsum([len(block) // LINE_BYTES for block in blocks]) - 1
    assert np.flatnonzero([each["last"] for each in back]).tolist() == ends.tolist()
    assert bench.counts("expander") == (len(want), whole)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_line_a_cycle(dut: Any) -> None:
    """Into the compressor and out of the expander, whatever is in the blocks."""
    bench = Bench(dut, "none")
    await bench.start()
    rng = np.random.default_rng(1)
    blocks = [a_block(rng, 64, kind) for kind in rng.permutation(4 * KINDS)]
    blocks += [a_block(rng, lines, "sparse") for lines in rng.integers(1, 33, 40)]
    whole = sum(len(block) // LINE_BYTES for block in blocks)
    bench.sources["compressor"].queue.extend(line for block in blocks for line in plain(block))
    seen = []
    while not seen or seen[-1] < whole:
        await ClockCycles(dut.clk, 1)
        seen.append(bench.counts("compressor")[0])
        assert len(seen) < 2 * whole
    assert {after - before for before, after in pairwise(seen[seen.index(1) :])} == {1}
    # What is whole leaves within the time of a block and a few cycles.
    await ClockCycles(dut.clk, 80)
    sink = bench.sinks["compressor"]
    assert len(sink.taken) == sum(len(compressed(block)) // LINE_BYTES for block in blocks)

    # First so that masks come when there is nothing to be ahead of.
    for lines in (64, 20, 2):
        first = [a_block(rng, lines, kind) for kind in ("dense", "dense", "sparse", "dense", "one")]
        payloads = [line for block in first + blocks for line in stored(block)]
        bench.sources["expander"].queue.extend(pack(StoredLine, **line) for line in payloads)
        sink = bench.sinks["expander"]
        sink.taken.clear()
        sink.cycles.clear()
        await bench.until("expander", 5 * lines + whole)
        steps = [after - before for before, after in pairwise(sink.cycles)]
        assert set(steps) == {1}, f"{lines} lines: {[n for n, x in enumerate(steps) if x != 1]}"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def from_the_last_line_to_the_first(dut: Any) -> None:
    """How long the compressor takes, and that the expander waits for masks that come late."""
    bench = Bench(dut, "none")
    await bench.start()
    block = bytes(LINE_BYTES * 40) + a_block(np.random.default_rng(2), 24, "most")
    bench.sources["compressor"].queue.extend(plain(block))
    cycles = dict.fromkeys(("in", "out"), 0)
    while bench.counts("compressor") < (64, 1):
        await ClockCycles(dut.clk, 1)
        lines_in, lines_out = bench.counts("compressor")
        cycles["in"] += lines_in < 64
        cycles["out"] += lines_out < 1
    assert cycles["out"] - cycles["in"] == PARAMETERS["latency_cycles"]
    await bench.until("compressor", len(stored(block)))
    for payload in bench.sinks["compressor"].taken:
        bench.sources["expander"].queue.append(payload)
        await ClockCycles(dut.clk, 60)
    back = await bench.until("expander", 64)
    assert b"".join(each["line"].to_bytes(64, "little") for each in back) == block
