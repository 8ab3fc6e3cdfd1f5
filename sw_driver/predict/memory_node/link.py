"""Link of a group: its requests come in, go to the channels, and are answered in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from hw.logic.line import AXI_BURST_LINES, LINE_BYTES
from hw.memory_node.config import MemoryNodeConfig

from ..dram.controller import Piece
from ..events import Condition, CycleClock, Process
from .channel import WRITE_BURSTS, Burst, ChannelPort
from .wire import LinkCycles

__all__ = ["GroupLink", "Request"]

DIGIT_BITS = 4
"""Bits of a stripe's place that the divider finds per cycle.

It is used if the number of channels is no power of two (``hw/memory_node/group/stripes.py``).
"""

# Pipeline latencies, from the RTL's source, in fabric cycles.
FLIT_TO_JOB = 4
"""Latency from a request's last flit until it can be dispatched."""
JOB_TO_BURST = 3
BURST_TO_DATA = 1
STORED_TO_ANSWER = 3
DECISION_TO_FLIT = 3
"""Latency from taking an answer's line, or deciding that a write is done, until its flit."""
STOP = 2
"""Latency through the stop of a ring, in and out."""


class Request(NamedTuple):
    """Read or write of 1 to 64 lines from a line of the group's memory on."""

    write: bool
    line: int
    lines: int

    def stripes(self, config: MemoryNodeConfig) -> Iterator[tuple[int, int, int]]:
        """Yield the request's stripes in order: channel, first line in it, number of lines."""
        line, end = self.line, self.line + self.lines
        while line < end:
            stripe, offset = divmod(line, config.stripe_lines)
            lines = min(config.stripe_lines - offset, end - line)
            place, channel = divmod(stripe, config.group_channels)
            yield channel, place * config.stripe_lines + offset, lines
            line += lines


