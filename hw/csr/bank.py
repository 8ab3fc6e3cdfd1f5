"""Control and status registers, made from a register map."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.csr.register_map import Field, Register, RegisterMap

__all__ = ["CSR_DATA_WIDTH", "CsrBank"]

CSR_DATA_WIDTH = 64
"""Width of a register and of the bus, in bits."""

_WORD_BYTES = CSR_DATA_WIDTH // 8


def _is_constant(field: Field) -> bool:
    return not (field.sw_writable or field.hw_readable or field.hw_writable)


class CsrBank(wiring.Component):
    """The registers of ``register_map`` on a 64-bit bus without wait states.

    A write takes effect at the end of the cycle in which ``write`` is high; reading is
    combinational from ``address`` and has no side effects. The low three bits of ``address`` are
    ignored. An address where no register is reads as zero, and writing it does nothing.

    Raises ``ValueError`` if a field is of another kind than those below, a register is misplaced,
    or the map does not fit ``addr_width``.

    Parameters
    ----------
    register_map
        What to implement. A field is one of: written by software, read by hardware; written by
        software as a pulse (``singlepulse``); written by hardware, read by software; set by
        hardware and cleared by software that writes ones (``woclr``); neither written nor seen by
        hardware (a constant).
    addr_width
        Width of ``address`` in bits; by default just enough for the map.
    strobes
        Whether parts of a register can be written.

    Members
    -------
    address : In(addr_width)
        Byte offset.
    write : In(1)
        Write enable.
    write_data : In(64)
        What to write, with ``write``.
    strobes : In(8), if asked for
        Which of its bytes to write.
    read_data : Out(64)
        What is at ``address``.
    hit : Out(1)
        Whether ``address`` is a register.
    REGISTER_FIELD : In(width) or Out(width), for each field that is not a constant
        Out if software writes it, from the cycle after the write (for that one cycle if it is a
        pulse). In if hardware writes it, which then holds the value: the bank does not store it.
        Of a field that software clears each bit is a pulse, which the bank keeps.
    REGISTER_FIELD_kept : Out(width), for each field that software clears
        What it reads as. A bit is set from the cycle after its pulse until the one after a write of
        a one; where both meet it stays set.
    """

    def __init__(
        self, register_map: RegisterMap, *, addr_width: int | None = None, strobes: bool = False
    ) -> None:
        end = max(reg.offset_bytes for reg in register_map.registers) + _WORD_BYTES
        needed = max((end - 1).bit_length(), 4)
        if addr_width is None:
            addr_width = needed
        if addr_width < needed:
            raise ValueError(
                f"addr_width must be at least {needed} for register map {register_map.name!r}, "
                f"which ends at byte {end}, got {addr_width!r}"
            )
        self._map = register_map
        members: dict[str, Any] = {
            "address": In(addr_width),
            "write": In(1),
            "write_data": In(CSR_DATA_WIDTH),
            **({"strobes": In(_WORD_BYTES)} if strobes else {}),
            "read_data": Out(CSR_DATA_WIDTH),
            "hit": Out(1),
        }
        for register in register_map.registers:
            if register.offset_bytes % _WORD_BYTES:
                raise ValueError(
                    f"register {register.name!r} must lie at a multiple of {_WORD_BYTES} bytes, "
                    f"got offset {register.offset_bytes:#x}"
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
        """What ``register`` reads as."""
        parts: list[Value] = []
        position = 0
        for field in sorted(register.fields, key=lambda field: field.lsb):
            if field.sw_readable and not field.pulse:
                parts += [Const(0, field.lsb - position), self._value(register, field)]
                position = field.lsb + field.width
        return Cat(*parts)

    def _written(self, field: Field, before: Any) -> Value:
        """What a write makes of ``before``."""
        end = field.lsb + field.width
        if "strobes" not in self.signature.members:
            return self.write_data[field.lsb : end]
        kept = Const(before, field.width) if isinstance(before, int) else before
        parts = []
        for byte in range(field.lsb // 8, -(-end // 8)):
            low, high = max(field.lsb, 8 * byte), min(end, 8 * byte + 8)
            unwritten = kept[low - field.lsb : high - field.lsb]
            parts.append(Mux(self.strobes[byte], self.write_data[low:high], unwritten))
        return Cat(*parts)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        word_address = Signal(len(self.address) - 3)
        m.d.comb += word_address.eq(self.address[3:])
        for register in self._map.registers:
            for field in register.fields:
                if field.sw_writable and field.pulse:
                    m.d.sync += self._value(register, field).eq(0)
                if field.clears:
                    kept = self._value(register, field)
                    m.d.sync += kept.eq(kept | getattr(self, f"{register.name}_{field.name}"))
        with m.Switch(word_address):
            for register in self._map.registers:
                with m.Case(register.offset_bytes // _WORD_BYTES):
                    m.d.comb += [self.hit.eq(1), self.read_data.eq(self._word(register))]
                    with m.If(self.write):
                        for field in register.fields:
                            if not field.sw_writable:
                                continue
                            value = self._value(register, field)
                            if field.clears:
                                sets = getattr(self, f"{register.name}_{field.name}")
                                cleared = self._written(field, 0)
                                m.d.sync += value.eq((value & ~cleared) | sets)
                            else:
                                kept = 0 if field.pulse else value
                                m.d.sync += value.eq(self._written(field, kept))
        return m
