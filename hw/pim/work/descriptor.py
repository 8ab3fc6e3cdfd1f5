"""Descriptor of a work: its words, the operands of each opcode, and the causes of refusal."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

__all__ = [
    "DESCRIPTOR_WORDS",
    "ELEMENTWISE_OPCODES",
    "FORMS",
    "PLAN_BITS",
    "PLAN_WORD",
    "TENSORS",
    "Cause",
    "Form",
    "Opcode",
    "address_word",
    "field_word",
    "size_limit",
    "stride_word",
]

DESCRIPTOR_WORDS = 48
"""32-bit words of a descriptor."""

_PLACES = {"a": 0, "b": 1, "result": 3}
"""Places of the tensors' addresses and strides; place 2 is reserved."""

TENSORS = tuple(_PLACES)
"""Names of the tensors."""

_ADDRESSES = 4
_LARGE_SIZES = ("rows", "columns", "length")
_SIZES = 12
PLAN_WORD = 26
"""First of the two words with the plan, which says how the work is cut."""

PLAN_BITS = {
    "chunk": 8,
    "depth": 8,
    "seconds": 8,
    "block": 8,
    "channels": 16,
    "exchanged": 1,
    "first_across": 1,
    "second_across": 1,
}
"""Fields of the plan from bit 0, with their widths; the rest of its words is zero."""

_STRIDES = 32
_FIELDS = {
    name: word
    for first, names in (
        (0, ("opcode", "alpha", "banks", "units")),
        (_SIZES, _LARGE_SIZES),
        (15, ("images", "filters", "channels", "height", "width", "filter_height")),
        (21, ("filter_width", "stride", "dilation", "pad_top", "pad_left")),
    )
    for word, name in enumerate(names, first)
}


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


ELEMENTWISE_OPCODES = (Opcode.ADD, Opcode.MUL, Opcode.SCALEADD)


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


def field_word(name: str) -> int:
    """Return the number of the descriptor's word that holds a field or size."""
    return _FIELDS[name]


def address_word(tensor: str) -> int:
    """Return the number of the lower of the two words that hold a tensor's address."""
    return _ADDRESSES + 2 * _PLACES[tensor]


def stride_word(tensor: str, index: int) -> int:
    """Return the number of the word with a tensor's stride for one of its up to four indices."""
    return _STRIDES + 4 * _PLACES[tensor] + index


def size_limit(name: str) -> int:
    """Return the largest value of a size."""
    return (1 << 24) - 1 if name in _LARGE_SIZES else 65535


class Form(NamedTuple):
    """Tensors and sizes of an opcode."""

    tensors: dict[str, tuple[str, ...]]
    """Tensors, each with the sizes of its indices."""
    sizes: tuple[str, ...]
    """Names of the sizes that are 1 or more."""
    pads: tuple[str, ...] = ()
    """Names of the sizes that are 0 or more."""
    alpha: bool = False

    @property
    def words(self) -> frozenset[int]:
        """Numbers of the words that the opcode uses; all others must be zero."""
        fields = ["opcode", "banks", "units", *self.sizes, *self.pads, *["alpha"] * self.alpha]
        return frozenset(
            [
                *map(field_word, fields),
                *(PLAN_WORD, PLAN_WORD + 1),
                *(address_word(tensor) + half for tensor in self.tensors for half in (0, 1)),
                *(
                    stride_word(tensor, index)
                    for tensor, indices in self.tensors.items()
                    for index in range(len(indices))
                ),
            ]
        )


_GRID = ("rows", "columns")
_SUMS = ("images", "rows", "columns", "length")
_TWO = Form({"a": _GRID, "b": _GRID, "result": _GRID}, _GRID)

FORMS = {
    Opcode.ADD: _TWO,
    Opcode.MUL: _TWO,
    Opcode.SCALEADD: _TWO._replace(alpha=True),
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
            *(*_GRID, "images", "filters", "channels", "height", "width"),
            *("filter_height", "filter_width", "stride", "dilation"),
        ),
        ("pad_top", "pad_left"),
    ),
}
"""Form of every opcode (docs/pim-spec.md, "Works")."""
