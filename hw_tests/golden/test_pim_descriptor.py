"""The PIM's descriptors: words, and each cause for which a work is refused, at its limits."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from golden.pim import Cause, Descriptor, Opcode, Room, StackMap, StridedTensor, TilingPlan, check

BANKS, BANK_BYTES, UNITS = 4, 4096, 30
STACK = StackMap(banks=BANKS, bank_bytes=BANK_BYTES)


def cause(work: Descriptor) -> Cause:
    return check(work, stack=STACK, units=UNITS)


def at(address_bytes: int, *strides: int) -> StridedTensor:
    return StridedTensor(address_bytes=address_bytes, strides=strides)


ADD = Descriptor(
    opcode=Opcode.ADD,
    units=1,
    a=at(0, 8, 1),
    b=at(256, 8, 1),
    result=at(512, 8, 1),
    rows=4,
    columns=8,
)
SCALEADD = replace(ADD, opcode=Opcode.SCALEADD, alpha_bits=0x7FC00001)
SUM = Descriptor(
    opcode=Opcode.SUM,
    units=1,
    a=at(0, 16, 8, 4, 1),
    result=at(512, 4, 2, 1),
    images=2,
    rows=2,
    columns=2,
    length=4,
)
DOT = replace(SUM, opcode=Opcode.DOT, b=at(256, 0, 0, 0, 1))
MATVEC = replace(
    SUM,
    opcode=Opcode.MATVEC,
    a=at(0, 8, 4, 1),
    b=at(256, 4, 1),
    result=at(512, 2, 1),
    images=0,
)
MATMUL = replace(ADD, opcode=Opcode.MATMUL, length=8)
CONV2D = Descriptor(
    opcode=Opcode.CONV2D,
    banks=0b1010,
    a=at(0, 50, 25, 5, 1),
    b=at(1024, 18, 9, 3, 1),
    result=at(2048, 18, 9, 3, 1),
    rows=3,
    columns=3,
    images=2,
    filters=2,
    channels=2,
    height=5,
    width=5,
    filter_height=3,
    filter_width=3,
    stride=1,
    dilation=1,
)
WORKS = [ADD, replace(ADD, opcode=Opcode.MUL), SCALEADD, SUM, DOT, MATVEC, MATMUL, CONV2D]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: Opcode(work.opcode).name)
def test_good_works_are_accepted(work: Descriptor) -> None:
    assert cause(work) == Cause.NONE


def test_opcodes() -> None:
    known = {0x01, 0x02, 0x04, 0x10, 0x11, 0x20, 0x21, 0x30}
    for opcode in [*range(256), 0x101, 1 << 31]:
        refused = cause(replace(ADD, opcode=opcode)) == Cause.OPCODE
        assert refused == (opcode not in known), hex(opcode)


FIELDS: dict[str, tuple[Descriptor, list[str]]] = {
    "ADD": (ADD, ["rows", "columns"]),
    "SCALEADD": (SCALEADD, ["rows", "columns", "alpha_bits"]),
    "SUM": (SUM, ["images", "rows", "columns", "length"]),
    "MATVEC": (MATVEC, ["rows", "columns", "length"]),
    "MATMUL": (MATMUL, ["rows", "columns", "length"]),
    "CONV2D": (
        CONV2D,
        [
            *("rows", "columns", "images", "filters", "channels", "height", "width"),
            *("filter_height", "filter_width", "stride", "dilation", "pad_top", "pad_left"),
        ],
    ),
}
ALL_FIELDS = [*dict.fromkeys(name for _, names in FIELDS.values() for name in names)]


@pytest.mark.parametrize("name", FIELDS)
def test_unused_fields_must_be_zero(name: str) -> None:
    work, used = FIELDS[name]
    for field in ALL_FIELDS:
        changes: dict[str, Any] = {field: 1}
        refused = cause(replace(work, **changes)) == Cause.RESERVED
        assert refused == (field not in used), field


@pytest.mark.parametrize(
    "work",
    [
        replace(SUM, b=at(256)),
        replace(SUM, b=at(0, 0, 0, 0, 1)),
        replace(SUM, b=at(256, 1)),
        replace(SUM, result=at(512, 4, 2, 1, 1)),
        replace(ADD, a=at(0, 8, 1, 1)),
        replace(MATVEC, a=at(0, 0, 8, 4, 1)),
        replace(MATVEC, b=at(256, 0, 4, 1)),
    ],
    ids=["tensor", "stride_of_no_tensor", "b", "fourth", "third", "of_a_row", "of_a_vector"],
)
def test_unused_tensors_and_strides_must_be_zero(work: Descriptor) -> None:
    assert cause(work) == Cause.RESERVED


@pytest.mark.parametrize("name", ["ADD", "SUM", "MATMUL", "CONV2D"])
def test_sizes(name: str) -> None:
    work, used = FIELDS[name]
    for field in used:
        limit = (1 << 24) - 1 if field in ("rows", "columns", "length") else 65535
        least = 0 if field.startswith("pad") else 1
        for value, refused in (
            (least - 1, True),
            (limit + 1, True),
            (limit, False),
            (least, False),
        ):
            changes: dict[str, Any] = {field: value}
            # Large tensors leave the stack instead, which is another cause.
            assert (cause(replace(work, **changes)) == Cause.SIZE) == refused, (field, value)


@pytest.mark.parametrize("tensor", ["a", "b", "result"])
def test_alignment(tensor: str) -> None:
    for offset in range(1, 8):
        moved: dict[str, Any] = {tensor: at(1536 + offset, 8, 1)}
        want = Cause.NONE if offset == 4 else Cause.MISALIGNED
        assert cause(replace(SCALEADD, **moved)) == want


@pytest.mark.parametrize(
    ("start", "end"), [(0, 4 * 4096), (4 * 4096, 8 * 4096)], ids=["local", "striped"]
)
def test_range_of_the_stack(start: int, end: int) -> None:
    last = end - 4 * 32
    for tensor in ("a", "b", "result"):
        for address, strides, want in (
            (last, (8, 1), Cause.NONE),
            (last + 4, (8, 1), Cause.OUT_OF_RANGE),
            (end, (8, 1), Cause.NONE if start == 0 else Cause.OUT_OF_RANGE),
            (1 << 63, (8, 1), Cause.OUT_OF_RANGE),
            (end - 4, (-8, -1), Cause.NONE),
            (start + 1536 + 4 * 31, (-8, -1), Cause.NONE),
            (start + 4 * 30, (-8, -1), Cause.OUT_OF_RANGE),
            (last, (9, 1), Cause.OUT_OF_RANGE),
            (end - 4 * 8, (1 << 31, 1), Cause.OUT_OF_RANGE),
        ):
            moved: dict[str, Any] = {tensor: at(address, *strides)}
            assert cause(replace(ADD, **moved)) == want, (tensor, address, strides)
    assert cause(replace(ADD, a=at(end - 4, 0, 0))) == Cause.NONE


def test_a_tensor_is_in_one_of_the_memories() -> None:
    for address, apart in ((4 * 4096 - 64, 8), (2048, 4096), (4 * 4096 - 8, 8)):
        assert cause(replace(ADD, a=at(address, apart, 1))) == Cause.OUT_OF_RANGE
    # With three banks there is nothing between them.
    stack = StackMap(banks=3, bank_bytes=4096)
    for address in (3 * 4096 - 4, 3 * 4096, 4 * 4096 - 4 * 32, 4 * 4096 - 4, 6 * 4096 - 124):
        work = replace(ADD, a=at(address, 8, 1))
        assert check(work, stack=stack, units=UNITS) == Cause.OUT_OF_RANGE
    for address in (3 * 4096 - 4 * 32, 4 * 4096, 6 * 4096 - 4 * 32):
        work = replace(ADD, a=at(address, 8, 1))
        assert check(work, stack=stack, units=UNITS) == Cause.NONE


def test_all_of_a_convolutions_input_must_be_in_the_stack() -> None:
    """Also what no window reaches."""
    small = replace(CONV2D, rows=1, columns=1, result=at(2048, 2, 1, 0, 0))
    end = STACK.local.stop
    assert cause(replace(small, a=at(end - 4 * 100, 50, 25, 5, 1))) == Cause.NONE
    assert cause(replace(small, a=at(end - 4 * 99, 50, 25, 5, 1))) == Cause.OUT_OF_RANGE


@pytest.mark.parametrize(
    ("strides", "distinct"),
    [
        *(((8, 1), True), ((1, 4), True), ((-8, 1), True), ((8, -1), True), ((9, 1), True)),
        *(((7, 1), False), ((1, 3), False), ((0, 1), False), ((8, 0), False), ((1, 1), False)),
        *(((1, -1), False), ((-7, 1), False), ((3, 12), True), ((3, 11), True), ((3, 9), False)),
    ],
)
def test_results_must_not_share_places(strides: tuple[int, int], distinct: bool) -> None:
    want = Cause.NONE if distinct else Cause.OVERLAP
    assert cause(replace(ADD, result=at(8192, *strides))) == want


def test_strides_of_single_indices_do_not_matter() -> None:
    assert cause(replace(ADD, rows=1, result=at(8192, 0, 1))) == Cause.NONE
    assert cause(replace(ADD, rows=1, result=at(8192, 1 << 30, 1))) == Cause.NONE
    assert cause(replace(CONV2D, images=1, result=at(8192, 0, 1, 6, 2))) == Cause.NONE
    assert cause(replace(CONV2D, images=1, result=at(8192, 0, 2, 6, 2))) == Cause.OVERLAP
    assert cause(replace(CONV2D, images=2, result=at(8192, 17, 1, 6, 2))) == Cause.OVERLAP
    assert cause(replace(CONV2D, images=2, result=at(8192, 18, 1, 6, 2))) == Cause.NONE


@pytest.mark.parametrize("operand", ["a", "b"])
def test_results_must_not_meet_operands(operand: str) -> None:
    address = {"a": 0, "b": 256}[operand]
    for distance, want in (
        (4 * 32, Cause.NONE),
        (4 * 31, Cause.OVERLAP),
        (4, Cause.OVERLAP),
        (0, Cause.NONE),  # in place
    ):
        moved = replace(SCALEADD, result=at(address + distance, 8, 1))
        assert cause(moved) == want, (operand, distance)
    transposed = replace(SCALEADD, result=at(address, 1, 4))
    assert cause(transposed) == Cause.OVERLAP


def test_only_elementwise_works_may_be_in_place() -> None:
    square = replace(MATMUL, rows=8, a=at(0, 8, 1), b=at(256, 8, 1))
    assert cause(replace(square, result=at(512, 8, 1))) == Cause.NONE
    assert cause(replace(square, result=at(0, 8, 1))) == Cause.OVERLAP
    assert cause(replace(SUM, length=1, result=at(0, 8))) == Cause.OVERLAP


def test_spans_meet_even_if_elements_do_not() -> None:
    odd = replace(ADD, a=at(0, 16, 2), b=at(1024, 8, 1), result=at(4, 16, 2))
    assert cause(odd) == Cause.OVERLAP


@pytest.mark.parametrize(
    ("banks", "units", "want"),
    [
        *((0b1111, 0, Cause.NONE), (0b1000, 0, Cause.NONE), (0b10000, 0, Cause.BANKS)),
        *((1 << 31, 0, Cause.BANKS), (1, 1, Cause.UNITS), (0, 0, Cause.UNITS)),
        *((0, 1, Cause.NONE), (0, UNITS, Cause.NONE), (0, UNITS + 1, Cause.UNITS)),
    ],
)
def test_banks_and_units(banks: int, units: int, want: Cause) -> None:
    assert cause(replace(ADD, banks=banks, units=units)) == want


def test_the_lowest_cause_is_given() -> None:
    work = replace(ADD, units=0, opcode=0, alpha_bits=1, rows=0, a=at(1, 8, 1), banks=1 << 31)
    work = replace(work, b=at(STACK.striped.stop, 8, 1), result=at(0, 0, 0))
    repairs: list[tuple[Cause, dict[str, Any]]] = [
        (Cause.OPCODE, {"opcode": Opcode.ADD}),
        (Cause.RESERVED, {"alpha_bits": 0}),
        (Cause.SIZE, {"rows": 4}),
        (Cause.MISALIGNED, {"a": ADD.a}),
        (Cause.OUT_OF_RANGE, {"b": ADD.b}),
        (Cause.OVERLAP, {"result": ADD.result}),
        (Cause.BANKS, {"banks": 0}),
        (Cause.UNITS, {"units": 1}),
    ]
    for want, repair in repairs:
        assert cause(work) == want
        work = replace(work, **repair)
    assert cause(work) == Cause.NONE


ROOM = Room(first_words=1024, second_words=512, state_words=64)
LONG = replace(MATMUL, a=at(0, 0, 1), b=at(0, 0, 1), length=65)
"""Chunks of 32 leave two of a sum's parts, and places for four."""

