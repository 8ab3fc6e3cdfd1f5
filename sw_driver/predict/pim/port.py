"""Port of a bank to memory: its reads and writes, beat by beat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..events import Alarm, CycleClock
from .switch import Beat, Gate, Source, Switch
from .walks import MOST_RUN, Pattern, Walk, pattern_of

__all__ = ["Port", "WalkQueue"]

UNANSWERED = 32
"""Reads in flight, and writes in flight, at most."""
_QUEUED = 3
"""Requests between the walkers and the switch's choice, at most."""
_FORESIGHT = 2
"""Cycles for which all answers and walks that may come are already known."""
_UNKNOWN = 1 << 60

# Pipeline latencies, in cycles.
SEGMENT_TO_OFFER = 2
"""From a segment until the switch may grant its request."""
WALK_TO_SEGMENT = 3
"""From the cycle in which a walk is taken to its first segment."""
RESULT_CYCLES = 2
"""From a segment of results until the lanes' results have been read."""


@dataclass(eq=False)
class WalkTransfer:
    """Beats of a walk."""

    pattern: Pattern
    stretch: int
    segment: int
    """Cycle in which the next segment may come."""
    begins: Callable[[int], None]
    done: Callable[[int], None]
    place: int = 0
    """Number of the next beat's run."""
    beat: int = 0
    """Number of the next beat in that run."""
    located: tuple[Gate, int] = field(init=False)
    """Vault of that run, and the number of the 512 bytes there."""
    passed: int = 0
    """Segments so far."""
    unanswered: int = 0
    last_answer: int = 0
    over: bool = False
    """True once all segments have come."""
    begun: bool = False
    """True once the walker may take the next walk."""

    def __post_init__(self) -> None:
        self.zeros = self.pattern.gaps[0]
        """Segments of zeros before the next beat."""

    def begin_next(self, cycle: int) -> None:
        """Let the walker take the next walk in ``cycle``."""
        self.begun = True
        self.begins(cycle)


class WalkQueue:
    """Queue of walks that read, or of walks that write."""

    def __init__(self, write: bool) -> None:
        self.write = write
        self.lead = RESULT_CYCLES if write else 0
        """Segments by which the walker is ahead."""
        self.transfers: deque[WalkTransfer] = deque()
        self.headed = False
        """True while the first walk is in progress."""
        self.free = 0
        """Cycle in which the next segment may come."""
        self.room = deque([0] * UNANSWERED)
        """Cycles from which there is room for another request, one for each free place."""
        self.beats = 0
        """Beats requested, or about to be written."""


