"""cocotb tests of the switch, between users and vaults in Python.

Parameters: those of :func:`~hw.pim.config.configure` beside the preset ``tiny``.
"""

from __future__ import annotations

import random
from collections import deque
from itertools import groupby
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.pim import StackMap
from hw.pim.config import configure
from hw.pim.memory.memory_port import MEMORY_TAG_BITS
from hw.pim.vault.interface import vault_request_layout, vault_response_layout
from hw.pim.vault.timing import vault_part
from hw_tests.bench import bench_parameters
from hw_tests.pim.memory.memory_user import MemoryRequest, MemoryUser
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, pack, unpack, value_of

CONFIG = configure("tiny", **bench_parameters())
GEOMETRY = vault_part("tiny").with_capacity(CONFIG.vault_bytes).geometry
BANKS = CONFIG.banks
PORTS = [*(f"bank_{bank}" for bank in range(BANKS)), "host"]
TAG_BITS = MEMORY_TAG_BITS + 2
BANK_BEATS = CONFIG.bank_bytes // 32
STACK = StackMap(banks=BANKS, bank_bytes=CONFIG.bank_bytes)
BEATS = [each for memory in (STACK.local, STACK.striped) for each in memory[::32]]
"""Byte addresses of all beats."""


class Vault:
    """Answers in order, after some cycles, with a number of its own."""

    def __init__(self, dut: Any, number: int, *, pause: float, latency: int) -> None:
        self.sink = StreamSink(dut, f"vault_{number}_request", dut.clk, pause=pause)
        self.source = StreamSource(dut, f"vault_{number}_response", dut.clk, pause=pause)
        self.number = number
        self.requests: list[dict[str, int]] = []
        """All that came."""
        self._latency = latency
        self._due: deque[tuple[int, int]] = deque()

    def step(self, cycle: int) -> None:
        for payload in self.sink.taken[len(self.requests) :]:
            request = unpack(vault_request_layout(GEOMETRY, TAG_BITS), payload)
            fields = {"tag": request["tag"], "write": request["write"]}
            answer = {"data": self.answer(len(self.requests)), **fields}
            self._due.append(
                (cycle + self._latency, pack(vault_response_layout(TAG_BITS), **answer))
            )
            self.requests.append(request)
        while self._due and self._due[0][0] <= cycle:
            self.source.queue.append(self._due.popleft()[1])

    def answer(self, count: int) -> int:
        """What it answers to its request number ``count``."""
        return self.number << 248 | count << 32 | 0xBEAD


