"""Descriptor of a work: its fields, its words, and the causes of refusal."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import NamedTuple

from .stack import StackMap

__all__ = [
    "DESCRIPTOR_BYTES",
    "ELEMENTWISE",
    "ELEMENT_BYTES",
    "FORMS",
    "RESERVED_WORDS",
    "Cause",
    "Descriptor",
    "Form",
    "Opcode",
    "Room",
    "StridedTensor",
    "TilingPlan",
    "check",
]

ELEMENT_BYTES = 4
INDICES = 4
"""Strides of a tensor in a descriptor: one per index."""


class Opcode(IntEnum):
    """Operation of a work."""

    ADD = 0x01
    MUL = 0x02
    SCALEADD = 0x04
    SUM = 0x10
    DOT = 0x11
    MATVEC = 0x20
    MATMUL = 0x21
    CONV2D = 0x30


class Cause(IntEnum):
    """Cause of a refused work; of several causes, the lowest is reported."""

    NONE = 0
    OPCODE = 1
    RESERVED = 2
    SIZE = 3
    MISALIGNED = 4
    OUT_OF_RANGE = 5
    OVERLAP = 6
    BANKS = 7
    UNITS = 8
    PLAN = 9


class Form(NamedTuple):
    """Tensors and sizes of an opcode; each tensor has the sizes of its indices."""

    tensors: dict[str, tuple[str, ...]]
    sizes: tuple[str, ...]
    """Names of the sizes that are 1 or more."""
    pads: tuple[str, ...] = ()
    """Names of the sizes that are 0 or more."""
    alpha: bool = False


_GRID = ("rows", "columns")
_SUMS = ("images", "rows", "columns", "length")
ELEMENTWISE = (Opcode.ADD, Opcode.MUL, Opcode.SCALEADD)

FORMS = {
    Opcode.ADD: Form({"a": _GRID, "b": _GRID, "result": _GRID}, _GRID),
    Opcode.MUL: Form({"a": _GRID, "b": _GRID, "result": _GRID}, _GRID),
    Opcode.SCALEADD: Form({"a": _GRID, "b": _GRID, "result": _GRID}, _GRID, alpha=True),
    Opcode.SUM: Form({"a": _SUMS, "result": _SUMS[:-1]}, _SUMS),
    Opcode.DOT: Form({"a": _SUMS, "b": _SUMS, "result": _SUMS[:-1]}, _SUMS),
    Opcode.MATVEC: Form(
        {"a": _SUMS[1:], "b": ("columns", "length"), "result": _GRID}, (*_GRID, "length")
    ),
    Opcode.MATMUL: Form(
        {"a": ("rows", "length"), "b": ("length", "columns"), "result": _GRID},
        (*_GRID, "length"),
    ),
    Opcode.CONV2D: Form(
        {
            "a": ("images", "channels", "height", "width"),
            "b": ("filters", "channels", "filter_height", "filter_width"),
            "result": ("images", "filters", "rows", "columns"),
        },
        (
            *_GRID,
            *("images", "filters", "channels", "height", "width"),
            *("filter_height", "filter_width", "stride", "dilation"),
        ),
        ("pad_top", "pad_left"),
    ),
}
"""Form of every opcode."""

_LARGE = ("rows", "columns", "length")
_SIZES = (
    *_LARGE,
    *("images", "filters", "channels", "height", "width", "filter_height", "filter_width"),
    *("stride", "dilation", "pad_top", "pad_left"),
)
_TENSORS = ("a", "b", "result")
_WORDS = struct.Struct("<4I2Q8xQ14I4B2H16x8i16x4i")
RESERVED_WORDS = (8, 9, *range(28, 32), *range(40, 44))
"""Words that no opcode uses; they must be zero."""

DESCRIPTOR_BYTES = _WORDS.size


@dataclass(frozen=True, kw_only=True)
class StridedTensor:
    """Place of an operand or of the result."""

    address_bytes: int = 0
    """Byte address in the stack of the element with all indices zero."""

    strides: tuple[int, ...] = ()
    """Distances in elements between neighbours along each index; always four, 0 if not given.

    They may be negative and, for operands, zero.
    """

    def __post_init__(self) -> None:
        missing = INDICES - len(self.strides)
        if missing < 0:
            raise ValueError(f"strides must be {INDICES} or fewer, got {self.strides}")
        object.__setattr__(self, "strides", (*self.strides, *[0] * missing))


class TilingPlan(NamedTuple):
    """Cut of a work into tiles and chunks. Results do not depend on it.

    Examples
    --------
    >>> TilingPlan(chunk=6, flags=1).exchanged
    True
    >>> TilingPlan(chunk=6, flags=6).across
    (True, True)
    """

    chunk: int = 0
    """Binary logarithm of a vector's elements in a buffer at once."""
    depth: int = 0
    """Binary logarithm of the first vectors per lane in a tile."""
    seconds: int = 0
    """Binary logarithm of the second vectors of a tile."""
    block: int = 0
    """Binary logarithm of the second vectors in a buffer at once."""
    channels: int = 0
    """Whole channels in a buffer at once; 0: one, or a part of one."""
    flags: int = 0

    @property
    def exchanged(self) -> bool:
        """True if the first vectors are the second operand's.

        They are b's columns with MATMUL, the filters with CONV2D.
        """
        return bool(self.flags & 1)

    @property
    def across(self) -> tuple[bool, bool]:
        """True, for first and for second vectors, if neighbouring vectors are loaded together."""
        return bool(self.flags & 2), bool(self.flags & 4)


