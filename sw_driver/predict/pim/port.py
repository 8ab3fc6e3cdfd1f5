"""A bank's way to memory: its reads and writes, beat by beat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..events import Alarm, Clock
from .switch import Beat, Gate, Source, Switch
from .walks import MOST_RUN, Pattern, Walk, pattern_of

__all__ = ["Lane", "Port"]

UNANSWERED = 32
"""Reads that are not yet answered, and writes, at most."""
_QUEUED = 3
"""Requests on the way from the walkers to the switch's choice."""
_FORESIGHT = 2
"""Cycles for which it is known that no answer comes that is not on its way, and no new walk."""
_UNKNOWN = 1 << 60

# Pipeline latencies, in cycles.
SEGMENT_TO_OFFER = 2
"""From a segment until the switch may grant its request."""
WALK_TO_SEGMENT = 3
"""From the cycle in which a walk is taken to its first segment."""
RESULT_CYCLES = 2
"""From a segment of results until they have been read."""


@dataclass(eq=False)
class Transfer:
    """A walk's beats."""

    pattern: Pattern
    stretch: int
    segment: int
    """When the next segment may come."""
    begins: Callable[[int], None]
    done: Callable[[int], None]
    place: int = 0
    """The run of the next beat."""
    beat: int = 0
    """Its number there."""
    located: tuple[Gate, int] = field(init=False)
    """The vault of that run, and which of its 512 bytes."""
    passed: int = 0
    """Segments that have come."""
    unanswered: int = 0
    last_answer: int = 0
    over: bool = False
    """All segments have come."""
    begun: bool = False
    """The walker may take the next walk."""

    def __post_init__(self) -> None:
        self.zeros = self.pattern.gaps[0]
        """Segments of zeros before the next beat."""

    def begin_next(self, cycle: int) -> None:
        """The walker may take the next walk in ``cycle``."""
        self.begun = True
        self.begins(cycle)


class Lane:
    """Reads or writes: their walks, one after the other."""

    def __init__(self, write: bool) -> None:
        self.write = write
        self.lead = RESULT_CYCLES if write else 0
        """Segments that the walker is ahead."""
        self.transfers: deque[Transfer] = deque()
        self.headed = False
        """The first walk is under way."""
        self.free = 0
        """When the next segment may come."""
        self.room = deque([0] * UNANSWERED)
        """From when on there may be one request more, for each that may."""
        self.beats = 0
        """That were asked for, or are about to be written."""


