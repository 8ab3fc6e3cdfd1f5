"""What the pool's front makes of a descriptor: reference for its benches.

Fields have the names of :attr:`hw.pim.work.layouts.Jobs.checked`, joined by dots.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import ceil, log2
from typing import Any, NamedTuple
from unittest import mock

from amaranth.lib import data

from golden.pim import Cause, Descriptor, Opcode, StackMap, account, check
from golden.pim.descriptor import ELEMENTWISE, RESERVED_WORDS
from hw.pim.config import PimConfig
from hw.pim.work.layouts import Elementwise, Jobs, Padded, Second
from hw_tests.pim.plans import room_of

__all__ = ["FrontReference"]

_MODULO = (
    *(f"work.{tensor}." for tensor in ("first", "second", "result")),
    *(f"work.{name}_line_wrap" for name in ("first", "second", "result")),
    *("multiplications", "additions"),
)
"""Fields that begin so are modulo their width."""
_NESTS = ("address", "outer1", "outer2", "vector", "channel", "row", "column")


def _leaves(layout: Any, name: str = "", offset: int = 0) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, offset and width of the fields that are not made of others."""
    for key, field in layout:
        path = f"{name}.{key}" if name else str(key)
        if isinstance(field.shape, data.Layout):
            yield from _leaves(field.shape, path, offset + field.offset)
        else:
            yield path, (offset + field.offset, field.width)


class FrontReference:
    """The front of a pool."""

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        self.word_bits = Jobs(config).word_bits
        checked = Jobs(config).checked
        self._leaves = dict(_leaves(checked))
        self._work = checked["work"].offset, checked["work"].width

    def unpack(self, payload: int) -> dict[str, int]:
        """The fields of a payload."""
        return {
            name: payload >> offset & ((1 << width) - 1)
            for name, (offset, width) in self._leaves.items()
        }

    def fields(self, values: dict[str, int]) -> dict[str, int]:
        """These fields, cut to their widths, and the others, which are zero."""
        assert values.keys() <= self._leaves.keys()
        return {
            name: values.get(name, 0) & ((1 << width) - 1)
            for name, (_, width) in self._leaves.items()
        }

    def of(self, work: Descriptor) -> dict[str, int]:
        """All fields for a good work; those that are not modulo their width must fit it."""
        values = _expected(work)
        fields = self.fields(values)
        for name, value in values.items():
            if not name.startswith(_MODULO):
                assert fields[name] == value, f"{name} of {fields[name]} is to hold {value}: {work}"
        return fields

    def pack_work(self, fields: dict[str, int]) -> int:
        """The payload of :attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>` of these fields."""
        first, width = self._work
        payload = sum(fields[name] << offset for name, (offset, _) in self._leaves.items())
        return payload >> first & ((1 << width) - 1)

    def cause(self, words: list[int]) -> Cause:
        """What the golden model says; it has no reserved words."""
        config = self._config
        reserved = [words[place] for place in RESERVED_WORDS]
        zeroed = [0 if place in RESERVED_WORDS else word for place, word in enumerate(words)]
        work = _work_of(zeroed)
        stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
        cause = check(work, stack=stack, units=config.units, room=room_of(config))
        return Cause.RESERVED if any(reserved) and cause != Cause.OPCODE else cause

    def check(self, words: list[int], fields: dict[str, int]) -> Cause:
        """Checks that the cause is the golden model's, and if there is none, all other fields."""
        cause = self.cause(words)
        assert fields["cause"] == cause, f"{fields['cause']} for {cause!r}: {words}"
        if cause == Cause.NONE:
            work = _work_of(words)
            want = self.of(work)
            wrong = {
                name: (fields[name], want[name]) for name in want if fields[name] != want[name]
            }
            assert not wrong, f"got, expected {wrong}: {work}"
        return cause

    def check_products(self, words: list[int], fields: dict[str, int]) -> None:
        """Checks that every result of a good, small work is made of the elements that
        docs/pim-spec.md says, in its order, by going through all indices."""
        work = _work_of(words)
        got, want = _products_of_fields(fields, self.word_bits), _products_of(work)
        # A product does not depend on the order of its factors.
        exchanged = {
            result: [product[::-1] for product in products] for result, products in got.items()
        }
        may_exchange = work.opcode in (Opcode.MATMUL, Opcode.CONV2D)
        assert want == got or (may_exchange and want == exchanged), work


