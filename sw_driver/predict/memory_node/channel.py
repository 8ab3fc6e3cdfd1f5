"""A memory channel of a group, where its links meet: bursts in turn, and the DDR4 controller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hw.dram.fabric_timing import FabricTiming
from hw.memory_node.config import MemoryNodeConfig

from ..axdimm.kernel import (
    ADDRESS_TO_ADMISSION,
    ADDRESSES,
    COLUMN_TO_ANSWERED,
    COLUMN_TO_BEAT,
    COLUMN_TO_SPACE,
    DATA_TO_ADMISSION,
)
from ..dram.channel import ChannelState
from ..dram.controller import LOW_LEVEL, Controller, Piece
from ..dram.refresh import NEVER
from ..events import Clock, Condition, Process

__all__ = ["Burst", "ChannelPort"]

WRITE_BURSTS = 8
"""Of a link, that wait at a channel (``hw/memory_node/group/channel_port.py``)."""
TURNS = 4
"""Writes whose turn is decided before their data go (the same)."""
STORED_WRITES = 16
"""Whose data the controller has, before they are admitted (``hw/dram/frontend.py``)."""

# Pipeline latencies, from the RTL's source, in fabric cycles.
ASK_TO_GRANT = 2
GRANT_TO_ADDRESS = 1
GRANT_TO_BEAT = 3
"""Of a write's data, if they are there."""
BEAT_TO_LINE = 1
"""From a beat of a read until who made it can have the line."""
MOVED_TO_BEAT = 2
"""From a line's going to a channel's queue until its beat."""


@dataclass(eq=False)
class Burst:
    """A stripe of a request, which is an AXI burst to one channel, and what becomes of it."""

    channel: int
    line: int
    lines: int
    link: int
    write: bool
    served: Condition
    moved: list[Piece] = field(default_factory=list)
    """Of a write: first cycle and number of the lines that have come, or are coming, one by one."""
    done: list[Piece] | None = None
    """Of a read: the same of the lines that memory gives. Of a write: when memory has said that it
    has it."""


