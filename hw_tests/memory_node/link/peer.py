"""A link port with legal habits of its own (docs/memory-node-spec.md, "Link layer")."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from hw_tests.memory_node.link.checker import CHANNELS, LinkRules
from hw_tests.memory_node.link.flit import Flit
from hw_tests.memory_node.link.phits import Phit, PhitReader, phits_of

__all__ = ["Habits", "LinkPeer", "Message"]

Message = tuple[bool, bool, bytes]
"""What a user gives and gets: head, tail, payload."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """Shares of the cycles in which a port does what it may; how late it tells what it must."""

    pause: float = 0.0
    """Sends no phit."""
    go_back: float = 0.0
    """Sends again, from anywhere in what it keeps."""
    ask: float = 0.0
    """Asks again without a reason."""
    hold: float = 0.0
    """Takes nothing out of a buffer."""
    idle_flit: float = 0.0
    """Sends an empty flit although there is something to send."""
    late_cycles: int = 0
    """After which it tells what it has got."""


class LinkPeer:
    """Sends what is in ``queues`` and collects in ``taken``, by virtual channel."""

    def __init__(self, rules: LinkRules, habits: Habits, seed: object) -> None:
        self.queues: list[deque[Message]] = [deque() for _ in range(CHANNELS)]
        self.taken: list[list[Message]] = [[] for _ in range(CHANNELS)]
        self._rules = rules
        self._habits = habits
        self._chance = random.Random(str(seed))
        self._reader = PhitReader()
        self._cycle = 0
        # What it sends. All numbers count from the reset on.
        self._kept: dict[int, Flit] = {}
        self._oldest = self._following = self._end = 0
        self._sent = [0] * CHANNELS
        self._passed_on = [0] * CHANNELS
        self._waited = self._quiet = 0
        self._phits: deque[Phit] = deque()
        # What it has got.
        self._buffers: list[deque[Message]] = [deque() for _ in range(CHANNELS)]
        self._expected = 0
        self._credits = [0] * CHANNELS
        self._asked: int | None = None
        self._retry = False
        self._past: deque[tuple[int, tuple[int, ...]]] = deque()
        self._told: tuple[int, ...] | None = None
        """Credits of each channel, and the acknowledgement."""
        self._turn = 0
        self._heard = False

    def step(self, received: Phit | None) -> Phit | None:
        """One cycle: what comes in it, and what it sends in it, of which that is not yet a part."""
        self._cycle += 1
        self._past.append((self._expected, tuple(self._credits)))
        if len(self._past) > self._habits.late_cycles + 1:
            self._past.popleft()
        self._think()
        sent = None
        if self._chance.random() >= self._habits.pause:
            if not self._phits:
                self._begin()
            sent = self._phits.popleft() if self._phits else None
        if received is not None:
            for flit in self._reader.read(received):
                self._receive(flit)
        for channel, buffer in enumerate(self._buffers):
            if buffer and self._chance.random() >= self._habits.hold:
                self.taken[channel].append(buffer.popleft())
                self._credits[channel] += 1
        return sent

    def _receive(self, flit: Flit | None) -> None:
        if flit is None:
            self._miss()
            return
        self._heard = True
        ahead = (flit.sequence - self._expected) % 256
        if ahead == 0:
            self._asked = None
            self._retry = False
            if flit.filled:
                if len(self._buffers[flit.channel]) == self._rules.buffer_flits:
                    raise AssertionError(f"channel {flit.channel}: a flit without a credit")
                self._buffers[flit.channel].append((flit.head, flit.tail, flit.payload))
                self._expected += 1
        elif ahead < 128:
            self._miss()
        channel = flit.credit_channel
        self._passed_on[channel] += (flit.credits - self._passed_on[channel]) % 256
        position = self._oldest + (flit.acknowledge - self._oldest) % 256
        if position > self._oldest:
            self._waited = 0
            for number in range(self._oldest, position):
                del self._kept[number]
            self._oldest = position
            self._following = max(self._following, position)
        if flit.retry:
            self._following = position

    def _miss(self) -> None:
        if self._asked is None:
            self._retry = True
            self._asked = self._cycle

    def _think(self) -> None:
        if self._asked is not None and self._cycle - self._asked >= self._rules.retry_cycles:
            self._retry, self._asked = True, self._cycle
        self._waited = self._waited + 1 if self._kept else 0
        if self._waited >= self._rules.retry_cycles:
            self._waited, self._following = 0, self._oldest
        if self._chance.random() < self._habits.go_back:
            self._following = self._chance.randint(self._oldest, self._following)
        if self._chance.random() < self._habits.ask:
            self._retry = True

    def _begin(self) -> None:
        self._quiet += 1
        if self._following == self._end:
            self._let_in()
        filled = self._following < self._end
        filled = filled and self._heard and self._chance.random() >= self._habits.idle_flit
        report = self._past[0]
        keepalive = self._quiet >= self._rules.keepalive_cycles // 2
        if not (filled or self._retry or keepalive or (*report[1], report[0]) != self._told):
            return
        told = self._told or (0,) * (CHANNELS + 1)
        news = [channel for channel in range(CHANNELS) if told[channel] != report[1][channel]]
        if news and self._chance.random() < 0.8:
            channel = self._chance.choice(news)
        else:
            channel = self._turn = (self._turn + 1) % CHANNELS
        self._told = (
            *(new if at == channel else told[at] for at, new in enumerate(report[1])),
            report[0],
        )
        says = {
            "acknowledge": report[0] % 256,
            "retry": self._retry,
            "credits": report[1][channel] % 256,
            "credit_channel": channel,
        }
        self._retry, self._quiet = False, 0
        if filled:
            kept = self._kept[self._following]
            flit = Flit(
                filled=True,
                head=kept.head,
                tail=kept.tail,
                channel=kept.channel,
                sequence=self._following % 256,
                payload=kept.payload,
                **says,
            )
            self._following += 1
        else:
            flit = Flit(sequence=self._following % 256, **says)
        self._phits.extend(phits_of(flit.encode(), self._rules.phit_bytes))

    def _let_in(self) -> None:
        if self._end - self._oldest == self._rules.replay_flits:
            return
        ready = [
            channel
            for channel, queue in enumerate(self.queues)
            if queue and self._sent[channel] - self._passed_on[channel] < self._rules.buffer_flits
        ]
        if not ready:
            return
        channel = self._chance.choice(ready)
        head, tail, payload = self.queues[channel].popleft()
        self._kept[self._end] = Flit(
            filled=True, head=head, tail=tail, channel=channel, sequence=0, payload=payload
        )
        self._sent[channel] += 1
        self._end += 1
