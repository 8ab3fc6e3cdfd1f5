"""Quantizer of blocks of numbers to codes of eight bits and a scale."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import C, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.float.div import FloatDiv
from hw.float.format import FP32, FloatFormat
from hw.float.mul import FloatMul
from hw.float.parts import Bits, carry, cat, delayed_pulse, register, wire
from hw.logic.checks import check_int
from hw.logic.shared import Shared
from hw.narrow.codes import CodeSearch, tables_name

__all__ = ["BLOCK", "Quantizer"]

BLOCK = 256
"""Numbers with a common scale."""
_ONE = FP32.bias << FP32.fraction_bits


class Quantizer(wiring.Component):
    """Codes and a scale for each 256 numbers, ``lanes`` numbers a cycle, without a stall.

    The scale is the largest magnitude of the block; an infinity or a NaN takes precedence. Numbers
    wait in a memory until the scale is known. They are then multiplied by its reciprocal and
    rounded, and their codes are searched. The codes of a block leave in consecutive cycles, one for
    each beat of the block.

    Parameters
    ----------
    lanes
        Numbers a cycle: 1, 2, 4, 8 or 16.
    tables
        Names of the two tables of codes.
    format
        FP32, with subnormal numbers or without.

    Members
    -------
    i_valid, i : In(1), In(32) for each lane
        The next numbers.
    select : In(1)
        Which table; must hold still while blocks are in flight.
    o_valid, o : Out(1), Out(8) for each lane
        The next codes.
    o_scale : Out(32)
        The scale of their block.

    Examples
    --------
    >>> from hw.verilog.writer import to_verilog
    >>> unit = Quantizer(lanes=4, tables=("dynamic_signed", "linear_signed"))
    >>> [unit.signature.members[name] for name in ("i", "o", "o_scale")]
    [In(32).array(4), Out(8).array(4), Out(32)]
    >>> text = to_verilog(unit, "quantizer")
    >>> "256 numbers" in text, text.count("endmodule")
    (True, 7)
    """

    def __init__(self, *, lanes: int, tables: tuple[str, str], format: FloatFormat = FP32) -> None:
        check_int("lanes", lanes, 1, 16, power_of_two=True)
        self.module_name = f"{tables_name('quantizer', tables, format)}_{lanes}_lanes"
        """Name of the Verilog module."""
        self._lanes = lanes
        self._beats = BLOCK // lanes
        self._search = CodeSearch(tables=tables)
        self._multiplier = FloatMul(format=format)
        self._divider = FloatDiv(format=format)
        # Stages: maximum of the lanes, maximum of the block, scale, reciprocal, a register.
        self._until_read = (lanes.bit_length() - 1) + 2 + self._divider.latency + 1
        self.latency = self._until_read + 1 + self._multiplier.latency + self._search.latency
        """Cycles from the last numbers of a block to its first codes."""
        super().__init__(
            {
                "i_valid": In(1),
                "i": In(32).array(lanes),
                "select": In(1),
                "o_valid": Out(1),
                "o": Out(8).array(lanes),
                "o_scale": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        known, scale = self._scale(m)
        m.submodules.divider = divider = self._divider
        m.d.comb += [divider.i_valid.eq(known), divider.i_a.eq(_ONE), divider.i_b.eq(scale)]
        delayed = carry(m, divider.latency, "divided", scale=scale[:31])

        # The beats of a block are read when its reciprocal is there.
        factor = Signal(32, reset_less=True)
        kept = Signal(31, reset_less=True)
        reading = Signal()
        place = Signal(range(self._beats))
        with m.If(divider.o_valid):
            m.d.sync += [factor.eq(divider.o_y), kept.eq(delayed.scale), reading.eq(1)]
        with m.Elif(place == self._beats - 1):
            m.d.sync += reading.eq(0)
        with m.If(reading):
            m.d.sync += place.eq(place + 1)
        numbers = register(m, self._oldest(m, reading), "numbers")
        factor = register(m, factor, "read_factor")
        read = delayed_pulse(m, reading, 1, "read")

        for lane, o in enumerate(self.o):
            mul: Any = Shared(self._multiplier, name=self._multiplier.module_name)
            search: Any = Shared(self._search, name=self._search.module_name)
            m.submodules[f"mul_{lane}"], m.submodules[f"search_{lane}"] = mul, search
            m.d.comb += [
                mul.i_valid.eq(read),
                mul.i_a.eq(numbers[32 * lane : 32 * lane + 32]),
                mul.i_b.eq(factor),
                search.i_valid.eq(mul.o_valid),
                search.i_n.eq(mul.o_y),
                search.select.eq(self.select),
                o.eq(search.o_code),
                self.o_valid.eq(search.o_valid),
            ]
        way = 1 + self._multiplier.latency + self._search.latency
        m.d.comb += self.o_scale.eq(carry(m, way, "searched", scale=kept).scale)
        return m

    def _oldest(self, m: Module, taken: Bits) -> Bits:
        """Return the oldest waiting beat, which leaves when it is ``taken``."""
        depth = self._beats + self._until_read
        m.submodules.waiting = memory = Memory(
            # A depth that is a power of two makes the pointers wrap by themselves.
            shape=32 * self._lanes,
            depth=1 << (depth - 1).bit_length(),
            init=[],
            attrs={"ram_style": "distributed"},
        )
        write: Any = memory.write_port()
        read: Any = memory.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(self.i_valid),
            write.data.eq(cat(*self.i)),
        ]
        for port, moves in ((write, self.i_valid), (read, taken)):
            place = Signal(range(memory.depth))
            m.d.comb += port.addr.eq(place)
            with m.If(moves):
                m.d.sync += place.eq(place + 1)
        return read.data

    def _scale(self, m: Module) -> tuple[Bits, Bits]:
        """Return a pulse when the scale of a block is known, and the scale."""
        level: list[Bits] = [number[:31] for number in self.i]
        cycles = 0
        while len(level) > 1:
            level = [
                register(m, _larger(one, other), f"largest_{cycles}_{place}")
                for place, (one, other) in enumerate(zip(level[::2], level[1::2], strict=True))
            ]
            cycles += 1
        valid = delayed_pulse(m, self.i_valid, cycles, "valid") if cycles else self.i_valid
        beat = Signal(range(self._beats))
        largest = Signal(31, reset_less=True)
        with m.If(valid):
            m.d.sync += [
                beat.eq(beat + 1),
                largest.eq(Mux((beat != 0) & (largest > level[0]), largest, level[0])),
            ]
        known = delayed_pulse(m, valid & (beat == self._beats - 1), 2, "known")
        nan = wire(m, largest > FP32.infinity, "nan")
        scale = Mux(nan, C(FP32.canonical_nan, 31), largest)
        return known, cat(register(m, scale, "scale"), C(0, 1))


def _larger(one: Bits, other: Bits) -> Bits:
    return Mux(one > other, one, other)