class ChannelPort:
    """All links' bursts to a channel: reads and writes, each link by link in turn.

    Lines come and go one a cycle, so that the place of a whole piece counts as free from its first
    line's going on.
    """

    def __init__(self, clock: Clock, config: MemoryNodeConfig, state: ChannelState) -> None:
        self._clock, self._config = clock, config
        self._times = FabricTiming.of(config.part.timing)
        self._controller = Controller(config, state, begin=1)
        links = range(config.group_links)
        self.changed = Condition(clock)
        """A burst is taken, or room is made."""
        self.asked = Condition(clock)
        """There is something to grant, or room for it."""
        self.turned = Condition(clock)
        """A write has its turn, its data are coming, or there is room for them."""
        self.reads: list[Burst | None] = [None for _ in links]
        """What each link asks for."""
        self.read_room = [config.read_buffer_lines for _ in links]
        self.writes: list[deque[tuple[int, Burst]]] = [deque() for _ in links]
        """Its bursts, and from when on they may have their turn."""
        self.write_room = [config.write_queue_lines for _ in links]
        self._space = config.controller.write_buffer_lines
        self._turns: deque[tuple[int, Burst]] = deque()
        """Writes in the order of their data, and from when on these may go."""
        self._addresses = 0
        self._waiting: tuple[deque[tuple[int, Burst]], ...] = (deque(), deque())
        """Reads and writes that may be admitted, and from when on."""
        self._queued: deque[Burst] = deque()
        self._writing, self._run = False, 0
        """The direction of the last burst admitted, and how many more there were of it in a row."""
        self._looks = 0
        self._waits = False
        for process in (self._grant_reads(), self._grant_writes(), self._take_data()):
            clock.start(process, clock.now)
        clock.at(clock.now, self._admit, self._looks)

    def read(self, link: int, burst: Burst) -> None:
        """The link asks for it; only when it asks for nothing else."""
        self.reads[link] = burst
        self.asked.notify()

    def write(self, link: int, burst: Burst) -> None:
        """The same of a write, of which more may wait."""
        ready = self._clock.now + ASK_TO_GRANT
        self.writes[link].append((ready, burst))
        self._clock.at(ready, self.asked.notify)

    def _grant_reads(self) -> Process:
        last = 0
        while True:
            waiting = self._waiting[False]
            link = self._next(last, self._has_read)
            if link is None or len(waiting) > ADDRESSES:
                yield self.asked
                continue
            burst, self.reads[link], last = self.reads[link], None, link
            assert burst is not None
            self.read_room[link] -= burst.lines
            waiting.append((self._clock.now + GRANT_TO_ADDRESS + ADDRESS_TO_ADMISSION, burst))
            self._ready()
            self.changed.notify()
            yield self._clock.now + 1

    def _grant_writes(self) -> Process:
        last = 0
        while True:
            link = self._next(last, self._has_write)
            if link is None or len(self._turns) == TURNS or self._addresses > ADDRESSES:
                yield self.asked
                continue
            self._turns.append((self._clock.now + GRANT_TO_BEAT, self.writes[link].popleft()[1]))
            self._addresses += 1
            last = link
            self.turned.notify()
            self.changed.notify()
            yield self._clock.now + 1

    def _has_read(self, link: int) -> bool:
        burst = self.reads[link]
        return burst is not None and burst.lines <= self.read_room[link]

    def _has_write(self, link: int) -> bool:
        bursts = self.writes[link]
        return bool(bursts) and bursts[0][0] <= self._clock.now

    def _next(self, last: int, asks: Callable[[int], bool]) -> int | None:
        links = self._config.group_links
        return next((each for n in range(links) if asks(each := (last + 1 + n) % links)), None)

    def _take_data(self) -> Process:
        clock = self._clock
        while True:
            while not self._turns:
                yield self.turned
            begin, burst = self._turns.popleft()
            self.asked.notify()
            yield begin
            left, piece = burst.lines, 0
            while left:
                while piece == len(burst.moved):
                    yield self.turned
                start, lines = burst.moved[piece]
                while self._space < lines or len(self._waiting[True]) == STORED_WRITES:
                    yield self.turned
                self._space -= lines
                yield max(clock.now, start + MOVED_TO_BEAT)
                self.write_room[burst.link] += lines
                self.changed.notify()
                yield clock.now + lines
                left -= lines
                piece += 1
            self._addresses -= 1
            self._waiting[True].append((clock.now - 1 + DATA_TO_ADMISSION, burst))
            self.asked.notify()
            self._ready()

    def _ready(self) -> None:
        """Something may be admitted that could not be before."""
        if self._waits:
            self._clock.at(self._clock.now, self._admit, self._looks)

    def _admit(self, look: int) -> None:
        """Admits a burst if one is ready, as in ``docs/architecture.md``: runs of one direction,
        while the other waits. ``look`` is the number of the look for one, of which some are asked
        for twice."""
        if look != self._looks:
            return
        self._looks += 1
        controller, settings, now = self._controller, self._config.controller, self._clock.now
        if controller.stopped < now:
            controller.resume()
            self._serve()
        ready = [waiting[0][0] if waiting else NEVER for waiting in self._waiting]
        room = controller.below(settings.queue_depth)
        low = max(room, controller.below(LOW_LEVEL + 1))
        same, other = max(room, ready[self._writing]), max(room, ready[not self._writing])
        turn = other <= now and (same > now or self._run == settings.run_length - 1)
        if same > now:
            turn = turn and low <= now
        self._waits = not turn and same > now
        if self._waits:
            wake = min(same, max(other, low), controller.stopped + 1)
            if wake < NEVER:
                self._clock.at(wake, self._admit, self._looks)
            return
        if turn:
            self._writing, self._run = not self._writing, 0
        else:
            self._run = min(self._run + 1, settings.run_length - 1)
        _, burst = self._waiting[self._writing].popleft()
        self._queued.append(burst)
        controller.admit(self._writing, burst.line, burst.lines, now)
        self._serve()
        self.asked.notify()
        self.turned.notify()
        self._clock.at(now + 1, self._admit, self._looks)

    def _serve(self) -> None:
        """Takes what the controller has decided about the oldest bursts."""
        times = self._times
        for columns in self._controller.served:
            burst = self._queued.popleft()
            if burst.write:
                last, lines = columns[-1]
                burst.done = [Piece(last + lines - 1 + COLUMN_TO_ANSWERED, 1)]
                for start, lines in columns:
                    space = start + times.write_latency + COLUMN_TO_SPACE
                    self._clock.at(space, self._free, lines)
            else:
                latency = times.read_latency + COLUMN_TO_BEAT + BEAT_TO_LINE
                burst.done = [Piece(start + latency, lines) for start, lines in columns]
            burst.served.notify()
        self._controller.served.clear()

    def _free(self, lines: int) -> None:
        self._space += lines
        self.turned.notify()
