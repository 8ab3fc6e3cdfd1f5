"""Where tensors lie in the stack.

A work's strides are linear, so consecutive bytes of a tensor are in one bank. What a work asks for
at one time must therefore differ in an index whose stride is large. A tensor is *stretched*: the
slices of its first index are spread evenly over a range of banks, with unused memory between them.
The rule of :mod:`sw_driver.pim.layers` is that channels, filters and features come first, since
these are what lanes and banks work on at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from sw_driver.errors import OutOfMemoryError

from .descriptor import ELEMENT_BYTES, Tensor

__all__ = ["LEAST_STRETCHED_BYTES", "BankAllocator", "PlacedTensor", "share_banks"]

LEAST_STRETCHED_BYTES = 256
"""Smallest slice that is worth a place of its own: a row of a vault (HMC 2.0)."""

_BEAT_BYTES = 32
_ROW_PAIR_BYTES = 512
"""What the vault's address map has in one row of each of two layers. Slices that are an odd number
of these apart begin in different DRAM banks."""


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True, kw_only=True)
class PlacedTensor:
    """A tensor in the stack: dense but for its first index.

    ``strides`` count elements of 4 bytes.
    """

    address_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def at(self, *start: int) -> int:
        """Byte address of the element with these first indices, the others zero."""
        steps = zip(start, self.strides, strict=False)
        return self.address_bytes + ELEMENT_BYTES * sum(index * step for index, step in steps)

    def view(self, *indices: int, start: Sequence[int] = ()) -> Tensor:
        """The tensor as a descriptor has it, with the strides of these indices in this order.

        It begins at the element with the first indices ``start``.
        """
        strides = tuple(self.strides[index] for index in indices)
        return Tensor(address_bytes=self.at(*start), strides=strides)

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return prod(self.shape)

    @property
    def span(self) -> range:
        """From its first to its last byte."""
        last = self.at(*(extent - 1 for extent in self.shape))
        return range(self.address_bytes, last + ELEMENT_BYTES)

    def blocks(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """The dense pieces of the tensor: the first indices of each, and its byte address."""
        dense = len(self.shape)
        size = 1
        while dense and self.strides[dense - 1] == size:
            dense -= 1
            size *= self.shape[dense]
        for index in product(*map(range, self.shape[:dense])):
            yield index, self.at(*index)


class BankAllocator:
    """Gives tensors their places: in a bank, or spread over several.

    Parameters
    ----------
    banks, bank_bytes: of the stack.
    """

    def __init__(self, *, banks: int, bank_bytes: int) -> None:
        self._bank_bytes = bank_bytes
        self._used = [0] * banks
        """Bytes of each bank that are taken, from its start."""

    def place(
        self, name: str, shape: tuple[int, ...], banks: range, *, least_bytes: int
    ) -> PlacedTensor:
        """A place for a tensor of ``shape``, stretched over ``banks`` if its slices have
        ``least_bytes``, else dense in as many of them as it needs.

        Raises :class:`~sw_driver.errors.OutOfMemoryError`.
        """
        slices = shape[0]
        slice_bytes = ELEMENT_BYTES * prod(shape[1:])
        first = banks.start * self._bank_bytes + _round_up(self._used[banks.start], _BEAT_BYTES)
        later = [self._used[bank] for bank in banks[1:]]
        room = (banks.start + 1) * self._bank_bytes - first
        room += 0 if any(later) else self._bank_bytes * len(later)
        if room < slices * slice_bytes:
            raise OutOfMemoryError(
                f"no room for {name}: its {slices * slice_bytes} bytes do not fit into the {room} "
                f"that are free in banks {banks.start} to {banks.stop - 1}, of "
                f"{self._bank_bytes} each",
                name=name,
                bytes=slices * slice_bytes,
                free_bytes=room,
            )
        step_bytes = slice_bytes
        if min(slices, len(banks)) > 1 and slice_bytes >= least_bytes:
            apart = min(room, self._bank_bytes * len(banks)) // slices
            odd = (apart // _ROW_PAIR_BYTES - 1) // 2 * 2 + 1
            for candidate in (odd * _ROW_PAIR_BYTES, apart // _BEAT_BYTES * _BEAT_BYTES):
                if slice_bytes <= candidate <= apart:
                    step_bytes = candidate
                    break
        self._take(first, first + (slices - 1) * step_bytes + slice_bytes)
        dense = [prod(shape[index + 1 :]) for index in range(1, len(shape))]
        return PlacedTensor(
            address_bytes=first,
            shape=shape,
            strides=(step_bytes // ELEMENT_BYTES, *dense),
        )

    def _take(self, first: int, end: int) -> None:
        for bank in range(first // self._bank_bytes, (end - 1) // self._bank_bytes + 1):
            self._used[bank] = min(self._bank_bytes, end - bank * self._bank_bytes)


def share_banks(banks: range, weights: Mapping[str, int]) -> dict[str, range]:
    """The banks of each tensor: neighbours, in proportion to ``weights``, one at least.

    With fewer banks than tensors several are in one bank.
    """
    if len(banks) < len(weights):
        alone = [banks[place % len(banks)] for place in range(len(weights))]
        return {name: range(bank, bank + 1) for name, bank in zip(weights, alone, strict=True)}
    counts = dict.fromkeys(weights, 1)
    for _ in range(len(banks) - len(weights)):
        most = max(weights, key=lambda name: weights[name] / (2 * counts[name] + 1))
        counts[most] += 1
    shares: dict[str, range] = {}
    start = banks.start
    for name, count in counts.items():
        shares[name] = range(start, start + count)
        start += count
    return shares
