"""Microcode that makes of a checked descriptor the work as banks take it, and how it is cut."""

from __future__ import annotations

from typing import NamedTuple

from hw.pim.config import PimConfig
from hw.pim.front.checker import field, stride
from hw.pim.front.microcode import Microcode, Operation, Place, When
from hw.pim.work.descriptor import ELEMENTWISE_OPCODES, FORMS, TENSORS, Opcode
from hw.pim.work.layouts import Elementwise, Padded, Second

__all__ = ["Planner"]

_LEAST_CHUNK = 3
_MOST_DEPTH = 3
_MOST_SECONDS = 10
_MOST_BLOCK = 6
"""An operand buffer has eight groups of eight vectors."""
_ELEMENTWISE_CHUNKS = (6, 9)
_LEAST_TILES = 4
_TILES = 16
"""Tiles that a bank should get of a work, so that all end at about the same time: the least, and
those that are enough."""
_BUFFER_SHARE = 5
"""A chunk takes at most a part in ``2 ** 5`` of a buffer: four vectors for each of eight lanes. It
takes half of that if there are more vectors, and a few shared second vectors that leave turns idle
unless a lane has eight."""
_LANES = 3
"""The logarithm of the lanes for which tiles are cut."""
_MOST_CHUNK = 15
_STEPS_ACROSS = 4
"""Rows of taps shorter than this are no reason to load a vector's elements together."""


class _Vectors(NamedTuple):
    """An operand's strides in a reduction; those that it does not have are zero."""

    tensor: str
    vector: Place | int
    column: Place
    channel: Place | int = 0
    row: Place | int = 0
    outer1: Place | int = 0
    outer2: Place | int = 0
    address: Place | None = None
    """Where it begins, if that is not the tensor's origin."""


def _logarithm(value: int) -> int:
    """Rounded down."""
    return value.bit_length() - 1


