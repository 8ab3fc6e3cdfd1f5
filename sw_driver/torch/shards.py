"""Layout of parameters on the module: one after the other, evenly divided over the channels."""

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
"""Data types of formats; formats without one are codes."""

ROUND_VALUES = 1 << 16
"""Values of a channel per round of copy in, update and copy back, at most."""

_IN_USE: weakref.WeakKeyDictionary[Axdimm, list[AxdimmPointer]] = weakref.WeakKeyDictionary()
"""Memory of deleted optimizers with a step in flight; it is freed at the step's end."""

Span = tuple[int, int]
"""Values of a shard, from the first to before the second; both are multiples of a unit."""


@dataclass(eq=False, kw_only=True)
class Slot:
    """Values of a shard that belong to a parameter, padded to a whole unit."""

    shard: Shard
    start: int
    shape: torch.Size
    """Shape of the parameter when it was placed."""
    device: torch.device
    """Device of the parameter, and of state that is fetched."""
    state: weakref.ref[Any] | None = None
    """State with its tensors in this slot, if there is one."""
    known: set[str] = field(default_factory=set)
    """Names of tensors that the module has bit for bit as in the shard's image."""

    @property
    def count(self) -> int:
        """Number of the parameter's values."""
        return self.shape.numel()

    @property
    def span(self) -> Span:
        """Span of the slot in the shard, including the padding."""
        return self.start, self.start + padded(self.count, self.shard.unit)

    def view(self, values: Tensor, parameter: Tensor) -> Tensor:
        """Return the parameter's part of the shard's ``values``, in the parameter's shape."""
        return values[self.start : self.start + self.count].view(parameter.shape)

    def refresh(
        self, name: str, tensor: Tensor, parameter: Tensor, *, negate: bool = False
    ) -> bool:
        """Update the shard's image; return whether the module still needs the values."""
        image = self.shard.image(name)
        view = self.view(image, parameter)
        values = tensor.detach().to("cpu", torch.float32).resolve_neg()
        values = (-values if negate else values).to(view.dtype)
        bits = torch.int32 if view.dtype == torch.float32 else torch.int16
        if name in self.known and torch.equal(view.view(bits), values.view(bits)):
            return False
        self.known.discard(name)
        view.copy_(values)
        image[self.start + self.count : self.span[1]] = 0  # a NaN would spread to its whole block
        return True


