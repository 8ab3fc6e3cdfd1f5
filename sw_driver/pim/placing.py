"""Where tensors lie in the stack: in its striped memory, so that whatever a work asks for at one
time, many banks answer.

The rule of :mod:`sw_driver.pim.layers` is that channels, filters and features come first, since
these are what lanes and banks work on at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from hw.pim.config import STRIPE_BYTES
from sw_driver.errors import OutOfMemoryError

from .descriptor import ELEMENT_BYTES, Tensor

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["PlacedTensor", "StripedMemory"]


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


class StripedMemory:
    """Gives tensors their places in the striped memory of a stack of ``config``, one after the
    other."""

    def __init__(self, config: PimConfig) -> None:
        self._next_bytes = config.striped_start_bytes
        self._end_bytes = config.stack_bytes

    def place(self, name: str, shape: tuple[int, ...]) -> PlacedTensor:
        """A place for a tensor of ``shape``, dense unless the slices of its first index have a
        stripe's size or more: then these begin in different banks.

        Raises :class:`~sw_driver.errors.OutOfMemoryError`.
        """
        slices, slice_bytes = shape[0], ELEMENT_BYTES * prod(shape[1:])
        first, step_bytes = self._next_bytes, slice_bytes
        if slices > 1 and slice_bytes >= STRIPE_BYTES:
            # With an even number of stripes slices would meet in the same bank sooner.
            step_bytes = (-(-slice_bytes // STRIPE_BYTES) | 1) * STRIPE_BYTES
        end = first + (slices - 1) * step_bytes + slice_bytes
        if end > self._end_bytes:
            raise OutOfMemoryError(
                f"no room for {name}: of its {end - first} bytes {self._end_bytes - first} are "
                "free",
                name=name,
                bytes=end - first,
                free_bytes=self._end_bytes - first,
            )
        self._next_bytes = -(-end // STRIPE_BYTES) * STRIPE_BYTES
        dense = [prod(shape[index + 1 :]) for index in range(1, len(shape))]
        return PlacedTensor(
            address_bytes=first, shape=shape, strides=(step_bytes // ELEMENT_BYTES, *dense)
        )