FITTING = [
    (ADD, TilingPlan(chunk=9), TilingPlan(chunk=10)),
    (ADD, TilingPlan(chunk=3), TilingPlan(chunk=2)),
    *(
        (ADD, TilingPlan(chunk=6), TilingPlan(chunk=6)._replace(**{name: 1}))
        for name in ("depth", "seconds", "block", "channels", "flags")
    ),
    (SUM, TilingPlan(chunk=5), TilingPlan(chunk=6)),
    (SUM, TilingPlan(chunk=3), TilingPlan(chunk=2)),
    (SUM, TilingPlan(chunk=4, depth=3), TilingPlan(chunk=5, depth=3)),
    (SUM, TilingPlan(chunk=3, depth=3), TilingPlan(chunk=3, depth=4)),
    (DOT, TilingPlan(chunk=4, depth=2), TilingPlan(chunk=4, depth=3)),
    (MATMUL, TilingPlan(chunk=3, depth=2, seconds=4), TilingPlan(chunk=3, depth=2, seconds=5)),
    (LONG, TilingPlan(chunk=5, depth=2, seconds=2), TilingPlan(chunk=5, depth=2, seconds=3)),
    (LONG, TilingPlan(chunk=5, depth=1, seconds=3), TilingPlan(chunk=5, depth=2, seconds=3)),
    (MATMUL, TilingPlan(chunk=3, block=6), TilingPlan(chunk=4, block=6)),
    (MATMUL, TilingPlan(chunk=3, block=6), TilingPlan(chunk=3, block=7)),
    (CONV2D, TilingPlan(chunk=5, channels=3), TilingPlan(chunk=5, channels=4)),
    (CONV2D, TilingPlan(chunk=3), TilingPlan(chunk=3, channels=1)),
    (CONV2D, TilingPlan(chunk=3, flags=7), TilingPlan(chunk=3, flags=8)),
    (MATMUL, TilingPlan(chunk=3, flags=1), TilingPlan(chunk=3, flags=1 << 15)),
    *(
        (work, TilingPlan(chunk=3, flags=6), TilingPlan(chunk=3, flags=1))
        for work in (SUM, DOT, MATVEC)
    ),
]


