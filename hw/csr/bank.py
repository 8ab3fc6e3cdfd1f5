"""Control and status registers, made from a register map."""

from __future__ import annotations

from functools import reduce
from itertools import groupby
from operator import or_
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.csr.register_map import Field, Register, RegisterMap

__all__ = ["CSR_DATA_WIDTH", "CsrBank", "CsrBusSignature"]

CSR_DATA_WIDTH = 64
"""Width of a register and of the bus, in bits."""

_WORD_BYTES = CSR_DATA_WIDTH // 8


def _is_constant(field: Field) -> bool:
    return not (field.sw_writable or field.hw_readable or field.hw_writable)


class CsrBusSignature(wiring.Signature):
    """A bus of 64 bits without wait states, as its manager sees it.

    Members
    -------
    address : Out(addr_width)
        Byte offset.
    write : Out(1)
        Write enable.
    write_data : Out(64)
        What to write, with ``write``.
    strobes : Out(8), if asked for
        Which of its bytes to write.
    read_data : In(64)
        What is at ``address``; 0 where nothing is.
    hit : In(1)
        Whether ``address`` is a register.
    """

    def __init__(self, *, addr_width: int, strobes: bool) -> None:
        super().__init__(
            {
                "address": Out(addr_width),
                "write": Out(1),
                "write_data": Out(CSR_DATA_WIDTH),
                **({"strobes": Out(_WORD_BYTES)} if strobes else {}),
                "read_data": In(CSR_DATA_WIDTH),
                "hit": In(1),
            }
        )


