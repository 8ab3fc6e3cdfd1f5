"""Where parameters lie on the module: one behind the other, in even parts on the channels."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hw.narrow.formats import BLOCK_PARAMETERS
from sw_driver.axdimm import Axdimm, AxdimmPointer, Formats
from sw_driver.axdimm.transport import LINE_BYTES
from sw_driver.device.errors import BusyError, ClosedError

from .formats import NARROW_RULE

__all__ = ["Shard", "Slot", "Span", "common", "merged", "padded", "unit_of"]

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of numbers by their formats; those without one are codes."""

ROUND_VALUES = 1 << 16
"""Values of a channel that are copied in, updated and copied back at once, at most."""

_IN_USE: weakref.WeakKeyDictionary[Axdimm, list[AxdimmPointer]] = weakref.WeakKeyDictionary()
"""Memory of optimizers that are gone with a step under way, which is freed at its end."""

Span = tuple[int, int]
"""Values of a shard, from the first to before the second, both at whole units."""


@dataclass(eq=False, kw_only=True)
class Slot:
    """Values of a shard that are a parameter's, filled up to a whole unit."""

    shard: Shard
    start: int
    shape: torch.Size
    """The parameter's when it was placed."""
    device: torch.device
    """Where the parameter is, and with it what is fetched of its state."""
    state: weakref.ref[Any] | None = None
    """The state that has its tensors here, while there is one."""
    known: set[str] = field(default_factory=set)
    """Tensors of which the module has what the shard's image has, bit for bit."""

    @property
    def count(self) -> int:
        """Values of the parameter."""
        return self.shape.numel()

    @property
    def span(self) -> Span:
        """The slot's values in the shard, the filling included."""
        return self.start, self.start + padded(self.count, self.shard.unit)

    def view(self, values: Tensor, parameter: Tensor) -> Tensor:
        """The parameter's part of ``values`` of the whole shard, in its shape."""
        return values[self.start : self.start + self.count].view(parameter.shape)

    def refresh(
        self, name: str, tensor: Tensor, parameter: Tensor, *, negate: bool = False
    ) -> bool:
        """Brings the image up to date; whether the module then still needs it."""
        image = self.shard.image(name)
        view = self.view(image, parameter)
        values = tensor.detach().to("cpu", torch.float32).resolve_neg()
        values = (-values if negate else values).to(view.dtype)
        bits = torch.int32 if view.dtype == torch.float32 else torch.int16
        if name in self.known and torch.equal(view.view(bits), values.view(bits)):
            return False
        self.known.discard(name)
        view.copy_(values)
        image[self.start + self.count : self.span[1]] = 0  # a NaN in a block makes all of it NaN
        return True


