"""cocotb tests of the memory of the stack, with a user at each port."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from hw.pim.config import configure
from hw.pim.vault.timing import vault_part
from hw_tests.bench import bench_parameters
from hw_tests.pim.memory.memory_user import MemoryRequest, MemoryUser
from hw_tests.stalls import STALLS
from hw_tests.streams import value_of

BEAT = 32
CONFIG = configure(**bench_parameters())
PORTS = [*(f"bank_{bank}" for bank in range(CONFIG.banks)), "host"]
BANK_BEATS = CONFIG.bank_bytes // BEAT
BEATS = CONFIG.stack_bytes // BEAT
# What a reset leaves as it is, and so carries over from one test to the next.
CONTENTS = np.zeros((BEATS, BEAT), np.uint8)


class TB:
    def __init__(
        self, dut: Any, *, stalls: str = "none", responses: str = "none", credits: int = 64
    ) -> None:
        self.dut = dut
        self.users = [
            MemoryUser(
                dut,
                name,
                dut.clk,
                CONFIG,
                pause=STALLS[stalls],
                response_pause=STALLS[responses],
                credits=credits,
            )
            for name in PORTS
        ]
        self.cycle = 0

    async def reset(self) -> None:
        cocotb.start_soon(Clock(self.dut.clk, 3200, unit="ps").start())
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        await ClockCycles(self.dut.clk, 60)

    async def step(self) -> None:
        await RisingEdge(self.dut.clk)
        self.cycle += 1
        for user in self.users:
            user.step(self.cycle)

    async def all_answered(self, limit: int = 30_000) -> None:
        for _ in range(limit):
            await self.step()
            if all(user.done for user in self.users):
                break
        else:
            raise AssertionError("not all requests were answered")
        await ClockCycles(self.dut.clk, 2)
        assert value_of(self.dut.idle)
        assert not value_of(self.dut.violation)


def _bytes(value: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(value.to_bytes(BEAT, "little"), np.uint8)


def _apply(request: MemoryRequest) -> None:
    """Writes to the contents, or notes in ``data`` what a read should find there."""
    beat = CONTENTS[request.address]
    if request.write:
        strobe = np.frombuffer(request.strobe.to_bytes(BEAT // 8, "little"), np.uint8)
        beat[:] = np.where(np.unpackbits(strobe, bitorder="little"), _bytes(request.data), beat)
    else:
        request.data = int.from_bytes(beat.tobytes(), "little")


def _traffic(rng: random.Random, port: int, length: int, shared: list[int]) -> list[MemoryRequest]:
    """Streams and lone requests to beats that no other port uses, and to ``shared`` ones."""
    requests: list[MemoryRequest] = []
    while len(requests) < length:
        if rng.random() < 0.3:
            beat = rng.choice(shared)
            requests.append(MemoryRequest(beat, rng.random() < 0.5, rng.getrandbits(8 * BEAT)))
            continue
        # Every so many beats are the port's own; a small part of them, so that they meet.
        bank = rng.randrange(CONFIG.banks)
        base = bank * BANK_BEATS + rng.choice((0, BANK_BEATS - 512)) + 64 * port
        first, run = rng.randrange(48), rng.choice((1, 1, 2, 16))
        write = rng.random() < 0.5
        for beat in range(first, first + run):
            strobe = rng.choice(((1 << BEAT) - 1, rng.getrandbits(BEAT)))
            data = rng.getrandbits(8 * BEAT) if write else 0
            requests.append(MemoryRequest(base + beat, write, data, strobe))
            _apply(requests[-1])
    return requests


def _check_shared(requests: list[MemoryRequest]) -> None:
    """Each read found what a write left that no other one had replaced before the read began."""
    by_beat: dict[int, list[MemoryRequest]] = defaultdict(list)
    for request in requests:
        by_beat[request.address].append(request)
    for beat, users in by_beat.items():
        before = int.from_bytes(CONTENTS[beat].tobytes(), "little")
        writes = [MemoryRequest(beat, True, before), *(each for each in users if each.write)]
        for read in (each for each in users if not each.write):
            (source,) = (each for each in writes if each.data == read.answer)
            assert source.given_cycle <= read.answered_cycle
            for write in writes:
                assert (
                    not source.answered_cycle
                    < write.given_cycle
                    <= write.answered_cycle
                    < (read.given_cycle)
                )


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(
    (
        ("stalls", "responses"),
        [(stalls, "none") for stalls in STALLS] + [("none", "random"), ("random", "heavy")],
    )
)
async def random_traffic(dut: Any, stalls: str, responses: str) -> None:
    """Every port reads what it wrote, and sees what others wrote in an order that there can be."""
    tb = TB(dut, stalls=stalls, responses=responses)
    await tb.reset()
    rng = random.Random(f"{stalls} {responses}")
    shared = [bank * BANK_BEATS + 600 + 9 * place for bank in range(2) for place in range(4)]
    for port, user in enumerate(tb.users):
        user.queue.extend(_traffic(rng, port, 200, shared))
    given = [list(user.queue) for user in tb.users]
    await tb.all_answered()
    for user, requests in zip(tb.users, given, strict=True):
        assert len(user.answered) == len(requests)
        for bank in range(CONFIG.banks):
            mine = [each for each in requests if each.address // BANK_BEATS == bank]
            assert [id(each) for each in mine] == [
                id(each) for each in user.answered if each.address // BANK_BEATS == bank
            ]
        for request in requests:
            if request.address not in shared and not request.write:
                assert request.answer == request.data
    everything = [each for requests in given for each in requests if each.address in shared]
    tb.users[3].queue.extend(last := [MemoryRequest(beat) for beat in shared])
    await tb.all_answered()
    _check_shared([*everything, *last])
    for request in last:
        CONTENTS[request.address] = _bytes(request.answer)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def latency(dut: Any) -> None:
    """Cycles from the request to the answer, of a memory that is otherwise idle."""
    tb = TB(dut)
    await tb.reset()
    for name, write in (("bank_0", False), ("host", True)):
        tb.users[PORTS.index(name)].queue.append(MemoryRequest(BANK_BEATS, write, 1))
        if write:
            CONTENTS[BANK_BEATS] = _bytes(1)
        valid = [getattr(dut, f"{name}_{way}_valid") for way in ("request", "response")]
        seen: list[list[int]] = [[], [], []]
        for cycle in range(60):
            await tb.step()
            for cycles, signal in zip(seen, (*valid, dut.idle), strict=True):
                if value_of(signal):
                    cycles.append(cycle)
        (asked,), (answered,), idle = seen
        dut._log.info("latency of a %s: %d", "write" if write else "read", answered - asked)
        assert answered - asked == 21
        assert set(range(60)) - set(idle) == set(range(asked + 1, answered + 1))


def _own(port: int) -> Iterator[int]:
    return (port * BANK_BEATS + beat % BANK_BEATS for beat in count())


def _one(port: int) -> Iterator[int]:
    # Each begins in other DRAM banks.
    return (port * 528 + beat % 512 for beat in count())


def _one_in_step(port: int) -> Iterator[int]:
    # All are always in another row of the same DRAM banks.
    return (port * 512 + beat % 512 for beat in count())


def _next(port: int) -> Iterator[int]:
    return ((port + 1) % CONFIG.banks * BANK_BEATS + beat % BANK_BEATS for beat in count())


def _striped(port: int) -> Iterator[int]:
    start = CONFIG.striped_start_bytes // BEAT
    return (start + 16 * port + beat % BANK_BEATS for beat in count())


def _random(beats: int) -> Callable[[int], Iterator[int]]:
    def addresses(port: int) -> Iterator[int]:
        rng = random.Random(port)
        while True:
            first = beats * rng.randrange(CONFIG.local_bytes // BEAT // beats)
            yield from range(first, first + beats)

    return addresses


# Addresses of a port, whether it writes, and the least share of all vaults' peak. The timing of
# `hmc2` lets a vault have 97.3 % of its peak, 27.3 % with lone requests.
PATTERNS: dict[str, tuple[Callable[[int], Iterator[int]], bool, float]] = {
    "all read their own vault": (_own, False, 0.965),
    "all write their own vault": (_own, True, 0.96),
    "all read their neighbour's vault": (_next, False, 0.965),
    "all read one vault": (_one, False, 0.96 / CONFIG.banks),
    "all read one vault, in step": (_one_in_step, False, 0.58 / CONFIG.banks),
    "all read the striped memory": (_striped, False, 0.9 * CONFIG.striped_banks / CONFIG.banks),
    "random reads of 32 bytes": (_random(1), False, 0.22),
    "random reads of 512 bytes": (_random(16), False, 0.5),
}


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(pattern=list(PATTERNS))
async def bandwidth(dut: Any, pattern: str) -> None:
    """Share of 10 GB/s a vault, over tREFI; each bank has 32 requests under way."""
    addresses, write, least = PATTERNS[pattern]
    tb = TB(dut, credits=32)
    tb.users.pop()
    await tb.reset()
    streams = [addresses(port) for port in range(CONFIG.banks)]

    def answers() -> list[int]:
        return [len(user.answered) for user in tb.users]

    cycles = vault_part("hmc2").timing.t_refi // 4
    before = answers()
    for cycle in range(200 + cycles):
        for user, stream in zip(tb.users, streams, strict=True):
            while len(user.queue) < 2:
                user.queue.append(MemoryRequest(next(stream), write))
        await tb.step()
        if cycle == 200 - 1:
            before = answers()
    counts = [after - first for after, first in zip(answers(), before, strict=True)]
    for user in tb.users:
        user.queue.clear()
    await tb.all_answered()
    for user in tb.users:
        for request in user.answered:
            if request.write:
                _apply(request)
    share = sum(counts) / cycles / CONFIG.banks
    dut._log.info(
        "bandwidth: %s: %.1f %% of %d vaults, a bank %.3f to %.3f beats a cycle",
        pattern, 100 * share, CONFIG.banks, min(counts) / cycles, max(counts) / cycles,
    )  # fmt: skip
    assert share >= least
    if "random" not in pattern:
        assert min(counts) >= 0.9 * max(counts)