class CsrBank(wiring.Component):
    """The registers of ``register_map`` on a 64-bit bus without wait states.

    A write takes effect at the end of the cycle in which ``write`` is high; reading is
    combinational from ``address`` and has no side effects. The low three bits of ``address`` are
    ignored. An address without a register reads as zero; a write there has no effect.

    Raises ``ValueError`` for a field of a kind not listed below, a misplaced register, and a map
    that does not fit ``addr_width``. A register with several places must not be written by
    software.

    Parameters
    ----------
    register_map
        Registers to implement. A field is one of: written by software, read by hardware; written by
        software as a pulse (``singlepulse``); written by hardware, read by software; set by
        hardware and cleared by software that writes ones (``woclr``); neither written nor seen by
        hardware (a constant).
    addr_width
        Width of ``address`` in bits.
    strobes
        Support writes to a part of a register.

    Members
    -------
    bus : In(:class:`CsrBusSignature`)
        Accesses.
    REGISTER_FIELD : In(width) or Out(width), for each field that is not a constant
        Out if software writes it, from the cycle after the write (for that one cycle if it is a
        pulse). In if hardware writes it, which then holds the value: the bank does not store it.
        Of a field that software clears each bit is a pulse, which the bank keeps. Of a register
        that is there several times, it is the value of the one that is at ``address``.
    REGISTER_FIELD_kept : Out(width), for each field that software clears
        What it reads as. A bit is set from the cycle after its pulse until the one after a write of
        a one; where both meet it stays set.

    Examples
    --------
    >>> from hw.csr.register_map import parse_registers
    >>> from hw.sim.outputs import outputs
    >>> lamp = "reg { regwidth = 64; field { sw = rw; hw = r; } glow[7:0] = 5; } light @ 0;"
    >>> bank = CsrBank(parse_registers("lamp", f"addrmap lamp {{ {lamp} }};"), addr_width=4)
    >>> outputs(bank)["light_glow"]
    5
    >>> outputs(bank, 1, bus_write=1, bus_write_data=9)["light_glow"]
    9
    """

    bus: Any

    def __init__(
        self, register_map: RegisterMap, *, addr_width: int, strobes: bool = False
    ) -> None:
        end = max(register.places[-1] for register in register_map.registers) + _WORD_BYTES
        if end > 1 << addr_width:
            raise ValueError(
                f"addr_width must be enough for register map {register_map.name!r}, which ends at "
                f"byte {end}, got {addr_width!r}"
            )
        self._map = register_map
        self._strobes = strobes
        bus = CsrBusSignature(addr_width=addr_width, strobes=strobes)
        members: dict[str, Any] = {"bus": In(bus)}
        for register in register_map.registers:
            if any(place % _WORD_BYTES for place in register.places):
                raise ValueError(
                    f"register {register.name!r} must lie at a multiple of {_WORD_BYTES} bytes, "
                    f"got offset {register.offset_bytes:#x}"
                )
            if len(register.places) > 1 and any(field.sw_writable for field in register.fields):
                raise ValueError(
                    f"register {register.name!r} is at several offsets, so software must not write "
                    "it: make its fields read-only in the register map"
                )
            for field in register.fields:
                if _is_constant(field):
                    continue
                if field.sw_writable == field.hw_writable and not field.clears:
                    raise ValueError(
                        f"field {register.name}.{field.name} must be written by either software "
                        f"or hardware; make one of them read-only in the register map"
                    )
                members[f"{register.name}_{field.name}"] = (
                    In(field.width) if field.hw_writable else Out(field.width, init=field.reset)
                )
                if field.clears:
                    members[f"{register.name}_{field.name}_kept"] = Out(
                        field.width, init=field.reset
                    )
        super().__init__(members)

    def _value(self, register: Register, field: Field) -> Value:
        if _is_constant(field):
            return Const(field.reset, field.width)
        suffix = "_kept" if field.clears else ""
        return getattr(self, f"{register.name}_{field.name}{suffix}")

    def _word(self, register: Register) -> Value:
        """Return the value that software reads from ``register``."""
        parts: list[Value] = []
        position = 0
        for field in sorted(register.fields, key=lambda field: field.lsb):
            if field.sw_readable and not field.pulse:
                parts += [Const(0, field.lsb - position), self._value(register, field)]
                position = field.lsb + field.width
        return Cat(*parts)

    def _written(self, field: Field, before: Any) -> Value:
        """Return the value after a write to a field that holds ``before``."""
        end = field.lsb + field.width
        if not self._strobes:
            return self.bus.write_data[field.lsb : end]
        kept = Const(before, field.width) if isinstance(before, int) else before
        parts = []
        for byte in range(field.lsb // 8, -(-end // 8)):
            low, high = max(field.lsb, 8 * byte), min(end, 8 * byte + 8)
            unwritten = kept[low - field.lsb : high - field.lsb]
            parts.append(Mux(self.bus.strobes[byte], self.bus.write_data[low:high], unwritten))
        return Cat(*parts)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus = self.bus
        word_address = Signal(len(bus.address) - 3)
        m.d.comb += word_address.eq(bus.address[3:])
        for register in self._map.registers:
            for field in register.fields:
                if field.sw_writable and field.pulse:
                    m.d.sync += self._value(register, field).eq(0)
                if field.clears:
                    kept = self._value(register, field)
                    m.d.sync += kept.eq(kept | getattr(self, f"{register.name}_{field.name}"))
        # A multiplexer for each block of registers takes less logic than one for all.
        hits, words = [], []
        for _, registers in groupby(self._map.registers, key=lambda register: register.block):
            hits.append(hit := Signal())
            words.append(word := Signal(CSR_DATA_WIDTH))
            with m.Switch(word_address):
                for register in registers:
                    with m.Case(*(place // _WORD_BYTES for place in register.places)):
                        m.d.comb += [hit.eq(1), word.eq(self._word(register))]
                        with m.If(bus.write):
                            self._write(m, register)
        m.d.comb += [bus.hit.eq(Cat(hits).any()), bus.read_data.eq(reduce(or_, words))]
        return m

    def _write(self, m: Any, register: Register) -> None:
        for field in register.fields:
            if not field.sw_writable:
                continue
            value = self._value(register, field)
            if field.clears:
                sets = getattr(self, f"{register.name}_{field.name}")
                m.d.sync += value.eq((value & ~self._written(field, 0)) | sets)
            else:
                m.d.sync += value.eq(self._written(field, 0 if field.pulse else value))
