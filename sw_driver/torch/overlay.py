"""Training with activations in remote memory, for models whose own memory would be too small.

What a forward pass saves for the backward pass leaves the device after the layer that saves it,
and comes back before the backward pass needs it (Rhu et al., vDNN, MICRO 2016; Kwon and Rhu, MICRO
2018, sections II-B and III-B). Outputs of cheap layers are computed again instead where their input
comes back anyway.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.multiprocessing.reductions import (  # pyright: ignore[reportMissingImports]
    StorageWeakRef,
)

from sw_driver.device.errors import OutOfMemoryError
from sw_driver.memory_node import CompressionStatistics, DeviceNode, Direction, Event

__all__ = ["CHEAP", "MemoryOverlay", "OverlayStatistics"]

CHEAP: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.GELU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Dropout,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.LayerNorm,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.LocalResponseNorm,
)
"""Layers that are computed faster than their output is moved: the exception of the paper (IV)."""

_REACH = 64
"""How many saved storages before the present one a prefetched one may have been saved."""


@dataclass
class OverlayStatistics:
    """What has been moved since the overlay was made."""

    bytes_out: int = 0
    """Bytes moved to remote memory."""
    bytes_back: int = 0
    bytes_recomputed: int = 0
    """Bytes that were computed again instead of moved."""
    compression: CompressionStatistics | None = None
    """Statistics of all compressed copies of the device, in whole lines; once the overlay is
    left."""


class _View(NamedTuple):
    """A tensor, as a view of its storage."""

    size: Any
    stride: Any
    offset: Any
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _View:
        return cls(tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype)

    def on(self, values: torch.Tensor) -> torch.Tensor:
        empty = torch.empty(0, dtype=self.dtype)
        return empty.set_(values.untyped_storage(), self.offset, self.size, self.stride)


@dataclass(eq=False)
class _Place:
    """Where a saved storage is in memory; outlives it until that is free again."""

    size: int = 0
    remote: int | None = None
    written: Event | None = None
    """The end of the copy to remote memory."""
    staged: int | None = None
    """Address in the device's memory of the storage on its way back."""
    back: Event | None = None
    """The end of the copy back to the device's memory."""


@dataclass(eq=False)
class _Saved:
    """A storage that the backward pass needs."""

    number: int
    place: _Place
    values: torch.Tensor | None = None
    """All bytes of the storage, while they are on the device."""
    recipe: _Recipe | None = None
    changed: bool = False
    """Whether the layer that saved the storage changed it afterwards."""


@dataclass(eq=False)
class _Recipe:
    """How the output of a cheap layer is made again."""

    module: nn.Module
    training: bool
    source: _Saved
    view: _View
    """The layer's input, as a view of the source."""
    random: torch.Tensor | None
    """State of the random numbers before the layer ran."""

    def made(self, values: torch.Tensor) -> torch.Tensor:
        """All bytes of the output's storage, from those of the source.

        A layer that works in place changes them, as it did before: nobody else needs them then.
        """
        buffers = [(each, each.clone()) for each in self.module.buffers()]
        training = self.module.training
        with torch.no_grad(), torch.random.fork_rng([], enabled=self.random is not None):
            if self.random is not None:
                torch.set_rng_state(self.random)
            self.module.training = self.training
            try:
                return _bytes_of(self.module.forward(self.view.on(values)))
            finally:
                self.module.training = training
                for buffer, before in buffers:
                    buffer.copy_(before)


