"""cocotb tests of the host port: each request, answer and counter against a model of the port.

Parameters: ``name`` of the port in the design, ``address_width``, ``read_latency``,
``queue_lines``.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from hw.axdimm.host_port import HostRequest, HostResult
from hw_tests.bench import bench_parameters
from hw_tests.host_link import HostLink
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS, pauses
from hw_tests.streams import pack, unpack

PARAMETERS = bench_parameters()
LATENCY: int = PARAMETERS["read_latency"]
QUEUE: int = PARAMETERS["queue_lines"]
LINE_WIDTH: int = PARAMETERS["address_width"] - 6
REQUEST = HostRequest(line_width=LINE_WIDTH)
RESULT = HostResult()
START_UP = 256
"""Cycles after reset without room."""
ROOM = 4
"""Requests that still find room when ``req_ready`` falls."""
IN_TIME = LATENCY - 2
"""Cycles from a request to the last one in which its result is in time."""
SERVED_AT_ONCE = 64
"""Reads that wait for their results, as many as the bridge to the DRAM has."""


@dataclass
class Request:
    """A request as it was on the link, and what became of it."""

    cycle: int
    write: int
    line: int
    data: int
    lost: bool
    tag: int = -1
    ok: bool = False
    result: int = 0
    given: int | None = None

    @property
    def late(self) -> bool:
        in_time = self.given is not None and self.given - self.cycle <= IN_TIME
        return self.lost or not self.ok or not in_time


class TB:
    """A host, what serves it, and the model of the port between them.

    ``give`` names for each read the cycles from its request to its result (at the earliest), and
    ``refuse`` says whether it is refused.
    """

    def __init__(self, dut: Any, *, stalls: str = "none") -> None:
        self.dut = Side(dut, PARAMETERS["name"])
        self.stalls = STALLS[stalls]
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.give: Callable[[], int] = lambda: 0
        self.refuse: Callable[[], bool] = lambda: False
        self.tasks: list[Any] = []
        cocotb.start_soon(Clock(dut.clk, 5, unit="ns").start())

    async def reset(self) -> None:
        """Resets the port and forgets everything; the host may ask from cycle 1 on."""
        for task in self.tasks:
            task.cancel()
        self.dut.rst.value = 1
        self.dut.i_valid.value = 0
        self.dut.i.value = 0
        self.dut.o_ready.value = 0
        self.host = HostLink(self.dut, pause=self.stalls, seed=cocotb.RANDOM_SEED)
        self.requests: list[Request] = []
        self.queue: deque[Request] = deque()
        self.served: list[tuple[int, Request]] = []
        self.is_open = True
        self.late = 0
        self.ready_falls = 0
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        self.tasks = [cocotb.start_soon(self.host.monitor()), cocotb.start_soon(self._serve())]
        await RisingEdge(self.dut.clk)

    async def start(self) -> None:
        await self.reset()
        await ClockCycles(self.dut.clk, START_UP + 2)

    async def _serve(self) -> None:
        """Looks at each cycle at its middle, where all that it brings is settled."""
        dut = self.dut
        stalls = pauses(self.stalls, f"server {cocotb.RANDOM_SEED}")
        cycle = 0
        was_ready = False
        while True:
            await FallingEdge(dut.clk)
            level = len(self.queue)
            assert int(dut.empty.value) == (level == 0), f"{level} requests are inside"
            self.late += int(dut.late.value)
            ready = bool(int(dut.link_req_ready.value))
            if was_ready and not ready:
                self.ready_falls += 1
                assert level <= QUEUE - ROOM, f"no room for {ROOM} at {level} of {QUEUE}"
            assert ready or level or cycle < START_UP + 2, "no room although empty"
            was_ready = ready

            take = self.is_open and len(self.served) < SERVED_AT_ONCE and not next(stalls)
            dut.o_ready.value = int(take)
            if take and int(dut.o_valid.value):
                self._take(unpack(REQUEST, dut.o_payload.value.to_unsigned()))
            # The request of this cycle is inside from the next.
            self._ask(lost=cycle < START_UP or level == QUEUE)
            self._give()
            cycle += 1

    def _ask(self, *, lost: bool) -> None:
        dut = self.dut
        asked = int(dut.link_req_valid.value)
        assert int(dut.overflow.value) == (asked and lost)
        if not asked:
            return
        request = Request(
            self.host.cycle,
            int(dut.link_req_write.value),
            int(dut.link_req_line.value),
            dut.link_req_data.value.to_unsigned(),
            lost,
        )
        self.requests.append(request)
        if not lost:
            self.queue.append(request)

    def _take(self, got: dict[str, int]) -> None:
        request = self.queue.popleft()
        assert (got["write"], got["line"]) == (request.write, request.line)
        if request.write:
            assert got["data"] == request.data
            return
        request.tag = got["tag"]
        request.ok = not self.refuse()
        request.result = self.rng.getrandbits(512)
        self.served.append((request.cycle + self.give(), request))

    def _give(self) -> None:
        """Gives one of the results whose time has come, in any order."""
        ripe = [item for item in self.served if item[0] <= self.host.cycle]
        if not ripe:
            self.dut.i_valid.value = 0
            self.dut.i.value = self.rng.getrandbits(RESULT.size)
            return
        item = self.rng.choice(ripe)
        self.served.remove(item)
        request = item[1]
        request.given = self.host.cycle
        self.dut.i_valid.value = 1
        self.dut.i.value = pack(RESULT, tag=request.tag, ok=request.ok, data=request.result)

    async def drain(self) -> None:
        """Waits for the last result and answer."""
        while self.queue or self.served:
            await RisingEdge(self.dut.clk)
        await ClockCycles(self.dut.clk, LATENCY + 2)

    async def finish(self) -> list[Request]:
        """Waits for the last result and answer, compares all, returns the reads."""
        await self.drain()
        reads = [request for request in self.requests if not request.write]
        assert len(self.host.answers) == len(reads)
        for read, answer in zip(reads, self.host.answers, strict=True):
            assert (answer.asked, answer.answered) == (read.cycle, read.cycle + LATENCY)
            assert answer.late == read.late, read
            assert answer.late or answer.data == read.result, read
        assert self.late == sum(read.late and not read.lost for read in reads)
        return reads

    async def request(self, *, writes: float, **options: Any) -> None:
        data = self.rng.getrandbits(512) if self.rng.random() < writes else None
        await self.host.request(self.rng.getrandbits(LINE_WIDTH), data, **options)


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def requests_and_answers(dut: Any, stalls: str) -> None:
    """All numbers of reads come; a host that heeds ``req_ready`` loses nothing."""
    tb = TB(dut, stalls=stalls)
    await tb.start()

    # Registers answer at once, the DRAM later and now and then too late.
    def give() -> int:
        return tb.rng.choice(
            (0, 0, tb.rng.randrange(IN_TIME + 1), IN_TIME, IN_TIME + 1, IN_TIME + 40)
        )

    tb.give = give
    tb.refuse = lambda: tb.rng.random() < 0.1
    while sum(not request.write for request in tb.requests) < 550:
        await tb.request(writes=0.1)
    reads = await tb.finish()
    assert not any(request.lost for request in tb.requests)
    share = sum(read.late for read in reads) / len(reads)
    assert share > 0.2, "too few late reads"
    if stalls == "none":
        assert share < 0.7, "too few reads in time"
    if stalls == "heavy" and QUEUE < 100:
        assert tb.ready_falls, "the queue was never near full"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def the_last_moment(dut: Any) -> None:
    """A result is in time up to a cycle, and late in the next; its successors are not touched."""
    tb = TB(dut)
    await tb.start()
    moments = [IN_TIME, IN_TIME + 1, IN_TIME, IN_TIME + 30, IN_TIME]
    for moment in moments:
        tb.give = lambda moment=moment: moment
        await tb.request(writes=0)
        await ClockCycles(dut.clk, LATENCY + 40)
    reads = await tb.finish()
    assert [read.given - read.cycle for read in reads if read.given is not None] == moments
    assert [answer.late for answer in tb.host.answers] == [False, True, False, True, False]


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def too_many_requests_are_lost(dut: Any, stalls: str) -> None:
    """Who asks without room loses as many as there is no room for; what is inside stays in order.

    The port stands still for longer than all numbers of reads last.
    """
    tb = TB(dut, stalls=stalls)
    tb.give = lambda: IN_TIME // 2
    await tb.start()
    for _ in range(300):
        await tb.request(writes=0)
    for kept in (QUEUE, QUEUE):
        while tb.queue:
            await RisingEdge(dut.clk)
        tb.is_open = False
        before = len(tb.requests)
        for _ in range(kept + 300):
            await tb.request(writes=0.3, force=True)
        await ClockCycles(dut.clk, 2)
        assert [request.lost for request in tb.requests[before:]] == [False] * kept + [True] * 300
        tb.is_open = True
        await tb.request(writes=0)
    reads = await tb.finish()
    assert any(read.lost for read in reads)
    assert tb.ready_falls >= 2


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def starts_up_in_256_cycles(dut: Any) -> None:
    """Requests before are lost, and what was in the port before the reset is never an answer."""
    tb = TB(dut)
    await tb.start()
    tb.give = lambda: IN_TIME
    for _ in range(START_UP):
        await tb.request(writes=0)
    await tb.finish()
    for give in (0, LATENCY + 1):
        await tb.reset()
        tb.give = lambda give=give: give
        # One a cycle, to meet the first cycle with room. What is lost is late even if the result
        # of the first read that is not comes before.
        for _ in range(START_UP + 2):
            await tb.request(writes=0, force=True, gap=0)
        await ClockCycles(dut.clk, 1)
        assert [request.lost for request in tb.requests] == [True] * (START_UP - 1) + [False] * 3
        if give == 0:
            await tb.finish()
    for _ in range(START_UP):
        await tb.request(writes=0)
    reads = await tb.finish()
    assert all(read.late for read in reads)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_refused_read_leaves_nothing_behind(dut: Any) -> None:
    """A late read that has the place of a refused one is not answered with what lies there."""
    tb = TB(dut)
    await tb.start()
    for late_too in (False, True):
        tb.refuse = lambda: True
        tb.give = lambda late=late_too: IN_TIME + late
        await tb.request(writes=0)
        await tb.drain()
        tb.refuse = lambda: False
        tb.give = lambda: IN_TIME
        for _ in range(255):
            await tb.request(writes=0)
        await tb.drain()
        tb.give = lambda: LATENCY + 1
        await tb.request(writes=0)
        await tb.drain()
    await tb.finish()
    assert [tb.host.answers[place].late for place in (0, 1, 256, 257, 513)] == [
        True, False, True, True, True,
    ]  # fmt: skip
