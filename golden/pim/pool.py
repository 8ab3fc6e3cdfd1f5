"""Functional pool: works on a stack's memory, their order and visibility, the registers.

There is no clock. A work starts as soon as it can, and runs until :meth:`Pool.finish` completes it.
So the caller decides which works overlap and in which order they complete. :meth:`Pool.grow` gives
more banks to running works.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .arithmetic import compute, place
from .descriptor import Cause, Descriptor, Room, check
from .stack import StackMap
from .work import Account, account

__all__ = [
    "Counters",
    "FullError",
    "HostError",
    "NoSuchWorkError",
    "Pool",
    "WorkRefusedError",
    "choose_banks",
    "named_banks",
]

_BEAT_BYTES = 32
"""Bytes that a request of the host reads or writes."""


class WorkRefusedError(Exception):
    """Refusal of a work for ``cause``; nothing was written."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"the pool refused the work: {cause.name.lower()}")
        self.cause = cause


class FullError(Exception):
    """Submission to a pool without a free slot."""


class NoSuchWorkError(LookupError):
    """Id that the pool has not given out, or that has lost its slot to another work."""


class Counters(NamedTuple):
    """Counters of a work.

    A model without a clock has no cycles. Bytes are the least that must move: hardware moves whole
    beats, some of them more than once.
    """

    multiplications_done: int
    multiplications_left: int
    additions_done: int
    additions_left: int
    bytes_read: int
    bytes_written: int


class HostError(NamedTuple):
    """Last request of the host that was answered with an error: no bank holds its beat.

    ``address`` is the first byte of the beat.
    """

    address: int
    write: bool


@dataclass(eq=False)
class _Work:
    """Accepted work."""

    id: int
    descriptor: Descriptor
    account: Account
    banks: list[int] = field(default_factory=list)
    """Banks that the work runs or ran on; empty while it waits."""
    lacking: int = 0
    """Units that the work requests beyond those of its banks, if the pool chooses them."""
    done: bool = False


