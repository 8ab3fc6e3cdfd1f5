"""The backend ``golden``: the functional pool behind registers as the RTL has them. No time."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from golden.pim import Cause, Descriptor, Opcode, Pool, Room, WorkRefusedError, check
from hw.csr.bank import CSR_DATA_WIDTH
from hw.csr.register_map import Register
from hw.pim.registers.pool_registers import (
    SLOT_BYTES,
    SLOTS_OFFSET_BYTES,
    busy_window,
    descriptor_window,
    kept_window,
)
from sw_driver.pim.descriptor import DESCRIPTOR_WORDS
from sw_driver.pim.registers import pool_map, slot_map
from sw_driver.pim.transport import no_memory

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["GoldenPim"]

_REGISTER_BYTES = CSR_DATA_WIDTH // 8
_RESERVED = slice(28, 32)
"""Words of a descriptor that are zero."""


class GoldenPim:
    """A :class:`~sw_driver.pim.transport.PimTransport` over :class:`golden.pim.pool.Pool`.

    Works complete only in :meth:`advance`, one a call, the oldest first: a program sees works that
    run, but nothing of how long.
    """

    name = "golden"
    timed = False

    def __init__(self, config: PimConfig, *, computes: bool = True) -> None:
        self.config = config
        self.computes = computes
        self._room = Room(config.first_words, config.second_words, config.state_words)
        self._pool = Pool(
            multipliers=config.placement.multipliers,
            adders=config.placement.adders,
            bank_bytes=config.bank_bytes,
            slots=config.works,
            computes=computes,
            room=self._room,
        )
        self._descriptor = np.zeros(DESCRIPTOR_WORDS // 2, "<u8")
        self._held = [0] * config.works
        """The work that has each slot."""
        self._accepted: list[int] = []
        """Works, oldest first; those that have completed are still among them."""
        self._last_id = 0
        self._cause = Cause.NONE
        self._kept = {register.name: 0 for register in slot_map().registers}
        """A slot's registers as they were at the last snapshot."""

    def read_register(self, offset_bytes: int) -> int:
        """A register's 64 bits; 0 where there is none."""
        for register in pool_map().registers:
            if register.offset_bytes == offset_bytes:
                return _pack(register, self._pool_fields(register.name))
        if offset_bytes in busy_window():
            return self._busy_cycles((offset_bytes - busy_window().start) // _REGISTER_BYTES)
        kept = offset_bytes in kept_window()
        base = kept_window().start if kept else SLOTS_OFFSET_BYTES
        slot, offset = divmod(offset_bytes - base, SLOT_BYTES)
        for register in slot_map().registers:
            if register.offset_bytes == offset and 0 <= slot < len(self._held):
                name = register.name
                value = self._kept[name] if kept else self._slot_value(slot, name)
                return _pack(register, {register.fields[0].name: value})
        return 0

    def write_register(self, offset_bytes: int, value: int) -> None:
        """Writes the descriptor's window, offers the work that is in it, or keeps a slot."""
        window = descriptor_window()
        if offset_bytes in window:
            self._descriptor[(offset_bytes - window.start) // _REGISTER_BYTES] = value
        elif offset_bytes == pool_map()["submit"].offset_bytes and value & 1:
            self._submit()
        elif offset_bytes == pool_map()["snapshot"].offset_bytes:
            slot = value % len(self._held)
            self._kept = {name: self._slot_value(slot, name) for name in self._kept}

    def read_memory(self, address_bytes: int, nbytes: int) -> NDArray[np.uint8]:
        """What completed works, and the host, have written; zeros if nothing is computed."""
        errors = self._pool.host_errors
        data = self._pool.read(address_bytes, nbytes)
        if self._pool.host_errors != errors:
            raise no_memory(f"reading {nbytes} bytes at {address_bytes:#x}", self.config)
        return data

    def write_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Writes bytes of the stack; nothing if nothing is computed."""
        errors = self._pool.host_errors
        self._pool.write(address_bytes, data)
        if self._pool.host_errors != errors:
            raise no_memory(f"writing {data.size} bytes at {address_bytes:#x}", self.config)

    def advance(self, cycles: int) -> None:
        """Completes the oldest of the works that run; ``cycles`` mean nothing here."""
        self._accepted = [work for work in self._accepted if not self._pool.work_query(work)]
        running = (work for work in self._accepted if self._pool.banks_of(work))
        oldest = next(running, None)
        if oldest is not None and cycles > 0:
            self._finish(oldest)

    def cycles(self) -> int:
        """0: there is no clock."""
        return 0

    def close(self) -> None:
        """There is nothing to release."""

    def _submit(self) -> None:
        work = self._check()
        if work is not None:
            self._accept(work)

    def _check(self) -> Descriptor | None:
        """The work in the descriptor, or None if it is refused whatever the pool does."""
        words = self._descriptor.view("<u4").copy()
        reserved = words[_RESERVED].any()
        words[_RESERVED] = 0
        work = Descriptor.decode(words.tobytes())
        if reserved:
            known = work.opcode in list(Opcode)
            self._cause = Cause.RESERVED if known else Cause.OPCODE
        else:
            self._cause = check(
                work, stack=self._pool.stack, units=self.config.units, room=self._room
            )
        return work if self._cause == Cause.NONE else None

    def _accept(self, work: Descriptor) -> None:
        """Offers a checked work to the pool."""
        try:
            self._last_id = self._pool.submit(work)
        except WorkRefusedError as refusal:
            self._cause = refusal.cause
            return
        self._cause = Cause.NONE
        self._held[self._last_id % len(self._held)] = self._last_id
        self._accepted.append(self._last_id)
        self._grow()

    def _finish(self, work_id: int) -> None:
        self._pool.finish(work_id)
        self._grow()

    def _grow(self) -> None:
        """Gives banks that nobody waits for to the works that run."""
        while self._pool.grow(self._dealt()) is not None:
            pass

    def _dealt(self) -> Container[int]:
        """Works of which no tile is left: without a clock a work that runs has some."""
        return ()

    def _busy_cycles(self, bank: int) -> int:
        """Cycles in which a bank had a work."""
        return 0

    def _pool_fields(self, name: str) -> dict[str, int]:
        config = self.config
        match name:
            case "geometry":
                return {
                    "rows": config.rows,
                    "columns": config.columns,
                    "works": config.works,
                    "counting": int(config.counting == "pairs"),
                    "units": config.units,
                }
            case "bank_memory":
                return {"bytes": config.bank_bytes}
            case "cause":
                return {"cause": self._cause}
            case "id":
                return {"id": self._last_id}
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
            case _:  # what is constant, is written, or never lasts
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
    """The register's bits; a field without a value holds what it has after a reset."""
    return sum(values.get(field.name, field.reset) << field.lsb for field in register.fields)