class MemoryOverlay:
    """Moves what forward passes of ``model`` save to the memory-nodes of ``device`` and back.

    ::

        with MemoryOverlay(model, device):
            criterion(model(inputs), targets).backward()

    Losses, gradients and buffers are those without it, bit for bit. The device's own memory holds
    what is under way only; when it is full, moves wait for those before them. What is not on the
    CPU, parameters, buffers and small tensors stay where they are.

    Raises :class:`~sw_driver.device.errors.OutOfMemoryError`, in the forward pass, if remote memory
    is full, or if a storage does not fit into the device's memory.

    Parameters
    ----------
    recomputed
        Types of modules whose output is computed again where their input comes back anyway.
    prefetched
        So many storages are asked for before the backward pass needs them, the last saved first.
    least_bytes
        Smaller storages stay.
    compressed
        What is moved goes over the links without its zeros.
    """

    def __init__(
        self,
        model: nn.Module,
        device: DeviceNode,
        *,
        recomputed: tuple[type[nn.Module], ...] = CHEAP,
        prefetched: int = 2,
        least_bytes: int = 4096,
        compressed: bool = False,
    ) -> None:
        if prefetched < 0 or least_bytes < 0:
            raise ValueError(
                f"prefetched and least_bytes must be at least 0, got {prefetched} and {least_bytes}"
            )
        self.statistics = OverlayStatistics()
        self._model = model
        self._device = device
        self._cheap = recomputed
        self._prefetched = prefetched
        self._least_bytes = least_bytes
        self._compressed = compressed
        self._before_all = device.compression
        self._out, self._back = device.stream(), device.stream()
        self._count = 0
        self._kept: set[StorageWeakRef] = set()
        self._saved: weakref.WeakValueDictionary[Any, _Saved] = weakref.WeakValueDictionary()
        """Saved storages, by storage and version."""
        self._numbered: weakref.WeakValueDictionary[int, _Saved] = weakref.WeakValueDictionary()
        self._makers: dict[Any, tuple[Any, dict[str, Any]]] = {}
        """How outputs of cheap layers are made, by storage and version: those of the input, and the
        rest of a recipe."""
        self._running: list[tuple[Any, _View, torch.Tensor | None] | None] = []
        """Layers that run now: the input's storage and version, and how it lies there."""
        self._new: list[tuple[_Saved, torch.Tensor]] = []
        """Storages that were saved by the layers that run now."""
        self._leaving: deque[tuple[int, Event]] = deque()
        """Addresses in device memory that are being copied from, each with the end of the copy."""
        self._coming: weakref.WeakSet[_Saved] = weakref.WeakSet()
        self._unneeded: list[_Place] = []
        self._hooks: list[Any] = []
        self._packing: Any = None

    def __enter__(self) -> MemoryOverlay:
        own = (*self._model.parameters(), *self._model.buffers())
        self._kept = {StorageWeakRef(each.untyped_storage()) for each in own}
        for module in self._model.modules():
            if next(module.children(), None) is None:
                self._hooks += [
                    module.register_forward_pre_hook(self._before),
                    module.register_forward_hook(self._after, always_call=True),
                ]
        self._packing = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._packing.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._packing.__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._running.clear()
        self._makers.clear()
        self._settle()
        self._out.synchronize()
        self._back.synchronize()
        self._collect()
        if self._compressed:
            self.statistics.compression = self._device.compression.since(self._before_all)

    # Forward: what layers save.

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        cheap = isinstance(module, self._cheap) and torch.is_grad_enabled()
        if cheap and len(inputs) == 1 and isinstance(inputs[0], torch.Tensor):
            random = torch.get_rng_state() if isinstance(module, nn.Dropout) else None
            self._running.append((_key(inputs[0]), _View.of(inputs[0]), random))
        else:
            self._running.append(None)

    def _after(self, module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        given = self._running.pop() if self._running else None
        if given is not None and isinstance(output, torch.Tensor):
            source, view, random = given
            if source != _key(output):
                self._makers[_key(output)] = (
                    source,
                    {"module": module, "training": module.training, "view": view, "random": random},
                )
        self._settle()

    def _pack(self, tensor: torch.Tensor) -> tuple[_Saved, _View] | torch.Tensor:
        storage = tensor.untyped_storage()
        if (
            tensor.device.type != "cpu"
            or tensor.layout != torch.strided
            or storage.nbytes() < max(self._least_bytes, 1)
            or StorageWeakRef(storage) in self._kept
        ):
            return tensor.detach()
        self._collect()
        key = _key(tensor)
        saved = self._saved.get(key) or self._made_again(key)
        if saved is None:
            saved = self._note(key)
            saved.values = _bytes_of(tensor)
            self._new.append((saved, tensor.detach()))
        if not self._running:
            self._settle()
        return saved, _View.of(tensor)

    def _note(self, key: Any) -> _Saved:
        saved = _Saved(self._count, _Place())
        self._count += 1
        self._saved[key] = self._numbered[saved.number] = saved
        weakref.finalize(saved, self._unneeded.append, saved.place).atexit = False
        return saved

    def _made_again(self, key: Any) -> _Saved | None:
        """What a cheap layer put out, if its input comes back or can be made again."""
        recipe = self._recipe(key)
        if recipe is None:
            return None
        saved = self._note(key)
        saved.recipe = recipe
        return saved

    def _recipe(self, key: Any) -> _Recipe | None:
        source_key, rest = self._makers.get(key, (None, {}))
        source = source_key and (self._saved.get(source_key) or self._made_again(source_key))
        return _Recipe(source=source, **rest) if source else None

    def _settle(self) -> None:
        """Sends off what layers have saved, but for what can be made again."""
        for saved, tensor in self._new:
            saved.changed = self._saved.get(_key(tensor)) is not saved
            saved.recipe = self._recipe(_key(tensor))
            if saved.recipe is None:
                self._send(saved)
            saved.values = None
        self._new.clear()

    def _send(self, saved: _Saved) -> None:
        values, place = saved.values, saved.place
        assert values is not None
        place.size = values.numel()
        staged = self._room(place.size)
        place.remote = self._device.cuda_malloc_remote(place.size, compressed=self._compressed)
        self._device.write(staged, values.numpy())
        self._device.cuda_memcpy_async(
            place.remote, staged, place.size, Direction.LOCAL_TO_REMOTE, self._out
        )
        place.written = self._out.record()
        self._leaving.append((staged, place.written))
        self.statistics.bytes_out += place.size

    # Backward: what it needs.

    def _unpack(self, packed: tuple[_Saved, _View] | torch.Tensor) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        self._makers.clear()
        self._settle()
        self._collect()
        saved, view = packed
        values = self._values(saved)
        before = (self._numbered.get(saved.number - step) for step in range(1, _REACH))
        for other in islice(filter(None, before), self._prefetched):
            self._ask_for(other)
        return view.on(values)

    def _values(self, saved: _Saved) -> torch.Tensor:
        """All bytes of a saved storage; from now on they are there."""
        if saved.changed:
            raise RuntimeError(
                "a tensor that a layer saved for its gradient was changed in place afterwards: "
                "change a copy of it"
            )
        if saved.values is None and saved.recipe is not None:
            saved.values = saved.recipe.made(self._values(saved.recipe.source))
            self.statistics.bytes_recomputed += saved.values.numel()
        elif saved.values is None:
            self._ask_for(saved, must=True)
            self._land(saved)
        assert saved.values is not None
        return saved.values

    def _ask_for(self, saved: _Saved, *, must: bool = False) -> None:
        """Has a saved storage, or what it is made of, come back, unless there is no room and it
        need not."""
        while saved.recipe is not None:
            saved = saved.recipe.source
        place = saved.place
        if saved.values is not None or place.back is not None:
            return
        assert place.remote is not None
        assert place.written is not None
        try:
            place.staged = self._room(place.size, waits=must)
        except OutOfMemoryError:
            if must:
                raise
            return
        self._back.wait_event(place.written)
        self._device.cuda_memcpy_async(
            place.staged, place.remote, place.size, Direction.REMOTE_TO_LOCAL, self._back
        )
        place.back = self._back.record()
        self._coming.add(saved)
        self.statistics.bytes_back += place.size

    def _land(self, saved: _Saved) -> None:
        """Waits until a saved storage that was asked for is there."""
        place = saved.place
        assert place.back is not None
        assert place.staged is not None
        place.back.synchronize()
        saved.values = torch.from_numpy(self._device.read(place.staged, place.size).copy())
        self._device.cuda_free(place.staged)
        place.staged = None
        self._coming.discard(saved)

    # The device's memory.

    def _room(self, size: int, *, waits: bool = True) -> int:
        """Allocates device memory; if there is none, waits for what is under way."""
        while True:
            try:
                return self._device.cuda_malloc(size)
            except OutOfMemoryError:
                if not waits:
                    raise
                if self._leaving:
                    self._leaving[0][1].synchronize()
                elif self._coming:
                    self._land(max(self._coming, key=lambda saved: saved.number))
                elif self._unneeded:
                    self._back.synchronize()
                else:
                    raise
                self._collect()

    def _collect(self) -> None:
        """Frees memory that nobody needs and nothing is copied to or from."""
        while self._leaving and self._leaving[0][1].happened:
            self._device.cuda_free(self._leaving.popleft()[0])
        for place in self._unneeded[:]:
            moves = (place.written, place.back)
            if all(move is None or move.happened for move in moves):
                self._unneeded.remove(place)
                if place.staged is not None:
                    self._device.cuda_free(place.staged)
                if place.remote is not None:
                    self._device.cuda_free_remote(place.remote)


def _key(tensor: torch.Tensor) -> Any:
    """A storage and its version: equal as long as the bytes are."""
    return StorageWeakRef(tensor.untyped_storage()), tensor._version


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
