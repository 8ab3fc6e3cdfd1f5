"""Registers of the pool by name, with their offsets."""

from __future__ import annotations

from hw.csr.register_map import RegisterMap, load_registers
from hw.pim.registers.pool_registers import (
    CORE_BYTES,
    CORES_OFFSET_BYTES,
    PIM_RDL,
    RING_BYTES,
    RINGS_OFFSET_BYTES,
    SLOT_BYTES,
    SLOTS_OFFSET_BYTES,
    kept_window,
)
from sw_driver.device.registers import RegisterWindow

from .transport import PimTransport

__all__ = ["PoolRegisters", "core_map", "pool_map", "ring_map", "slot_map"]


def pool_map() -> RegisterMap:
    """Return the register map of the pool."""
    return load_registers("pim_pool", PIM_RDL)


def ring_map() -> RegisterMap:
    """Return the register map of a ring."""
    return load_registers("pim_ring", PIM_RDL)


def core_map() -> RegisterMap:
    """Return the register map of a core."""
    return load_registers("pim_core", PIM_RDL)


def slot_map() -> RegisterMap:
    """Return the register map of a slot."""
    return load_registers("pim_slot", PIM_RDL)


class PoolRegisters:
    """Registers behind ``transport``; rings, cores and slots are indexed by their number.

    Examples
    --------
    >>> from hw.pim.config import PIM_PRESETS
    >>> from sw_driver.pim.backends.golden import GoldenPim
    >>> registers = PoolRegisters(GoldenPim(PIM_PRESETS["tiny"]))
    >>> registers.pool.read_fields("identity")
    (1296650312, 5)
    """

    def __init__(self, transport: PimTransport) -> None:
        config = transport.config

        def window(registers: RegisterMap, base: int = 0) -> RegisterWindow:
            access = transport.read_register, transport.write_register
            return RegisterWindow(registers, *access, base)

        def row(registers: RegisterMap, start: int, step: int, count: int) -> list[RegisterWindow]:
            return [window(registers, start + step * number) for number in range(count)]

        self.pool = window(pool_map())
        self.rings = row(ring_map(), RINGS_OFFSET_BYTES, RING_BYTES, config.rings)
        self.cores = row(core_map(), CORES_OFFSET_BYTES, CORE_BYTES, config.cores)
        self.slots = row(slot_map(), SLOTS_OFFSET_BYTES, SLOT_BYTES, config.works)
        self.kept = window(slot_map(), kept_window().start)
        """Copy of a slot, taken when its number was last written to ``snapshot``."""

    def progress(self) -> tuple[int, ...]:
        """Return register values that change whenever the pool makes progress."""
        names = ("id", "state", "multiplications_left", "additions_left", "bytes_read")
        return tuple(slot.read_field(name) for slot in self.slots for name in names)