class Pool:
    """Fixed-function units of a stack, its memory and its registers.

    Parameters
    ----------
    multipliers, adders: units of each bank.
    bank_bytes: local memory of a bank; a power of two, 512 or more.
    slots: maximum number of works in flight (accepted, not completed).
    computes: whether there is memory, and works compute; else only states and counters change.
    room: sizes that plans must fit; by default any plan will do.

    Examples
    --------
    >>> import numpy as np
    >>> pool = Pool(multipliers=[2, 2], adders=[2, 2], bank_bytes=1 << 14)
    >>> pool.write(0, np.arange(8, dtype=np.float32).view(np.uint8))
    >>> pool.read(4, 8).view(np.float32)
    array([1., 2.], dtype=float32)
    >>> bin(pool.idle), pool.has_room
    ('0b11', True)
    """

    def __init__(
        self,
        *,
        multipliers: Sequence[int],
        adders: Sequence[int],
        bank_bytes: int,
        slots: int = 8,
        computes: bool = True,
        room: Room | None = None,
    ) -> None:
        self._room = room
        self.bank_units = [m + a for m, a in zip(multipliers, adders, strict=True)]
        self._computes = computes
        self.stack = StackMap(banks=self.banks, bank_bytes=bank_bytes)
        size = self.stack.striped.stop if computes else 0
        self.memory: NDArray[np.uint8] = np.zeros(size, np.uint8)
        self._slots: list[_Work | None] = [None] * slots
        self._free = list(range(slots))
        """Free slots, in the order in which they will be taken."""
        self._accepted: list[_Work] = []
        self._reserved: set[int] = set()
        """Banks reserved for waiting works that named them."""
        self.starts = 0
        """Works that have started."""
        self.host_errors = 0
        """Requests of the host, one per beat, that were answered with an error."""
        self.host_error: HostError | None = None

    @property
    def banks(self) -> int:
        """Banks of the stack."""
        return len(self.bank_units)

    @property
    def has_room(self) -> bool:
        """True if a work can be accepted."""
        return bool(self._free)

    # Registers.

    def work_query(self, work_id: int) -> int:
        """Return 1 if the work has completed, 0 if not.

        Raises
        ------
        NoSuchWorkError: the pool has not given out this id.
        """
        slot = self._slots[work_id % len(self._slots)]
        if work_id < len(self._slots) or slot is None or work_id > slot.id:
            raise NoSuchWorkError(f"the pool has not given out the id {work_id}")
        return int(work_id < slot.id or slot.done)

    def banks_of(self, work_id: int) -> list[int]:
        """Return the banks that a work runs or ran on; none while it waits.

        Raises
        ------
        NoSuchWorkError: the pool has not given out this id, or its slot has been taken again.
        """
        return list(self._work(work_id).banks)

    @property
    def idle(self) -> int:
        """A bit for each bank, 1 if it is idle.

        The bits above, those of the programmable PIM, are 0: the model has none.
        """
        busy = {bank for work in self._accepted for bank in work.banks}
        return sum(1 << bank for bank in range(self.banks) if bank not in busy)

    def counters(self, work_id: int) -> Counters:
        """Return the counters of a work; they stay until its slot is taken again."""
        work = self._work(work_id)
        account = work.account
        multiplications, additions = account.multiplications, account.additions
        if not work.done:
            return Counters(0, multiplications, 0, additions, 0, 0)
        return Counters(multiplications, 0, additions, 0, account.bytes_read, account.bytes_written)

    # The host's memory port.

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the bytes that the host reads, beat by beat; 0 where no bank holds a byte."""
        data = np.zeros(nbytes, np.uint8)
        for held in self._held(address, nbytes, write=False):
            data[held.start - address : held.stop - address] = self.memory[held.start : held.stop]
        return data

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """Write the host's bytes, beat by beat; drop those that no bank holds."""
        for held in self._held(address, data.size, write=True):
            self.memory[held.start : held.stop] = data[held.start - address : held.stop - address]

    def _held(self, address: int, nbytes: int, *, write: bool) -> list[range]:
        """Return the parts of these bytes that banks hold, and count the other beats as errors."""
        end, stack = address + nbytes, self.stack
        first, last = address // _BEAT_BYTES, -(-end // _BEAT_BYTES)
        for gap in ((stack.local.stop, stack.striped.start), (stack.striped.stop, end)):
            begin, stop = max(first, gap[0] // _BEAT_BYTES), min(last, -(-gap[1] // _BEAT_BYTES))
            if begin < stop:
                self.host_errors += stop - begin
                self.host_error = HostError((stop - 1) * _BEAT_BYTES, write)
        memories = (stack.local, stack.striped) if self._computes else ()
        parts = (range(max(address, held.start), min(end, held.stop)) for held in memories)
        return [part for part in parts if part]

    # Works.

    def submit(self, work: Descriptor) -> int:
        """Accept a work and return its id.

        Raises
        ------
        WorkRefusedError: with the cause.
        FullError: the work is good, but the pool is full; see :attr:`has_room`.
        """
        units = sum(self.bank_units)
        cause = check(work, stack=self.stack, units=units, room=self._room)
        if cause:
            raise WorkRefusedError(cause)
        if not self._free:
            raise FullError(f"all {len(self._slots)} slots of the pool are taken; finish a work")
        slot = self._free.pop(0)
        held = self._slots[slot]
        last = held.id if held else slot
        accepted = _Work(last + len(self._slots), work, account(work))
        self._slots[slot] = accepted
        self._accepted.append(accepted)
        self._start()
        return accepted.id

    def finish(self, work_id: int | None = None) -> None:
        """Complete a running work, or all accepted works.

        The result becomes visible, the banks become idle, and waiting works may start.

        Raises
        ------
        ValueError: the work waits for others.
        NoSuchWorkError: there is no such work.
        """
        if work_id is None:
            while self._accepted:
                self._complete(next(work for work in self._accepted if work.banks))
            return
        work = self._work(work_id)
        if not work.done:
            if not work.banks:
                raise ValueError(f"work {work_id} waits for others; finish these first")
            self._complete(work)

    def _complete(self, work: _Work) -> None:
        if self._computes:
            place(work.descriptor, self.memory, compute(work.descriptor, self.memory))
        work.done = True
        self._free.append(work.id % len(self._slots))
        self._accepted.remove(work)
        self._start()

    def _work(self, work_id: int) -> _Work:
        work = self._slots[work_id % len(self._slots)]
        if work is None or work.id != work_id:
            raise NoSuchWorkError(
                f"the pool has no work {work_id}: it has not given out this id, or has taken its "
                "slot again"
            )
        return work

    def grow(self, dealt: Container[int] = ()) -> int | None:
        """Give idle banks to the oldest running work with fewer units than it requests.

        Works in ``dealt``, which have no tile left, are skipped. Return the work's id, or None if
        there is no such work, or no bank for it.
        """
        for work in self._accepted:
            if work.banks and work.lacking and work.id not in dealt:
                chosen = self._take(work)
                return work.id if chosen else None
        return None

    def _start(self) -> None:
        """Give banks to the works that can start, the oldest first."""
        self._reserved.clear()
        for age, work in enumerate(self._accepted):
            descriptor = work.descriptor
            before = (other.descriptor for other in self._accepted[:age])
            if work.banks or any(map(descriptor.conflicts_with, before)):
                continue
            work.lacking = descriptor.units
            if self._take(work):
                self.starts += 1
            else:
                self._reserved |= set(named_banks(descriptor))

    def _take(self, work: _Work) -> bool:
        """Give banks to a work; return whether there were any for it."""
        idle = [bank for bank in range(self.banks) if self.idle >> bank & 1]
        free = [bank for bank in idle if bank not in self._reserved]
        chosen = choose_banks(work.descriptor, work.lacking, free, self.stack, self.bank_units)
        work.banks = sorted([*work.banks, *chosen])
        work.lacking = max(0, work.lacking - sum(self.bank_units[bank] for bank in chosen))
        return bool(chosen)


def named_banks(work: Descriptor) -> list[int]:
    """Return the banks that the work names; none if the pool chooses."""
    return [bank for bank in range(work.banks.bit_length()) if work.banks >> bank & 1]


def choose_banks(
    work: Descriptor, units: int, idle: Sequence[int], stack: StackMap, bank_units: Sequence[int]
) -> list[int]:
    """Choose the banks for a work from ``idle``; return an empty list if it has to wait.

    These are all banks that it names, or enough banks for ``units``: those with its data in their
    local memory first, then by number.
    """
    if work.banks:
        named = named_banks(work)
        return named if set(named) <= set(idle) else []
    spans = [work.span(name) for name in work.form.tensors]
    local = stack.banks_of(span for span in spans if span.start in stack.local)
    chosen = []
    for bank in sorted(idle, key=lambda bank: (bank not in local, bank)):
        if units <= 0:
            break
        chosen.append(bank)
        units -= bank_units[bank]
    return chosen