def _work_of(words: list[int]) -> Descriptor:
    return Descriptor.decode(struct.pack("<48I", *words))


def _expected(work: Descriptor) -> dict[str, int]:
    """The fields for a good work that are not zero, not yet cut to their widths."""
    shape = _shape(work)
    fields = {"cause": 0, "banks": work.banks, "add_only": int(work.opcode in (1, 0x10))}
    fields |= dict(zip(("outer1", "outer2", "first", "second"), shape.extents, strict=True))
    fields |= shape.fields
    for name, nest in (("first", shape.first), ("second", shape.second)):
        if nest:
            fields |= {f"work.{name}.{part}": nest[part] for part in nest}
    for number, name in enumerate(("a", "b", "result")):
        if name in work.form.tensors:
            span = work.span(name)
            fields[f"spans.{number}.used"] = 1
            fields[f"spans.{number}.low"] = span.start // 4
            fields[f"spans.{number}.high"] = span.stop // 4 - 1
    # How many bytes it reads takes long to find out, and is not asked for.
    with mock.patch("golden.pim.work._elements_read", return_value=0):
        amount = account(work)
    fields["multiplications"] = amount.multiplications
    fields["additions"] = amount.additions
    fields["units"] = work.units
    plan = work.plan._asdict()
    del plan["flags"]
    fields |= {f"work.plan.{name}": value for name, value in plan.items()}
    if work.opcode not in ELEMENTWISE:
        beyond = (fields["work.taps"] - 1) >> work.plan.chunk
        fields["work.plan.levels"] = ceil(log2(1 + (len(f"{beyond:b}") if beyond else 0)))
    return fields


class _Shape(NamedTuple):
    extents: tuple[int, int, int, int]
    """outer1, outer2, first, second"""
    fields: dict[str, int]
    first: dict[str, int]
    second: dict[str, int] | None = None


