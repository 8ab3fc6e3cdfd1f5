"""Registers by their names."""

from __future__ import annotations

from collections.abc import Callable

from hw.csr.register_map import Field, Register, RegisterMap

__all__ = ["RegisterWindow", "name_of"]


def name_of(field: Field, code: int) -> str:
    """The name of an encoded value of a field, or that it has none."""
    return {each: name for name, each in field.encoding}.get(code, f"unknown ({code})")


class RegisterWindow:
    """The registers of a map, somewhere in a device. ``KeyError`` for names that the map lacks.

    Parameters
    ----------
    registers: the map.
    read, write: access to a register of 64 bits by its byte address.
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
        """The description of the register ``name``."""
        return self._registers[name]

    @property
    def registers(self) -> tuple[Register, ...]:
        """The descriptions of all registers, in the order of their addresses."""
        return self._registers.registers

    def address(self, name: str) -> int:
        """Byte address of the register ``name`` in the device."""
        return self._base + self._registers[name].offset_bytes

    def read(self, name: str) -> int:
        """The register's 64 bits."""
        return self._read(self.address(name))

    def read_fields(self, name: str, *fields: str) -> tuple[int, ...]:
        """Fields of a register, all of one moment; of all that it has without names."""
        register = self._registers[name]
        bits = self.read(name)
        chosen = [register[field] for field in fields] if fields else register.fields
        return tuple(field.extract(bits) for field in chosen)

    def read_field(self, name: str, field: str | None = None) -> int:
        """One field of a register; without its name, the first."""
        register = self._registers[name]
        return (register.fields[0] if field is None else register[field]).extract(self.read(name))

    def read_name(self, name: str) -> str:
        """What the value of a register's first field is called."""
        return name_of(self._registers[name].fields[0], self.read_field(name))

    def write(self, name: str, value: int) -> None:
        """Writes the register's 64 bits."""
        self._write(self.address(name), value)
