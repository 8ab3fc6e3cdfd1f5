"""Placement of tensors in the striped memory, so that many banks serve a work at the same time.

Channels, filters and features are the first index of a tensor, because lanes and banks work on
these at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hw.pim.config import STRIPE_BYTES
from hw.pim.work.descriptor import FORMS, Opcode
from sw_driver.device.errors import InvalidArgumentError, OutOfMemoryError
from sw_driver.numbers import check_integer, check_name

from .buffers import Buffer
from .descriptor import ELEMENT_BYTES, StridedTensor, Work
from .ring import driver_place, least_bank_bytes

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["PlacedTensor", "StackMemory", "integers", "work_on"]

_MOST_COLUMNS = (1 << 24) - 1
"""Most columns of a work."""


@dataclass(frozen=True, kw_only=True)
class PlacedTensor:
    """A tensor in the stack, or a slice or view of one.

    ``strides`` count elements of 4 bytes.

    Examples
    --------
    >>> tensor = PlacedTensor(address_bytes=4096, shape=(4, 16), strides=(16, 1))
    >>> row = tensor[2:3]
    >>> row.shape, row.address_bytes
    ((1, 16), 4224)
    >>> tensor.flat.shape, tensor.span
    ((1, 64), range(4096, 4352))
    """

    address_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    buffer: Buffer | None = field(default=None, compare=False, repr=False)
    """Buffer that holds the tensor, if a :class:`StackMemory` placed it."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "address_bytes", check_integer("address_bytes", self.address_bytes, None))
        # Copies: the caller may change its lists later.
        set_field(self, "shape", integers("the shape", "extents", self.shape, 0))
        set_field(self, "strides", integers("the strides", "strides", self.strides, None))
        if len(self.shape) != len(self.strides):
            raise InvalidArgumentError(
                f"the shape is {self.shape}, the strides are {self.strides}: expected a stride "
                "for every extent"
            )

    def __enter__(self) -> PlacedTensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Free the tensor's memory.

        Raises the errors of :meth:`Buffer.release`, and
        :class:`~sw_driver.device.errors.InvalidArgumentError` for a part of a tensor.
        """
        if self.buffer is None or self.elements != self.buffer.elements:
            raise InvalidArgumentError(
                f"{self} is no whole buffer: release the one that it is a part of"
            )
        self.buffer.release()

    def check(self) -> None:
        """Raise :class:`~sw_driver.device.errors.PointerError` if the memory was released."""
        if self.buffer is not None:
            self.buffer.check()

    def at(self, *start: int) -> int:
        """Return the byte address of the element with these first indices; the others are zero."""
        steps = zip(start, self.strides, strict=False)
        return self.address_bytes + ELEMENT_BYTES * sum(index * step for index, step in steps)

    def __getitem__(self, slices: slice | tuple[slice, ...]) -> PlacedTensor:
        """Return the part that these slices of the first indices select."""
        cuts = slices if isinstance(slices, tuple) else (slices,)
        if len(cuts) > len(self.shape) or not all(isinstance(one, slice) for one in cuts):
            raise InvalidArgumentError(
                f"the indices are {slices!r}: expected slices, such as [1:2], of {len(self.shape)} "
                "indices at most"
            )
        try:
            taken = [range(extent)[one] for extent, one in zip(self.shape, cuts, strict=False)]
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"the indices are {slices!r}: {error}") from None
        steps = zip(taken, self.strides, strict=False)
        return replace(
            self,
            address_bytes=self.at(*(one.start for one in taken)),
            shape=(*map(len, taken), *self.shape[len(taken) :]),
            strides=(*(one.step * stride for one, stride in steps), *self.strides[len(taken) :]),
        )

    def view(self, *indices: int) -> PlacedTensor:
        """Return the part with these indices, in this order; all other indices are zero."""
        for index in indices:
            check_integer("an index", index, 0, len(self.shape) - 1)
        shape, strides = (
            tuple(values[index] for index in indices) for values in (self.shape, self.strides)
        )
        return replace(self, shape=shape, strides=strides)

    @property
    def lines(self) -> PlacedTensor:
        """The tensor as a matrix, if all indices but the first are dense: these become one."""
        strides = self.strides[0], 1
        return replace(self, shape=(self.shape[0], prod(self.shape[1:])), strides=strides)

    @property
    def flat(self) -> PlacedTensor:
        """The tensor as one row, if it is dense and fits a descriptor's columns; else its lines."""
        lines = self.lines
        if lines.strides[0] != lines.shape[1] or self.elements > _MOST_COLUMNS:
            return lines
        return replace(self, shape=(1, self.elements), strides=(self.elements, 1))

    @property
    def in_columns(self) -> PlacedTensor:
        """The tensor with a second index of extent 1, as MATVEC takes its matrix and result."""
        shape, strides = (
            (values[0], second, *values[1:])
            for values, second in ((self.shape, 1), (self.strides, 0))
        )
        return replace(self, shape=shape, strides=strides)

    @property
    def elements(self) -> int:
        """Number of elements in the tensor."""
        return prod(self.shape)

    @property
    def span(self) -> range:
        """Byte range from the lowest to the highest element."""
        reaches = [step * (size - 1) for step, size in zip(self.strides, self.shape, strict=True)]
        low, high = (sum(limit(reach, 0) for reach in reaches) for limit in (min, max))
        start = self.address_bytes
        return range(start + ELEMENT_BYTES * low, start + ELEMENT_BYTES * (high + 1))

    def blocks(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield the first indices and the byte address of every dense piece of the tensor."""
        dense = len(self.shape)
        size = 1
        while dense and self.strides[dense - 1] == size:
            dense -= 1
            size *= self.shape[dense]
        for index in product(*map(range, self.shape[:dense])):
            yield index, self.at(*index)

    def blocks_of(self, values: NDArray[np.float32]) -> list[tuple[int, NDArray[np.float32]]]:
        """Return pairs of a byte address and a copy of the ``values`` there, for every block.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for another shape or type.
        """
        if not isinstance(values, np.ndarray):
            raise InvalidArgumentError(
                f"got a {type(values).__name__} of values: expected a numpy array, float32 of "
                f"shape {self.shape}"
            )
        if values.shape != self.shape or values.dtype != np.float32:
            raise InvalidArgumentError(
                f"the values are {values.dtype} of shape {values.shape}: expected float32 of "
                f"shape {self.shape}",
                shape=values.shape,
                dtype=str(values.dtype),
            )
        return [(at, np.array(values[i], ndmin=1, order="C")) for i, at in self.blocks()]


def work_on(opcode: Opcode, *, result: PlacedTensor, **settings: PlacedTensor | int) -> Work:
    """Return the work ``opcode`` on operands, given by name, that writes ``result``.

    The sizes of the work come from the tensors' shapes. A tensor with fewer indices than the opcode
    takes has the last ones; the missing ones get extent 1. ``settings`` also holds the work's other
    fields.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown opcode, a missing
    or wrong operand, and a setting that no work has.
    """
    if opcode not in FORMS:
        known = ", ".join(form.name for form in FORMS)
        raise InvalidArgumentError(f"the opcode is {opcode!r}: expected one of Opcode, {known}")
    values: dict[str, Any] = settings | {"result": result}
    extents: dict[str, int] = {}
    for name in settings:
        check_name(f"what {Opcode(opcode).name} is given", name, Work.__dataclass_fields__)
    for name, sizes in FORMS[opcode].tensors.items():
        tensor: Any = values.get(name)
        if not isinstance(tensor, PlacedTensor) or len(tensor.shape) > len(sizes):
            raise InvalidArgumentError(
                f"{Opcode(opcode).name}'s {name} is {tensor!r}: expected a buffer, or a part of "
                f"one, of {len(sizes)} indices at most"
            )
        missing = len(sizes) - len(tensor.shape)
        for size, extent in zip(sizes[missing:], tensor.shape, strict=True):
            if extents.setdefault(size, extent) != extent:
                raise InvalidArgumentError(
                    f"{Opcode(opcode).name}'s {name} has {extent} {size}, another operand of it "
                    f"{extents[size]}: expected the same number"
                )
        values |= dict.fromkeys(sizes, 1) | extents
        strides = (*[0] * missing, *tensor.strides)
        values[name] = StridedTensor(
            address_bytes=tensor.address_bytes, strides=strides, buffer=tensor.buffer
        )
    return Work(opcode=opcode, **values)


def integers(name: str, expected: str, values: Any, least: int | None = 1) -> tuple[int, ...]:
    """Return Python or numpy integers as a tuple of Python integers.

    ``name`` and ``expected`` describe the values in errors. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` for anything else.
    """
    if not isinstance(values, str | bytes):
        with suppress(TypeError):
            values = tuple(values)
    if not isinstance(values, tuple):
        raise InvalidArgumentError(f"{name} is {values!r}: expected {expected}, such as (4, 16)")
    return tuple(check_integer(f"one of {name}", value, least) for value in values)


class StackMemory:
    """First-fit allocator of the striped memory in a stack of ``config``.

    Tensors lie one after the other, unless some are released.

    Examples
    --------
    >>> from hw.pim.config import PIM_PRESETS
    >>> memory = StackMemory(PIM_PRESETS["tiny"])
    >>> [memory.place(name, (4, 16)).address_bytes for name in ("weights", "result")]
    [131072, 131584]
    >>> memory.place("huge", (1 << 20,))
    Traceback (most recent call last):
        ...
    sw_driver.device.errors.OutOfMemoryError: no room for huge: of its 4194304 bytes 63488 ...
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        self._end_bytes = driver_place(config).start
        self._holes = [range(config.striped_start_bytes, self._end_bytes)]
        """Free ranges of addresses, in order."""
        self._cores = config.cores

    def place(self, name: str, shape: tuple[int, ...]) -> PlacedTensor:
        """Allocate a tensor of ``shape``.

        The tensor is dense, unless a slice of its first index has a stripe's size or more. Then
        neighbouring slices begin in different banks.

        Raises :class:`~sw_driver.device.errors.OutOfMemoryError`, and
        :class:`~sw_driver.device.errors.InvalidArgumentError` for an invalid shape.
        """
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a buffer's name is {name!r}: expected a string")
        shape = integers(f"the shape of {name}", "extents", shape)
        check_integer(f"the number of extents of {name}", len(shape))
        slices, slice_bytes = shape[0], ELEMENT_BYTES * prod(shape[1:])
        step_bytes = slice_bytes
        if slices > 1 and slice_bytes >= STRIPE_BYTES:
            # An odd number: with an even one, slices would return to the same bank sooner.
            step_bytes = (-(-slice_bytes // STRIPE_BYTES) | 1) * STRIPE_BYTES
        nbytes = (slices - 1) * step_bytes + slice_bytes
        hole = next((hole for hole in self._holes if len(hole) >= nbytes), None)
        if hole is None:
            free_bytes = sum(map(len, self._holes))
            largest_bytes = max(map(len, self._holes), default=0)
            raise OutOfMemoryError(
                f"no room for {name}: of its {nbytes} bytes {largest_bytes} are free in one piece, "
                f"{free_bytes} in all; release buffers, or take larger banks: "
                f"{self._least(nbytes)}",
                name=name,
                bytes=nbytes,
                free_bytes=free_bytes,
                largest_bytes=largest_bytes,
            )
        stripes = -(-nbytes // STRIPE_BYTES)
        if self._cores:
            # An odd number: with an even one (tensors of a multiple of 4 KiB), tensors of equal
            # size would evict each other from a core's cache.
            stripes |= 1
        first = hole.start
        stop = min(first + stripes * STRIPE_BYTES, hole.stop)
        at = self._holes.index(hole)
        self._holes[at : at + 1] = [range(stop, hole.stop)] * (stop < hole.stop)
        dense = [prod(shape[index + 1 :]) for index in range(1, len(shape))]
        return PlacedTensor(
            address_bytes=first,
            shape=shape,
            strides=(step_bytes // ELEMENT_BYTES, *dense),
            buffer=Buffer(name, self, prod(shape), lambda: self._give_back(range(first, stop))),
        )

    def _least(self, nbytes: int) -> str:
        """Return a sentence with the ``bank_bytes`` that leave ``nbytes`` after the last tensor."""
        last = self._holes[-1] if self._holes else range(0)
        begin = last.start if last.stop == self._end_bytes else self._end_bytes
        return least_bank_bytes(self._config, begin + nbytes - self._config.striped_start_bytes)

    def _give_back(self, place: range) -> None:
        """Free the addresses ``place`` and merge neighbouring holes."""
        self._holes = sorted([*self._holes, place], key=lambda hole: hole.start)
        for at in reversed(range(len(self._holes) - 1)):
            one, other = self._holes[at : at + 2]
            if one.stop == other.start:
                self._holes[at : at + 2] = [range(one.start, other.stop)]
