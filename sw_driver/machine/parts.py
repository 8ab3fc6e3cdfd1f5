"""The parts of a machine. Every number of theirs says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from ..numbers import check_integer, check_number
from ..workload.trace import Op

__all__ = [
    "ACCESSES",
    "MARKS",
    "SHARINGS",
    "TRANSFERS",
    "Device",
    "Figure",
    "Link",
    "MachineError",
    "Memory",
    "assumed",
    "calibrated",
    "given",
    "link",
    "predicted",
]

MARKS = ("given", "calibrated", "predicted", "assumed")
"""Where figures come from: a paper or a data sheet; a fit to measurements; a model that is held to
RTL; or none of these."""

SHARINGS = ("duplex", "half")
TRANSFERS = ("shared", "apart")
ACCESSES = ("in_turn", "at_once")

_GIGA = 10**9


class MachineError(ValueError):
    """A machine that is not one, or a change of one that cannot be made; the message says what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A number, in the unit that the name of its field ends in, and where it comes from."""

    value: int | float
    source: str
    mark: str
    """Where the number comes from, one of :data:`MARKS`."""


def given(value: int | float, source: str) -> Figure:
    """A figure from a paper or a data sheet, which ``source`` names."""
    return Figure(value=value, source=source, mark="given")


def calibrated(value: int | float, source: str) -> Figure:
    """A figure that was fitted; ``source`` says to what, and with how many free numbers."""
    return Figure(value=value, source=source, mark="calibrated")


def predicted(value: int | float, source: str) -> Figure:
    """A figure by a model of the RTL's cycles, which ``source`` names."""
    return Figure(value=value, source=source, mark="predicted")


def assumed(value: int | float, source: str) -> Figure:
    """A figure that is none of these; ``source`` says why it is plausible."""
    return Figure(value=value, source=source, mark="assumed")


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A named part; raises :class:`MachineError` for a figure that says too little or is out of its
    range."""

    name: str
    least: ClassVar[dict[str, int | float]] = {}
    """The figures that the part has, and the least that each may be. One whose default is None may
    be missing."""
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}
    """What else it has, and the texts that each may be."""

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise MachineError(f"{self.name!r} cannot name a part: expected text without a dot")
        for name, known in self.choices.items():
            if (chosen := getattr(self, name)) not in known:
                raise MachineError(
                    f"{self.name}.{name} is {chosen!r}: expected one of {', '.join(known)}"
                )
        for name, least in self.least.items():
            figure, key = getattr(self, name), f"{self.name}.{name}"
            if figure is None and getattr(type(self), name, self) is None:
                continue
            if not isinstance(figure, Figure) or figure.mark not in MARKS or not figure.source:
                raise MachineError(
                    f"{key} is {figure!r}: expected a Figure with a source, marked as one of "
                    f"{', '.join(MARKS)}"
                )
            if isinstance(least, int):
                check_integer(key, figure.value, least, error=MachineError)
            else:
                check_number(key, figure.value, least, error=MachineError)


@dataclass(frozen=True, kw_only=True)
class Memory(_Part):
    """A memory of so many bytes. Links and devices name it as where they are."""

    capacity_bytes: Figure
    setting: str = ""
    """Where its capacity comes from, if it is a share of another memory's: that one's key."""
    total_gb_per_s: Figure | None = None
    """All that goes in and out of it together, in 10^9 bytes a second; None if only links and
    devices bound that."""
    transfers: str = "shared"
    """Who has that rate: transfers and the work of devices together (``shared``), or transfers have
    it and work has it once more (``apart``)."""
    least: ClassVar[dict[str, int | float]] = {"capacity_bytes": 1, "total_gb_per_s": 1e-3}
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"transfers": TRANSFERS}


@dataclass(frozen=True, kw_only=True)
class Device(_Part):
    """Computes on what is in its memory, at the pace of the slower of arithmetic and memory."""

    memory: str
    tflop_per_s: Figure
    gb_per_s: Figure
    """Rate between the device and its memory, in 10^9 bytes a second."""
    launch_ns: Figure
    """Nanoseconds that each operation takes besides."""
    accesses: str = "in_turn"
    """How it moves the bytes of an operation that lie in several memories: one after the other
    (``in_turn``), or all together (``at_once``)."""
    cache_bytes: Figure | None = None
    """Its last level of cache, for :func:`~sw_driver.workload.cache.past_cache`."""
    least: ClassVar[dict[str, int | float]] = {
        "tflop_per_s": 1e-6,
        "gb_per_s": 1e-3,
        "launch_ns": 0,
        "cache_bytes": 0,
    }
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"accesses": ACCESSES}

    def compute_ns(self, op: Op) -> int:
        """How long the operation's arithmetic takes, in ns, rounded up."""
        return -(-op.flops * _GIGA // round(self.tflop_per_s.value * 1000 * _GIGA))

    def cost(self, op: Op) -> int:
        """How long the operation takes, in ns, rounded up, if all it needs is in the device's
        memory and nobody else uses that."""
        memory_ns = -(-op.nbytes * _GIGA // bytes_per_s(self.gb_per_s))
        return max(self.compute_ns(op), memory_ns) + int(self.launch_ns.value)


@dataclass(frozen=True, kw_only=True)
class Link(_Part):
    """Joins two memories or junctions. What writes goes from ``a`` to ``b``; what reads, back."""

    a: str
    """The end of the link where what uses it is, such as the root of a PCIe tree."""
    b: str
    """The end of the link that is reached over it, such as a drive."""
    read_gb_per_s: Figure
    write_gb_per_s: Figure
    """Rate of writes, from ``a`` to ``b``, in 10^9 bytes a second."""
    latency_ns: Figure
    """Nanoseconds before the first byte, once a transfer."""
    sharing: str
    """How the directions share the link. ``duplex``: each direction has its rate. ``half``: one at
    a time, as on a bus: what a transfer moves, by the rate of its direction, is the share of the
    time that it has it."""
    least: ClassVar[dict[str, int | float]] = {
        "read_gb_per_s": 1e-3,
        "write_gb_per_s": 1e-3,
        "latency_ns": 0,
    }
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"sharing": SHARINGS}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.a == self.b:
            raise MachineError(f"link {self.name} has {self.a!r} at both ends")

    def rate(self, *, writing: bool) -> int:
        """Rate of the link in one direction, in whole bytes a second."""
        return bytes_per_s(self.write_gb_per_s if writing else self.read_gb_per_s)


def link(
    name: str, a: str, b: str, gb_per_s: Figure, latency_ns: Figure, sharing: str = "duplex"
) -> Link:
    """A link with the same rate both ways."""
    return Link(
        name=name,
        a=a,
        b=b,
        read_gb_per_s=gb_per_s,
        write_gb_per_s=gb_per_s,
        latency_ns=latency_ns,
        sharing=sharing,
    )


def bytes_per_s(rate_gb_per_s: Figure) -> int:
    """A rate in whole bytes a second."""
    return round(rate_gb_per_s.value * _GIGA)


def settings(part: Memory | Device | Link) -> tuple[str, ...]:
    """Names of what can be overridden of a part."""
    known = {name for name in (*part.least, *part.choices) if getattr(part, name) is not None}
    if isinstance(part, Memory) and part.total_gb_per_s is None:
        known.remove("transfers")  # on which nothing depends then
    return tuple(field.name for field in fields(part) if field.name in known)
