"""Collectives on rings, and their durations in closed form.

A lane is a ring in one direction. Its nodes are participants, and others that only forward
messages, as memory-nodes do. Data on a lane travels in messages of one size. A node forwards a
message once all of it has arrived, in the order of arrival. Reductions take no time of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from sw_driver.numbers import check_fields, check_integer, check_name

__all__ = ["KINDS", "RingLane", "lane_ns", "sent_share"]

KINDS = ("all-gather", "all-reduce", "broadcast")
MESSAGE_BYTES = 4096
"""Bytes of a message (paper, Figure 9)."""


@dataclass(frozen=True, kw_only=True)
class RingLane:
    """A ring in one direction.

    ``gaps`` are the hops from each participant to the next, all the way round.

    Examples
    --------
    >>> for participants in (2, 8, 32):
    ...     lane = RingLane(gaps=(1,) * participants, gb_per_s=25, hop_ns=100)
    ...     print(lane_ns(lane, "all-reduce", 1 << 20), "ns")
    42084 ns
    73572 ns
    81444 ns
    """

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
        """Number of participants."""
        return len(self.gaps)

    def busy_ns(self, nbytes: int) -> int:
        """Return the time in ns for which a message occupies a link."""
        check_integer("nbytes", nbytes, 0)
        rate = round(self.gb_per_s * 10**9)
        return -(-nbytes * 10**9 // rate)

    def messages(self, nbytes: int) -> list[int]:
        """Return the sizes in bytes of the messages that carry ``nbytes``."""
        check_integer("nbytes", nbytes, 0)
        whole, rest = divmod(nbytes, MESSAGE_BYTES)
        return [MESSAGE_BYTES] * whole + [rest] * (rest > 0)


_ROUNDS = {"all-gather": 1, "all-reduce": 2}


def sent_share(kind: str, participants: int) -> float:
    """Return what a participant sends, as a share of all data gathered, reduced or broadcast.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown kind, or without
    participants.
    """
    check_name("kind", kind, KINDS)
    check_integer("participants", participants)
    return _ROUNDS[kind] * (participants - 1) / participants if kind in _ROUNDS else 1.0


def lane_ns(lane: RingLane, kind: str, nbytes: int) -> int:
    """Return the duration in ns of a collective of ``nbytes`` on one lane.

    A participant's part is rounded up to whole bytes. Raises as :func:`sent_share` does.
    """
    check_name("kind", kind, KINDS)
    check_integer("nbytes", nbytes, 0)
    messages = lane.messages(nbytes if kind == "broadcast" else -(-nbytes // lane.participants))
    if not messages or lane.participants < 2:
        return 0
    full, last = lane.busy_ns(messages[0]), lane.busy_ns(messages[-1])
    part = (len(messages) - 1) * full + last
    if kind == "broadcast":
        return _through(lane, sum(lane.gaps[:-1]), len(messages), full, last)
    # Start of each participant's first, second ... part: the link must be free, and the first
    # message of that part must have arrived.
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
    """Return the number of participants after which the gaps repeat."""
    count = len(gaps)
    return next(
        size
        for size in range(1, count + 1)
        if count % size == 0 and gaps == gaps[:size] * (count // size)
    )


def _through(lane: RingLane, hops: int, messages: int, full: int, last: int) -> int:
    """Return the time in ns from the start of a part's first message to the arrival of its last.

    The part crosses ``hops`` links. A shorter last message waits behind the others.
    """
    behind = (messages - 1 + hops - 1) * full if messages > 1 else (hops - 1) * last
    return behind + last + hops * lane.hop_ns