class Port:
    """Port that sends a bank's beats to the switch, writes before reads.

    Reads stay in order, and so do writes. The port calls ``written`` whenever no write is in
    flight.
    """

    def __init__(
        self, clock: CycleClock, switch: Switch, number: int, written: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._switch = switch
        self._source = Source(clock, number, self._granted)
        self.writes, self.reads = WalkQueue(True), WalkQueue(False)
        self._ahead: deque[tuple[int, Beat]] = deque()
        """Requests that are not granted, with the cycles of their segments."""
        self._entered = 0
        """Cycle in which the last request enters the switch's queue."""
        self._grants = deque([-1, -1, -1], maxlen=3)
        self._alarm = Alarm(clock, self._look)
        self._requested: tuple[int, bool] = (-1, False)
        """Stretch of the last request, and True for a write."""
        self._run = 0
        """Beats of the current run before the last one requested."""
        self._arrivals: list[int] = []
        """Cycles in which reads were answered; old ones are dropped."""
        self.last_write = 0
        """Cycle in which the last write was answered."""
        self._written = written

    def reset(self) -> None:
        """Set the counts of beats, and the cycle of the last write, to 0."""
        self.last_write = 0
        self.writes.beats = self.reads.beats = 0

    @property
    def writes_answered(self) -> bool:
        """True while no write is in flight."""
        return len(self.writes.room) == UNANSWERED

    def append(
        self,
        queue: WalkQueue,
        walk: Walk,
        address: int,
        taken: int,
        *,
        begins: Callable[[int], None],
        done: Callable[[int], None],
    ) -> None:
        """Append a walk to ``reads`` or ``writes``; its walker took it in cycle ``taken``.

        ``begins`` gets the cycle in which the walker may take the next walk. ``done`` gets the
        cycle in which the last beat is answered (a read) or requested (a write).
        """
        pattern, stretch = pattern_of(walk, address)
        first_segment = taken + WALK_TO_SEGMENT + queue.lead
        queue.transfers.append(WalkTransfer(pattern, stretch, first_segment, begins, done))
        if len(queue.transfers) == 2 and queue.headed:
            head = queue.transfers[0]
            # Zeros count as passed at their end; until then ``segment`` is the first one's.
            self._begin_short(queue, head.segment if head.zeros else self._clock.now + queue.lead)
        self._alarm.set(self._clock.now)  # The caller may be inside _look.

    # The walkers.

    def _next_segment(self, queue: WalkQueue, now: int) -> int:
        """Pass segments of zeros; return the cycle in which the next beat may be requested.

        Return ``_UNKNOWN`` if that depends on later events.
        """
        while queue.transfers:
            transfer = queue.transfers[0]
            if not queue.headed:
                queue.headed = True
                transfer.segment = max(transfer.segment, queue.free)
                self._passed(queue, transfer, transfer.segment)
            if transfer.zeros:
                end = self._after_zeros(transfer.segment, transfer.zeros)
                if end > now + _FORESIGHT:
                    self._alarm.set(end - _FORESIGHT)
                    return _UNKNOWN
                transfer.passed += transfer.zeros
                transfer.segment, transfer.zeros = end, 0
            if transfer.place == len(transfer.pattern.runs):
                self._finish(queue, transfer)
                continue
            return max(transfer.segment, queue.room[0]) if queue.room else _UNKNOWN
        return _UNKNOWN

    def _after_zeros(self, cycle: int, zeros: int) -> int:
        """Return the cycle after segments of zeros that begin in ``cycle``; answers go first."""
        arrivals = self._arrivals
        end = cycle + zeros
        for arrival in arrivals:
            if arrival >= end:
                break
            if arrival >= cycle:
                end += 1
        return end

    def _passed(self, queue: WalkQueue, transfer: WalkTransfer, segment: int) -> None:
        """Let the walker take another walk if it can; the next segment comes in ``segment``."""
        if not transfer.begun:
            ahead = transfer.pattern.rest - transfer.passed - queue.lead
            if ahead <= transfer.zeros:
                transfer.begin_next(segment + ahead)
        if len(queue.transfers) > 1:
            self._begin_short(queue, segment)

    def _begin_short(self, queue: WalkQueue, cycle: int) -> None:
        """Let the walker take a third walk while the first one's last part is in progress.

        This needs a second walk of only one row, which follows in the walker.
        """
        head, following = queue.transfers[0], queue.transfers[1]
        if following.begun or following.pattern.rows != 1:
            return
        ahead = head.pattern.last_part - head.passed - queue.lead
        if ahead <= head.zeros:
            following.begin_next(max(cycle + ahead, following.segment - queue.lead))

    def _finish(self, queue: WalkQueue, transfer: WalkTransfer) -> None:
        """Remove a walk after its last segment."""
        if not transfer.begun:
            transfer.begin_next(transfer.segment)
        queue.transfers.popleft()
        queue.headed = False
        queue.free = transfer.segment
        transfer.over = True
        if queue.write:
            transfer.done(transfer.segment - 1)
        elif not transfer.unanswered:
            transfer.done(max(transfer.last_answer, transfer.segment - 1))

    # Requests.

    def _look(self) -> None:
        """Request beats that are due, while there is room ahead of the switch."""
        now = self._clock.now
        while len(self._ahead) < _QUEUED:
            write_at = self._next_segment(self.writes, now)
            read_at = self._next_segment(self.reads, now)
            entered = self._entered
            queue = self.writes if write_at <= max(read_at, entered) else self.reads
            segment = max(min(write_at, read_at), entered)
            if segment >= _UNKNOWN:
                return
            if segment > now + _FORESIGHT:
                self._alarm.set(segment - _FORESIGHT)
                return
            self._take(queue, segment)

    def _take(self, queue: WalkQueue, segment: int) -> None:
        """Request the next beat of the first walk in cycle ``segment``."""
        transfer = queue.transfers[0]
        queue.room.popleft()
        queue.beats += 1
        run = transfer.pattern.runs[transfer.place]
        stretch = transfer.stretch + run.stretch
        follows = self._requested == (stretch, queue.write) and self._run + 1 < MOST_RUN
        self._requested, self._run = (stretch, queue.write), self._run + 1 if follows else 0
        if not transfer.beat:
            transfer.located = self._switch.locate(stretch)
        gate, place = transfer.located

        def answered(cycle: int) -> None:
            self._answered(queue, transfer, cycle)

        beat = Beat(gate, place, run.layers[transfer.beat], queue.write, follows, answered)
        transfer.unanswered += 1
        transfer.beat += 1
        transfer.passed += 1
        transfer.segment = segment + 1
        if transfer.beat == len(run.layers):
            transfer.place += 1
            transfer.beat = 0
            transfer.zeros = transfer.pattern.gaps[transfer.place]
        self._passed(queue, transfer, segment + 1)
        if transfer.place == len(transfer.pattern.runs) and not transfer.zeros:
            self._finish(queue, transfer)
        ahead = self._ahead
        if not ahead:
            gate.offer(self._source, max(segment + SEGMENT_TO_OFFER, self._grants[2] + 1), beat)
        ahead.append((segment, beat))
        # The switch's queue holds two requests: it is entered after an earlier grant.
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

    def _answered(self, queue: WalkQueue, transfer: WalkTransfer, cycle: int) -> None:
        """Record the answer to a beat, which arrives in ``cycle``."""
        blocked = not queue.room
        queue.room.append(cycle + 1)
        transfer.unanswered -= 1
        if cycle > transfer.last_answer:
            transfer.last_answer = cycle
        if queue.write:
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
        if blocked and queue.transfers:
            self._alarm.set(cycle + 1 - _FORESIGHT)