class Shard:
    """Parameters placed together: each tensor has a piece on every channel.

    Images of parameters and gradients in the host's memory are the ends of copies. Values that no
    parameter fills are zero. All cuts are at whole units.
    """

    def __init__(self, device: Axdimm, values: int, formats: Formats) -> None:
        self.values, self.formats, self.unit = values, formats, unit_of(formats)
        units, channels = values // self.unit, device.channels
        self.cuts = [self.unit * (units * cut // channels) for cut in range(channels + 1)]
        self._device = device
        self._pointers: dict[str, dict[int, AxdimmPointer]] = {}
        self.free = weakref.finalize(self, _free, device, self._pointers)
        """Finalizer that frees the module's memory, also on garbage collection."""
        self.free.atexit = False
        self._images: dict[str, Tensor] = {}

    def image(self, name: str) -> Tensor:
        """Return the host's image of a tensor."""
        if name not in self._images:
            self._images[name] = self.zeros(name)
        return self._images[name]

    def dtype(self, name: str) -> torch.dtype:
        """Return the data type of a tensor's numbers."""
        return _TYPES.get(self.formats.form(NARROW_RULE, name), torch.uint8)

    def zeros(self, name: str) -> Tensor:
        """Return zeros for a whole tensor."""
        count = self.nbytes(name, self.values) // self.dtype(name).itemsize
        return torch.zeros(count, dtype=self.dtype(name), device="cpu")

    def part(self, name: str, values: Tensor, span: Span) -> Tensor:
        """Return the part of a whole tensor that a span covers."""
        first, last = (self.nbytes(name, bound) // values.itemsize for bound in span)
        return values[first:last]

    def nbytes(self, name: str, values: int) -> int:
        """Return the bytes of ``values`` values in a tensor."""
        return self.formats.tensor_bytes(NARROW_RULE, name, values)

    def allocate(self, names: Iterable[str]) -> None:
        """Allocate the module's memory for these tensors; raise ``OutOfMemoryError`` if full."""
        _free(self._device, {})
        missing = [name for name in names if name not in self._pointers]
        made: dict[str, dict[int, AxdimmPointer]] = {name: {} for name in missing}
        try:
            for channel, start, stop in self.parts([(0, self.values)]):
                for name in missing:  # in sequence on a channel, so each is in other banks
                    size = self.nbytes(name, stop - start)
                    made[name][channel] = self._device.MallocAxdimm(size, channel)
        except BaseException:
            _free(self._device, made)
            raise
        self._pointers.update(made)

    def parts(self, spans: Iterable[Span]) -> Iterator[tuple[int, int, int]]:
        """Yield channel, start and stop of the spans cut by channels."""
        for first, last in spans:
            for channel, (low, high) in enumerate(pairwise(self.cuts)):
                if max(first, low) < min(last, high):
                    yield channel, max(first, low), min(last, high)

    def rounds(self) -> Iterator[list[Span]]:
        """Yield the spans of each round, so that a kernel runs beside the other channel's copies.

        Each channel is a part of a round ahead of the next, or all would copy at the same time.
        Without a clock one round is enough, unless results depend on it: random words are drawn per
        run.
        """
        channels = list(pairwise(self.cuts))
        if not self._device.transport.timed and self.formats.parameters == "fp32":
            yield channels
            return
        shift = ROUND_VALUES // len(channels)
        ends = [high + shift * place - low for place, (low, high) in enumerate(channels)]
        for first in range(0, max(ends), ROUND_VALUES):
            begins = [low + first - shift * place for place, (low, _) in enumerate(channels)]
            yield [
                (max(begin, low), min(begin + ROUND_VALUES, high))
                for begin, (low, high) in zip(begins, channels, strict=True)
            ]

    def pointer(self, name: str, channel: int, start: int) -> AxdimmPointer:
        """Return the pointer to value ``start`` of a tensor on ``channel``."""
        return self._pointers[name][channel] + self.nbytes(name, start - self.cuts[channel])


def _free(device: Axdimm, pointers: dict[str, dict[int, AxdimmPointer]]) -> None:
    """Free these pointers, and those that were still in use at an earlier attempt."""
    unneeded = _IN_USE.pop(device, [])
    unneeded += [pointer for pieces in pointers.values() for pointer in pieces.values()]
    for pointer in unneeded:
        try:
            device.FreeAxdimm(pointer)
        except BusyError:
            _IN_USE.setdefault(device, []).append(pointer)
        except ClosedError:
            return


def unit_of(formats: Formats) -> int:
    """Return the values that fill a line of every tensor, in whole blocks unless all is FP32."""
    least_bits = min(formats.block_bits(NARROW_RULE, name) for name in formats.tensors(NARROW_RULE))
    return max(8 * LINE_BYTES * BLOCK_PARAMETERS // least_bits, BLOCK_PARAMETERS * formats.narrow)


def padded(count: int, unit: int) -> int:
    """Return ``count`` rounded up to a multiple of ``unit``."""
    return -(-count // unit) * unit


def common(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return the intersections of ``spans`` and ``others``."""
    others = list(others)
    both = [(max(a, c), min(b, d)) for a, b in spans for c, d in others]
    return [(first, last) for first, last in both if first < last]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return sorted spans with adjacent ones merged and empty ones removed."""
    result: list[Span] = []
    for first, last in sorted(spans):
        if result and result[-1][1] == first:
            result[-1] = (result[-1][0], last)
        elif first < last:
            result.append((first, last))
    return result
