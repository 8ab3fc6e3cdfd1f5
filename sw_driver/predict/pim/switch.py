"""Switch: requests from the banks to the vaults, and answers back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from golden.pim.stack import STRIPE_BYTES, StackMap
from hw.pim.config import PimConfig

from ..events import Alarm, CycleClock
from .vault import SWITCH_QUEUE, Vault

__all__ = ["Beat", "Gate", "Source", "Switch"]

ANSWER_TO_HEAD = 1
"""From a vault's answer until the switch may grant it."""
HEAD_TO_SOURCE = 2
"""From the grant of an answer until it arrives at its source."""


class Beat(NamedTuple):
    """Request of a source for a beat."""

    gate: Gate
    place: int
    """Number of its 512 bytes in the gate's vault."""
    half: int
    """Layer of the two that hold these 512 bytes: 0 or 1."""
    write: bool
    follows: bool
    """True if the beat continues the run of the source's last request."""
    answered: Callable[[int], None]
    """Callback that gets the cycle of the answer."""


class _Numbered(Protocol):
    number: int


_Peer = TypeVar("_Peer", bound=_Numbered)


def _in_turn(waiting: Mapping[_Peer, int], last: int, now: int) -> _Peer | None:
    """Return the waiting peer with the next number after ``last``, or None.

    ``waiting`` gives the cycle from which each peer waits; those after ``now`` are passed over.
    """
    best, chosen = 1 << 30, None
    for peer, cycle in waiting.items():
        if cycle <= now:
            turn = peer.number - last
            if turn <= 0:
                turn += 1 << 16
            if turn < best:
                best, chosen = turn, peer
    return chosen


class Source:
    """Bank as the switch sees it; vaults that answer it take turns."""

    def __init__(self, clock: CycleClock, number: int, granted: Callable[[int], None]) -> None:
        self.number = number
        self.granted = granted
        """Callback that gets the cycle in which the offered beat is granted."""
        self.beat: Beat
        """Beat that is offered."""
        self._clock = clock
        self._alarm = Alarm(clock, self._answer)
        self._answering: dict[Gate, int] = {}
        """Vaults with their first answer for this source, and the cycles of these answers."""
        self._last = -1
        """Number of the last answer's vault."""
        self._free = 0
        """Cycle from which another answer may be granted."""

    def expect(self, gate: Gate, cycle: int) -> None:
        """Wait for a vault's first answer, which is for this source from ``cycle`` on."""
        self._answering[gate] = cycle
        self._alarm.set(max(cycle, self._free))

    def _answer(self) -> None:
        now = self._clock.now
        gate = _in_turn(self._answering, self._last, now)
        assert gate is not None
        del self._answering[gate]
        self._last, self._free = gate.number, now + 1
        beat = gate.answer(now)
        if self._answering:
            self._alarm.set(max(min(self._answering.values()), self._free))
        beat.answered(now + HEAD_TO_SOURCE)


class Gate:
    """Vault as the switch sees it; sources take turns, and a run of beats goes in one turn."""

    def __init__(self, clock: CycleClock, number: int) -> None:
        self.number = number
        self._clock = clock
        self._alarm = Alarm(clock, self._grant)
        self._vault = Vault()
        self._waiting: dict[Source, int] = {}
        """Sources that offer a beat, and the cycles from which they do."""
        self._last: Source | None = None
        self._free = 0
        """Cycle after the last grant."""
        self._granted: deque[tuple[int, Source, Beat]] = deque()
        """Grants that the vault has not served: their cycles, sources and beats."""
        self._answers: deque[tuple[int, Source, Beat]] = deque()
        self._answer_free = 0
        """Cycle after the last answer's grant."""

    def offer(self, source: Source, cycle: int, beat: Beat) -> None:
        """Offer ``beat`` of ``source`` from ``cycle`` on, which is still to come."""
        source.beat = beat
        self._waiting[source] = cycle
        self._look(cycle)

    def _look(self, cycle: int) -> None:
        """Schedule a grant in ``cycle``, or in the first possible cycle after it."""
        queued = len(self._granted)
        if queued < SWITCH_QUEUE:  # Otherwise an answer calls this again.
            self._alarm.set(max(cycle, self._free, self._vault.free(queued), self._clock.now))

    def _grant(self) -> None:
        now, waiting, source = self._clock.now, self._waiting, self._last
        if source is None or waiting.get(source, now + 1) > now or not source.beat.follows:
            source = _in_turn(waiting, -1 if source is None else source.number, now)
        if source is not None:
            del waiting[source]
            self._last, self._free = source, now + 1
            self._granted.append((now, source, source.beat))
            self._serve()
            source.granted(now)
        if waiting:
            self._look(min(waiting.values()))

    def _serve(self) -> None:
        """Let the vault take its granted beats, while it is known in which cycle."""
        while self._granted and not self._vault.full:
            cycle, source, beat = self._granted.popleft()
            answer = self._vault.serve(cycle, beat.place, beat.half, beat.write)
            self._answers.append((answer, source, beat))
            if len(self._answers) == 1:
                self._expect()

    def _expect(self) -> None:
        """Announce the first answer to its source, where it waits for its turn."""
        answer, source, _ = self._answers[0]
        source.expect(self, max(answer + ANSWER_TO_HEAD, self._answer_free))

    def answer(self, now: int) -> Beat:
        """Grant the first answer; return the beat that it answers."""
        self._answer_free = now + 1
        _, _, beat = self._answers.popleft()
        if self._answers:
            self._expect()
        self._vault.left(now)
        if self._granted:
            self._serve()
            if self._waiting:
                self._look(min(self._waiting.values()))
        return beat


class Switch:
    """Switch of a stack: its vaults, by numbers of 512 bytes."""

    def __init__(self, clock: CycleClock, config: PimConfig) -> None:
        self._stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
        self._gates = [Gate(clock, number) for number in range(config.banks)]

    def locate(self, stretch: int) -> tuple[Gate, int]:
        """Return the vault of the stack's 512 bytes ``stretch``, and their number in the vault."""
        vault, byte = self._stack.decode(stretch * STRIPE_BYTES)
        return self._gates[vault], byte // STRIPE_BYTES
