"""Ring of descriptors in the stack's memory, written by one master (docs/pim-spec.md, "Rings")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hw.pim.config import BEAT_BYTES
from hw.pim.rings.layouts import COUNT_BITS, RING_SLOT_BYTES
from sw_driver.device.errors import OutOfMemoryError
from sw_driver.device.registers import name_of
from sw_driver.device.transport import DeviceFault

from .descriptor import DESCRIPTOR_WORDS
from .programs import FIRMWARE_BYTES
from .registers import PoolRegisters, ring_map
from .transport import PimTransport

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["Completion", "Ring", "core_place", "driver_place", "ring_place"]

_COUNTS = 1 << COUNT_BITS
_DESCRIPTOR_BYTES = 4 * DESCRIPTOR_WORDS
_COMPLETION_WORDS = 3
_PAGE_BYTES = 4096
"""Alignment of a core's window 0, in bytes."""
_CORE_BYTES = -(-FIRMWARE_BYTES // _PAGE_BYTES) * _PAGE_BYTES
_CAUSE = ring_map()["tail"]["cause"]
_PENDING = ring_map()["completions"]["pending"].mask


class Completion(NamedTuple):
    """Outcome of a descriptor."""

    descriptor: int
    """Number of descriptors written to the ring before this one, modulo 65536."""
    id: int
    """Id of the work, or 0 if the pool refused the descriptor."""
    cause: int
    """Code of the cause of a refusal, or 0."""


def ring_place(config: PimConfig) -> range:
    """Return the bytes of the driver's ring, at the end of the stack.

    The ring has one slot for each work that the pool holds, but is no larger than a bank.
    """
    size = min(RING_SLOT_BYTES * config.works, config.bank_bytes)
    return range(config.stack_bytes - size, config.stack_bytes)


def core_place(config: PimConfig, number: int) -> range:
    """Return the bytes of a core's window 0; the windows lie just below the driver's ring."""
    end = ring_place(config).start // _PAGE_BYTES * _PAGE_BYTES - _CORE_BYTES * number
    return range(end - _CORE_BYTES, end)


def driver_place(config: PimConfig) -> range:
    """Return the bytes that the driver keeps for its ring and the cores, at the stack's end.

    Raises :class:`~sw_driver.device.errors.OutOfMemoryError` if the striped memory is too small.
    """
    start = _driver_start(config)
    if start < config.striped_start_bytes:
        raise OutOfMemoryError(
            f"no room for {config.cores} cores: each takes {_CORE_BYTES} bytes of the striped "
            f"memory, and a bank has {config.bank_bytes}; {least_bank_bytes(config, 0)}",
            bytes=config.cores * _CORE_BYTES,
        )
    return range(start, config.stack_bytes)


def _driver_start(config: PimConfig) -> int:
    if config.cores:
        return core_place(config, config.cores - 1).start
    return ring_place(config).start


def least_bank_bytes(config: PimConfig, nbytes: int) -> str:
    """Return a sentence with the smallest ``bank_bytes`` that leaves ``nbytes`` striped bytes."""
    for bank_bytes in (1 << bits for bits in range(10, 31)):
        larger = replace(config, bank_bytes=bank_bytes)
        if _driver_start(larger) - larger.striped_start_bytes >= nbytes:
            return f"bank_bytes of at least {bank_bytes} would do"
    return "no bank_bytes would do, not even the largest, 1073741824"


class Ring:
    """Ring ``number`` of a pool, at the addresses ``place``, with no other master.

    The length of ``place`` is a power of two times 256 bytes; its start is a multiple of the
    length. Opening a ring clears its memory, so none of its works may be running.
    """

    def __init__(self, transport: PimTransport, number: int, place: range) -> None:
        self._transport = transport
        self._registers = PoolRegisters(transport).rings[number]
        self._place = place
        self.slots = len(place) // RING_SLOT_BYTES
        self._head = self._registers.read_field("tail", "count")
        self._seen = self._registers.read_field("completions", "count")
        transport.write_memory(place.start, np.zeros(len(place), np.uint8))
        for register, value in (
            ("base", place.start // RING_SLOT_BYTES),
            ("size", self.slots.bit_length() - 1),
            ("completions", _PENDING),
            ("interrupt", 1),
        ):
            self._registers.write(register, value)

    @property
    def is_full(self) -> bool:
        """True if no descriptor may be written before the next completion."""
        return (self._head - self._seen) % _COUNTS >= self.slots

    def write(self, words: Sequence[int]) -> int:
        """Write the words of a descriptor to the ring, which must not be full, and the new head.

        Return the number of descriptors written before, modulo 65536.
        """
        descriptor = self._head
        self._transport.post_memory(self._slot(descriptor), np.array(words, "<u4").view(np.uint8))
        self._head = (descriptor + 1) % _COUNTS
        self._registers.write("head", self._head)
        return descriptor

    def taken(self) -> tuple[str, int] | None:
        """Return why the last descriptor was refused, and the id of the last accepted work.

        The cause is a name, or ``none``. Return None while the pool has not taken the descriptor
        that was written last.
        """
        count, cause, work_id = self._registers.read_fields("tail", "count", "cause", "id")
        return None if count != self._head else (name_of(_CAUSE, cause), work_id)

    @property
    def cause(self) -> str:
        """Name of the cause why the last taken descriptor was refused, or ``none``."""
        return name_of(_CAUSE, self._registers.read_field("tail", "cause"))

    def completions(self) -> list[Completion]:
        """Return the descriptors that completed or were refused since the last call."""
        count, _ = self._acknowledge()
        return [self._next() for _ in range((count - self._seen) % _COUNTS)]

    def completed(self) -> list[int]:
        """Return the ids of the works that have completed since the last call."""
        count, work_id = self._acknowledge()
        if (count - self._seen) % _COUNTS == 1:
            # The registers hold the last id; reading them is faster than reading memory.
            self._seen = count
            return [work_id]
        return [self._next().id for _ in range((count - self._seen) % _COUNTS)]

    def _acknowledge(self) -> tuple[int, int]:
        """Return the number of completions and the id in the last one, and clear the interrupt.

        The next completion makes the interrupt pending again.
        """
        names = ("count", "id", "pending")
        count, work_id, pending = self._registers.read_fields("completions", *names)
        if not pending:
            return count, work_id
        # Clear before reading: a completion after the read then makes the interrupt pending again.
        self._registers.write("completions", _PENDING)
        count, work_id, _ = self._registers.read_fields("completions", *names)
        return count, work_id

    def _next(self) -> Completion:
        place = self._slot(self._seen) + _DESCRIPTOR_BYTES
        beat = self._transport.read_memory(place, BEAT_BYTES).view("<u4")
        counts, work_id, cause = beat[:_COMPLETION_WORDS].tolist()
        descriptor, number = divmod(counts, _COUNTS)
        self._seen = (self._seen + 1) % _COUNTS
        if number != self._seen:
            raise DeviceFault(
                f"the ring's registers count completion {self._seen}, but at {place:#x} there is "
                f"{number}: was something else written there?"
            )
        return Completion(descriptor, work_id, cause)

    def _slot(self, count: int) -> int:
        return self._place.start + RING_SLOT_BYTES * (count % self.slots)