class Room(NamedTuple):
    """Sizes that a plan must fit.

    The words are elements in one buffer half, per eight lanes, of the first and of the second
    operand, and the sums that a lane keeps.
    """

    first_words: int
    second_words: int
    state_words: int


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Work for the fixed-function pools; fields that its opcode does not use are zero.

    Examples
    --------
    >>> places = (0, 256, 512)
    >>> a, b, result = (StridedTensor(address_bytes=n, strides=(8, 1)) for n in places)
    >>> work = Descriptor(opcode=Opcode.ADD, units=1, a=a, b=b, result=result, rows=4, columns=8)
    >>> work.span("result"), len(work.encode())
    (range(512, 640), 192)
    >>> work.operands, work.conflicts_with(work)
    (('a', 'b'), True)
    """

    opcode: int
    alpha_bits: int = 0
    """FP32 factor of SCALEADD, as bits."""
    banks: int = 0
    """Banks to work on, a bit for each; 0 leaves the choice to the pool."""
    units: int = 0
    """Units to work on, if the pool chooses the banks; fewer if no more are idle."""
    a: StridedTensor = field(default_factory=StridedTensor)
    b: StridedTensor = field(default_factory=StridedTensor)
    result: StridedTensor = field(default_factory=StridedTensor)
    rows: int = 0
    columns: int = 0
    length: int = 0
    images: int = 0
    filters: int = 0
    channels: int = 0
    height: int = 0
    width: int = 0
    filter_height: int = 0
    filter_width: int = 0
    stride: int = 0
    dilation: int = 0
    pad_top: int = 0
    pad_left: int = 0
    plan: TilingPlan = field(default_factory=TilingPlan)

    @property
    def form(self) -> Form:
        """Form of the opcode; ``ValueError`` if there is no such opcode."""
        return FORMS[Opcode(self.opcode)]

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors that are read."""
        return tuple(name for name in self.form.tensors if name != "result")

    def extents(self, name: str) -> tuple[int, ...]:
        """Return the size of each index of the tensor ``name``."""
        return tuple(getattr(self, size) for size in self.form.tensors[name])

    def span(self, name: str) -> range:
        """Return the tensor's byte addresses, from the lowest to the highest."""
        tensor: StridedTensor = getattr(self, name)
        low = high = 0
        for stride, extent in zip(tensor.strides, self.extents(name), strict=False):
            low += min(0, stride * (extent - 1))
            high += max(0, stride * (extent - 1))
        first = tensor.address_bytes + ELEMENT_BYTES * low
        return range(first, tensor.address_bytes + ELEMENT_BYTES * (high + 1))

    def conflicts_with(self, other: Descriptor) -> bool:
        """Return whether one of the two works writes a place that the other uses."""

        def meets(writer: Descriptor, reader: Descriptor) -> bool:
            written = writer.span("result")
            used = [reader.span(name) for name in reader.form.tensors]
            return any(u.start < written.stop and written.start < u.stop for u in used)

        return meets(self, other) or meets(other, self)

    def encode(self) -> bytes:
        """Return the descriptor in the hardware's format, little endian.

        Raises ``struct.error`` for a value that its field cannot hold.
        """
        tensors: list[StridedTensor] = [getattr(self, name) for name in _TENSORS]
        return _WORDS.pack(
            *(self.opcode, self.alpha_bits, self.banks, self.units),
            *(tensor.address_bytes for tensor in tensors),
            *(getattr(self, size) for size in _SIZES),
            *self.plan,
            *(stride for tensor in tensors for stride in tensor.strides),
        )

    @classmethod
    def decode(cls, data: bytes) -> Descriptor:
        """Return the descriptor from its words, the inverse of :meth:`encode`.

        Raises ``ValueError`` if a reserved word is not zero.
        """
        if any(any(data[4 * word : 4 * word + 4]) for word in RESERVED_WORDS):
            raise ValueError("a reserved word is not zero")
        words = _WORDS.unpack(data)
        fields, strides = words[7 : -INDICES * len(_TENSORS)], words[-INDICES * len(_TENSORS) :]
        sizes, plan = fields[: len(_SIZES)], fields[len(_SIZES) :]
        tensors = {
            name: StridedTensor(
                address_bytes=words[4 + place],
                strides=strides[INDICES * place : INDICES * (place + 1)],
            )
            for place, name in enumerate(_TENSORS)
        }
        opcode, alpha_bits, banks, units = words[:4]
        return cls(
            opcode=opcode,
            alpha_bits=alpha_bits,
            banks=banks,
            units=units,
            **tensors,
            **dict(zip(_SIZES, sizes, strict=True)),
            plan=TilingPlan(*plan),
        )


