"""Parts of a machine. Every number names its source."""

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
"""Kinds of source of a figure.

A paper or a data sheet; a fit to measurements; a model that is checked against RTL; none of these.
"""

SHARINGS = ("duplex", "half")
TRANSFERS = ("shared", "apart")
ACCESSES = ("in_turn", "at_once")

_GIGA = 10**9


class MachineError(ValueError):
    """Raised for an inconsistent machine or an impossible change; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A number with its source. The name of the field that holds it ends in the unit.

    Examples
    --------
    >>> Figure(value=900, source="data sheet", mark="given") == given(900, "data sheet")
    True
    >>> [figure(1, "why").mark for figure in (given, calibrated, predicted, assumed)]
    ['given', 'calibrated', 'predicted', 'assumed']
    """

    value: int | float
    source: str
    mark: str
    """Kind of source, one of :data:`MARKS`."""


def given(value: int | float, source: str) -> Figure:
    """Return a figure from a paper or a data sheet, named by ``source``."""
    return Figure(value=value, source=source, mark="given")


def calibrated(value: int | float, source: str) -> Figure:
    """Return a fitted figure; ``source`` names the fit and its number of free parameters."""
    return Figure(value=value, source=source, mark="calibrated")


def predicted(value: int | float, source: str) -> Figure:
    """Return a figure computed by a cycle model of the RTL, named by ``source``."""
    return Figure(value=value, source=source, mark="predicted")


def assumed(value: int | float, source: str) -> Figure:
    """Return a figure without such a source; ``source`` says why it is plausible."""
    return Figure(value=value, source=source, mark="assumed")


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A named part.

    Raises :class:`MachineError` for a figure that lacks a source or is out of range.
    """

    name: str
    least: ClassVar[dict[str, int | float]] = {}
    """Figures of the part with their least values. A figure with the default None may be absent."""
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Other settings of the part with the texts allowed for each."""

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
    """A memory with a capacity in bytes. Links and devices refer to it by name.

    Examples
    --------
    >>> memory = Memory(name="hbm", capacity_bytes=given(80 << 30, "data sheet"))
    >>> memory.capacity_bytes.value >> 30, memory.capacity_bytes.mark
    (80, 'given')
    >>> Memory(name="hbm", capacity_bytes=80 << 30)
    Traceback (most recent call last):
        ...
    sw_driver.machine.parts.MachineError: hbm.capacity_bytes is 85899345920: expected a ...
    """

    capacity_bytes: Figure
    setting: str = ""
    """Key of another memory's capacity, if this capacity is a share of it."""
    total_gb_per_s: Figure | None = None
    """Rate of all reads and writes together, in 10^9 bytes/s.

    None if only links and devices bound it.
    """
    transfers: str = "shared"
    """Use of ``total_gb_per_s``: ``shared`` by transfers and device work, or ``apart``.

    With ``apart`` transfers have the full rate, and device work has it once more.
    """
    least: ClassVar[dict[str, int | float]] = {"capacity_bytes": 1, "total_gb_per_s": 1e-3}
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"transfers": TRANSFERS}


@dataclass(frozen=True, kw_only=True)
class Device(_Part):
    """A processor as fast as the slower of its arithmetic and its memory.

    Examples
    --------
    >>> from sw_driver.workload import load_trace
    >>> rates = {"tflop_per_s": given(10, "data sheet"), "gb_per_s": given(900, "data sheet")}
    >>> gpu = Device(name="gpu", memory="hbm", **rates, launch_ns=assumed(5000, "typical"))
    >>> product = next(op for op in load_trace("gpt3-13b").ops if op.kind == "addmm")
    >>> gpu.compute_ns(product), gpu.cost(product)
    (8053064, 8058064)
    """

    memory: str
    tflop_per_s: Figure
    gb_per_s: Figure
    """Rate between the device and its memory, in 10^9 bytes/s."""
    launch_ns: Figure
    """Overhead of each operation, in ns."""
    accesses: str = "in_turn"
    """Order of accesses to an operation's bytes in several memories.

    One memory after the other (``in_turn``), or all together (``at_once``).
    """
    cache_bytes: Figure | None = None
    """Size of the last-level cache, for :func:`~sw_driver.workload.cache.past_cache`."""
    least: ClassVar[dict[str, int | float]] = {
        "tflop_per_s": 1e-6,
        "gb_per_s": 1e-3,
        "launch_ns": 0,
        "cache_bytes": 0,
    }
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"accesses": ACCESSES}

    def compute_ns(self, op: Op) -> int:
        """Return the time of the operation's arithmetic, in ns, rounded up."""
        return -(-op.flops * _GIGA // round(self.tflop_per_s.value * 1000 * _GIGA))

    def cost(self, op: Op) -> int:
        """Return the time of the operation, in ns, rounded up.

        All its tensors are in the device's memory, and nothing else uses that memory.
        """
        memory_ns = -(-op.nbytes * _GIGA // bytes_per_s(self.gb_per_s))
        return max(self.compute_ns(op), memory_ns) + int(self.launch_ns.value)


@dataclass(frozen=True, kw_only=True)
class Link(_Part):
    """A link between two memories or junctions. Writes go from ``a`` to ``b``, reads go back.

    Examples
    --------
    >>> rate, latency = given(3.5, "data sheet"), assumed(70_000, "typical")
    >>> rates = {"read_gb_per_s": rate, "write_gb_per_s": rate}
    >>> drive = Link(name="ssd", a="host", b="disk", **rates, latency_ns=latency, sharing="half")
    >>> drive.rate(writing=True)
    3500000000
    """

    a: str
    """Near end, where the users of the link are, such as the root of a PCIe tree."""
    b: str
    """Far end, reached over the link, such as a drive."""
    read_gb_per_s: Figure
    write_gb_per_s: Figure
    """Rate of writes, from ``a`` to ``b``, in 10^9 bytes/s."""
    latency_ns: Figure
    """Delay before the first byte of a transfer, in ns."""
    sharing: str
    """Use of the link by its two directions: ``duplex`` or ``half``.

    With ``duplex`` each direction has its full rate. With ``half`` one direction at a time uses the
    link, as on a bus; a transfer occupies it for its bytes divided by the rate of its direction.
    """
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
        """Return the rate of the link in one direction, in whole bytes/s."""
        return bytes_per_s(self.write_gb_per_s if writing else self.read_gb_per_s)


def link(
    name: str, a: str, b: str, gb_per_s: Figure, latency_ns: Figure, sharing: str = "duplex"
) -> Link:
    """Return a link with the same rate in both directions."""
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
    """Return a rate in whole bytes/s."""
    return round(rate_gb_per_s.value * _GIGA)


def settings(part: Memory | Device | Link) -> tuple[str, ...]:
    """Return the names of the settings of a part that can be overridden."""
    known = {name for name in (*part.least, *part.choices) if getattr(part, name) is not None}
    if isinstance(part, Memory) and part.total_gb_per_s is None:
        known.remove("transfers")  # has no effect without a total rate
    return tuple(field.name for field in fields(part) if field.name in known)
