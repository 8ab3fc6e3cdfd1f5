"""Registers by name."""

from __future__ import annotations

from collections.abc import Callable

from hw.csr.register_map import Field, Register, RegisterMap

__all__ = ["RegisterWindow", "name_of"]


def name_of(field: Field, code: int) -> str:
    """Return the name of an encoded value of a field, or text for an unknown one."""
    return {value: name for name, value in field.encoding}.get(code, f"unknown ({code})")


class RegisterWindow:
    """Registers of a map within a device; unknown names raise ``KeyError``.

    Parameters
    ----------
    registers: the register map.
    read, write: functions that access a 64-bit register by its byte address.
    base: byte address of the window.
    """

    def __init__(
        self,
        registers: RegisterMap,
        read: Callable[[int], int],
        write: Callable[[int, int], object],
        base: int = 0,
    ) -> None:
        self._registers = registers
        self._read = read
        self._write = write
        self._base = base

    def __getitem__(self, name: str) -> Register:
        """Return the description of the register ``name``."""
        return self._registers[name]

    @property
    def registers(self) -> tuple[Register, ...]:
        """Descriptions of all registers in address order."""
        return self._registers.registers

    def address(self, name: str) -> int:
        """Return the byte address of the register ``name`` in the device."""
        return self._base + self._registers[name].offset_bytes

    def read(self, name: str) -> int:
        """Return the register's 64 bits."""
        return self._read(self.address(name))

    def read_fields(self, name: str, *fields: str) -> tuple[int, ...]:
        """Return fields from one read of a register; all of its fields if none are named."""
        register = self._registers[name]
        bits = self.read(name)
        chosen = [register[field] for field in fields] if fields else register.fields
        return tuple(field.extract(bits) for field in chosen)

    def read_field(self, name: str, field: str | None = None) -> int:
        """Return one field of a register; the first if none is named."""
        register = self._registers[name]
        return (register.fields[0] if field is None else register[field]).extract(self.read(name))

    def read_name(self, name: str) -> str:
        """Return the name of the value in a register's first field."""
        return name_of(self._registers[name].fields[0], self.read_field(name))

    def write(self, name: str, value: int) -> None:
        """Write the register's 64 bits."""
        self._write(self.address(name), value)
