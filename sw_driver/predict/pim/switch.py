"""The switch: requests from the banks to the vaults, and answers back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from golden.pim.stack import STRIPE_BYTES, StackMap
from hw.pim.config import PimConfig

from ..events import Clock
from .vault import SWITCH_QUEUE, Vault

__all__ = ["Beat", "Source", "Switch"]

ANSWER_TO_HEAD = 1
"""From a vault's answer until the switch may grant it."""
HEAD_TO_SOURCE = 2
"""From the grant of an answer until it is at its source."""


class Beat(NamedTuple):
    """A request of a source."""

    vault: int
    place: int
    """The 512 bytes of the vault that it is in."""
    half: int
    """Which of their two layers."""
    write: bool
    follows: bool
    """It goes on with what the source asked for last."""
    answered: Callable[[int], None]
    """Is told when the answer is there."""


class Source:
    """A bank as the switch sees it."""

    def __init__(self, number: int, granted: Callable[[int], None]) -> None:
        self.number = number
        self.granted = granted
        """Is told that the beat that was offered is granted."""
        self.answering: dict[_Gate, int] = {}
        """The vaults whose first answer is for this source, and from when on it is there."""
        self.last_answer = -1
        """The vault of the last answer."""
        self.answer_free = 0
        """After that."""
        self.scheduled = -1
        """When the next answer is looked for, or -1."""


class _Gate:
    """A vault as the switch sees it."""

    def __init__(self, number: int, vault: Vault) -> None:
        self.number = number
        self.vault = vault
        self.waiting: dict[Source, tuple[int, Beat]] = {}
        """What each source asks for, and from when on."""
        self.last: Source | None = None
        self.free = 0
        """After the last grant."""
        self.scheduled = -1
        """When the next grant is looked for, or -1."""
        self.granted: deque[tuple[int, Source, Beat]] = deque()
        """Beats that the vault has not been seen to take, and when they were granted."""
        self.answers: deque[tuple[int, Source, Beat]] = deque()
        self.answer_free = 0
        """After the last answer's grant."""


class Switch:
    """Grants each vault to the sources that ask for it in turn, but runs in one go; and each source
    to the vaults that answer it in turn."""

    def __init__(self, clock: Clock, config: PimConfig) -> None:
        self._clock = clock
        self._stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
        self._gates = [_Gate(number, Vault()) for number in range(config.banks)]

    def locate(self, stretch: int) -> tuple[int, int]:
        """The vault of the 512 bytes number ``stretch`` of the stack, and which of its they are."""
        vault, byte = self._stack.decode(stretch * STRIPE_BYTES)
        return vault, byte // STRIPE_BYTES

    def offer(self, source: Source, cycle: int, beat: Beat) -> None:
        """``source`` asks for ``beat`` from ``cycle``, which is to come, on."""
        gate = self._gates[beat.vault]
        gate.waiting[source] = cycle, beat
        self._schedule(gate, cycle)

    def _schedule(self, gate: _Gate, cycle: int) -> None:
        """Looks for a grant in ``cycle`` or when one is possible after it."""
        queued = len(gate.granted)
        if queued == SWITCH_QUEUE:
            return  # An answer will see to it.
        cycle = max(cycle, gate.free, gate.vault.free(queued), self._clock.now)
        if gate.scheduled < 0 or cycle < gate.scheduled:
            gate.scheduled = cycle
            self._clock.at(cycle, self._grant, gate)

    def _grant(self, gate: _Gate) -> None:
        now = self._clock.now
        if gate.scheduled != now:
            return  # One was looked for earlier.
        gate.scheduled = -1
        waiting = gate.waiting
        source = gate.last
        found = waiting.get(source) if source is not None else None
        if found is None or found[0] > now or not found[1].follows:
            begin = -1 if source is None else source.number
            best, later = 1 << 30, 1 << 60
            for each, (cycle, _) in waiting.items():
                if cycle <= now:
                    turn = each.number - begin
                    if turn <= 0:
                        turn += 1 << 16
                    if turn < best:
                        best, source = turn, each
                elif cycle < later:
                    later = cycle
            if best == 1 << 30:
                if waiting:
                    self._schedule(gate, later)
                return
        assert source is not None
        _, beat = waiting.pop(source)
        gate.last, gate.free = source, now + 1
        gate.granted.append((now, source, beat))
        self._serve(gate)
        source.granted(now)
        if waiting:
            self._schedule(gate, min(cycle for cycle, _ in waiting.values()))

    def _serve(self, gate: _Gate) -> None:
        """The vault takes what it was granted, as far as it is known when."""
        granted, vault = gate.granted, gate.vault
        while granted and not vault.full:
            cycle, source, beat = granted.popleft()
            answer = vault.serve(cycle, beat.place, beat.half, beat.write)
            gate.answers.append((answer, source, beat))
            if len(gate.answers) == 1:
                self._expect(gate)

    def _expect(self, gate: _Gate) -> None:
        """The first answer of a vault goes to its source, where it waits for its turn."""
        answer, source, _ = gate.answers[0]
        head = max(answer + ANSWER_TO_HEAD, gate.answer_free)
        source.answering[gate] = head
        self._schedule_answer(source, head)

    def _schedule_answer(self, source: Source, cycle: int) -> None:
        cycle = max(cycle, source.answer_free)
        if source.scheduled < 0 or cycle < source.scheduled:
            source.scheduled = cycle
            self._clock.at(cycle, self._answer, source)

    def _answer(self, source: Source) -> None:
        now = self._clock.now
        if source.scheduled != now:
            return  # One was looked for earlier.
        source.scheduled = -1
        answering = source.answering
        gate = None
        best = 1 << 30
        for each, head in answering.items():
            if head <= now:
                turn = each.number - source.last_answer
                if turn <= 0:
                    turn += 1 << 16
                if turn < best:
                    best, gate = turn, each
        assert gate is not None
        del answering[gate]
        source.last_answer = gate.number
        source.answer_free = gate.answer_free = now + 1
        _, _, beat = gate.answers.popleft()
        if gate.answers:
            self._expect(gate)
        gate.vault.left(now)
        if gate.granted:
            self._serve(gate)
            if gate.waiting:
                self._schedule(gate, min(cycle for cycle, _ in gate.waiting.values()))
        if answering:
            self._schedule_answer(source, min(answering.values()))
        beat.answered(now + HEAD_TO_SOURCE)