def _nest(address_bytes: int, **strides: int) -> dict[str, int]:
    return dict.fromkeys(_NESTS, 0) | {"address": address_bytes // 4, **strides}


def _result(work: Descriptor, **strides: int) -> dict[str, int]:
    parts = {"address": work.result.address_bytes // 4, **strides}
    return {f"work.result.{part}": value for part, value in parts.items()}


def _shape(work: Descriptor) -> _Shape:
    a, b, r = work.a, work.b, work.result
    if work.opcode in ELEMENTWISE:
        nests = [
            _nest(tensor.address_bytes, outer1=tensor.strides[0], vector=tensor.strides[1])
            for tensor in (a, b)
        ]
        fields = {
            "work.elementwise": 1,
            "work.operation": Elementwise[Opcode(work.opcode).name].value,
            "work.alpha": work.alpha_bits,
            **_result(work, outer1=r.strides[0], first=r.strides[1]),
            **{
                f"work.{operand}_repeats": int(getattr(work, name).strides[1] == 0)
                for operand, name in zip(("first", "second"), work.operands, strict=True)
            },
        }
        return _Shape((work.rows, 1, work.columns, 1), fields, *nests)

    extents = (1, 1, work.rows, 1)
    taps, padded = (1, 1, work.length), Padded.NONE
    first = _nest(a.address_bytes, vector=a.strides[0], column=a.strides[1])
    second, kind = None, Second.SHARED
    match Opcode(work.opcode):
        case Opcode.SUM | Opcode.DOT:
            kind = Second.NONE
            parts = ("outer2", "outer1", "vector", "column")
            first = _nest(a.address_bytes, **dict(zip(parts, a.strides, strict=True)))
            extents = (1, work.images, work.rows * work.columns, 1)
            result = _result(work, outer2=r.strides[0], outer1=r.strides[1], first=r.strides[2]) | {
                "work.lines": 1,
                "work.line": work.columns,
                "work.first_line_wrap": a.strides[1] - (work.columns - 1) * a.strides[2],
                "work.result_line_wrap": r.strides[1] - (work.columns - 1) * r.strides[2],
            }
            if work.opcode == Opcode.DOT:
                kind = Second.PRIVATE
                second = _nest(b.address_bytes, **dict(zip(parts, b.strides, strict=True)))
                result["work.second_line_wrap"] = b.strides[1] - (work.columns - 1) * b.strides[2]
        case Opcode.MATVEC:
            first = _nest(
                a.address_bytes, vector=a.strides[0], outer1=a.strides[1], column=a.strides[2]
            )
            second = _nest(b.address_bytes, outer1=b.strides[0], column=b.strides[1])
            extents = (work.columns, 1, work.rows, 1)
            result = _result(work, first=r.strides[0], outer1=r.strides[1])
        case Opcode.MATMUL:
            second = _nest(b.address_bytes, vector=b.strides[1], column=b.strides[0])
            extents = (1, 1, work.rows, work.columns)
            result = _result(work, first=r.strides[0], second=r.strides[1])
            if work.plan.exchanged:
                first, second = second, first
                extents = (1, 1, work.columns, work.rows)
                result = _result(work, first=r.strides[1], second=r.strides[0])
        case Opcode.CONV2D:
            image_n, image_c, image_y, image_x = a.strides
            filter_f, filter_c, filter_u, filter_v = b.strides
            first = _nest(
                4 * (a.address_bytes // 4 - work.pad_top * image_y - work.pad_left * image_x),
                outer1=work.stride * image_y,
                outer2=image_n,
                vector=work.stride * image_x,
                channel=image_c,
                row=work.dilation * image_y,
                column=work.dilation * image_x,
            )
            second = _nest(
                b.address_bytes, vector=filter_f, channel=filter_c, row=filter_u, column=filter_v
            )
            result_n, result_f, result_y, result_x = r.strides
            outer = {"outer1": result_y, "outer2": result_n}
            results = work.rows * work.columns
            extents = (1, work.images, results, work.filters)
            result = _result(work, **outer, first=result_x, second=result_f)
            padded = Padded.FIRST
            if not work.plan.exchanged:
                result |= {
                    "work.lines": 1,
                    "work.line": work.columns,
                    "work.first_line_wrap": first["outer1"] - (work.columns - 1) * first["vector"],
                    "work.result_line_wrap": result_y - (work.columns - 1) * result_x,
                }
            else:
                first, second = second, first
                extents = (work.rows, work.images, work.filters, work.columns)
                result = _result(work, **outer, first=result_f, second=result_x)
                padded = Padded.SECOND
            taps = (work.channels, work.filter_height, work.filter_width)
    fields = {
        "work.second_kind": kind.value,
        "work.channels": taps[0],
        "work.tap_rows": taps[1],
        "work.tap_columns": taps[2],
        "work.taps": taps[1] * taps[2],
        "work.padded": padded.value,
        "work.image_height": work.height,
        "work.image_width": work.width,
        **{f"work.{name}": getattr(work, name) for name in ("pad_top", "pad_left")},
        **{f"work.{name}": getattr(work, name) for name in ("stride", "dilation")},
        "work.first_across": work.plan.flags >> 1 & 1,
        "work.second_across": work.plan.flags >> 2 & 1 if second else 0,
        **result,
    }
    return _Shape(extents, fields, first, second)


_Products = dict[int, list[tuple[int | None, ...]]]
"""For the address of each result, in elements, those of the operands of its products, in the order
of the sums; ``None`` is padding. An elementwise result has one "product"."""


def _products_of(work: Descriptor) -> _Products:
    """The products of a small work, from the formulas of docs/pim-spec.md."""

    def at(name: str, *indices: int) -> int:
        tensor = getattr(work, name)
        steps = zip(tensor.strides, indices, strict=False)
        return tensor.address_bytes // 4 + sum(stride * index for stride, index in steps)

    rows, columns, length = range(work.rows), range(work.columns), range(work.length)
    match Opcode(work.opcode):
        case Opcode.ADD | Opcode.MUL | Opcode.SCALEADD:
            return {
                at("result", i, j): [tuple(at(name, i, j) for name in work.operands)]
                for i in rows
                for j in columns
            }
        case Opcode.SUM | Opcode.DOT:
            return {
                at("result", n, i, j): [
                    tuple(at(name, n, i, j, k) for name in work.operands) for k in length
                ]
                for n in range(work.images)
                for i in rows
                for j in columns
            }
        case Opcode.MATVEC:
            return {
                at("result", i, j): [(at("a", i, j, k), at("b", j, k)) for k in length]
                for i in rows
                for j in columns
            }
        case Opcode.MATMUL:
            return {
                at("result", i, j): [(at("a", i, k), at("b", k, j)) for k in length]
                for i in rows
                for j in columns
            }

    def image(n: int, c: int, y: int, x: int) -> int | None:
        inside = 0 <= y < work.height and 0 <= x < work.width
        return at("a", n, c, y, x) if inside else None

    return {
        at("result", n, f, y, x): [
            (
                image(
                    n,
                    c,
                    work.stride * y + work.dilation * u - work.pad_top,
                    work.stride * x + work.dilation * v - work.pad_left,
                ),
                at("b", f, c, u, v),
            )
            for c in range(work.channels)
            for u in range(work.filter_height)
            for v in range(work.filter_width)
        ]
        for n in range(work.images)
        for f in range(work.filters)
        for y in rows
        for x in columns
    }


def _products_of_fields(fields: dict[str, int], word_bits: int) -> _Products:
    """The products of a small work, from the canonical form: what a bank would do."""
    operands = ["first"]
    if fields["work.elementwise"] or fields["work.second_kind"] != Second.NONE.value:
        operands += ["second"]
    shared = fields["work.second_kind"] == Second.SHARED.value
    products: _Products = {}
    for o1 in range(fields["outer1"]):
        for o2 in range(fields["outer2"]):
            for p in range(fields["first"]):
                for s in range(fields["second"]):
                    result = sum(
                        step * fields[f"work.result.{name}"]
                        for step, name in (
                            *((1, "address"), (o1, "outer1"), (o2, "outer2")),
                            *((p, "first"), (s, "second")),
                        )
                    )
                    result += _lines(fields, "result", "first", p)[1]
                    result %= 1 << word_bits
                    assert result not in products
                    products[result] = [
                        tuple(
                            _element(
                                fields,
                                name,
                                (o1, o2, s if shared and name == "second" else p, *tap),
                                word_bits,
                            )
                            for name in operands
                        )
                        for tap in _taps(fields)
                    ]
    return products


def _taps(fields: dict[str, int]) -> Iterator[tuple[int, int, int]]:
    if fields["work.elementwise"]:
        return iter([(0, 0, 0)])
    assert fields["work.taps"] == fields["work.tap_rows"] * fields["work.tap_columns"]
    return (
        (c, u, v)
        for c in range(fields["work.channels"])
        for u in range(fields["work.tap_rows"])
        for v in range(fields["work.tap_columns"])
    )


def _lines(fields: dict[str, int], operand: str, vector: str, p: int) -> tuple[int, int]:
    """The line of first vector ``p``, and how much further on it is than without lines."""
    if not fields["work.lines"]:
        return 0, 0
    line = p // fields["work.line"]
    wrap, step = fields[f"work.{operand}_line_wrap"], fields[f"work.{operand}.{vector}"]
    return line, line * (wrap - step)


def _element(
    fields: dict[str, int], name: str, index: tuple[int, ...], word_bits: int
) -> int | None:
    o1, _, vector, _, u, v = index
    own = name == "first" or fields["work.second_kind"] == Second.PRIVATE.value
    down, further = _lines(fields, name, "vector", vector) if own else (0, 0)
    if fields["work.padded"] == {"first": 1, "second": 2}[name]:
        right = vector - down * fields["work.line"]
        y = fields["work.stride"] * (o1 + down) + fields["work.dilation"] * u
        y -= fields["work.pad_top"]
        x = fields["work.stride"] * right + fields["work.dilation"] * v - fields["work.pad_left"]
        if not (0 <= y < fields["work.image_height"] and 0 <= x < fields["work.image_width"]):
            return None
    steps = zip((1, *index), _NESTS, strict=True)
    address = sum(step * fields[f"work.{name}.{part}"] for step, part in steps)
    return (address + further) % (1 << word_bits)
