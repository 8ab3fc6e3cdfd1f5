"""Where tensors lie in the stack: in its striped memory, so that whatever a work asks for at one
time, many banks answer.

The rule of :mod:`sw_driver.pim.layers` is that channels, filters and features come first, since
these are what lanes and banks work on at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from hw.pim.config import STRIPE_BYTES
from hw.pim.work.descriptor import FORMS, Opcode
from sw_driver.device.errors import OutOfMemoryError
from sw_driver.numbers import check_integer

from .descriptor import ELEMENT_BYTES, Tensor, Work
from .ring import driver_place

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["PlacedTensor", "StackMemory", "work_on"]

_MOST_COLUMNS = (1 << 24) - 1
"""Columns of a work at most."""


@dataclass(frozen=True, kw_only=True)
class PlacedTensor:
    """A tensor in the stack, or a part of one, as of an array.

    ``strides`` count elements of 4 bytes.
    """

    address_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def at(self, *start: int) -> int:
        """Byte address of the element with these first indices, the others zero."""
        steps = zip(start, self.strides, strict=False)
        return self.address_bytes + ELEMENT_BYTES * sum(index * step for index, step in steps)

    def __getitem__(self, slices: slice | tuple[slice, ...]) -> PlacedTensor:
        """The part that these slices of the first indices take."""
        each = slices if isinstance(slices, tuple) else (slices,)
        taken = [range(extent)[one] for extent, one in zip(self.shape, each, strict=False)]
        steps = zip(taken, self.strides, strict=False)
        return PlacedTensor(
            address_bytes=self.at(*(one.start for one in taken)),
            shape=(*map(len, taken), *self.shape[len(taken) :]),
            strides=(*(one.step * stride for one, stride in steps), *self.strides[len(taken) :]),
        )

    def view(self, *indices: int) -> PlacedTensor:
        """The part with these indices in this order, and the others zero."""
        shape, strides = (
            tuple(each[index] for index in indices) for each in (self.shape, self.strides)
        )
        return replace(self, shape=shape, strides=strides)

    @property
    def lines(self) -> PlacedTensor:
        """A tensor that is dense but for its first index, with all others as one."""
        strides = self.strides[0], 1
        return replace(self, shape=(self.shape[0], prod(self.shape[1:])), strides=strides)

    @property
    def flat(self) -> PlacedTensor:
        """The tensor as one line, if it is dense and a descriptor can say so; else its lines."""
        lines = self.lines
        if lines.strides[0] != lines.shape[1] or self.elements > _MOST_COLUMNS:
            return lines
        return replace(self, shape=(1, self.elements), strides=(self.elements, 1))

    @property
    def in_columns(self) -> PlacedTensor:
        """The tensor with a second index, of extent 1: a matrix, or its product, as MATVEC has
        them."""
        shape, strides = (
            (each[0], extent, *each[1:]) for each, extent in ((self.shape, 1), (self.strides, 0))
        )
        return replace(self, shape=shape, strides=strides)

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return prod(self.shape)

    @property
    def span(self) -> range:
        """The bytes from the lowest to the highest element."""
        reaches = [step * (size - 1) for step, size in zip(self.strides, self.shape, strict=True)]
        low, high = (sum(each(reach, 0) for reach in reaches) for each in (min, max))
        start = self.address_bytes
        return range(start + ELEMENT_BYTES * low, start + ELEMENT_BYTES * (high + 1))

    def blocks(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """The dense pieces of the tensor: the first indices of each, and its byte address."""
        dense = len(self.shape)
        size = 1
        while dense and self.strides[dense - 1] == size:
            dense -= 1
            size *= self.shape[dense]
        for index in product(*map(range, self.shape[:dense])):
            yield index, self.at(*index)


def work_on(opcode: Opcode, *, result: PlacedTensor, **settings: PlacedTensor | int) -> Work:
    """The work ``opcode`` on operands, by their names, to ``result``: its sizes are those of the
    tensors, of which one that has fewer indices has its last ones. What else it takes is given,
    too."""
    values: dict[str, Any] = settings | {"result": result}
    for name, sizes in FORMS[opcode].tensors.items():
        tensor: PlacedTensor = values[name]
        missing = len(sizes) - len(tensor.shape)
        values |= zip(sizes, [1] * missing + [*tensor.shape], strict=True)
        strides = (*[0] * missing, *tensor.strides)
        values[name] = Tensor(address_bytes=tensor.address_bytes, strides=strides)
    return Work(opcode=opcode, **values)


class StackMemory:
    """Gives tensors their places in the striped memory of a stack of ``config``, one after the
    other."""

    def __init__(self, config: PimConfig) -> None:
        self._next_bytes = config.striped_start_bytes
        self._end_bytes = driver_place(config).start
        self._cores = config.cores

    def place(self, name: str, shape: tuple[int, ...]) -> PlacedTensor:
        """A place for a tensor of ``shape``, dense unless the slices of its first index have a
        stripe's size or more: then these begin in different banks.

        Raises :class:`~sw_driver.device.errors.OutOfMemoryError`, and
        :class:`~sw_driver.device.errors.InvalidArgumentError` for what is no shape.
        """
        check_integer(f"the number of extents of {name}", len(shape))
        for extent in shape:
            check_integer(f"an extent of {name}", extent)
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
        stripes = -(-(end - first) // STRIPE_BYTES)
        if self._cores:
            # An even number of stripes, as of tensors of so many times 4 KiB, would have tensors of
            # a size push each other out of a core's cache.
            stripes |= 1
        self._next_bytes = first + stripes * STRIPE_BYTES
        dense = [prod(shape[index + 1 :]) for index in range(1, len(shape))]
        return PlacedTensor(
            address_bytes=first, shape=shape, strides=(step_bytes // ELEMENT_BYTES, *dense)
        )
