"""Operand and result buffers of a bank: eight skewed memory columns.

Lanes need the same element of eight vectors at once. A memory beat has eight elements of one vector
or one element of eight vectors. Both kinds of access hit eight different columns, because each
vector of a group is shifted by one column against the previous vector.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import hold, mask_below, register, wire
from hw.logic.checks import check_int
from hw.pim.bank.buffer.column_memory import shared_column
from hw.pim.bank.buffer.interface import COLUMNS, RESULT_FRAMES, BufferReadSignature
from hw.pim.config import PimConfig
from hw.pim.memory.memory_port import write_request_layout
from hw.pim.placement import MAX_LANES
from hw.pim.work.layouts import BEAT_WORDS, Jobs, OperandBuffer

__all__ = ["CHUNK_BITS", "OperandBuffers", "OperandWriteSignature", "ResultBuffer"]

CHUNK_BITS = 4
"""Width of the binary logarithm of a chunk's length: elements of a vector in a buffer at once."""

_COLUMN_BITS = COLUMNS.bit_length() - 1


def _modulo(value: Any) -> Any:
    """Return ``value`` modulo 8: a number of a column, a beat's word or a group's vector."""
    return value[:_COLUMN_BITS]


def _turned(bits: Any, turn: Any) -> Any:
    """Return one bit per column, rotated up by ``turn`` columns."""
    return (Cat(bits, bits) << turn)[COLUMNS : 2 * COLUMNS]


class OperandWriteSignature(wiring.Signature):
    """Write port of the operand buffers, for one segment a cycle, as the writer sees it.

    In a cycle with ``enable``, element i of ``segment`` (:attr:`Jobs.segment
    <hw.pim.work.layouts.Jobs.segment>`) is word ``address`` + i · ``step``, modulo 8, of ``data``,
    or zero. It can be read from two cycles later on.
    """

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(
            {
                "enable": Out(1),
                "buffer": Out(OperandBuffer),
                "half": Out(1),
                "segment": Out(jobs.segment),
                "data": Out(data.ArrayLayout(32, BEAT_WORDS)),
            }
        )


