"""Cocotb bench of a bank: whole works, tile by tile, against the golden model."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.pim import Descriptor, account
from golden.pim.arithmetic import compute, place
from hw.pim.config import PimConfig, configure
from hw.pim.memory.memory_port import memory_request_layout, memory_response_layout
from hw.pim.work.layouts import Jobs, Second
from hw_tests.bench import bench_parameters
from hw_tests.pim.bank.bank_works import bank_works
from hw_tests.pim.front.front_reference import FrontReference
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSource, pack, unpack, value_of

BEAT_BYTES = 32
LIMIT_CYCLES = 400_000


class Memory:
    """Answers requests in any order after random times, and keeps the bytes."""

    def __init__(self, dut: Any, config: PimConfig, stalls: float, rng: random.Random) -> None:
        self.bytes = np.zeros(config.stack_bytes, np.uint8)
        self.reads = self.writes = 0
        self._stalls, self._rng = stalls, rng
        self._request_valid, self._request_payload = dut.request_valid, dut.request_payload
        self._request_ready = dut.request_ready
        self._response_valid, self._response_payload = dut.response_valid, dut.response_payload
        self._request = memory_request_layout(config)
        self._response = memory_response_layout()
        self._due: list[tuple[int, int]] = []
        self._cycle = 0
        self._ready = self._answering = False
        self._response_valid.value = 0
        self._request_ready.value = 0

    def step(self) -> None:
        """Once a cycle, after its edge."""
        self._cycle += 1
        if self._ready and value_of(self._request_valid):
            self._take(unpack(self._request, value_of(self._request_payload)))
        # What stays as it is, is not written again, which would take half of the time.
        if self._ready != (self._rng.random() >= self._stalls):
            self._ready = not self._ready
            self._request_ready.value = int(self._ready)
        ripe = [each for each in self._due if each[0] <= self._cycle]
        if ripe and self._rng.random() >= self._stalls:
            chosen = self._rng.choice(ripe)
            self._due.remove(chosen)
            self._response_payload.value = chosen[1]
            self._response_valid.value = 1
            self._answering = True
        elif self._answering:
            self._response_valid.value = 0
            self._answering = False

    def _take(self, request: dict[str, int]) -> None:
        first = request["address"] * BEAT_BYTES
        beat = self.bytes[first : first + BEAT_BYTES]
        answer = int.from_bytes(beat.tobytes(), "little")
        if request["write"]:
            self.writes += 1
            written = np.frombuffer(request["data"].to_bytes(BEAT_BYTES, "little"), np.uint8)
            strobes = np.array([request["strobe"] >> i & 1 for i in range(BEAT_BYTES)], bool)
            beat[strobes] = written[strobes]
        else:
            self.reads += 1
        payload = pack(self._response, data=answer, tag=request["tag"], write=request["write"])
        self._due.append((self._cycle + self._rng.randint(2, 30), payload))


def tiles(fields: dict[str, int], jobs: Jobs, lanes: dict[str, int]) -> Iterator[int]:
    """All tiles of a work, as the pool gives them to a bank."""
    only_adds = fields["work.second_kind"] == Second.NONE.value
    own = lanes["adders"] if only_adds else min(lanes.values())
    most_first = own << fields["work.plan.depth"]
    most_second = 1 << fields["work.plan.seconds"]
    if fields["work.elementwise"]:
        most_first = 1 << fields["work.plan.chunk"]
    line = fields["work.line"] if fields["work.lines"] else 1 << 24
    for outer2 in range(fields["outer2"]):
        for outer1 in range(fields["outer1"]):
            for second in range(0, fields["second"], most_second):
                for first in range(0, fields["first"], most_first):
                    yield pack(
                        jobs.tile,
                        outer1=outer1 + first // line,
                        outer2=outer2,
                        first=first % line,
                        first_count=min(most_first, fields["first"] - first),
                        second=second,
                        second_count=min(most_second, fields["second"] - second),
                    )
    yield pack(jobs.tile, end=1)


class Bench:
    def __init__(self, dut: Any) -> None:
        options = bench_parameters()
        self.lanes = {name: options.pop(name) for name in ("multipliers", "adders")}
        options.pop("stalls")
        self.config = configure(**options)
        self.jobs = Jobs(self.config)
        self.reference = FrontReference(self.config)
        self.dut = dut
        self.rng = random.Random(int(os.environ["COCOTB_RANDOM_SEED"]))
        cocotb.start_soon(Clock(dut.clk, 2, "ns").start())

    async def run(
        self,
        works: list[Descriptor],
        stalls: float,
        *,
        reset_cycles: int = 3,
        cycles_given: int = LIMIT_CYCLES,
    ) -> list[dict[str, int]]:
        """Resets, and does the works one after the other; returns what each took.

        The first that takes more than ``cycles_given`` is left as it is then, with the rest.
        """
        dut, rng = self.dut, self.rng
        memory = Memory(dut, self.config, stalls, rng)
        words = memory.bytes.view(np.uint32)
        words[:] = np.frombuffer(rng.randbytes(memory.bytes.size), np.uint32)
        # Numbers of similar size, so that roundings matter; the rest is anything.
        ordinary = np.array([rng.random() < 0.9 for _ in range(256)])[np.arange(words.size) % 256]
        words[ordinary] = words[ordinary] & 0x81FFFFFF | 0x3C000000
        source = StreamSource(dut, "tile", dut.clk, pause=stalls)
        dut.start.value = 0
        dut.rst.value = 1
        await ClockCycles(dut.clk, reset_cycles)
        dut.rst.value = 0
        taken = []
        edge, is_done = RisingEdge(dut.clk), dut.done
        for work in works:
            expected = memory.bytes.copy()
            place(work, expected, compute(work, expected))
            fields = self.reference.of(work)
            dut.work.value = self.reference.pack_work(fields)
            dut.start.value = 1
            source.queue = deque(tiles(fields, self.jobs, self.lanes))
            source_tiles = len(source.queue)
            counts = dict.fromkeys(
                ("multiplications", "additions", "beats_read", "beats_written"), 0
            )
            counters = {name: getattr(dut, name) for name in counts}
            memory.reads = memory.writes = 0
            cycles = 0
            while True:
                await edge
                cycles += 1
                # The values before the edge, as every register sees them.
                for name, counter in counters.items():
                    counts[name] += value_of(counter)
                done = value_of(is_done)
                memory.step()
                if cycles == 1:
                    dut.start.value = 0
                    dut.work.value = 0
                if done:
                    break
                if cycles == cycles_given < LIMIT_CYCLES:
                    source.stop()
                    return taken
                assert cycles < LIMIT_CYCLES, f"{work} is not done, {len(source.queue)} tiles left"
            assert not source.queue
            wrong = np.flatnonzero(memory.bytes != expected)
            assert not wrong.size, f"{wrong.size} bytes differ, first {wrong[0]:#x}: {work}"
            amount = account(work)
            assert counts["multiplications"] == amount.multiplications, work
            assert counts["additions"] == amount.additions, work
            assert (counts["beats_read"], counts["beats_written"]) == (memory.reads, memory.writes)
            taken.append({"cycles": cycles, "tiles": source_tiles - 1, **counts})
        source.stop()
        return taken


@cocotb.test()
async def computes_what_the_golden_model_does(dut: Any) -> None:
    bench = Bench(dut)
    works = bank_works(bench.config, bench.rng)
    await bench.run(works, STALLS[bench_parameters()["stalls"]])


@cocotb.test()
async def reset_during_a_work(dut: Any) -> None:
    """A reset of a cycle ends the work; the next ones are not disturbed by its remains."""
    bench = Bench(dut)
    stalls = STALLS[bench_parameters()["stalls"]]
    works = bench.rng.sample(bank_works(bench.config, bench.rng), 12)
    ended = 0
    for work in works:
        cycles = bench.rng.randrange(20, 400)
        left = await bench.run([work], stalls, reset_cycles=1, cycles_given=cycles)
        if not left:
            ended += 1
            await bench.run(works[:1], stalls, reset_cycles=1)
    assert ended >= 6