class Port:
    """Writes go before reads; each stays in order. ``written``: is called whenever all writes that
    were asked for are answered."""

    def __init__(
        self, clock: Clock, switch: Switch, number: int, written: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._switch = switch
        self._source = Source(clock, number, self._granted)
        self.writes, self.reads = Lane(True), Lane(False)
        self._ahead: deque[tuple[int, Beat]] = deque()
        """Requests that are not granted, and when their segments came."""
        self._entered = 0
        """When the last request was in the switch's queue."""
        self._grants = deque([-1, -1, -1], maxlen=3)
        self._alarm = Alarm(clock, self._look)
        self._asked: tuple[int, bool] = (-1, False)
        """The stretch that was asked for last, and whether to write."""
        self._run = 0
        """Beats of it."""
        self._arrivals: list[int] = []
        """When reads were answered; not all of those that are long ago."""
        self.last_write = 0
        """When the last write was answered."""
        self._written = written

    def reset(self) -> None:
        """Counts from 0."""
        self.last_write = 0
        self.writes.beats = self.reads.beats = 0

    @property
    def writes_answered(self) -> bool:
        """All that were asked for."""
        return len(self.writes.room) == UNANSWERED

    def append(
        self,
        lane: Lane,
        walk: Walk,
        address: int,
        taken: int,
        *,
        begins: Callable[[int], None],
        done: Callable[[int], None],
    ) -> None:
        """Appends a walk to ``reads`` or ``writes``, whose walker took it in cycle ``taken``.

        ``begins`` is told when the walker may take the next walk, ``done`` when the last beat has
        been answered (a read), or asked for (a write).
        """
        pattern, stretch = pattern_of(walk, address)
        first_segment = taken + WALK_TO_SEGMENT + lane.lead
        lane.transfers.append(Transfer(pattern, stretch, first_segment, begins, done))
        if len(lane.transfers) == 2 and lane.headed:
            head = lane.transfers[0]
            # Zeros are counted as passed at their end: the next of those that are left came then.
            self._begin_short(lane, head.segment if head.zeros else self._clock.now + lane.lead)
        self._alarm.set(self._clock.now)  # The caller may be in the middle of a look.

    # The walkers.

    def _next_segment(self, lane: Lane, now: int) -> int:
        """When the next segment that asks for a beat may come; ``_UNKNOWN`` if that depends on what
        is to come. Passes segments of zeros."""
        while lane.transfers:
            transfer = lane.transfers[0]
            if not lane.headed:
                lane.headed = True
                transfer.segment = max(transfer.segment, lane.free)
                self._passed(lane, transfer, transfer.segment)
            if transfer.zeros:
                end = self._after_zeros(transfer.segment, transfer.zeros)
                if end > now + _FORESIGHT:
                    self._alarm.set(end - _FORESIGHT)
                    return _UNKNOWN
                transfer.passed += transfer.zeros
                transfer.segment, transfer.zeros = end, 0
            if transfer.place == len(transfer.pattern.runs):
                self._finish(lane, transfer)
                continue
            return max(transfer.segment, lane.room[0]) if lane.room else _UNKNOWN
        return _UNKNOWN

    def _after_zeros(self, cycle: int, zeros: int) -> int:
        """When as many segments of zeros are written, from ``cycle`` on; answers go before."""
        arrivals = self._arrivals
        end = cycle + zeros
        for arrival in arrivals:
            if arrival >= end:
                break
            if arrival >= cycle:
                end += 1
        return end

    def _passed(self, lane: Lane, transfer: Transfer, segment: int) -> None:
        """The next segment comes in cycle ``segment``: tells when the walker is free."""
        if not transfer.begun:
            ahead = transfer.pattern.rest - transfer.passed - lane.lead
            if ahead <= transfer.zeros:
                transfer.begin_next(segment + ahead)
        if len(lane.transfers) > 1:
            self._begin_short(lane, segment)

    def _begin_short(self, lane: Lane, cycle: int) -> None:
        """The last part of the first walk is under way: the next walk's row, if it has only one,
        follows in the walker, and then another walk may."""
        head, following = lane.transfers[0], lane.transfers[1]
        if following.begun or following.pattern.rows != 1:
            return
        ahead = head.pattern.last_part - head.passed - lane.lead
        if ahead <= head.zeros:
            following.begin_next(max(cycle + ahead, following.segment - lane.lead))

    def _finish(self, lane: Lane, transfer: Transfer) -> None:
        """The last segment came."""
        if not transfer.begun:
            transfer.begin_next(transfer.segment)
        lane.transfers.popleft()
        lane.headed = False
        lane.free = transfer.segment
        transfer.over = True
        if lane.write:
            transfer.done(transfer.segment - 1)
        elif not transfer.unanswered:
            transfer.done(max(transfer.last_answer, transfer.segment - 1))

    # Requests.

    def _look(self) -> None:
        """Takes segments as far as there is room ahead of the switch and time has come."""
        now = self._clock.now
        while len(self._ahead) < _QUEUED:
            write_at = self._next_segment(self.writes, now)
            read_at = self._next_segment(self.reads, now)
            entered = self._entered
            lane = self.writes if write_at <= max(read_at, entered) else self.reads
            segment = max(min(write_at, read_at), entered)
            if segment >= _UNKNOWN:
                return
            if segment > now + _FORESIGHT:
                self._alarm.set(segment - _FORESIGHT)
                return
            self._take(lane, segment)

    def _take(self, lane: Lane, segment: int) -> None:
        """Asks for the next beat of the first walk."""
        transfer = lane.transfers[0]
        lane.room.popleft()
        lane.beats += 1
        run = transfer.pattern.runs[transfer.place]
        stretch = transfer.stretch + run.stretch
        follows = self._asked == (stretch, lane.write) and self._run + 1 < MOST_RUN
        self._asked, self._run = (stretch, lane.write), self._run + 1 if follows else 0
        if not transfer.beat:
            transfer.located = self._switch.locate(stretch)
        gate, place = transfer.located

        def answered(cycle: int) -> None:
            self._answered(lane, transfer, cycle)

        beat = Beat(gate, place, run.layers[transfer.beat], lane.write, follows, answered)
        transfer.unanswered += 1
        transfer.beat += 1
        transfer.passed += 1
        transfer.segment = segment + 1
        if transfer.beat == len(run.layers):
            transfer.place += 1
            transfer.beat = 0
            transfer.zeros = transfer.pattern.gaps[transfer.place]
        self._passed(lane, transfer, segment + 1)
        if transfer.place == len(transfer.pattern.runs) and not transfer.zeros:
            self._finish(lane, transfer)
        ahead = self._ahead
        if not ahead:
            gate.offer(self._source, max(segment + SEGMENT_TO_OFFER, self._grants[2] + 1), beat)
        ahead.append((segment, beat))
        # The switch's queue holds two requests; after the grants so far.
        if len(ahead) < _QUEUED:
            self._entered = max(segment + 1, self._grants[len(ahead)] + 1)

    def _granted(self, now: int) -> None:
        ahead = self._ahead
        ahead.popleft()
        self._grants.append(now)
        if ahead:
            segment, beat = ahead[0]
            beat.gate.offer(self._source, max(segment + SEGMENT_TO_OFFER, now + 1), beat)
            if len(ahead) == _QUEUED - 1:
                self._entered = max(ahead[-1][0] + 1, now + 1)
        self._look()

    def _answered(self, lane: Lane, transfer: Transfer, cycle: int) -> None:
        """A beat arrives in ``cycle``."""
        blocked = not lane.room
        lane.room.append(cycle + 1)
        transfer.unanswered -= 1
        if cycle > transfer.last_answer:
            transfer.last_answer = cycle
        if lane.write:
            self.last_write = cycle
            if self.writes_answered:
                self._written()
        else:
            arrivals = self._arrivals
            if len(arrivals) > 1000:
                del arrivals[:800]
            arrivals.append(cycle)
            if transfer.over and not transfer.unanswered:
                transfer.done(transfer.last_answer)
        if blocked and lane.transfers:
            self._alarm.set(cycle + 1 - _FORESIGHT)