class TB:
    def __init__(self, dut: Any, *, stalls: str = "none", latency: int = 5) -> None:
        pause = STALLS[stalls]
        self.dut = dut
        self.users = [MemoryUser(dut, name, dut.clk, CONFIG, pause=pause) for name in PORTS]
        self.vaults = [Vault(dut, number, pause=pause, latency=latency) for number in range(BANKS)]
        self.cycle = 0

    async def reset(self) -> None:
        cocotb.start_soon(Clock(self.dut.clk, 2, unit="ns").start())
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        await ClockCycles(self.dut.clk, 2)

    async def all_answered(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            await RisingEdge(self.dut.clk)
            self.cycle += 1
            for user in self.users:
                user.step()
            for vault in self.vaults:
                vault.step(self.cycle)
            if all(user.done for user in self.users):
                return
        raise AssertionError("not all requests were answered")

    def check(self) -> None:
        """What was asked came to the right vault, and its answer back to who asked."""
        # As each vault numbered them: by the source, in its order.
        arrived = [[deque[int]() for _ in PORTS] for _ in self.vaults]
        for vault in self.vaults:
            for count, request in enumerate(vault.requests):
                arrived[vault.number][request["tag"] >> MEMORY_TAG_BITS].append(count)
        for number, user in enumerate(self.users):
            for request in user.answered:
                bank, byte = STACK.decode(32 * request.address)
                # So the answers of a vault come in the order of the requests.
                count = arrived[bank][number].popleft()
                assert request.answer == self.vaults[bank].answer(count)
                came = self.vaults[bank].requests[count]
                assert came == {
                    "address": byte,
                    "data": request.data,
                    "strobe": request.strobe,
                    "tag": request.tag | number << MEMORY_TAG_BITS,
                    "write": request.write,
                }
        assert not any(left for vault in arrived for left in vault)


def _bank(request: MemoryRequest) -> int:
    return STACK.decode(32 * request.address)[0]


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def requests_and_answers_arrive(dut: Any, stalls: str) -> None:
    tb = TB(dut, stalls=stalls)
    await tb.reset()
    assert value_of(dut.idle)
    rng = random.Random(stalls)
    sent: list[list[MemoryRequest]] = []
    for user in tb.users:
        for _ in range(60):
            request = MemoryRequest(
                rng.choice((rng.choice(BEATS) // 32, rng.randrange(20))),
                rng.random() < 0.5,
                rng.getrandbits(256),
                rng.getrandbits(32),
            )
            user.queue.append(request)
        sent.append(list(user.queue))
    await tb.all_answered()
    tb.check()
    for user, requests in zip(tb.users, sent, strict=True):
        for bank in range(BANKS):
            assert [each for each in user.answered if _bank(each) == bank] == [
                each for each in requests if _bank(each) == bank
            ]
    await ClockCycles(dut.clk, 2)
    assert value_of(dut.idle)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def latency(dut: Any) -> None:
    """Three cycles each way."""
    tb = TB(dut)
    await tb.reset()
    for name, bank in ((PORTS[1], 2), ("host", 0)):
        user, vault = tb.users[PORTS.index(name)], tb.vaults[bank]
        user.queue.append(MemoryRequest(bank * BANK_BEATS))
        ways = [
            f"{name}_request",
            f"vault_{bank}_request",
            f"vault_{bank}_response",
            f"{name}_response",
        ]
        times: dict[str, int] = {}
        idle = []
        for cycle in range(40):
            await RisingEdge(dut.clk)
            for way in ways:
                if int(getattr(dut, f"{way}_valid").value):
                    times.setdefault(way, cycle)
            idle.append(value_of(dut.idle))
            user.step()
            vault.step(cycle)
        asked, at_vault, answered, back = (times[way] for way in ways)
        assert at_vault - asked == 3
        assert back - answered == 3
        busy = {*range(asked + 1, at_vault + 1), *range(answered + 1, back + 1)}
        assert [cycle for cycle in range(40) if not idle[cycle]] == sorted(busy)
        assert user.done


def _requests(addresses: list[int], *, write: bool = False) -> list[MemoryRequest]:
    return [MemoryRequest(BANK_BEATS + beat, write) for beat in addresses]


async def _runs(dut: Any, *given: list[MemoryRequest]) -> list[tuple[int, int]]:
    """What each source gives, in runs as they come to vault 1: source, how many."""
    tb = TB(dut)
    await tb.reset()
    for user, requests in zip(tb.users, given, strict=False):
        user.queue.extend(requests)
    await tb.all_answered()
    tb.check()
    sources = [request["tag"] >> MEMORY_TAG_BITS for request in tb.vaults[1].requests]
    return [(source, len(list(run))) for source, run in groupby(sources)]


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(write=[False, True])
async def streams_take_turns_by_stretches(dut: Any, write: bool) -> None:
    """Sources that read or write along meet every 512 bytes."""
    first = _requests(list(range(64)), write=write)
    second = _requests(list(range(128, 192)), write=write)
    runs = await _runs(dut, first, second, _requests([300], write=write))
    # The third comes between any two of them.
    assert (2, 1) in runs
    assert [run for run in runs if run[0] != 2] == [(0, 16), (1, 16)] * 4


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def one_stretch_is_no_monopoly(dut: Any) -> None:
    """A source that stays in one stretch gives way after 16 requests."""
    runs = await _runs(dut, _requests([5] * 64), _requests([40, 41] * 32))
    assert runs[:4] == [(0, 16), (1, 16)] * 2


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(change=["stretch", "direction"])
async def other_requests_are_no_run(dut: Any, change: str) -> None:
    """Where the stretch or the direction changes, the other sources come in between."""
    given = []
    for base in (0, 100):
        requests = _requests([base, base + (16 if change == "stretch" else 1)] * 16)
        for request in requests[1::2]:
            request.write = change == "direction"
        given.append(requests)
    runs = await _runs(dut, *given)
    # But for the end, where one is alone.
    assert max(count for _, count in runs[:-2]) == 1
