"""Conversion of a descriptor to the banks' form, by opcode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Mux

from hw.pim.front.amounts import Amounts
from hw.pim.front.words import Words
from hw.pim.work.descriptor import ELEMENTWISE_OPCODES, Opcode
from hw.pim.work.layouts import Elementwise, Padded, Second

__all__ = ["form_of"]

_Assign = Callable[..., None]


def form_of(m: Any, opcode: Opcode, words: Words, amounts: Amounts, checked: Any) -> None:
    """Register, in the current scope, the fields that an opcode sets to other values than zero.

    The fields are those of :attr:`Jobs.checked <hw.pim.work.layouts.Jobs.checked>`.
    """
    work, stride, field = checked.work, words.stride, words.field

    def assign(view: Any, **values: Any) -> None:
        m.d.sync += [view[name].eq(value) for name, value in values.items()]

    def tensor(view: Any, name: str, **strides: Any) -> None:
        assign(view, **{"address": words.element(name), **strides})

    only_adds = opcode in (Opcode.ADD, Opcode.SUM)
    elementwise = opcode in ELEMENTWISE_OPCODES
    assign(checked, add_only=only_adds, outer1=1, outer2=1, first=field("rows"), second=1)
    if not only_adds:
        assign(checked, multiplications=amounts.products)
    if opcode != Opcode.MUL:
        assign(checked, additions=amounts.products - (0 if elementwise else amounts.results))
    if elementwise:
        assign(checked, outer1=field("rows"), first=field("columns"))
        operation = Elementwise[opcode.name]
        assign(work, elementwise=1, operation=operation, alpha=field("alpha"))
        for name, nest in (("a", "first"), ("b", "second")):
            tensor(work[nest], name, outer1=stride(name, 0), vector=stride(name, 1))
            assign(work, **{f"{nest}_repeats": stride(name, 1) == 0})
        tensor(work.result, "result", outer1=stride("result", 0), first=stride("result", 1))
        return

    plan = words.plan
    assign(work, second_kind=Second.SHARED, first_across=plan.first_across, channels=1)
    assign(work, tap_rows=1, tap_columns=field("length"), taps=amounts.taps)
    assign(work, second_across=plan.second_across if opcode != Opcode.SUM else 0)
    if opcode == Opcode.CONV2D:
        _convolution(m, words, amounts, checked, assign, tensor)
        return
    if opcode in (Opcode.SUM, Opcode.DOT):
        _sums(opcode, words, amounts, checked, assign, tensor)
        return
    if opcode == Opcode.MATVEC:
        assign(checked, outer1=field("columns"))
        rows = {"outer1": stride("a", 1), "vector": stride("a", 0), "column": stride("a", 2)}
        tensor(work.first, "a", **rows)
        tensor(work.second, "b", outer1=stride("b", 0), column=stride("b", 1))
        tensor(work.result, "result", outer1=stride("result", 1), first=stride("result", 0))
    else:
        rows = {"vector": stride("a", 0), "column": stride("a", 1)}
        tensor(work.result, "result", first=stride("result", 0))
        columns = {"vector": stride("b", 1), "column": stride("b", 0)}
        with m.If(plan.exchanged):
            assign(checked, first=field("columns"), second=field("rows"))
            tensor(work.first, "b", **columns)
            tensor(work.second, "a", **rows)
            assign(work.result, first=stride("result", 1), second=stride("result", 0))
        with m.Else():
            assign(checked, second=field("columns"))
            tensor(work.first, "a", **rows)
            tensor(work.second, "b", **columns)
            assign(work.result, second=stride("result", 1))


def _sums(
    opcode: Opcode, words: Words, amounts: Amounts, checked: Any, assign: _Assign, tensor: _Assign
) -> None:
    """Register the form of SUM or DOT: first vectors are the columns of all rows."""
    work, stride = checked.work, words.stride

    def strides(name: str, *parts: str) -> dict[str, Any]:
        return {part: stride(name, index) for index, part in enumerate(parts)}

    operand = ("outer2", "outer1", "vector", "column")
    assign(checked, outer2=words.field("images"), first=amounts.plane)
    assign(work, second_kind=Second.NONE, lines=1, line=words.field("columns"))
    assign(work, first_line_wrap=amounts.line_wraps["first"])
    assign(work, result_line_wrap=amounts.line_wraps["result"])
    tensor(work.first, "a", **strides("a", *operand))
    tensor(work.result, "result", **strides("result", "outer2", "outer1", "first"))
    if opcode == Opcode.DOT:
        tensor(work.second, "b", **strides("b", *operand))
        assign(work, second_kind=Second.PRIVATE)
        assign(work, second_line_wrap=stride("b", 1) - amounts.steps["column"])


def _convolution(
    m: Any, words: Words, amounts: Amounts, checked: Any, assign: _Assign, tensor: _Assign
) -> None:
    """Register the form of CONV2D.

    First vectors are the result's columns of all rows or, if exchanged, the filters.
    """
    work, stride, field, exchanged = checked.work, words.stride, words.field, words.plan.exchanged
    image = {
        "address": amounts.image_start,
        "outer2": stride("a", 0),
        "channel": stride("a", 1),
        **amounts.steps,
    }
    filters = {
        name: stride("b", index)
        for index, name in enumerate(("vector", "channel", "row", "column"))
    }
    sizes = ("pad_top", "pad_left", "stride", "dilation")
    assign(work, channels=field("channels"), image_height=field("height"))
    assign(work, image_width=field("width"), **{name: field(name) for name in sizes})
    assign(work, tap_rows=field("filter_height"), tap_columns=field("filter_width"))
    assign(work, padded=Mux(exchanged, Padded.SECOND, Padded.FIRST))
    tensor(work.result, "result", outer1=stride("result", 2), outer2=stride("result", 0))
    assign(checked, outer2=field("images"))
    with m.If(exchanged):
        assign(checked, outer1=field("rows"), first=field("filters"), second=field("columns"))
        tensor(work.first, "b", **filters)
        tensor(work.second, "a", **image)
        assign(work.result, first=stride("result", 1), second=stride("result", 3))
    with m.Else():
        assign(checked, first=amounts.plane, second=field("filters"))
        tensor(work.first, "a", **image)
        tensor(work.second, "b", **filters)
        assign(work.result, first=stride("result", 3), second=stride("result", 1))
        assign(work, lines=1, line=field("columns"))
        assign(work, first_line_wrap=amounts.line_wraps["first"])
        assign(work, result_line_wrap=amounts.line_wraps["result"])
