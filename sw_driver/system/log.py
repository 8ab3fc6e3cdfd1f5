"""What an engine did, written down for whoever checks it: no part of the scheduler reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Held", "Log", "Ran", "Segment", "Transferred", "Worked"]


class Ran(NamedTuple):
    """An entry of a queue, in the order in which they were queued."""

    queue: str
    label: str
    begin_ns: int
    end_ns: int
    after_ns: int = 0
    """When the last of those ended that it had to wait for."""


class Transferred(NamedTuple):
    number: int
    """What its segments call it."""
    label: str
    nbytes: int
    source: str
    target: str
    begin_ns: int
    """The latency comes first."""
    end_ns: int
    after_ns: int = 0
    device: str = ""
    """Whose work it is a part of, if it is no transfer between memories."""


class Worked(NamedTuple):
    """A device did work, of time or of bytes, too."""

    device: str
    begin_ns: int
    end_ns: int
    launch_ns: int
    duration_ns: int
    """Without what passes before."""
    flows: Sequence[tuple[int, str, str]]
    """Bytes of each, from where, and to where."""
    moved: tuple[int, ...]
    """Numbers of its :class:`Transferred`, in the order of the flows."""


class Segment(NamedTuple):
    """A transfer moved bytes at one rate. The last nanosecond of a transfer may be less than full.

    ``number`` is that of its :class:`Transferred`.
    """

    number: int
    begin_ns: int
    end_ns: int
    bytes_per_s: int


class Held(NamedTuple):
    """Memory was taken, or given back if ``nbytes`` is negative."""

    at_ns: int
    memory: str
    key: object
    nbytes: int


@dataclass(kw_only=True)
class Log:
    ran: list[Ran] = field(default_factory=list)
    transferred: list[Transferred] = field(default_factory=list)
    worked: list[Worked] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