def check(work: Descriptor, *, stack: StackMap, units: int, room: Room | None = None) -> Cause:
    """Return the cause for which a ``stack`` with ``units`` would refuse ``work``, or ``NONE``.

    Plans are checked only if ``room`` is given.
    """
    if work.opcode not in FORMS:
        return Cause.OPCODE
    spans = {name: work.span(name) for name in work.form.tensors}
    refusals = {
        Cause.RESERVED: not _unused_are_zero(work),
        Cause.SIZE: any(
            not low <= getattr(work, size) < 1 << (24 if size in _LARGE else 16)
            for low, sizes in ((1, work.form.sizes), (0, work.form.pads))
            for size in sizes
        ),
        Cause.MISALIGNED: any(
            getattr(work, name).address_bytes % ELEMENT_BYTES for name in work.form.tensors
        ),
        Cause.OUT_OF_RANGE: not all(map(stack.holds, spans.values())),
        Cause.OVERLAP: not _places_are_distinct(work)
        or any(
            spans[name].start < spans["result"].stop
            and spans["result"].start < spans[name].stop
            and not _is_in_place(work, name)
            for name in work.operands
        ),
        Cause.BANKS: bool(work.banks >> stack.banks),
        Cause.UNITS: work.units != 0 if work.banks else not 1 <= work.units <= units,
        Cause.PLAN: room is not None and not _plan_fits(work, room),
    }
    return next((cause for cause, refused in refusals.items() if refused), Cause.NONE)


def _unused_are_zero(work: Descriptor) -> bool:
    form = work.form
    used = {"opcode", "banks", "units", "plan", *form.tensors, *form.sizes, *form.pads}
    used |= {"alpha_bits"} if form.alpha else set()
    rest = [getattr(work, item.name) for item in fields(work) if item.name not in used]
    strides = [
        stride
        for name, indices in form.tensors.items()
        for stride in getattr(work, name).strides[len(indices) :]
    ]
    return not any(strides) and all(value == 0 or value == StridedTensor() for value in rest)


def _places_are_distinct(work: Descriptor) -> bool:
    """Return whether no two results share a place.

    It is sufficient that, ordered by strides, each index steps beyond the reach of all smaller
    ones. Other results count as sharing.
    """
    indices = zip(work.result.strides, work.extents("result"), strict=False)
    reach = 0
    for stride, extent in sorted((abs(stride), extent) for stride, extent in indices):
        if extent > 1 and stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True


def _plan_fits(work: Descriptor, room: Room) -> bool:
    """Return whether a work of good sizes may be cut by its plan (docs/pim-spec.md, "The plan")."""
    chunk, depth, seconds, block, channels, flags = work.plan
    if max(chunk, depth, seconds, block) > 16 or chunk < 3 or flags >= 8:
        return False
    elements = 1 << chunk
    if work.opcode in ELEMENTWISE:
        return elements <= min(512, room.second_words) and not any(work.plan[1:])
    if work.plan.exchanged and work.opcode not in (Opcode.MATMUL, Opcode.CONV2D):
        return False
    taps = work.length or work.filter_height * work.filter_width
    # Subtrees of a channel that are open at a chunk's end, and the sum over the channels.
    kept = ((taps - 1) // elements).bit_length() + 1
    places = 1 << (kept - 1).bit_length()
    buffers = [room.first_words, *([room.second_words] if work.opcode == Opcode.DOT else [])]
    return (
        elements <= max(8, room.first_words // 32)
        and depth <= 3
        and all(8 * elements << depth <= words for words in buffers)
        and seconds <= 10
        and places << depth + seconds <= room.state_words
        and block <= 6
        and elements << block <= room.second_words
        and channels * taps <= elements
    )


def _is_in_place(work: Descriptor, name: str) -> bool:
    operand: StridedTensor = getattr(work, name)
    return (
        work.opcode in ELEMENTWISE
        and operand.address_bytes == work.result.address_bytes
        and operand.strides == work.result.strides
    )