@dataclass(eq=False)
class _Job:
    request: Request
    bursts: list[Burst]
    begin: int = 0
    """First cycle in which its first burst can be issued."""

    @property
    def pages(self) -> range:
        line, lines = self.request.line, self.request.lines
        return range(line // AXI_BURST_LINES, (line + lines - 1) // AXI_BURST_LINES + 1)


class GroupLink:
    """Link with requests that are sent as fast as it takes them.

    ``answered`` has the cycle in which the device has the last flit of each answer.
    """

    def __init__(
        self,
        clock: CycleClock,
        config: MemoryNodeConfig,
        wire: LinkCycles,
        ports: Sequence[ChannelPort],
        number: int,
        requests: Sequence[Request],
    ) -> None:
        self._clock, self._config, self._wire, self._ports = clock, config, wire, ports
        self._number, self._requests = number, requests
        self.answered: list[int] = []
        self._free = config.requests
        self._room = config.write_buffer_lines
        self._piece_lines = max(1, min(config.stripe_lines, config.write_queue_lines // 2))
        """Lines of a write that move together."""
        self._changed = Condition(clock)
        """Change: a request is answered, or data have left the buffer."""
        self._jobs: deque[_Job] = deque()
        self._open: deque[_Job] = deque()
        """Jobs without an answer, in order."""
        self._under_way: deque[_Job] = deque()
        self._queues: tuple[deque[_Job], ...] = (deque(), deque())
        """Dispatched reads and writes."""
        self._came = Condition(clock)
        for process in (self._take, self._dispatch, self._read, self._write, self._answer):
            clock.start(process(), clock.now)

    def _take(self) -> Process:
        """Take flits as they come, while there is room for requests and for data."""
        clock, config = self._clock, self._config
        interval = self._wire.flit_fabric_cycles
        # Cycle in which the last flit could have come, and cycle in which it was taken.
        came = clock.now + self._wire.latency_fabric_cycles + STOP - interval
        taken = 0
        for request in self._requests:
            while not self._free:
                yield self._changed
            self._free -= 1
            flits, lines = 1, request.lines if request.write else 0
            while flits:
                came += flits * interval
                taken = max(taken + flits, ceil(came), clock.now)
                # The receiver's buffer limits the number of waiting flits.
                came = max(came, taken - config.link.buffer_flits * interval)
                yield taken
                flits = min(self._piece_lines, lines)
                lines -= flits
                while self._room < flits:
                    yield self._changed
                self._room -= flits
            clock.at(taken + FLIT_TO_JOB, self._job, request)

    def _job(self, request: Request) -> None:
        stripes = request.stripes(self._config)
        bursts = [Burst(*stripe, self._number, request.write, self._came) for stripe in stripes]
        job = _Job(request, bursts)
        self._jobs.append(job)
        self._open.append(job)
        self._came.notify()

    def _dispatch(self) -> Process:
        """Dispatch jobs to reader and writer.

        A read waits for writes to its pages, and a write for reads.
        """
        config = self._config
        finding = 1
        channels = config.group_channels
        if channels & (channels - 1):
            stripes = config.group_bytes // LINE_BYTES // config.stripe_lines
            finding = 2 + -(-(stripes - 1).bit_length() // DIGIT_BITS)
        while True:
            while not self._jobs:
                yield self._came
            yield self._clock.now + finding
            job = self._jobs.popleft()
            while any(self._collide(job, earlier) for earlier in self._under_way):
                yield self._changed
            self._under_way.append(job)
            job.begin = self._clock.now + JOB_TO_BURST
            self._queues[job.request.write].append(job)
            self._came.notify()

    @staticmethod
    def _collide(one: _Job, other: _Job) -> bool:
        pages = range(
            max(one.pages.start, other.pages.start), min(one.pages.stop, other.pages.stop)
        )
        return one.request.write != other.request.write and len(pages) > 0

    def _read(self) -> Process:
        """Issue reads to the channels, one burst after the other."""
        queue, number = self._queues[False], self._number
        while True:
            while not queue:
                yield self._came
            job = queue.popleft()
            yield job.begin
            for burst in job.bursts:
                port = self._ports[burst.channel]
                port.read(number, burst)
                while port.reads[number] is not None:
                    yield port.changed
                yield self._clock.now + 1

    def _write(self) -> Process:
        """Issue writes to the channels, one burst after the other, a line a cycle."""
        clock, number = self._clock, self._number
        queue = self._queues[True]
        while True:
            while not queue:
                yield self._came
            job = queue.popleft()
            yield job.begin
            for burst in job.bursts:
                port = self._ports[burst.channel]
                while len(port.writes[number]) == WRITE_BURSTS:
                    yield port.changed
                port.write(number, burst)
                left = burst.lines
                while left:
                    lines = min(left, self._piece_lines)
                    while port.write_room[number] < lines:
                        yield port.changed
                    port.write_room[number] -= lines
                    burst.moved.append(Piece(clock.now + BURST_TO_DATA, lines))
                    port.turned.notify()
                    self._room += lines
                    self._changed.notify()
                    left -= lines
                    yield clock.now + lines

    def _answer(self) -> Process:
        interval = self._wire.flit_fabric_cycles
        way = DECISION_TO_FLIT + STOP + self._wire.latency_fabric_cycles
        sent = 0.0
        for _ in self._requests:
            while not self._open:
                yield self._came
            job = self._open[0]
            for number, burst in enumerate(job.bursts):
                while burst.done is None:
                    yield self._came
                if burst.write:
                    sent = max(sent, burst.done[0].first_cycle + STORED_TO_ANSWER - interval)
                    continue
                for piece, (start, lines) in enumerate(burst.done):
                    head = number == piece == 0
                    # The head flit goes when the first line is there.
                    sent = max(sent, start - interval) + interval * head
                    sent = max(sent + lines * interval, start + lines - 1)
                yield ceil(sent)
                port = self._ports[burst.channel]
                port.read_room[self._number] += burst.lines
                port.grantable.notify()
            if job.request.write:
                sent += interval
                yield ceil(sent)
            self.answered.append(ceil(sent) + way)
            self._open.popleft()
            self._under_way.remove(job)
            self._free += 1
            self._changed.notify()
