"""Address space of the stack, with the bank of each byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

__all__ = ["STRIPE_BYTES", "StackMap"]

STRIPE_BYTES = 512
"""Consecutive bytes of the striped memory in one bank."""


@dataclass(frozen=True, kw_only=True)
class StackMap:
    """Address map of the stack: the local memory, bank after bank, then the striped memory.

    The striped memory begins at a power of two times ``bank_bytes``. It uses the largest power of
    two of banks, from bank 0 on.

    Examples
    --------
    >>> stack = StackMap(banks=6, bank_bytes=1 << 14)
    >>> stack.striped_banks, stack.striped
    (4, range(131072, 196608))
    >>> [stack.decode(stack.striped.start + byte) for byte in (0, 512, 2048)]
    [(0, 16384), (1, 16384), (0, 16896)]
    >>> stack.banks_of([range(1 << 14, 3 << 14)])
    [1, 2]
    """

    banks: int
    bank_bytes: int

    @cached_property
    def local(self) -> range:
        """Byte addresses of the local memory."""
        return range(self.banks * self.bank_bytes)

    @cached_property
    def striped_banks(self) -> int:
        """Banks that hold the striped memory."""
        banks = 1
        while 2 * banks <= self.banks:
            banks *= 2
        return banks

    @cached_property
    def striped(self) -> range:
        """Byte addresses of the striped memory."""
        banks = self.striped_banks
        start = (banks if banks == self.banks else 2 * banks) * self.bank_bytes
        return range(start, start + banks * self.bank_bytes)

    def holds(self, span: range) -> bool:
        """Return whether all bytes of ``span`` are in the local, or all in the striped memory."""
        return any(
            span.start >= memory.start and span.stop <= memory.stop
            for memory in (self.local, self.striped)
        )

    def decode(self, address: int) -> tuple[int, int]:
        """Return the bank that holds the byte ``address``, and the byte's address in its vault.

        ``ValueError`` if no bank does.
        """
        if address in self.local:
            return divmod(address, self.bank_bytes)
        if address not in self.striped:
            raise ValueError(f"no bank holds the byte {address:#x}")
        stripe, byte = divmod(address - self.striped.start, STRIPE_BYTES)
        turn, bank = divmod(stripe, self.striped_banks)
        return bank, self.bank_bytes + turn * STRIPE_BYTES + byte

    def banks_of(self, spans: Iterable[range]) -> list[int]:
        """Return the banks of ``spans`` in ascending order; the memory must hold all spans."""
        banks: set[int] = set()
        for span in spans:
            if span.start in self.local:
                first, last = span.start // self.bank_bytes, (span.stop - 1) // self.bank_bytes
                banks.update(range(first, last + 1))
            else:
                begin = self.striped.start
                first, last = ((byte - begin) // STRIPE_BYTES for byte in (span[0], span[-1]))
                last = min(last, first + self.striped_banks - 1)
                banks.update(stripe % self.striped_banks for stripe in range(first, last + 1))
        return sorted(banks)
