"""A memory channel of a group, where its links meet: bursts in turn, and the DDR4 controller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..axdimm.kernel import (
    ADDRESS_TO_ADMISSION,
    ADDRESSES,
    COLUMN_TO_ANSWERED,
    COLUMN_TO_BEAT,
    COLUMN_TO_SPACE,
    DATA_TO_ADMISSION,
)
from ..axdimm.model import LOW_LEVEL
from ..dram.controller import Controller, Piece
from ..dram.refresh import NEVER
from ..dram.state import ChannelState
from ..dram.timing import FabricTimes
from .config import GroupCycles, Stripe
from .events import Clock, Gate, Process

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
    """A stripe of a request, and what becomes of it."""

    stripe: Stripe
    link: int
    write: bool
    served: Gate
    moved: list[Piece] = field(default_factory=list)
    """Of a write: first cycle and number of the lines that have come, or are coming, one by one."""
    lines: list[Piece] | None = None
    """Of a read: the same of those that memory gives."""
    stored: int | None = None
    """Of a write: when memory has said that it has it."""


class ChannelPort:
    """All links' bursts to a channel: reads and writes, each link by link in turn.

    Lines come and go one a cycle, so that the place of a whole piece counts as free from its first
    line's going on.
    """

    def __init__(self, clock: Clock, config: GroupCycles, state: ChannelState) -> None:
        self._clock, self._config = clock, config
        self._times = FabricTimes.of(config.channel)
        self._controller = Controller(config.channel, state, begin=1)
        links = range(config.links)
        self.changed = Gate(clock)
        """A burst is taken, or room is made."""
        self._asked = Gate(clock)
        self._turned = Gate(clock)
        self._ready = Gate(clock)
        self.reads: list[Burst | None] = [None for _ in links]
        """What each link asks for."""
        self.read_room = [config.read_buffer_lines for _ in links]
        self.writes: list[deque[tuple[int, Burst]]] = [deque() for _ in links]
        """Its bursts, and from when on they may have their turn."""
        self.write_room = [config.write_queue_lines for _ in links]
        self._space = config.channel.write_buffer_lines
        self._turns: deque[tuple[int, Burst]] = deque()
        """Writes in the order of their data, and from when on these may go."""
        self._addresses = 0
        self._waiting: tuple[deque[tuple[int, Burst]], ...] = (deque(), deque())
        """Reads and writes that may be admitted, and from when on."""
        self._queued: deque[Burst] = deque()
        for process in (
            self._grant_reads(),
            self._grant_writes(),
            self._take_data(),
            self._admit(),
        ):
            clock.start(process)

    def read(self, link: int, burst: Burst) -> None:
        """The link asks for it; only when it asks for nothing else."""
        self.reads[link] = burst
        self._asked.open()

    def write(self, link: int, burst: Burst) -> None:
        """The same of a write, of which more may wait."""
        ready = self._clock.now + ASK_TO_GRANT
        self.writes[link].append((ready, burst))
        self._clock.call(ready, self._asked.open)

    def taken(self, link: int, lines: int) -> None:
        """The link has taken so much of what was read."""
        self.read_room[link] += lines
        self._asked.open()

    def moving(self) -> None:
        """Data of a write are coming."""
        self._turned.open()

    def _grant_reads(self) -> Process:
        last = 0
        while True:
            waiting = self._waiting[False]
            link = self._next(last, self._has_read)
            if link is None or len(waiting) > ADDRESSES:
                yield self._asked
                continue
            burst, self.reads[link], last = self.reads[link], None, link
            assert burst is not None
            self.read_room[link] -= burst.stripe.lines
            waiting.append((self._clock.now + GRANT_TO_ADDRESS + ADDRESS_TO_ADMISSION, burst))
            self._ready.open()
            self.changed.open()
            yield self._clock.now + 1

    def _grant_writes(self) -> Process:
        last = 0
        while True:
            link = self._next(last, self._has_write)
            if link is None or len(self._turns) == TURNS or self._addresses > ADDRESSES:
                yield self._asked
                continue
            self._turns.append((self._clock.now + GRANT_TO_BEAT, self.writes[link].popleft()[1]))
            self._addresses += 1
            last = link
            self._turned.open()
            self.changed.open()
            yield self._clock.now + 1

    def _has_read(self, link: int) -> bool:
        burst = self.reads[link]
        return burst is not None and burst.stripe.lines <= self.read_room[link]

    def _has_write(self, link: int) -> bool:
        bursts = self.writes[link]
        return bool(bursts) and bursts[0][0] <= self._clock.now

    def _next(self, last: int, asks: Callable[[int], bool]) -> int | None:
        links = self._config.links
        return next((each for n in range(links) if asks(each := (last + 1 + n) % links)), None)

    def _take_data(self) -> Process:
        clock = self._clock
        while True:
            while not self._turns:
                yield self._turned
            begin, burst = self._turns.popleft()
            self._asked.open()
            yield begin
            left, piece = burst.stripe.lines, 0
            while left:
                while piece == len(burst.moved):
                    yield self._turned
                start, lines = burst.moved[piece]
                while self._space < lines or len(self._waiting[True]) == STORED_WRITES:
                    yield self._turned
                self._space -= lines
                yield max(clock.now, start + MOVED_TO_BEAT)
                self.write_room[burst.link] += lines
                self.changed.open()
                yield clock.now + lines
                left -= lines
                piece += 1
            self._addresses -= 1
            self._waiting[True].append((clock.now - 1 + DATA_TO_ADMISSION, burst))
            self._asked.open()
            self._ready.open()

    def _admit(self) -> Process:
        """As in ``docs/architecture.md``: runs of one direction, while the other waits."""
        clock, config, controller = self._clock, self._config.channel, self._controller
        writing, run = False, 0
        while True:
            if controller.stopped < clock.now:
                controller.resume()
                self._serve()
            ready = [waiting[0][0] if waiting else NEVER for waiting in self._waiting]
            room = self._level_below(config.queue_depth)
            low = max(room, self._level_below(LOW_LEVEL + 1))
            same, other = max(room, ready[writing]), max(room, ready[not writing])
            turn = other <= clock.now and (same > clock.now or run == config.run_length - 1)
            if same > clock.now:
                turn = turn and low <= clock.now
            if not turn and same > clock.now:
                wake = min(same, max(other, low), controller.stopped + 1)
                yield self._ready if wake >= NEVER else (self._ready, wake)
                continue
            if turn:
                writing, run = not writing, 0
            else:
                run = min(run + 1, config.run_length - 1)
            _, burst = self._waiting[writing].popleft()
            self._queued.append(burst)
            controller.admit(writing, burst.stripe.line, burst.stripe.lines, clock.now)
            self._serve()
            self._asked.open()
            self._turned.open()
            yield clock.now + 1

    def _level_below(self, level: int) -> int:
        """From when on the controller's queue has fewer bursts."""
        ends, waiting = self._controller.ends, len(self._queued)
        index = len(ends) + waiting - level
        if index < 0:
            return 0
        return ends[index] + 1 if index < len(ends) else NEVER

    def _serve(self) -> None:
        """Takes what the controller has decided about the oldest bursts."""
        times = self._times
        for columns in self._controller.served:
            burst = self._queued.popleft()
            if burst.write:
                last, lines = columns[-1]
                burst.stored = last + lines - 1 + COLUMN_TO_ANSWERED
                for start, lines in columns:
                    self._free(start + times.write_latency + COLUMN_TO_SPACE, lines)
            else:
                latency = times.read_latency + COLUMN_TO_BEAT + BEAT_TO_LINE
                burst.lines = [Piece(start + latency, lines) for start, lines in columns]
            burst.served.open()
        self._controller.served.clear()

    def _free(self, cycle: int, lines: int) -> None:
        def free() -> None:
            self._space += lines
            self._turned.open()

        self._clock.call(cycle, free)
