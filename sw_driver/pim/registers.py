"""The pool's registers by their names: where each one is, and what its fields hold."""

from __future__ import annotations

from hw.csr.bank import CSR_DATA_WIDTH
from hw.csr.register_map import Register, RegisterMap, load_registers
from hw.pim.registers.pool_registers import (
    PIM_RDL,
    RING_BYTES,
    RINGS_OFFSET_BYTES,
    SLOT_BYTES,
    SLOTS_OFFSET_BYTES,
    busy_window,
    kept_window,
)

from .transport import PimTransport

__all__ = ["PoolRegisters", "pool_map", "ring_map", "slot_map"]

_REGISTER_BYTES = CSR_DATA_WIDTH // 8


def pool_map() -> RegisterMap:
    """The registers of the pool."""
    return load_registers("pim_pool", PIM_RDL)


def ring_map() -> RegisterMap:
    """The registers of a ring."""
    return load_registers("pim_ring", PIM_RDL)


def slot_map() -> RegisterMap:
    """The registers of a slot."""
    return load_registers("pim_slot", PIM_RDL)


class PoolRegisters:
    """The registers behind ``transport``; ``KeyError`` for names that the map does not have."""

    def __init__(self, transport: PimTransport) -> None:
        self._transport = transport

    def pool(self, register: str, field: str | None = None) -> int:
        """A field of a register of the pool; without ``field``, the register has only one."""
        return self._read(pool_map()[register], 0, field)

    def ring(self, ring: int, register: str, *fields: str) -> tuple[int, ...]:
        """Fields of a register of a ring, all of one cycle."""
        place = ring_map()[register]
        value = self._transport.read_register(_ring_offset(ring) + place.offset_bytes)
        return tuple(place[name].extract(value) for name in fields)

    def write_ring(self, ring: int, register: str, value: int) -> None:
        """Writes a register of a ring."""
        self._transport.write_register(
            _ring_offset(ring) + ring_map()[register].offset_bytes, value
        )

    def slot(self, slot: int, register: str) -> int:
        """A register of a slot."""
        return self._read(slot_map()[register], SLOTS_OFFSET_BYTES + SLOT_BYTES * slot, None)

    def keep(self, slot: int) -> None:
        """Has :meth:`kept` give the registers of a slot as they are together in this moment."""
        self.write("snapshot", slot)

    def kept(self, register: str) -> int:
        """A register of a slot, as it was at the last :meth:`keep`."""
        return self._read(slot_map()[register], kept_window().start, None)

    def busy_cycles(self, bank: int) -> int:
        """Cycles since reset in which a bank had a work."""
        return self._transport.read_register(busy_window()[_REGISTER_BYTES * bank])

    def progress(self, slots: int) -> tuple[int, ...]:
        """What changes whenever the pool, which has so many slots, gets on."""
        names = ("id", "state", "multiplications_left", "additions_left", "bytes_read")
        return tuple(self.slot(slot, name) for slot in range(slots) for name in names)

    def write(self, register: str, value: int) -> None:
        """Writes a register of the pool."""
        self._transport.write_register(pool_map()[register].offset_bytes, value)

    def _read(self, register: Register, base: int, field: str | None) -> int:
        value = self._transport.read_register(base + register.offset_bytes)
        chosen = register.fields[0] if field is None else register[field]
        return chosen.extract(value)


def _ring_offset(ring: int) -> int:
    return RINGS_OFFSET_BYTES + RING_BYTES * ring
