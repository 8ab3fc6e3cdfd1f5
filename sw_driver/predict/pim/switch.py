"""The switch: requests from the banks to the vaults, and answers back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from golden.pim.stack import STRIPE_BYTES, StackMap
from hw.pim.config import PimConfig

from ..events import Alarm, Clock
from .vault import SWITCH_QUEUE, Vault

__all__ = ["Beat", "Gate", "Source", "Switch"]

ANSWER_TO_HEAD = 1
"""From a vault's answer until the switch may grant it."""
HEAD_TO_SOURCE = 2
"""From the grant of an answer until it is at its source."""


class Beat(NamedTuple):
    """A request of a source."""

    gate: Gate
    place: int
    """The 512 bytes of the gate's vault that it is in."""
    half: int
    """Which of their two layers."""
    write: bool
    follows: bool
    """It goes on with what the source asked for last."""
    answered: Callable[[int], None]
    """Is told when the answer is there."""


class _Numbered(Protocol):
    number: int


_Each = TypeVar("_Each", bound=_Numbered)


def _in_turn(waiting: Mapping[_Each, int], last: int, now: int) -> _Each | None:
    """Whose turn it is, by numbers after ``last``, of those that wait from a cycle on that has
    come."""
    best, found = 1 << 30, None
    for each, cycle in waiting.items():
        if cycle <= now:
            turn = each.number - last
            if turn <= 0:
                turn += 1 << 16
            if turn < best:
                best, found = turn, each
    return found


class Source:
    """A bank as the switch sees it: vaults that answer it have their turns."""

    def __init__(self, clock: Clock, number: int, granted: Callable[[int], None]) -> None:
        self.number = number
        self.granted = granted
        """Is told that the beat that was offered is granted."""
        self.beat: Beat
        """That is offered."""
        self._clock = clock
        self._alarm = Alarm(clock, self._answer)
        self._answering: dict[Gate, int] = {}
        """The vaults whose first answer is for this source, and from when on it is there."""
        self._last = -1
        """The vault of the last answer."""
        self._free = 0
        """After that."""

    def expect(self, gate: Gate, cycle: int) -> None:
        """The first answer of a vault is for this source, from ``cycle`` on."""
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
    """A vault as the switch sees it: sources that ask for it have their turns, but runs go in
    one."""

    def __init__(self, clock: Clock, number: int) -> None:
        self.number = number
        self._clock = clock
        self._alarm = Alarm(clock, self._grant)
        self._vault = Vault()
        self._waiting: dict[Source, int] = {}
        """Who asks, and from when on."""
        self._last: Source | None = None
        self._free = 0
        """After the last grant."""
        self._granted: deque[tuple[int, Source, Beat]] = deque()
        """Beats that the vault has not been seen to take, and when they were granted."""
        self._answers: deque[tuple[int, Source, Beat]] = deque()
        self._answer_free = 0
        """After the last answer's grant."""

    def offer(self, source: Source, cycle: int, beat: Beat) -> None:
        """``source`` asks for ``beat`` from ``cycle``, which is to come, on."""
        source.beat = beat
        self._waiting[source] = cycle
        self._look(cycle)

    def _look(self, cycle: int) -> None:
        """Looks for a grant in ``cycle`` or when one is possible after it."""
        queued = len(self._granted)
        if queued < SWITCH_QUEUE:  # else an answer will see to it
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
        """The vault takes what it was granted, as far as it is known when."""
        while self._granted and not self._vault.full:
            cycle, source, beat = self._granted.popleft()
            answer = self._vault.serve(cycle, beat.place, beat.half, beat.write)
            self._answers.append((answer, source, beat))
            if len(self._answers) == 1:
                self._expect()

    def _expect(self) -> None:
        """The first answer goes to its source, where it waits for its turn."""
        answer, source, _ = self._answers[0]
        source.expect(self, max(answer + ANSWER_TO_HEAD, self._answer_free))

    def answer(self, now: int) -> Beat:
        """The first answer is granted; returns what it answers."""
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
    """The vaults of a stack, by the numbers of their 512 bytes."""

    def __init__(self, clock: Clock, config: PimConfig) -> None:
        self._stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
        self._gates = [Gate(clock, number) for number in range(config.banks)]

    def locate(self, stretch: int) -> tuple[Gate, int]:
        """The vault of the 512 bytes number ``stretch`` of the stack, and which of its they are."""
        vault, byte = self._stack.decode(stretch * STRIPE_BYTES)
        return self._gates[vault], byte // STRIPE_BYTES