@pytest.mark.parametrize(("work", "good", "bad"), FITTING)
def test_plans(work: Descriptor, good: TilingPlan, bad: TilingPlan) -> None:
    """At a limit and next to it, on a pool with room for so much."""
    found = [
        check(replace(work, plan=plan), stack=STACK, units=UNITS, room=ROOM) for plan in (good, bad)
    ]
    assert found == [Cause.NONE, Cause.PLAN]
    assert cause(replace(work, plan=bad)) == Cause.NONE


def test_seconds_are_limited_where_there_is_room() -> None:
    room = ROOM._replace(state_words=4096)
    for seconds, want in ((10, Cause.NONE), (11, Cause.PLAN)):
        work = replace(MATMUL, plan=TilingPlan(chunk=3, seconds=seconds))
        assert check(work, stack=STACK, units=UNITS, room=room) == want


def test_words() -> None:
    """Every field at its word, as the specification's table has it."""
    work = Descriptor(
        opcode=0x30,
        alpha_bits=1,
        banks=2,
        units=3,
        a=at(0x1_0000_0004, 32, 33, 34, -35),
        b=at(6, 36, 37, 38, 39),
        result=at(10, 44, 45, 46, -47),
        rows=12,
        columns=13,
        length=14,
        images=15,
        filters=16,
        channels=17,
        height=18,
        width=19,
        filter_height=20,
        filter_width=21,
        stride=22,
        dilation=23,
        pad_top=24,
        pad_left=25,
        plan=TilingPlan(chunk=1, depth=2, seconds=3, block=4, channels=5, flags=6),
    )
    data = work.encode()
    words = struct.unpack("<48i", data)
    want = [0x30, 1, 2, 3, 4, 1, 6, 0, 0, 0, 10, 0, *range(12, 26)]
    want += [0x04030201, 0x00060005, *[0] * 4, *range(32, 40), *[0] * 4, *range(44, 48)]
    want[35], want[47] = -35, -47
    assert list(words) == want
    assert Descriptor.decode(data) == work


@pytest.mark.parametrize("work", WORKS, ids=lambda work: Opcode(work.opcode).name)
def test_words_of_works(work: Descriptor) -> None:
    again = Descriptor.decode(work.encode())
    assert again.encode() == work.encode()
    assert cause(again) == Cause.NONE


def test_refuses_what_words_cannot_hold() -> None:
    with pytest.raises(struct.error):
        replace(ADD, a=at(0, 1 << 31, 1)).encode()
    for word in (8, 9, 28, 31, 40, 43):
        data = bytearray(ADD.encode())
        data[4 * word + word % 4] = 1
        with pytest.raises(ValueError, match="a reserved word is not zero"):
            Descriptor.decode(bytes(data))
    with pytest.raises(ValueError, match="strides must be 4 or fewer"):
        at(0, 1, 2, 3, 4, 5)
