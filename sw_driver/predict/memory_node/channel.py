"""Memory channel of a group, which its links share: bursts in turn, and the DDR4 controller."""

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
from ..events import Condition, CycleClock, Process

__all__ = ["Burst", "ChannelPort"]

WRITE_BURSTS = 8
"""Write bursts of a link that wait at a channel (``hw/memory_node/group/channel_port.py``)."""
TURNS = 4
"""Writes with a turn before their data move (``hw/memory_node/group/channel_port.py``)."""
STORED_WRITES = 16
"""Writes with data in the controller that wait for admission (``hw/dram/frontend.py``)."""

# Pipeline latencies, from the RTL's source, in fabric cycles.
ASK_TO_GRANT = 2
GRANT_TO_ADDRESS = 1
GRANT_TO_BEAT = 3
"""Latency from the grant to a write's data, if they are there."""
BEAT_TO_LINE = 1
"""Latency from a read's beat until its link can have the line."""
MOVED_TO_BEAT = 2
"""Latency from a line's move to a channel's queue until its beat."""


@dataclass(eq=False)
class Burst:
    """Stripe of a request: an AXI burst to one channel, with the cycles of its data."""

    channel: int
    line: int
    lines: int
    link: int
    write: bool
    served: Condition
    moved: list[Piece] = field(default_factory=list)
    """First cycle and number of lines of each piece of a write that has come or is coming."""
    done: list[Piece] | None = None
    """Pieces that the memory returns for a read; cycle of the memory's answer to a write."""


class ChannelPort:
    """Port of a channel for the bursts of all links; reads and writes each take links in turn.

    Lines come and go one a cycle. So the place of a whole piece counts as free as soon as its first
    line leaves.
    """

    def __init__(self, clock: CycleClock, config: MemoryNodeConfig, state: ChannelState) -> None:
        self._clock, self._config = clock, config
        self._times = FabricTiming.of(config.part.timing)
        self._controller = Controller(config, state, begin=1)
        links = range(config.group_links)
        self.changed = Condition(clock)
        """Change: a burst is taken, or there is more room."""
        self.grantable = Condition(clock)
        """Change: there is a burst to grant, or room for it."""
        self.turned = Condition(clock)
        """Change: a write has its turn, its data are coming, or there is room for them."""
        self.reads: list[Burst | None] = [None for _ in links]
        """Read requested by each link."""
        self.read_room = [config.read_buffer_lines for _ in links]
        self.writes: list[deque[tuple[int, Burst]]] = [deque() for _ in links]
        """Write bursts of each link, with the first cycles in which they may have their turn."""
        self.write_room = [config.write_queue_lines for _ in links]
        self._space = config.controller.write_buffer_lines
        self._turns: deque[tuple[int, Burst]] = deque()
        """Writes in the order of their data, with the first cycles in which these may move."""
        self._addresses = 0
        self._waiting: tuple[deque[tuple[int, Burst]], ...] = (deque(), deque())
        """Reads and writes that wait for admission, with their first possible cycles."""
        self._queued: deque[Burst] = deque()
        self._writing, self._run = False, 0
        """Direction of the last admitted burst, and number of earlier ones of it in a row."""
        self._looks = 0
        self._waits = False
        for process in (self._grant_reads(), self._grant_writes(), self._take_data()):
            clock.start(process, clock.now)
        clock.at(clock.now, self._admit, self._looks)

    def read(self, link: int, burst: Burst) -> None:
        """Request a read for a link, which must have no other read request."""
        self.reads[link] = burst
        self.grantable.notify()

    def write(self, link: int, burst: Burst) -> None:
        """Request a write for a link; several may wait."""
        ready = self._clock.now + ASK_TO_GRANT
        self.writes[link].append((ready, burst))
        self._clock.at(ready, self.grantable.notify)

    def _grant_reads(self) -> Process:
        last = 0
        while True:
            waiting = self._waiting[False]
            link = self._next(last, self._has_read)
            if link is None or len(waiting) > ADDRESSES:
                yield self.grantable
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
                yield self.grantable
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
        return next((link for n in range(links) if asks(link := (last + 1 + n) % links)), None)

    def _take_data(self) -> Process:
        clock = self._clock
        while True:
            while not self._turns:
                yield self.turned
            begin, burst = self._turns.popleft()
            self.grantable.notify()
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
            self.grantable.notify()
            self._ready()

    def _ready(self) -> None:
        """Look again for a burst to admit, since a new one is ready."""
        if self._waits:
            self._clock.at(self._clock.now, self._admit, self._looks)

    def _admit(self, look: int) -> None:
        """Admit a burst if one is ready, in runs of one direction (``docs/architecture.md``).

        ``look`` numbers the calls, so that a second event for the same call is ignored.
        """
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
        self.grantable.notify()
        self.turned.notify()
        self._clock.at(now + 1, self._admit, self._looks)

    def _serve(self) -> None:
        """Take the columns of bursts that the controller has served."""
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
