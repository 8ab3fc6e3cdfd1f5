"""Where parameters lie on the module: one behind the other, in even parts on the channels."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sw_driver.axdimm import Axdimm, AxdimmPointer
from sw_driver.axdimm.transport import LINE_BYTES
from sw_driver.device.errors import BusyError, ClosedError

__all__ = ["VALUE_BYTES", "Shard", "Slot", "Span", "common", "merged", "padded"]

VALUE_BYTES = 4
"""Bytes of a value, which is in FP32, as all that is on the module."""
LINE_VALUES = LINE_BYTES // VALUE_BYTES

ROUND_VALUES = 1 << 16
"""Values of a channel that are copied in, updated and copied back at once, at most."""

_IN_USE: weakref.WeakKeyDictionary[Axdimm, list[AxdimmPointer]] = weakref.WeakKeyDictionary()
"""Memory of optimizers that are gone with a step under way, which is freed at its end."""

Span = tuple[int, int]
"""Values of a shard, from the first to before the second, both at lines."""


@dataclass(eq=False, kw_only=True)
class Slot:
    """Values of a shard that are a parameter's, filled up to a whole line."""

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
        return self.start, self.start + padded(self.count)

    def view(self, values: Tensor, parameter: Tensor) -> Tensor:
        """The parameter's part of ``values`` of the whole shard, in its shape."""
        return values[self.start : self.start + self.count].view(parameter.shape)

    def refresh(
        self, name: str, tensor: Tensor, parameter: Tensor, *, negate: bool = False
    ) -> bool:
        """Brings the image up to date; whether the module then still needs it."""
        view = self.view(self.shard.image(name), parameter)
        values = tensor.detach().to("cpu", torch.float32).resolve_neg()
        values = -values if negate else values
        known = name in self.known
        if known and torch.equal(view.view(torch.int32), values.view(torch.int32)):
            return False
        self.known.discard(name)
        view.copy_(values)
        return True


class Shard:
    """Parameters that were placed together: of each tensor, a piece on every channel.

    It keeps images of the parameters and gradients in the host's memory, which copies go from and
    to. What no parameter fills is zero.
    """

    def __init__(self, device: Axdimm, values: int) -> None:
        self.values = values
        lines, channels = values // LINE_VALUES, device.channels
        self.cuts = [LINE_VALUES * (lines * each // channels) for each in range(channels + 1)]
        self._device = device
        self._pointers: dict[str, dict[int, AxdimmPointer]] = {}
        self.free = weakref.finalize(self, _free, device, self._pointers)
        """Frees the module's memory, as garbage collection does."""
        self.free.atexit = False
        self._images: dict[str, Tensor] = {}

    def image(self, name: str) -> Tensor:
        """The host's image of a tensor."""
        if name not in self._images:
            self._images[name] = torch.zeros(self.values, dtype=torch.float32, device="cpu")
        return self._images[name]

    def allocate(self, names: Iterable[str]) -> None:
        """Makes sure of the module's memory for these tensors. Raises ``OutOfMemoryError``."""
        _free(self._device, {})
        missing = [name for name in names if name not in self._pointers]
        made: dict[str, dict[int, AxdimmPointer]] = {name: {} for name in missing}
        try:
            for channel, start, stop in self.parts([(0, self.values)]):
                for name in missing:  # one after the other on a channel: each in other banks
                    size = VALUE_BYTES * (stop - start)
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
        clock there is one round.
        """
        channels = list(pairwise(self.cuts))
        if not self._device.transport.timed:
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
        return self._pointers[name][channel] + VALUE_BYTES * (start - self.cuts[channel])


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


def padded(count: int) -> int:
    """``count`` filled up to a whole line."""
    return -(-count // LINE_VALUES) * LINE_VALUES


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
