"""Backend ``golden``: the functional pool behind the RTL's registers, without time."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from golden.pim import Cause, Descriptor, Opcode, Pool, Ring, Rings, Room, check
from golden.pim.descriptor import RESERVED_WORDS
from hw.csr.bank import CSR_DATA_WIDTH
from hw.csr.register_map import Register, RegisterMap
from hw.pim.registers.pool_registers import (
    RING_BYTES,
    RINGS_OFFSET_BYTES,
    SLOT_BYTES,
    SLOTS_OFFSET_BYTES,
    busy_window,
    kept_window,
)
from sw_driver.device.clock import Domain
from sw_driver.pim.registers import pool_map, ring_map, slot_map
from sw_driver.pim.transport import PimTransport, alone, no_memory

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["GoldenPim"]

_REGISTER_BYTES = CSR_DATA_WIDTH // 8


class GoldenPim(PimTransport):
    """A :class:`~sw_driver.pim.transport.PimTransport` over :class:`golden.pim.pool.Pool`.

    Works complete only in :meth:`advance`, one in each call, the oldest first. A program sees
    running works, but no duration.

    Examples
    --------
    >>> import numpy as np
    >>> from hw.pim.config import PIM_PRESETS
    >>> from nearmem import Pim
    >>> with Pim(GoldenPim(PIM_PRESETS["tiny"])) as pim:
    ...     pim.write_memory(0, np.arange(4, dtype=np.float32))
    ...     print(pim.read_memory(8, 8).view(np.float32))
    [2. 3.]
    """

    name = "golden"
    timed = False

    def __init__(self, config: PimConfig, *, computes: bool = True) -> None:
        self.config = config
        self.computes = computes
        self.domain = Domain()
        self._room = Room(config.first_words, config.second_words, config.state_words)
        self._pool = Pool(
            multipliers=config.placement.multipliers,
            adders=config.placement.adders,
            bank_bytes=config.bank_bytes,
            slots=config.works,
            computes=computes,
            room=self._room,
        )
        self._slots: dict[int, int] = {}
        """Bytes of rings by address, kept here if nothing is computed."""
        self._rings = Rings(config.rings, self)
        self._next: Descriptor | None = None
        """Checked work that waits for room in the pool."""
        self._held = [0] * config.works
        """Id of the last work in each slot, or 0."""
        self._accepted: list[int] = []
        """Ids of accepted works, oldest first; some may have completed."""
        self._kept = {register.name: 0 for register in slot_map().registers}
        """Values of a slot's registers at the last snapshot."""

    @alone
    def read_register(self, offset_bytes: int) -> int:
        """Return a register's 64 bits, or 0 if no register is there."""
        register = _at(offset_bytes, pool_map())
        if register is not None:
            return _pack(register, self._pool_fields(register.name))
        ring, offset = self._ring_at(offset_bytes)
        if ring is not None:
            register = _at(offset, ring_map())
            return 0 if register is None else _pack(register, _ring_fields(ring, register.name))
        if offset_bytes in busy_window():
            return self._busy_cycles((offset_bytes - busy_window().start) // _REGISTER_BYTES)
        kept = offset_bytes in kept_window()
        base = kept_window().start if kept else SLOTS_OFFSET_BYTES
        slot, offset = divmod(offset_bytes - base, SLOT_BYTES)
        register = _at(offset, slot_map())
        if register is None or not 0 <= slot < len(self._held):
            return 0
        name = register.name
        value = self._kept[name] if kept else self._slot_value(slot, name)
        return _pack(register, {register.fields[0].name: value})

    @alone
    def write_register(self, offset_bytes: int, value: int) -> None:
        """Write a register of a ring, or take a snapshot of a slot."""
        ring, offset = self._ring_at(offset_bytes)
        if ring is not None:
            register = _at(offset, ring_map())
            match register and register.name:
                case "base":
                    ring.base = value & 0xFFFF_FFFF
                case "size":
                    ring.size = value & 0xF
                case "head":
                    ring.head = value & 0xFFFF
                    self._serve()
                case "completions":
                    ring.pending = ring.pending and not value & 1 << 16
                case "interrupt":
                    ring.enable = bool(value & 1)
                case _:  # read-only, or no register
                    pass
        elif offset_bytes == pool_map()["snapshot"].offset_bytes:
            slot = value % len(self._held)
            self._kept = {name: self._slot_value(slot, name) for name in self._kept}

    @alone
    def read_memory(self, address_bytes: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the bytes that completed works and the host have written.

        If nothing is computed, return zeros outside of rings.
        """
        errors = self._pool.host_errors
        data = self.read(address_bytes, nbytes)
        if self._pool.host_errors != errors:
            raise no_memory(f"reading {nbytes} bytes at {address_bytes:#x}", self.config)
        return data

    @alone
    def write_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Write bytes of the stack; if nothing is computed, only bytes of rings are kept."""
        errors = self._pool.host_errors
        self.write(address_bytes, data)
        if self._pool.host_errors != errors:
            raise no_memory(f"writing {data.size} bytes at {address_bytes:#x}", self.config)

    @alone
    def post_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Write bytes at once, like :meth:`write_memory`."""
        self.write_memory(address_bytes, data)

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the bytes that the host, or a ring, reads at ``address``."""
        data = self._pool.read(address, nbytes)
        if not self.computes and self._is_of_ring(address):
            places = range(address, address + nbytes)
            data[:] = [self._slots.get(place, 0) for place in places]
        return data

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """Write the bytes of the host, or of a ring, to ``address``."""
        self._pool.write(address, data)
        if not self.computes and self._is_of_ring(address):
            self._slots |= zip(range(address, address + data.size), data.tolist(), strict=True)

    @alone
    def advance(self, cycles: int) -> None:
        """Complete the oldest running work if ``cycles`` is positive; its value has no meaning."""
        self._accepted = [work for work in self._accepted if not self._pool.work_query(work)]
        running = (work for work in self._accepted if self._pool.banks_of(work))
        oldest = next(running, None)
        if oldest is not None and cycles > 0:
            self._finish(oldest)

    def cycles(self) -> int:
        """Return 0, as there is no clock."""
        self.domain.check_open()
        return 0

    def close(self) -> None:
        """Close the backend; see :class:`~sw_driver.device.transport.Transport`."""
        with self.domain.clock.within():
            self.domain.close()

    def _is_of_ring(self, address: int) -> bool:
        return any(address in ring.region for ring in self._rings.rings)

    def _ring_at(self, offset_bytes: int) -> tuple[Ring | None, int]:
        """Return the ring with a register at ``offset_bytes``, if any, and the offset in it."""
        number, offset = divmod(offset_bytes - RINGS_OFFSET_BYTES, RING_BYTES)
        rings = self._rings.rings
        return (rings[number] if 0 <= number < len(rings) else None), offset

    def _serve(self) -> None:
        """Take descriptors from the rings while there are some and the pool has room."""
        while self._next is not None or (raw := self._rings.fetch()) is not None:
            if self._next is None:
                work, cause = self._check(raw)
                if cause:
                    self._rings.refuse(cause)()
                    continue
                self._next = work
            if not self._pool.has_room:
                return
            work, self._next = self._next, None
            self._accept(work)

    def _check(self, raw: bytes) -> tuple[Descriptor, Cause]:
        """Return the work of a descriptor, and the cause if it is refused."""
        words = np.frombuffer(raw, "<u4").copy()
        reserved = words[[*RESERVED_WORDS]].any()
        words[[*RESERVED_WORDS]] = 0
        work = Descriptor.decode(words.tobytes())
        if reserved:
            known = work.opcode in list(Opcode)
            return work, Cause.RESERVED if known else Cause.OPCODE
        return work, check(work, stack=self._pool.stack, units=self.config.units, room=self._room)

    def _accept(self, work: Descriptor) -> int:
        """Submit a checked work to the pool, which has room, and return its id."""
        work_id = self._pool.submit(work)
        self._rings.accept(work_id)
        self._held[work_id % len(self._held)] = work_id
        self._accepted.append(work_id)
        self._grow()
        return work_id

    def _finish(self, work_id: int) -> None:
        self._pool.finish(work_id)
        self._rings.complete(work_id)
        self._grow()
        self._serve()

    def _grow(self) -> None:
        """Give banks that no work waits for to running works."""
        while self._pool.grow(self._dealt()) is not None:
            pass

    def _dealt(self) -> Container[int]:
        """Return the works that have dealt all their tiles; without a clock there is none."""
        return ()

    def _busy_cycles(self, bank: int) -> int:
        """Return the cycles in which a bank had a work."""
        return 0

    def _pool_fields(self, name: str) -> dict[str, int]:
        config = self.config
        match name:
            case "geometry":
                return {
                    "rows": config.rows,
                    "columns": config.columns,
                    "works": config.works,
                    "units": config.units,
                    "rings": config.rings,
                }
            case "bank_memory":
                return {"bytes": config.bank_bytes}
            case "idle":
                return {"idle": self._pool.idle}
            case "completed":
                done = [work and self._pool.work_query(work) for work in self._held]
                return {"completed": sum(bit << slot for slot, bit in enumerate(done))}
            case "starts":
                return {"count": self._pool.starts}
            case "host_errors":
                return {"count": self._pool.host_errors}
            case "host_error" if (error := self._pool.host_error) is not None:
                cause = pool_map()["host_error"]["cause"].code("no_memory")
                return {"address": error.address, "write": error.write, "cause": cause}
            case _:  # constant, write-only, or never lasting
                return {}

    def _slot_value(self, slot: int, name: str) -> int:
        work = self._held[slot]
        if name == "id" or not work:
            return work
        if name == "state":
            if self._pool.work_query(work):
                state = "completed"
            else:
                state = "running" if self._pool.banks_of(work) else "waiting"
            return slot_map()["state"]["state"].code(state)
        if name == "banks":
            return sum(1 << bank for bank in self._pool.banks_of(work))
        return getattr(self._pool.counters(work), name, 0)


def _pack(register: Register, values: Mapping[str, int]) -> int:
    """Return the register's bits; a field without a value has its reset value."""
    return sum(values.get(field.name, field.reset) << field.lsb for field in register.fields)


def _at(offset_bytes: int, registers: RegisterMap) -> Register | None:
    matches = (entry for entry in registers.registers if entry.offset_bytes == offset_bytes)
    return next(matches, None)


def _ring_fields(ring: Ring, name: str) -> dict[str, int]:
    match name:
        case "base":
            return {"slot": ring.base}
        case "size":
            return {"log2": ring.size}
        case "head":
            return {"count": ring.head}
        case "tail":
            return {"count": ring.tail, "cause": ring.cause, "id": ring.id}
        case "completions":
            return {"count": ring.completions, "id": ring.completed_id, "pending": ring.pending}
        case _:
            return {"enable": ring.enable}
