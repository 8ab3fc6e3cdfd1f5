"""Parts of a machine. Every number names its source."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil
from typing import ClassVar

from ..numbers import check_integer, check_number
from ..workload.trace import Op
from .products import is_attention, product_ns

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
    "measured",
    "predicted",
]

MARKS = ("measured", "given", "calibrated", "predicted", "assumed")
"""Kinds of source of a figure.

The machine itself; a paper or a data sheet; a fit to measurements; a model that is checked against
RTL; none of these.
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
    >>> [figure(1, "why").mark for figure in (measured, given, calibrated, predicted, assumed)]
    ['measured', 'given', 'calibrated', 'predicted', 'assumed']
    """

    value: int | float
    source: str
    mark: str
    """Kind of source, one of :data:`MARKS`."""


def measured(value: int | float, source: str) -> Figure:
    """Return a figure measured on the machine itself; ``source`` has tool, device and date."""
    return Figure(value=value, source=source, mark="measured")


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

    With ``multiprocessors`` it is a GPU as it is used today: a product costs by format and shape
    (see :mod:`~sw_driver.machine.products`), and launches overlap with earlier operations, so that
    an operation takes at least ``launch_ns``. Without them each operation runs at ``tflop_per_s``,
    whatever its format, after ``launch_ns``.

    Examples
    --------
    >>> from sw_driver.machine.gpus import GPUS
    >>> from sw_driver.workload.trace import Geometry, Op
    >>> shapes = Geometry(operands=((4096, 4096), (4096, 4096)), result=(4096, 4096))
    >>> op = Op(id=0, kind="mm", layer=0, phase="forward", stage=0, reads=(0, 1), writes=(2,),
    ...         read_bytes=(2**25, 2**25), write_bytes=(2**25,), flops=2 * 4096**3, dtype="bf16",
    ...         geometry=shapes)
    >>> round(op.flops / GPUS["a100"].device.cost(op) / 1000)  # TFLOP/s
    259
    """

    memory: str
    tflop_per_s: Figure
    """Peak rate in FP32 without tensor cores, in 10^12 operations/s."""
    gb_per_s: Figure
    """Peak rate between the device and its memory, in 10^9 bytes/s."""
    launch_ns: Figure
    """Overhead of each operation, in ns."""
    accesses: str = "in_turn"
    """Order of accesses to an operation's bytes in several memories.

    One memory after the other (``in_turn``), or all together (``at_once``).
    """
    cache_bytes: Figure | None = None
    """Size of the last-level cache, for :func:`~sw_driver.workload.cache.past_cache`."""
    multiprocessors: Figure | None = None
    """Units that each compute a tile of a product."""
    tf32_tflop_per_s: Figure | None = None
    """Peak rate of dense products in TF32, in 10^12 operations/s; so for the other formats."""
    fp16_tflop_per_s: Figure | None = None
    bf16_tflop_per_s: Figure | None = None
    fp8_tflop_per_s: Figure | None = None
    product_share: Figure | None = None
    """Share of a peak rate that the largest products reach; all of it if absent."""
    fp8_share: Figure | None = None
    """Share for FP8; ``product_share`` if absent."""
    attention_share: Figure | None = None
    """Rate of fused attention, as a share of that of products.

    With a causal mask half of the operations are done.
    """
    sustained_share: Figure | None = None
    """Share of its rates that the device keeps in training, where power and heat bound it.

    It has no effect on costs before :meth:`sustained`.
    """
    memory_share: Figure | None = None
    """Share of ``gb_per_s`` that operations reach; all of it if absent."""
    least: ClassVar[dict[str, int | float]] = {
        "tflop_per_s": 1e-6,
        "gb_per_s": 1e-3,
        "launch_ns": 0,
        "cache_bytes": 0,
        "multiprocessors": 1,
        **{f"{dtype}_tflop_per_s": 1e-6 for dtype in ("tf32", "fp16", "bf16", "fp8")},
        "product_share": 1e-3,
        "fp8_share": 1e-3,
        "attention_share": 1e-3,
        "sustained_share": 1e-3,
        "memory_share": 1e-3,
    }
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"accesses": ACCESSES}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.least:
            if name.endswith("share") and (share := _of(getattr(self, name), 0)) > 1:
                raise MachineError(f"{self.name}.{name} is {share}: expected a share of at most 1")

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats that the device multiplies faster than FP32, in order of their bytes."""
        known = ("tf32", "fp16", "bf16", "fp8")
        return tuple(name for name in known if getattr(self, f"{name}_tflop_per_s") is not None)

    @property
    def bytes_per_s(self) -> int:
        """Rate between operations and the device's memory, in whole bytes/s."""
        return round(bytes_per_s(self.gb_per_s) * _of(self.memory_share, 1))

    @property
    def start_ns(self) -> int:
        """Time before an operation in which the device does nothing else, in ns."""
        return int(self.launch_ns.value) if self.multiprocessors is None else 0

    def plain(self) -> Device:
        """Return the device without the figures of today."""
        absent = [field.name for field in fields(self) if field.default is None]
        return replace(self, **dict.fromkeys(absent) | {"cache_bytes": self.cache_bytes})

    def sustained(self) -> Device:
        """Return the device with the rates that it keeps in training."""
        if self.sustained_share is None:
            return self
        kept = self.sustained_share
        less = {
            name: replace(
                share,
                value=share.value * kept.value,
                source=f"{share.source}; {kept.value:g} of it kept: {kept.source}",
                mark=max(share.mark, kept.mark, key=MARKS.index),
            )
            for name in ("product_share", "fp8_share")
            if (share := getattr(self, name)) is not None
        }
        return replace(self, **{"product_share": kept, **less}, sustained_share=None)

    def compute_ns(self, op: Op) -> int:
        """Return the time of the operation's arithmetic, in ns, rounded up."""
        if self.multiprocessors is None:
            return -(-op.flops * _GIGA // round(self.tflop_per_s.value * 1000 * _GIGA))
        return max(ceil(self._today_ns(op)), int(self.launch_ns.value))

    def _today_ns(self, op: Op) -> float:
        assert self.multiprocessors is not None
        if op.geometry is None or not op.flops:
            return op.flops / (self.tflop_per_s.value * 1000)
        peak = getattr(self, f"{op.dtype}_tflop_per_s", None) or self.tflop_per_s
        share = _of(self.fp8_share if op.dtype == "fp8" else None, _of(self.product_share, 1))
        tflop_per_s = peak.value * share
        if is_attention(op):
            done = op.flops / 2 if op.geometry.causal else op.flops
            return done / (tflop_per_s * _of(self.attention_share, 1) * 1000)
        return product_ns(op, tflop_per_s, int(self.multiprocessors.value))

    def cost(self, op: Op) -> int:
        """Return the time of the operation, in ns, rounded up.

        All its tensors are in the device's memory, and nothing else uses that memory.
        """
        memory_ns = -(-op.nbytes * _GIGA // self.bytes_per_s)
        return max(self.compute_ns(op), memory_ns) + self.start_ns


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


def _of(figure: Figure | None, default: float) -> float:
    return default if figure is None else figure.value


def bytes_per_s(rate_gb_per_s: Figure) -> int:
    """Return a rate in whole bytes/s."""
    return round(rate_gb_per_s.value * _GIGA)


def settings(part: Memory | Device | Link) -> tuple[str, ...]:
    """Return the names of the settings of a part that can be overridden."""
    known = {name for name in (*part.least, *part.choices) if getattr(part, name) is not None}
    if isinstance(part, Memory) and part.total_gb_per_s is None:
        known.remove("transfers")  # has no effect without a total rate
    return tuple(field.name for field in fields(part) if field.name in known)
