"""A work for the pool, and the words of its descriptor.

The layout comes from the hardware, :mod:`hw.pim.work.descriptor`. The golden model has its own
encoder, written from ``docs/pim-spec.md``. The tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from math import prod
from typing import TYPE_CHECKING

from hw.pim.config import STRIPE_BYTES
from hw.pim.work.descriptor import (
    DESCRIPTOR_WORDS,
    ELEMENTWISE_OPCODES,
    FORMS,
    PLAN_BITS,
    PLAN_WORD,
    TENSORS,
    Opcode,
    address_word,
    field_word,
    stride_word,
)
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_integer

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

    from .buffers import Buffer

__all__ = [
    "DESCRIPTOR_WORDS",
    "ELEMENT_BYTES",
    "Opcode",
    "StridedTensor",
    "TilingPlan",
    "Work",
    "banks_of",
]

ELEMENT_BYTES = 4
"""Bytes of an FP32 number."""

_INDICES = 4


@dataclass(frozen=True, kw_only=True)
class StridedTensor:
    """Place of an operand or a result in the stack."""

    address_bytes: int = 0
    """Address of the element at index 0 of every dimension."""
    strides: tuple[int, ...] = ()
    """Distance in elements between neighbours along each index, of up to four indices."""
    buffer: Buffer | None = field(default=None, compare=False, repr=False)
    """Buffer that holds the tensor, if :func:`~sw_driver.pim.placing.work_on` knew it."""

    def __post_init__(self) -> None:
        # A copy: the caller may change its list later.
        object.__setattr__(self, "strides", tuple(self.strides))


@dataclass(frozen=True, kw_only=True)
class TilingPlan:
    """Tiling of a work (``docs/pim-spec.md``, "The plan"); the result does not depend on it."""

    chunk: int = 0
    depth: int = 0
    seconds: int = 0
    block: int = 0
    channels: int = 0
    exchanged: int = 0
    first_across: int = 0
    second_across: int = 0

    @property
    def across(self) -> tuple[int, int]:
        """Flags of the first and second vectors: 1 loads neighbouring vectors together."""
        return self.first_across, self.second_across


@dataclass(frozen=True, kw_only=True)
class Work:
    """One operation on tensors in the stack, as ``docs/pim-spec.md`` describes it.

    Fields that the opcode does not use are zero. The pool refuses an invalid work; this class does
    not check it.

    Examples
    --------
    >>> row = StridedTensor(address_bytes=0, strides=(8, 1))
    >>> tiles = TilingPlan(chunk=4)
    >>> work = Work(opcode=Opcode.ADD, a=row, b=row, result=row, rows=4, columns=8, plan=tiles)
    >>> work.operations, work.span("result"), work.overlaps
    ((0, 32), range(0, 128), False)
    """

    opcode: int
    alpha_bits: int = 0
    """FP32 factor of SCALEADD, as raw bits."""
    banks: int = 0
    """Mask of the banks to work on; 0 lets the pool choose."""
    units: int = 0
    """Most units to work on, if the pool chooses the banks."""
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
    plan: TilingPlan | None = None
    """Tiling of the work; by default the driver plans it when it offers the work."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors that the work reads."""
        return tuple(name for name in self._tensors if name != "result")

    @property
    def _tensors(self) -> dict[str, tuple[str, ...]]:
        return FORMS[Opcode(self.opcode)].tensors

    def extents(self, name: str) -> tuple[int, ...]:
        """Return the extent of each index of the tensor ``name``."""
        return tuple(getattr(self, size) for size in self._tensors[name])

    def span(self, name: str) -> range:
        """Return the byte range from the lowest to the highest element of the tensor ``name``."""
        tensor: StridedTensor = getattr(self, name)
        reaches = [
            stride * (extent - 1)
            for stride, extent in zip(tensor.strides, self.extents(name), strict=False)
        ]
        low = sum(reach for reach in reaches if reach < 0)
        high = sum(reach for reach in reaches if reach > 0)
        return range(
            tensor.address_bytes + ELEMENT_BYTES * low,
            tensor.address_bytes + ELEMENT_BYTES * (high + 1),
        )

    @property
    def overlaps(self) -> bool:
        """True if the pool refuses the work as ``overlap``.

        Two results may share an address, or the result's span meets the span of an operand. An
        elementwise work may write its result in place of an operand.
        """
        result, reach = self.span("result"), 0
        indices = zip(self.result.strides, self.extents("result"), strict=False)
        for stride, extent in sorted((abs(stride), extent) for stride, extent in indices):
            if extent > 1 and stride <= reach:
                return True
            reach += stride * (extent - 1)
        by_element = self.opcode in ELEMENTWISE_OPCODES
        others = [n for n in self.operands if not (by_element and getattr(self, n) == self.result)]
        spans = map(self.span, others)
        return any(span.start < result.stop and result.start < span.stop for span in spans)

    @property
    def results(self) -> int:
        """Number of values that the work computes."""
        return prod(self.extents("result"))

    @property
    def operations(self) -> tuple[int, int]:
        """Multiplications and additions, as the pool counts them."""
        results = self.results
        if self.opcode in ELEMENTWISE_OPCODES:
            multiplies, adds = self.opcode != Opcode.ADD, self.opcode != Opcode.MUL
            return multiplies * results, adds * results
        products = self.channels * self.filter_height * self.filter_width
        terms = products if self.opcode == Opcode.CONV2D else self.length
        return (self.opcode != Opcode.SUM) * results * terms, results * (terms - 1)

    def encode(self) -> list[int]:
        """Return the words of the descriptor, each from 0 to 2**32 - 1.

        Without a plan its words are zero. Raises :class:`InvalidArgumentError` for a value that its
        field cannot hold.
        """
        words = [0] * DESCRIPTOR_WORDS
        for name in (item.name for item in fields(self) if item.name not in (*TENSORS, "plan")):
            word = field_word("alpha" if name == "alpha_bits" else name)
            words[word] = check_integer(name, getattr(self, name), 0, (1 << 32) - 1)
        for name in TENSORS:
            tensor: StridedTensor = getattr(self, name)
            word = address_word(name)
            address = check_integer(f"address of {name}", tensor.address_bytes, 0, (1 << 64) - 1)
            words[word], words[word + 1] = address & 0xFFFF_FFFF, address >> 32
            if len(tensor.strides) > _INDICES:
                raise InvalidArgumentError(
                    f"{name} has {len(tensor.strides)} strides {tensor.strides}, but a descriptor "
                    f"has {_INDICES} for a tensor: view it with fewer indices",
                    strides=tensor.strides,
                )
            for place, stride in enumerate(tensor.strides):
                held = check_integer(f"stride {place} of {name}", stride, -(1 << 31), (1 << 31) - 1)
                words[stride_word(name, place)] = held & 0xFFFF_FFFF
        plan = bit = 0
        for name, width in PLAN_BITS.items():
            value = getattr(self.plan, name) if self.plan else 0
            plan |= check_integer(f"{name} of the plan", value, 0, (1 << width) - 1) << bit
            bit += width
        words[PLAN_WORD : PLAN_WORD + 2] = plan & 0xFFFF_FFFF, plan >> 32
        return words

    def encode_bytes(self) -> bytes:
        """Return the descriptor as bytes in memory, little endian."""
        return b"".join(word.to_bytes(4, "little") for word in self.encode())


def banks_of(spans: Iterable[range], config: PimConfig) -> list[int]:
    """Return the banks that ``spans`` touch, in ascending order."""
    return sorted({bank for span in spans for bank in _banks_of(span, config)})


def _banks_of(span: range, config: PimConfig) -> Iterable[int]:
    start, size = config.striped_start_bytes, config.bank_bytes
    if span.start < start:
        return range(span[0] // size, span[-1] // size + 1)
    first, last = (span[0] - start) // STRIPE_BYTES, (span[-1] - start) // STRIPE_BYTES
    stripes = range(first, min(last, first + config.striped_banks - 1) + 1)
    return (stripe % config.striped_banks for stripe in stripes)
