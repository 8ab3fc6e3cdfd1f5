"""Conversion between numbers and codes of eight bits."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import C, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.float.format import FP32, FloatFormat
from hw.float.mul import FloatMul
from hw.float.parts import Bits, Unpacked, carry, cat, delayed_pulse, register, wire
from hw.narrow.rom import lookup
from hw.narrow.tables import TABLES, thresholds

__all__ = ["CodeSearch", "Dequantizer", "tables_name"]

_SIGN = 1 << 31


def tables_name(prefix: str, tables: tuple[str, str], format: FloatFormat = FP32) -> str:
    """Return the name of a module made for ``tables`` and a format."""
    for name in tables:
        if name not in TABLES:
            raise ValueError(f"no table {name!r} of codes; known: {', '.join(TABLES)}")
    parts = [prefix, *tables, *([] if format == FP32 else [format.name])]
    return "_".join(parts)


class Dequantizer(wiring.Component):
    """Number of a code times ``scale``, 8 cycles.

    Parameters
    ----------
    tables
        Names of the two tables of codes.
    format
        FP32, with subnormal numbers or without.

    Members
    -------
    i_valid, i_code, i_scale : In(1), In(8), In(32)
        Operands.
    select : In(1)
        Which table; must hold still while codes are in flight.
    o_valid, o_y : Out(1), Out(32)
        Result.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> unit = Dequantizer(tables=("dynamic_signed", "linear_signed"))
    >>> two = 0x4000_0000
    >>> hex(outputs(unit, 8, i_valid=1, i_code=255, i_scale=two)["o_y"])
    '0x40000000'
    """

    def __init__(self, *, tables: tuple[str, str], format: FloatFormat = FP32) -> None:
        self.module_name = tables_name("dequantizer", tables, format)
        """Name of the Verilog module."""
        self._tables = tables
        self._multiplier = FloatMul(format=format)
        self.latency = 2 + self._multiplier.latency
        """Cycles from operands to result."""
        super().__init__(
            {
                "i_valid": In(1),
                "i_code": In(8),
                "i_scale": In(32),
                "select": In(1),
                "o_valid": Out(1),
                "o_y": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        words = [bits for name in self._tables for bits in TABLES[name]]
        value = lookup(m, "values", words, 32, cat(self.i_code, self.select), block=True)
        m.submodules.mul = mul = self._multiplier
        m.d.comb += [
            mul.i_valid.eq(delayed_pulse(m, self.i_valid, 2, "valid")),
            mul.i_a.eq(register(m, value, "value")),
            mul.i_b.eq(carry(m, 2, "scale", scale=self.i_scale).scale),
            self.o_valid.eq(mul.o_valid),
            self.o_y.eq(mul.o_y),
        ]
        return m


class CodeSearch(wiring.Component):
    """Code of ``n``: the number of a table's thresholds below it; 9 cycles.

    A NaN gets the code of zero. Each cycle finds a bit of the code and looks up both thresholds
    that may come next.

    Parameters
    ----------
    tables
        Names of the two tables of codes.

    Members
    -------
    i_valid, i_n : In(1), In(32)
        An FP32 number.
    select : In(1)
        Which table; must hold still while numbers are in flight.
    o_valid, o_code : Out(1), Out(8)
        Its code.

    Examples
    --------
    >>> from hw.narrow.tables import TABLES
    >>> from hw.sim.outputs import outputs
    >>> tables = "dynamic_signed", "linear_signed"
    >>> unit = CodeSearch(tables=tables)
    >>> one = 0x3F80_0000
    >>> [outputs(unit, unit.latency, i_valid=1, i_n=one, select=n)["o_code"] for n in range(2)]
    [255, 254]
    """

    latency = 9

    def __init__(self, *, tables: tuple[str, str]) -> None:
        self.module_name = tables_name("code_search", tables)
        """Name of the Verilog module."""
        self._tables = tables
        super().__init__(
            {
                "i_valid": In(1),
                "i_n": In(32),
                "select": In(1),
                "o_valid": Out(1),
                "o_code": Out(8),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        keys = [[_key(bits) for bits in thresholds(name)] for name in self._tables]

        def level(bit: int) -> list[list[int]]:
            """Return the thresholds that decide on ``bit`` of the code, by the bits above it."""
            return [table_keys[(1 << bit) - 1 :: 2 << bit] for table_keys in keys]

        n = Unpacked(m, FP32, self.i_n, "n")
        key = Mux(n.nan, C(_SIGN, 32), Mux(n.sign, ~self.i_n, self.i_n | _SIGN))
        key = register(m, key, "key_8")
        first = [C(key_bits, 32) for (key_bits,) in level(7)]
        threshold = register(m, Mux(self.select, first[1], first[0]), "threshold_7")
        code: Bits = C(0, 0)
        for bit in reversed(range(8)):
            larger = wire(m, key > threshold, f"larger_{bit}")
            if bit:
                below, above = (
                    lookup(
                        m,
                        f"{name}_{bit}",
                        [word for table_keys in level(bit - 1) for word in table_keys[start::2]],
                        32,
                        cat(code, self.select),
                    )
                    for name, start in (("below", 0), ("above", 1))
                )
                threshold = register(m, Mux(larger, above, below), f"threshold_{bit - 1}")
            code = register(m, cat(larger, code), f"code_{bit}")
            key = register(m, key, f"key_{bit}")
        m.d.comb += [
            self.o_code.eq(code),
            self.o_valid.eq(delayed_pulse(m, self.i_valid, self.latency, "valid")),
        ]
        return m


def _key(bits: int) -> int:
    """Return an unsigned integer that orders FP32 ``bits`` as the numbers are ordered."""
    return ~bits & 0xFFFFFFFF if bits & _SIGN else bits | _SIGN