class Planner:
    """Writes into a program what follows the checks, as values with the names of the fields of
    :attr:`hw.pim.work.layouts.Jobs.checked`. Fields that are not mentioned are zero.

    Numbers of results are at most those of the stack's elements, since no two share a place;
    numbers of operations have no such bound and are taken modulo 2**64.
    """

    def __init__(self, program: Microcode, config: PimConfig) -> None:
        self._program = program
        self._config = config

    def work(self, opcode: Opcode) -> None:
        """What depends on the opcode; leaves the values ``groups`` and ``group``, the units of a
        group, too."""
        p = self._program
        for tensor in FORMS[opcode].tensors:
            p.move(p.value(f"spans.{TENSORS.index(tensor)}.used"), 1)
        if opcode in (Opcode.ADD, Opcode.SUM):
            p.move(p.value("add_only"), 1)
        if opcode in ELEMENTWISE_OPCODES:
            self._elementwise(opcode)
        elif opcode == Opcode.CONV2D:
            self._convolution()
        else:
            self._product(opcode)

    # The opcodes.

    def _elementwise(self, opcode: Opcode) -> None:
        p = self._program
        p.move(p.value("work.elementwise"), 1)
        p.move(p.value("work.operation"), Elementwise[opcode.name].value)
        if FORMS[opcode].alpha:
            p.move(p.value("work.alpha"), field("alpha"))
        operands = [tensor for tensor in FORMS[opcode].tensors if tensor != "result"]
        for tensor, nest in zip(operands, ("first", "second", "third"), strict=False):
            p.move(p.value(f"work.{nest}.address"), p.value(f"{tensor}.origin"))
            p.move(p.value(f"work.{nest}.outer1"), stride(tensor, 0))
            p.move(p.value(f"work.{nest}.vector"), stride(tensor, 1))
            p.is_equal(stride(tensor, 1), 0)
            p.move(p.value(f"work.{nest}_repeats"), 1, When.FLAG)
        self._result(outer1=stride("result", 0), first=stride("result", 1))
        self._extents(outer1=field("rows"), outer2=1, first=field("columns"), second=1)
        results = p.value("results")
        p.multiply(results, field("rows"), field("columns"))
        multiplies, adds = opcode != Opcode.ADD, opcode != Opcode.MUL
        p.move(p.value("multiplications"), results if multiplies else 0)
        p.move(p.value("additions"), results if adds else 0)
        p.move(p.value("groups"), results)
        p.move(p.value("group"), multiplies + adds)

    def _product(self, opcode: Opcode) -> None:
        """SUM, DOT, MATVEC, MATMUL."""
        p = self._program
        a_rows = _Vectors("a", vector=stride("a", 0), column=stride("a", 1))
        self._taps(channels=1, rows=1, columns=field("length"))
        p.move(p.value("work.taps"), field("length"))
        results = field("rows")
        if opcode == Opcode.MATMUL:
            results = p.value("results")
            p.multiply(results, field("rows"), field("columns"))
            b_columns = _Vectors("b", vector=stride("b", 1), column=stride("b", 0))
            by_columns, chosen = p.label(), p.label()
            p.is_less(field("columns"), field("rows"))
            p.jump(by_columns, When.NO_FLAG)
            self._operands(a_rows, Second.SHARED, b_columns)
            self._result(first=stride("result", 0), second=stride("result", 1))
            self._extents(outer1=1, outer2=1, first=field("rows"), second=field("columns"))
            p.jump(chosen)
            p.put(by_columns)
            self._operands(b_columns, Second.SHARED, a_rows)
            self._result(first=stride("result", 1), second=stride("result", 0))
            self._extents(outer1=1, outer2=1, first=field("columns"), second=field("rows"))
            p.put(chosen)
        else:
            kind, second = {
                Opcode.SUM: (Second.NONE, None),
                Opcode.DOT: (
                    Second.PRIVATE,
                    _Vectors("b", vector=stride("b", 0), column=stride("b", 1)),
                ),
                Opcode.MATVEC: (Second.SHARED, _Vectors("b", vector=0, column=stride("b", 0))),
            }[opcode]
            self._operands(a_rows, kind, second)
            self._result(first=stride("result", 0))
            self._extents(outer1=1, outer2=1, first=field("rows"), second=1)
        multiplies = opcode != Opcode.SUM
        p.multiply(p.value("groups"), results, field("length"))
        p.move(p.value("multiplications"), p.value("groups") if multiplies else 0)
        p.multiply(p.value("additions"), results, p.value("length.last"))
        p.move(p.value("group"), multiplies + 1)
        self._buffers(private=opcode == Opcode.DOT)

    def _convolution(self) -> None:
        p = self._program
        outputs, rows_step, row, column = (
            p.value(name) for name in ("image.vector", "image.outer1", "image.row", "image.column")
        )
        p.multiply(rows_step, stride("a", 2), field("stride"))
        p.multiply(outputs, stride("a", 3), field("stride"))
        p.multiply(row, stride("a", 2), field("dilation"))
        p.multiply(column, stride("a", 3), field("dilation"))
        begin, pad = p.value("image.address"), p.value("pad")
        p.multiply(pad, stride("a", 2), field("pad_top"))
        p.subtract(begin, p.value("a.origin"), pad)
        p.multiply(pad, stride("a", 3), field("pad_left"))
        p.subtract(begin, begin, pad)
        image = _Vectors(
            "a",
            vector=outputs,
            column=column,
            channel=stride("a", 1),
            row=row,
            outer1=rows_step,
            outer2=stride("a", 0),
            address=begin,
        )
        filters = _Vectors(
            "b",
            vector=stride("b", 0),
            column=stride("b", 3),
            channel=stride("b", 1),
            row=stride("b", 2),
        )
        self._taps(
            channels=field("channels"),
            rows=field("filter_height"),
            columns=field("filter_width"),
        )
        taps, products, results = p.value("work.taps"), p.value("products"), p.value("results")
        p.multiply(taps, field("filter_height"), field("filter_width"))
        for name, size in (
            ("image_height", "height"),
            ("image_width", "width"),
            *((size, size) for size in ("pad_top", "pad_left", "stride", "dilation")),
        ):
            p.move(p.value(f"work.{name}"), field(size))
        outer = {"outer1": stride("result", 2), "outer2": stride("result", 0)}
        by_filters, chosen = p.label(), p.label()
        # The places of the result, if they are enough for the lanes, go on from row to row, and so
        # leave fewer lanes idle than filters that begin anew with each row.
        p.multiply(results, field("rows"), field("columns"))
        p.add(products, results, results)
        p.is_less(products, field("filters"))
        p.jump(by_filters, When.FLAG)
        self._operands(image, Second.SHARED, filters)
        p.move(p.value("work.padded"), Padded.FIRST.value)
        self._result(**outer, first=stride("result", 3), second=stride("result", 1))
        self._extents(outer1=1, outer2=field("images"), first=results, second=field("filters"))
        p.move(p.value("work.lines"), 1)
        p.move(p.value("work.line"), field("columns"))
        for name, down, step in (
            ("first", rows_step, outputs),
            ("result", stride("result", 2), stride("result", 3)),
        ):
            wrap = p.value(f"work.{name}_line_wrap")
            p.multiply(wrap, step, p.value("columns.last"))
            p.subtract(wrap, down, wrap)
        p.jump(chosen)
        p.put(by_filters)
        self._operands(filters, Second.SHARED, image)
        p.move(p.value("work.padded"), Padded.SECOND.value)
        self._result(**outer, first=stride("result", 1), second=stride("result", 3))
        self._extents(
            outer1=field("rows"),
            outer2=field("images"),
            first=field("filters"),
            second=field("columns"),
        )
        p.put(chosen)

        p.multiply(products, taps, field("channels"))
        p.multiply(results, results, field("images"))
        p.multiply(results, results, field("filters"))
        p.multiply(p.value("multiplications"), products, results)
        p.subtract(products, products, 1)
        p.multiply(p.value("additions"), products, results)
        p.move(p.value("groups"), results)
        group = p.value("group")
        p.add(group, taps, taps)
        p.subtract(group, group, 1)
        # A filter of one tap has no tree, but an adder if channels are to be added.
        p.is_equal(taps, 1)
        p.is_less(1, field("channels"), When.FLAG)
        p.move(group, 2, When.FLAG)
        self._buffers(private=False)

    # Their parts.

    def _operands(self, first: _Vectors, kind: Second, second: _Vectors | None) -> None:
        p = self._program
        p.move(p.value("work.second_kind"), kind.value)
        for name, vectors in (("first", first), ("second", second)):
            if vectors:
                origin = vectors.address or p.value(f"{vectors.tensor}.origin")
                p.move(p.value(f"work.{name}.address"), origin)
                for part in ("outer1", "outer2", "vector", "channel", "row", "column"):
                    step = getattr(vectors, part)
                    if step != 0:
                        p.move(p.value(f"work.{name}.{part}"), step)
                self._across(name, vectors)

    def _across(self, name: str, vectors: _Vectors) -> None:
        """Vectors that are neighbours are loaded together if their elements are not, or few."""
        p = self._program
        along = p.label()
        p.is_less(vectors.vector, -1)
        p.is_less(1, vectors.vector, When.NO_FLAG)
        p.jump(along, When.FLAG)
        p.is_less(vectors.column, -1)
        p.is_less(1, vectors.column, When.NO_FLAG)
        p.is_less(p.value("work.tap_columns"), _STEPS_ACROSS, When.NO_FLAG)
        p.move(p.value(f"work.{name}_across"), 1, When.FLAG)
        p.put(along)

    def _result(self, **strides: Place) -> None:
        p = self._program
        p.move(p.value("work.result.address"), p.value("result.origin"))
        for name, step in strides.items():
            p.move(p.value(f"work.result.{name}"), step)

    def _extents(self, **extents: Place | int) -> None:
        for name, extent in extents.items():
            self._program.move(self._program.value(name), extent)

    def _taps(self, *, channels: Place | int, rows: Place | int, columns: Place) -> None:
        p = self._program
        p.move(p.value("work.channels"), channels)
        p.move(p.value("work.tap_rows"), rows)
        p.move(p.value("work.tap_columns"), columns)

    def _buffers(self, *, private: bool) -> None:
        """Leaves what is in a lane's buffer for the plan: ``chunk.most``, the elements of the
        largest chunk, and ``capacity``, the logarithm of the elements that each lane has."""
        p, config = self._program, self._config
        words = min(config.first_words, config.second_words) if private else config.first_words
        p.move(p.value("chunk.most"), 1 << _logarithm(words) - _BUFFER_SHARE)
        p.move(p.value("capacity"), _logarithm(words) - _LANES)

    # What all works have in common.

    def units(self) -> None:
        """The units that the work takes: those offered, or fewer if its groups do not need as many;
        without any if the flag is set."""
        p = self._program
        done = p.label()
        p.jump(done, When.FLAG)
        units, offered, group = p.value("units"), field("units"), p.value("group")
        p.move(units, offered)
        p.is_less(offered, group)
        p.jump(done, When.FLAG)
        p.multiply(units, p.value("groups"), group)
        p.minimum(units, offered)
        p.put(done)

    def plan(self) -> None:
        """The plan, and the end of the program."""
        p = self._program
        reduction = p.label()
        p.move(p.value("banks"), field("banks"))
        p.is_less(field("opcode"), min(set(Opcode) - set(ELEMENTWISE_OPCODES)))
        p.jump(reduction, When.NO_FLAG)
        self._plan_elementwise()
        p.stop()
        p.put(reduction)
        self._plan_reduction()
        p.stop()

    def _ceiling(self, to: Place, last: Place, shift: Place) -> None:
        """``to`` = ceil((last + 1) / 2**shift)"""
        self._program.do(Operation.SHIFT, to, last, shift)
        self._program.add(to, to, 1)

    def _filling(self, second_last: Place) -> None:
        """Leaves the value ``filling``, a depth with which few of a lane's turns are idle.

        A turn in eight is for each pair of one of 2**depth first vectors and one of the second
        vectors, so these are best a multiple of 8 / 2**depth; at most an eighth may be missing.
        """
        p = self._program
        filling, idle, found = p.value("filling"), p.value("idle"), p.label()
        for depth in range(1, _MOST_DEPTH):
            p.move(filling, depth)
            self._ceiling(idle, second_last, self._program.constant(_LANES - depth))
            p.multiply(idle, idle, 1 << _LANES - depth)
            p.subtract(idle, idle, p.value("second"))
            p.multiply(idle, idle, 8)
            p.is_less(p.value("second"), idle)
            p.jump(found, When.NO_FLAG)
        p.move(filling, _MOST_DEPTH)
        p.put(found)

    def _plan_elementwise(self) -> None:
        p, wanted = self._program, self._program.value("wanted")
        p.multiply(wanted, p.value("workers"), _LEAST_TILES)
        chunk, tiles = p.value("work.plan.chunk"), p.value("tiles")
        least, most = _ELEMENTWISE_CHUNKS
        split, enough = p.label(), p.label()
        p.move(chunk, min(most, _logarithm(self._config.second_words)))
        p.put(split)
        self._ceiling(tiles, p.value("columns.last"), chunk)
        p.multiply(tiles, tiles, field("rows"))
        p.is_less(tiles, wanted)
        p.is_less(least, chunk, When.FLAG)
        p.jump(enough, When.NO_FLAG)
        p.subtract(chunk, chunk, 1)
        p.jump(split)
        p.put(enough)

    def _plan_reduction(self) -> None:
        p, config = self._program, self._config
        chunk, levels, depth, seconds, block = (
            p.value(f"work.plan.{name}")
            for name in ("chunk", "levels", "depth", "seconds", "block")
        )
        taps, rest = p.value("work.taps"), p.value("rest")
        first_last, second_last = p.value("first.last"), p.value("second.last")
        p.subtract(first_last, p.value("first"), 1)
        p.subtract(second_last, p.value("second"), 1)

        self._filling(second_last)
        p.is_less(p.value("filling"), _MOST_DEPTH)
        p.is_less(first_last, 1 << _BUFFER_SHARE, When.NO_FLAG)
        p.is_less(second_last, 1, When.NO_FLAG)
        p.do(Operation.SHIFT, p.value("chunk.most"), p.value("chunk.most"), 1, When.NO_FLAG)
        elements = p.value("elements")
        p.multiply(elements, taps, p.value("work.channels"))
        p.minimum(elements, p.value("chunk.most"))
        p.subtract(elements, elements, 1)
        p.do(Operation.LENGTH, chunk, elements)
        p.is_less(chunk, _LEAST_CHUNK)
        p.move(chunk, _LEAST_CHUNK, When.FLAG)

        # Bits of a tap's number that are beyond a chunk: as many sums wait from chunk to chunk, and
        # one over the channels.
        p.subtract(rest, taps, 1)
        p.do(Operation.SHIFT, rest, rest, chunk)
        p.do(Operation.LENGTH, levels, rest)
        p.do(Operation.LENGTH, levels, levels)
        p.is_equal(rest, 0)
        p.subtract(rest, _MOST_CHUNK, chunk)
        p.do(Operation.SHIFT, rest, 1 << _MOST_CHUNK, rest)
        # As many channels as a chunk holds, or rather as few as make no more chunks: the next tile
        # is loaded beside the last chunk, which should not be a short one.
        channels, chunks = p.value("work.plan.channels"), p.value("chunks")
        p.do(Operation.DIVIDE, channels, rest, taps, When.FLAG)
        p.subtract(rest, p.value("work.channels"), 1)
        for to, by in ((chunks, channels), (channels, chunks)):
            p.do(Operation.DIVIDE, to, rest, by, When.FLAG)
            p.add(to, to, 1, When.FLAG)

        places = p.value("places")
        p.subtract(depth, p.value("capacity"), chunk)
        p.minimum(depth, _MOST_DEPTH)
        p.subtract(places, _logarithm(config.state_words), levels)
        p.minimum(depth, places)
        p.do(Operation.SHIFT, rest, first_last, _LANES)
        p.do(Operation.LENGTH, rest, rest)
        p.minimum(depth, rest)
        # Without a shared second vector there is one second vector, and this is 0.
        p.subtract(seconds, places, depth)
        p.minimum(seconds, _MOST_SECONDS)
        p.do(Operation.LENGTH, rest, second_last)
        p.minimum(seconds, rest)

        # Fewer first vectors make a tile shorter only if second vectors fill the lanes' turns.
        outer, tiles, wanted = p.value("outer"), p.value("tiles"), p.value("wanted")
        least = p.value("least")
        p.move(wanted, p.value("workers"))
        p.multiply(least, wanted, _LEAST_TILES)
        p.is_less(seconds, _LANES)
        p.multiply(wanted, wanted, _TILES, When.NO_FLAG)
        p.minimum(least, wanted)
        split, enough = p.label(), p.label()
        p.multiply(outer, p.value("outer1"), p.value("outer2"))
        p.put(split)
        p.add(rest, depth, _LANES)
        self._ceiling(tiles, first_last, rest)
        self._ceiling(rest, second_last, seconds)
        p.multiply(tiles, tiles, rest)
        p.multiply(tiles, tiles, outer)
        p.is_less(tiles, wanted)
        p.jump(enough, When.NO_FLAG)
        # As many first as second vectors, if it can be: that is the fewest to load.
        p.add(rest, depth, _LANES)
        p.is_less(rest, seconds)
        p.subtract(seconds, seconds, 1, When.FLAG)
        p.jump(split, When.FLAG)
        p.is_less(p.value("filling"), depth)
        p.subtract(depth, depth, 1, When.FLAG)
        p.jump(split, When.FLAG)
        p.is_less(_LANES, seconds)
        p.subtract(seconds, seconds, 1, When.FLAG)
        p.jump(split, When.FLAG)
        p.is_less(tiles, least)
        p.is_less(0, depth, When.FLAG)
        p.subtract(depth, depth, 1, When.FLAG)
        p.jump(split, When.FLAG)
        p.put(enough)
        p.subtract(block, _logarithm(config.second_words), chunk)
        p.minimum(block, _MOST_BLOCK)
        p.minimum(block, seconds)
