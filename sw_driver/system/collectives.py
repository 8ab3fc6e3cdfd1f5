"""Collectives on rings, and what they take in closed form.

A lane is a ring in one direction. Its nodes are participants, and others that only pass messages
on, as memory-nodes do. What is to be sent on a lane goes in messages of one size; a node passes a
message on when all of it has come, in the order of arrival. Reductions take no time of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from sw_driver.numbers import check_fields, check_integer, check_name

__all__ = ["KINDS", "Lane", "lane_ns", "sent_share"]

KINDS = ("all-gather", "all-reduce", "broadcast")
MESSAGE_BYTES = 4096
"""Paper, Figure 9."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """``gaps`` are the hops from each participant to the next, all the way round."""

    gaps: tuple[int, ...]
    gb_per_s: float
    hop_ns: int

    def __post_init__(self) -> None:
        check_fields(self, "hop_ns")
        check_integer("participants", len(self.gaps))
        for gap in self.gaps:
            check_integer("a gap in hops", gap)

    @property
    def participants(self) -> int:
        return len(self.gaps)

    def busy_ns(self, nbytes: int) -> int:
        """What a link takes for a message."""
        check_integer("nbytes", nbytes, 0)
        rate = round(self.gb_per_s * 10**9)
        return -(-nbytes * 10**9 // rate)

    def messages(self, nbytes: int) -> list[int]:
        """Their sizes."""
        check_integer("nbytes", nbytes, 0)
        whole, rest = divmod(nbytes, MESSAGE_BYTES)
        return [MESSAGE_BYTES] * whole + [rest] * (rest > 0)


_ROUNDS = {"all-gather": 1, "all-reduce": 2}


def sent_share(kind: str, participants: int) -> float:
    """How much a participant sends, as a share of all that is gathered, reduced or broadcast.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for a kind that there is not, and
    without participants.
    """
    check_name("kind", kind, KINDS)
    check_integer("participants", participants)
    return _ROUNDS[kind] * (participants - 1) / participants if kind in _ROUNDS else 1.0


def lane_ns(lane: Lane, kind: str, nbytes: int) -> int:
    """What a collective of ``nbytes`` on one lane takes; a participant's part of them is rounded
    up to whole bytes. Raises as :func:`sent_share` does."""
    check_name("kind", kind, KINDS)
    check_integer("nbytes", nbytes, 0)
    messages = lane.messages(nbytes if kind == "broadcast" else -(-nbytes // lane.participants))
    if not messages or lane.participants < 2:
        return 0
    full, last = lane.busy_ns(messages[0]), lane.busy_ns(messages[-1])
    part = (len(messages) - 1) * full + last
    if kind == "broadcast":
        return _through(lane, sum(lane.gaps[:-1]), len(messages), full, last)
    # When each participant begins with its first, second ... part: when the link is free, and
    # when the first message of that part has come.
    gaps = lane.gaps[: _period(lane.gaps)]
    first = [gap * (full + lane.hop_ns) for gap in gaps]
    begins = [0] * len(gaps)
    for _ in range(_ROUNDS[kind] * (lane.participants - 1) - 1):
        begins = [
            max(begin + part, begins[here - 1] + first[here - 1])
            for here, begin in enumerate(begins)
        ]
    return max(
        begin + _through(lane, gap, len(messages), full, last)
        for begin, gap in zip(begins, gaps, strict=True)
    )


def _period(gaps: tuple[int, ...]) -> int:
    """After how many participants all is the same again."""
    count = len(gaps)
    return next(
        size
        for size in range(1, count + 1)
        if count % size == 0 and gaps == gaps[:size] * (count // size)
    )


def _through(lane: Lane, hops: int, messages: int, full: int, last: int) -> int:
    """From the begin of the first message of a part to the arrival of its last, over so many hops:
    a shorter last one waits behind the others."""
    behind = (messages - 1 + hops - 1) * full if messages > 1 else (hops - 1) * last
    return behind + last + hops * lane.hop_ns