class OperandBuffers(wiring.Component):
    """Operand buffers of a bank, two halves each.

    Element k of vector ``member`` of a group is in column (k + member) mod 8. Its row in the half
    is (8 · group + member) · 2 ** (``chunk`` - 3) + k div 8. Members 8 and up of an operand have
    their own buffer; of the second operand only DOT has such members.

    Parameters
    ----------
    config
        Configuration of the pool, with the buffers' sizes.
    lanes
        Lanes of the bank, 1 to 16.

    Members
    -------
    chunk : In(CHUNK_BITS)
        Binary logarithm of a chunk's length, 3 or more. Must hold still while the buffers are used.
    write : In(:class:`OperandWriteSignature`)
    first_0, second_0 (and first_1, second_1 from 9 lanes on) : \
In(:class:`~hw.pim.bank.buffer.interface.BufferReadSignature`)
    """

    def __init__(self, config: PimConfig, *, lanes: int) -> None:
        check_int("lanes", lanes, 1, MAX_LANES)
        jobs = Jobs(config)
        self._words = {
            f"{operand}_{group}": words
            for operand, words in (("first", config.first_words), ("second", config.second_words))
            for group in range(-(-lanes // COLUMNS))
        }
        self._row_bits = (max(self._words.values()) // COLUMNS - 1).bit_length()
        super().__init__(
            {
                "chunk": In(CHUNK_BITS),
                "write": In(OperandWriteSignature(jobs)),
                **{name: In(BufferReadSignature(jobs)) for name in self._words},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        # Binary logarithm of a vector's rows.
        rows_bits = wire(m, (self.chunk - _COLUMN_BITS)[:CHUNK_BITS], "rows_bits")
        buffers = {}
        for name, words in self._words.items():
            buffers[name] = []
            for column in range(COLUMNS):
                storage = shared_column(2 * words // COLUMNS)
                m.submodules[f"{name}_column_{column}"] = storage
                buffers[name].append(storage)
        self._write(m, rows_bits, buffers)
        for name, columns in buffers.items():
            self._read(m, name, rows_bits, columns)
        return m

    def _write(self, m: Any, rows_bits: Any, buffers: dict[str, list[Any]]) -> None:
        write, segment = self.write, self.write.segment
        enable = register(m, write.enable, "write_enable")
        k, member, address = (
            _modulo(field) for field in (segment.k, segment.member, segment.address)
        )
        upper = segment.member[_COLUMN_BITS]
        chosen = {
            f"{buffer.name.lower()}_{group}": (write.buffer == buffer) & (upper == group)
            for buffer in OperandBuffer
            for group in range(2)
        }
        start = wire(m, _modulo(k + member), "start")
        vector = Cat(Mux(segment.across, 0, member), segment.group)
        written = hold(
            m,
            write.enable,
            "write",
            half=write.half,
            across=segment.across,
            k=k,
            row=((vector << rows_bits) | segment.k[_COLUMN_BITS:])[: self._row_bits],
            # Columns that are written, and columns that use the next row.
            used=_turned(mask_below(segment.count, COLUMNS), start),
            carried=_turned(~mask_below((COLUMNS - k)[: _COLUMN_BITS + 1], COLUMNS), start),
            # The word for column 0.
            turn=_modulo(Mux(segment.step[1], ~address, address) - start),
            **{name: chosen[name] for name in buffers},
        )
        # Words in the order of the elements.
        words = [Signal(32, name=f"word_{place}", reset_less=True) for place in range(BEAT_WORDS)]
        with m.If(write.enable):
            with m.If(segment.zero):
                m.d.sync += [word.eq(0) for word in words]
            with m.Elif(segment.step[1]):
                m.d.sync += [word.eq(write.data[-1 - place]) for place, word in enumerate(words)]
            with m.Elif(segment.step[0] | (segment.count == 1)):
                m.d.sync += [word.eq(write.data[place]) for place, word in enumerate(words)]
            with m.Else(), m.Switch(address):
                for place in range(BEAT_WORDS):
                    with m.Case(place):
                        m.d.sync += [word.eq(write.data[place]) for word in words]

        values = [Signal(32, name=f"value_{column}") for column in range(COLUMNS)]
        rows = [Signal(self._row_bits, name=f"row_{column}") for column in range(COLUMNS)]
        with m.If(enable):
            with m.Switch(written.turn):
                for turn in range(COLUMNS):
                    with m.Case(turn):
                        m.d.comb += [
                            value.eq(words[(turn + column) % BEAT_WORDS])
                            for column, value in enumerate(values)
                        ]
            with m.If(written.across):
                m.d.comb += [
                    row.eq(written.row | (_modulo(column - written.k) << rows_bits))
                    for column, row in enumerate(rows)
                ]
            with m.Else():
                m.d.comb += [
                    row.eq(written.row + written.carried[column]) for column, row in enumerate(rows)
                ]
        for name, columns in buffers.items():
            here = wire(m, Mux(enable & getattr(written, name), written.used, 0), f"write_{name}")
            for column, storage in enumerate(columns):
                into = storage.write
                m.d.comb += [
                    into.addr.eq(Cat(rows[column][: len(into.addr) - 1], written.half)),
                    into.data.eq(values[column]),
                    into.en.eq(here[column]),
                ]

    def _read(self, m: Any, name: str, rows_bits: Any, columns: list[Any]) -> None:
        port = getattr(self, name)
        with m.If(port.enable):
            for column, storage in enumerate(columns):
                read = storage.read
                vector = Cat(_modulo(column - port.k), port.group)
                row = Mux(port.wide, 0, vector << rows_bits) | port.k[_COLUMN_BITS:]
                m.d.comb += read.addr.eq(Cat(row[: len(read.addr) - 1], port.half))
        m.d.comb += [storage.read.en.eq(port.enable) for storage in columns]
        enable = register(m, port.enable, f"{name}_enable")
        start = register(m, Mux(port.wide, 0, _modulo(port.k)), f"{name}_start")
        words = [
            Signal(32, name=f"{name}_word_{place}", reset_less=True) for place in range(COLUMNS)
        ]
        with m.If(enable), m.Switch(start):
            for turn in range(COLUMNS):
                with m.Case(turn):
                    m.d.sync += [
                        word.eq(columns[(turn + place) % COLUMNS].read.data)
                        for place, word in enumerate(words)
                    ]
        m.d.comb += [port.data[place].eq(word) for place, word in enumerate(words)]


class ResultBuffer:
    """Buffer of results to be stored: frames of 64 results for each eight lanes.

    Result ``index`` of lane l is in column (index + l) mod 8 of its group's memory. With
    ``linear``, result ``index`` of the frame is in column ``index`` mod 8 of group 0's memory.
    A beat leaves two cycles after its segment arrives.

    Parameters
    ----------
    config
        The pool.
    lanes
        Lanes of the bank, 1 to 16.
    write
        A :class:`~hw.pim.bank.buffer.interface.ResultWriteSignature`. With ``linear``, all results
        of a cycle must be in one row of eight.
    """

    def __init__(self, m: Any, config: PimConfig, *, lanes: int, write: Any) -> None:
        jobs = Jobs(config)
        self._lanes = lanes
        self._write_port = write
        self.i: Any = stream.Signature(
            data.StructLayout(
                {
                    "frame": range(RESULT_FRAMES),
                    "linear": 1,
                    "interleave": 2,
                    "segment": jobs.segment,
                }
            )
        ).create()
        """Stream of segments of a walk over results.

        See :attr:`Jobs.store <hw.pim.work.layouts.Jobs.store>`.
        """
        beat = data.StructLayout({**write_request_layout(config).members, "last": 1})
        self.o: Any = stream.Signature(beat).create()
        """Stream of memory beats with the results in place; ``last`` marks the walk's last one."""

        groups = []
        for group in range(-(-lanes // COLUMNS)):
            groups.append([])
            for column in range(COLUMNS):
                storage = shared_column(RESULT_FRAMES * COLUMNS)
                m.submodules[f"group_{group}_column_{column}"] = storage
                groups[-1].append(storage)
        for group, columns in enumerate(groups):
            self._write(m, group, columns)
        self._read(m, groups)

    def _write(self, m: Any, group: int, columns: list[Any]) -> None:
        write = self._write_port
        with m.If(write.enable), m.Switch(_modulo(write.index)):
            for turn in range(COLUMNS):
                with m.Case(turn):
                    for column, storage in enumerate(columns):
                        row = (column - turn) % COLUMNS
                        lane = group * COLUMNS + row
                        if lane < self._lanes:
                            row = Mux(write.linear, write.index[_COLUMN_BITS:], row)
                            m.d.comb += [
                                storage.write.addr.eq(Cat(row, write.frame)),
                                storage.write.data.eq(write.data[lane]),
                                storage.write.en.eq(write.mask[lane]),
                            ]

    def _read(self, m: Any, groups: list[list[Any]]) -> None:
        request, segment, o = self.i.payload, self.i.payload.segment, self.o.payload
        reading, valid = Signal(), Signal()
        moves, take = Signal(), Signal()
        m.d.comb += [
            moves.eq(~valid | self.o.ready),
            self.i.ready.eq(~reading | moves),
            take.eq(self.i.valid & self.i.ready),
            self.o.valid.eq(valid),
        ]

        # Number of the first result in its lane.
        number = wire(m, _modulo(segment.group + (segment.k << request.interleave)), "number")
        upper = segment.member[_COLUMN_BITS]
        with m.If(take):
            for column in range(COLUMNS):
                row = Signal(_COLUMN_BITS, name=f"row_{column}")
                with m.If(request.linear):
                    # Results that do not fit into the first one's row are in the next row.
                    m.d.comb += row.eq(segment.k[_COLUMN_BITS:] + (column < _modulo(segment.k)))
                with m.Elif(segment.across):
                    m.d.comb += row.eq(column - number)
                with m.Else():
                    m.d.comb += row.eq(segment.member)
                m.d.comb += [
                    columns[column].read.addr.eq(Cat(row, request.frame)) for columns in groups
                ]
        for group, columns in enumerate(groups):
            here = wire(m, take & (upper == group), f"read_{group}")
            m.d.comb += [storage.read.en.eq(here) for storage in columns]
        taken = hold(
            m,
            take,
            "taken",
            # Column of the first result; binary logarithm of the columns between two results.
            start=_modulo(Mux(request.linear, segment.k, number + segment.member)),
            spread=Mux(request.linear | segment.across, 0, request.interleave),
            upper=upper,
            word=_modulo(segment.address),
            down=segment.step[1],
            count=segment.count,
            address=segment.address[_COLUMN_BITS:],
            last=segment.last,
        )
        with m.If(self.i.ready):
            m.d.sync += reading.eq(self.i.valid)
        with m.If(moves):
            m.d.sync += valid.eq(reading)
        beat = hold(m, moves & reading, "beat", address=taken.address, last=taken.last)
        m.d.comb += [o.address.eq(beat.address), o.last.eq(beat.last)]
        for place in range(BEAT_WORDS):
            result, column = (
                Signal(_COLUMN_BITS, name=f"{name}_{place}") for name in ("result", "column")
            )
            used = Signal(name=f"used_{place}", reset_less=True)
            word = Signal(32, name=f"word_{place}", reset_less=True)
            m.d.comb += [
                o.data[32 * place : 32 * place + 32].eq(word),
                o.strobe[4 * place : 4 * place + 4].eq(used.replicate(4)),
            ]
            with m.If(moves & reading):
                m.d.comb += [
                    result.eq(Mux(taken.down, taken.word - place, place - taken.word)),
                    column.eq(taken.start + (result << taken.spread)),
                ]
                m.d.sync += used.eq(result < taken.count)
                with m.Switch(column):
                    for number, storages in enumerate(zip(*groups, strict=True)):
                        values = [storage.read.data for storage in storages]
                        with m.Case(number):
                            m.d.sync += word.eq(
                                values[0] if len(values) == 1 else Mux(taken.upper, *values[::-1])
                            )