class Shard:
    """Parameters that were placed together: of each tensor, a piece on every channel.

    It keeps images of the parameters and gradients in the host's memory, which copies go from and
    to. What no parameter fills is zero. All that is cut, is at whole units.
    """

    def __init__(self, device: Axdimm, values: int, formats: Formats) -> None:
        self.values, self.formats, self.unit = values, formats, unit_of(formats)
        units, channels = values // self.unit, device.channels
        self.cuts = [self.unit * (units * each // channels) for each in range(channels + 1)]
        self._device = device
        self._pointers: dict[str, dict[int, AxdimmPointer]] = {}
        self.free = weakref.finalize(self, _free, device, self._pointers)
        """Frees the module's memory, as garbage collection does."""
        self.free.atexit = False
        self._images: dict[str, Tensor] = {}

    def image(self, name: str) -> Tensor:
        """The host's image of a tensor."""
        if name not in self._images:
            self._images[name] = self.zeros(name)
        return self._images[name]

    def dtype(self, name: str) -> torch.dtype:
        """Of a tensor's numbers."""
        return _TYPES.get(self.formats.form(NARROW_RULE, name), torch.uint8)

    def zeros(self, name: str) -> Tensor:
        """Zeros for the whole of a tensor."""
        count = self.nbytes(name, self.values) // self.dtype(name).itemsize
        return torch.zeros(count, dtype=self.dtype(name), device="cpu")

    def part(self, name: str, values: Tensor, span: Span) -> Tensor:
        """What a span has of the whole of a tensor."""
        first, last = (self.nbytes(name, each) // values.itemsize for each in span)
        return values[first:last]

    def nbytes(self, name: str, values: int) -> int:
        """Bytes that so many values have of a tensor."""
        return self.formats.tensor_bytes(NARROW_RULE, name, values)

    def allocate(self, names: Iterable[str]) -> None:
        """Makes sure of the module's memory for these tensors. Raises ``OutOfMemoryError``."""
        _free(self._device, {})
        missing = [name for name in names if name not in self._pointers]
        made: dict[str, dict[int, AxdimmPointer]] = {name: {} for name in missing}
        try:
            for channel, start, stop in self.parts([(0, self.values)]):
                for name in missing:  # one after the other on a channel: each in other banks
                    size = self.nbytes(name, stop - start)
                    made[name][channel] = self._device.MallocAxdimm(size, channel)
        except BaseException:
            _free(self._device, made)
            raise
        self._pointers.update(made)

    def parts(self, spans: Iterable[Span]) -> Iterator[tuple[int, int, int]]:
        """The spans cut by channels: the channel, and a span of values on it."""
        for first, last in spans:
            for channel, (low, high) in enumerate(pairwise(self.cuts)):
                if max(first, low) < min(last, high):
                    yield channel, max(first, low), min(last, high)

    def rounds(self) -> Iterator[list[Span]]:
        """Spans to update one after the other: a channel's kernel runs beside the other's copies.

        Each channel is ahead of the next by a part of a round, or all would copy at once. Without a
        clock there is one round, unless the results depend on it: random words are a run's.
        """
        channels = list(pairwise(self.cuts))
        if not self._device.transport.timed and self.formats.parameters == "fp32":
            yield channels
            return
        shift = ROUND_VALUES // len(channels)
        ends = [high + shift * each - low for each, (low, high) in enumerate(channels)]
        for first in range(0, max(ends), ROUND_VALUES):
            begins = [low + first - shift * each for each, (low, _) in enumerate(channels)]
            yield [
                (max(begin, low), min(begin + ROUND_VALUES, high))
                for begin, (low, high) in zip(begins, channels, strict=True)
            ]

    def pointer(self, name: str, channel: int, start: int) -> AxdimmPointer:
        """Pointer to value ``start`` of a tensor, which is on channel ``channel``."""
        return self._pointers[name][channel] + self.nbytes(name, start - self.cuts[channel])


def _free(device: Axdimm, pointers: dict[str, dict[int, AxdimmPointer]]) -> None:
    """Frees the memory, and what was in use when it should have been freed before."""
    unneeded = _IN_USE.pop(device, [])
    unneeded += [pointer for each in pointers.values() for pointer in each.values()]
    for pointer in unneeded:
        try:
            device.FreeAxdimm(pointer)
        except BusyError:
            _IN_USE.setdefault(device, []).append(pointer)
        except ClosedError:
            return


def unit_of(formats: Formats) -> int:
    """The values that fill a line of every tensor, and whole blocks if one is not in FP32."""
    least_bits = min(formats.block_bits(NARROW_RULE, name) for name in formats.tensors(NARROW_RULE))
    return max(8 * LINE_BYTES * BLOCK_PARAMETERS // least_bits, BLOCK_PARAMETERS * formats.narrow)


def padded(count: int, unit: int) -> int:
    """``count`` filled up to a whole unit."""
    return -(-count // unit) * unit


def common(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """The spans of what is both in ``spans`` and in ``others``."""
    others = list(others)
    both = [(max(a, c), min(b, d)) for a, b in spans for c, d in others]
    return [(first, last) for first, last in both if first < last]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans in their order, with those that touch made one and empty ones left out."""
    result: list[Span] = []
    for first, last in sorted(spans):
        if result and result[-1][1] == first:
            result[-1] = (result[-1][0], last)
        elif first < last:
            result.append((first, last))
    return result
