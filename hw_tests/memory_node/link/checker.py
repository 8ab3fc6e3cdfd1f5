"""The rules of a link, checked at one of its ports (docs/memory-node-spec.md, "Link layer")."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .flit import Flit
from .phits import Phit, PhitReader

__all__ = ["CHANNELS", "LinkRules", "PortChecker", "RuleBroken"]

CHANNELS = 4


class RuleBroken(AssertionError):
    """What a port did that it must not, or did not do that it must."""


@dataclass(frozen=True, kw_only=True)
class LinkRules:
    """What both ports of a link agree on."""

    phit_bytes: int
    buffer_flits: int
    replay_flits: int
    retry_cycles: int
    keepalive_cycles: int

    @property
    def phits(self) -> int:
        """Phits of a flit."""
        return 72 // self.phit_bytes


@dataclass(frozen=True)
class _Known:
    """What a port knows at most when it begins a flit. All counts are since reset."""

    cycle: int
    expected: int
    taken: tuple[int, ...]
    acknowledged: int
    passed_on: tuple[int, ...]
    heard: bool


class _Past:
    """A value that only grows, and what it was some cycles ago."""

    def __init__(self) -> None:
        self._steps = deque([(-1, 0)])

    @property
    def now(self) -> int:
        return self._steps[-1][1]

    def grow(self, cycle: int, value: int) -> None:
        if value != self.now:
            self._steps.append((cycle, value))

    def at(self, cycle: int) -> int:
        """The value as it was at ``cycle``; it must be asked for in the order of cycles."""
        while len(self._steps) > 1 and self._steps[1][0] <= cycle:
            self._steps.popleft()
        return self._steps[0][1]


class PortChecker:
    """Follows the two wires at a port and what is taken out of it, cycle by cycle.

    ``turn_cycles`` is the longest from a phit that comes in to the first phit that takes it into
    account, with a wire that is free; without it nothing is asked of how soon the port does what
    it must. Raises :class:`RuleBroken`.
    """

    def __init__(self, name: str, rules: LinkRules, *, turn_cycles: int | None) -> None:
        self.sent = 0
        """Filled flits that were sent, each counted once."""
        self.sent_again = 0
        self.discarded = 0
        self.flits_out = 0
        """All flits that were sent, the empty ones included."""
        self._name = name
        self._rules = rules
        self._turn = turn_cycles
        self._cycle = -1
        # What comes in.
        self._in = PhitReader()
        self._expected = _Past()
        self._received = [0] * CHANNELS
        self._taken = [_Past() for _ in range(CHANNELS)]
        self._gap_since: int | None = None
        """Cycle since which something that was sent is missing."""
        self._gap_ended = -1
        self._asked: int | None = None
        """Cycle in which it was last asked for what is missing."""
        self._owed: int | None = None
        """Cycle in which something came again that is to be acknowledged again."""
        # What goes out.
        self._out = PhitReader()
        self._known = _Known(0, 0, (0,) * CHANNELS, 0, (0,) * CHANNELS, False)
        self._began = -1
        self._record: dict[int, Flit] = {}
        self._next = 0
        """The number that the next filled flit has, if it does not go back."""
        self._sent_of = [0] * CHANNELS
        self._heard = False
        """Whether the other port has been heard of."""
        self._acknowledged = _Past()
        self._passed_on = [0] * CHANNELS
        self._asked_back: deque[tuple[int, int]] = deque(maxlen=64)
        """Cycles in which the other port asked to go back, and to where."""
        self._must_go_back: tuple[int, int] | None = None
        self._progress = _Past()
        """Cycle in which something was last acknowledged."""
        self._tried = 0
        """Cycle in which the oldest flit that is kept was sent."""
        self._told_acknowledge = 0
        self._told_credits = [0] * CHANNELS
        self._told_by = [0] * CHANNELS
        """The last flit that told of each channel."""
        self._without_news: deque[int] = deque(maxlen=8)
        """What the last flits told of since there was news."""

    @property
    def taken(self) -> int:
        """Filled flits that came in and had their turn."""
        return self._expected.now

    def step(self, *, sent: Phit | None, received: Phit | None, taken: Iterable[int] = ()) -> None:
        """One cycle: the phits on both wires, and the virtual channels of which the port's user
        took a flit."""
        self._cycle += 1
        if sent is not None:
            self._send(sent)
        else:
            self._check_gap()
        if received is not None:
            for flit in self._in.read(received):
                self._receive(flit)
        for channel in taken:
            self._taken[channel].grow(self._cycle, self._taken[channel].now + 1)
        if self._turn is not None:
            self._check_promptness(self._turn + 2 * self._rules.phits)

    def _check_gap(self) -> None:
        gap = self._cycle - max(self._began, 0)
        waking = self._turn if self._began < 0 else 0
        if self._turn is not None and gap > self._rules.keepalive_cycles + (waking or 0):
            self._broken("no flit", f"for {gap} cycles")

    def _broken(self, rule: str, why: str) -> None:
        raise RuleBroken(f"port {self._name}, cycle {self._cycle}: {rule}: {why}")

    def _receive(self, flit: Flit | None) -> None:
        cycle = self._cycle
        if flit is None:
            self.discarded += 1
            self._open_gap()
            return
        expected = self._expected.now
        distance = (flit.sequence - expected) % 256
        if flit.filled:
            room = self._received[flit.channel] - self._taken[flit.channel].now
            if distance == 0 and room < self._rules.buffer_flits:
                self._received[flit.channel] += 1
                self._expected.grow(cycle, expected + 1)
            else:
                self.discarded += 1
                if distance >= 128 and self._owed is None:
                    self._owed = cycle
        if distance == 0:
            if self._gap_since is not None:
                self._gap_ended = cycle
            self._gap_since = self._asked = None
        elif distance < 128:
            self._open_gap()
        self._hear(flit)

    def _open_gap(self) -> None:
        if self._gap_since is None:
            self._gap_since = self._cycle

    def _hear(self, flit: Flit) -> None:
        """What a right flit says of what the port sends."""
        self._heard = True
        oldest = self._acknowledged.now
        position = oldest + (flit.acknowledge - oldest) % 256
        channel = flit.credit_channel
        self._passed_on[channel] += (flit.credits - self._passed_on[channel]) % 256
        if position > self.sent:
            return
        if position > oldest:
            self._acknowledged.grow(self._cycle, position)
            self._progress.grow(self._cycle, self._cycle)
            for number in range(oldest, position):
                # Late enough that what is on its way can still be compared.
                self._record.pop(number - 256, None)
        if flit.retry:
            self._asked_back.append((self._cycle, position))
            if position < self.sent:
                self._must_go_back = (self._cycle, position)

    def _send(self, phit: Phit) -> None:
        if phit.first:
            if self._out.within:
                self._broken("incomplete flit", "the next begins")
            self._check_gap()
            self._began = self._cycle
            self._known = _Known(
                self._cycle,
                self._expected.now,
                tuple(taken.now for taken in self._taken),
                self._acknowledged.now,
                tuple(self._passed_on),
                self._heard,
            )
        elif not self._out.within:
            self._broken("phit of no flit", phit.data.hex())
        for flit in self._out.read(phit):
            if flit is None:
                self._broken("wrong CRC", phit.data.hex())
            else:
                self._check(flit)

    def _check(self, flit: Flit) -> None:
        self.flits_out += 1
        self._check_report(flit)
        # A number is that of a flit which was sent, or of the next one.
        position = self.sent - (self.sent - flit.sequence) % 256
        self._check_order(position, flit)
        self._next = position
        if not flit.filled:
            if flit.head or flit.tail or flit.channel or any(flit.payload):
                self._broken("empty flit", f"is not empty: {flit}")
            return
        self._next += 1
        known = self._known
        if not known.heard:
            self._broken("filled flit", "before any came from the other port")
        if self._must_go_back and self._must_go_back[1] == position:
            self._must_go_back = None
        if position == known.acknowledged:
            self._tried = known.cycle
        said = replace(flit, acknowledge=0, retry=False, credits=0, credit_channel=0)
        if position < self.sent:
            self.sent_again += 1
            if said != self._record.get(position):
                self._broken("sent again", f"{said} was first {self._record.get(position)}")
            return
        self._record[position] = said
        self.sent += 1
        if self.sent - known.acknowledged > self._rules.replay_flits:
            self._broken(
                "unacknowledged flits",
                f"{self.sent} are sent and {known.acknowledged} acknowledged",
            )
        of_channel = flit.channel
        self._sent_of[of_channel] += 1
        if self._sent_of[of_channel] - known.passed_on[of_channel] > self._rules.buffer_flits:
            self._broken(
                "no credit",
                f"channel {of_channel}: {self._sent_of[of_channel]} are sent and "
                f"{known.passed_on[of_channel]} known to be taken",
            )

    def _check_order(self, position: int, flit: Flit) -> None:
        known = self._known
        if position < 0:
            self._broken("number", f"{flit.sequence} was never sent: {flit}")
        if position > max(self._next, known.acknowledged):
            self._broken("number", f"{position} after {self._next - 1}: {flit}")
        if self._turn is None:
            return
        since = known.cycle - self._turn - 2 * self._rules.phits
        if position < self._acknowledged.at(since):
            self._broken("sent again", f"{position}, which is acknowledged")
        if position >= self._next:
            return
        asked = any(cycle >= since and to == position for cycle, to in self._asked_back)
        # It begins to wait when it goes back, and may be within a flit then.
        waited = known.cycle + self._rules.phits - max(self._tried, self._progress.at(since))
        if not asked and waited < self._rules.retry_cycles:
            self._broken("went back", f"to {position} by itself after {waited} cycles")

    def _check_report(self, flit: Flit) -> None:
        known = self._known
        behind = (known.expected - flit.acknowledge) % 256
        if behind > known.expected - self._told_acknowledge:
            self._broken(
                "acknowledge",
                f"{flit.acknowledge} with {known.expected} taken, after {self._told_acknowledge}",
            )
        self._told_acknowledge = known.expected - behind
        if self._owed is not None and known.cycle > self._owed:
            self._owed = None
        channel = flit.credit_channel
        news = tuple(self._told_credits) != known.taken
        taken, told = known.taken[channel], self._told_credits[channel]
        behind = (taken - flit.credits) % 256
        if behind > taken - told:
            self._broken(
                "credits", f"channel {channel}: {flit.credits} with {taken} taken, after {told}"
            )
        self._told_credits[channel] = taken - behind
        self._told_by[channel] = self.flits_out
        if self.flits_out - min(self._told_by) > 256:
            self._broken("credits", f"a channel is not told of for 256 flits: {self._told_by}")
        if news:
            self._without_news.clear()
        else:
            self._without_news.append(channel)
        if len(self._without_news) == 8 and len(set(self._without_news)) < CHANNELS:
            self._broken("credits", f"only these are told of: {list(self._without_news)}")
        if flit.retry:
            self._check_retry()

    def _check_retry(self) -> None:
        began = self._known.cycle
        if self._turn is not None:
            since = began - self._turn - 2 * self._rules.phits
            if self._gap_since is None and self._gap_ended < since:
                self._broken("retry", "nothing is missing")
            if (
                self._asked is not None
                and began - self._asked < self._rules.retry_cycles
                and self._gap_ended < self._asked - self._turn
            ):
                self._broken("retry", f"asked again after {began - self._asked} cycles")
        if self._gap_since is not None:
            self._asked = began

    def _check_promptness(self, late: int) -> None:
        def overdue(since: int | None, allowed: int = 0) -> bool:
            return since is not None and self._cycle - since > late + allowed

        rules = self._rules
        due = self._expected.at(self._cycle - late)
        if self._told_acknowledge < due:
            self._broken("acknowledge", f"{due} is not told")
        if overdue(self._owed):
            self._broken("acknowledge", f"{self._expected.now} is not told again")
        for channel, taken in enumerate(self._taken):
            due = taken.at(self._cycle - late - CHANNELS * rules.phits)
            if self._told_credits[channel] < due:
                self._broken("credits", f"{due} of channel {channel} are not told")
        if self._asked is None and overdue(self._gap_since):
            self._broken("retry", f"not asked for {self._expected.now}")
        if overdue(self._asked, rules.retry_cycles):
            self._broken("retry", f"not asked again for {self._expected.now}")
        if self._must_go_back is not None:
            since, position = self._must_go_back
            if self._acknowledged.now > position:
                self._must_go_back = None
            elif overdue(since):
                self._broken("retry", f"{position} is not sent again")
        stuck_since = max(self._tried, self._progress.now)
        if self._acknowledged.now < self.sent and overdue(stuck_since, rules.retry_cycles):
            self._broken("no progress", f"{self._acknowledged.now} is not sent again")
