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

_C: Any = torch._C

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
    conjugate: bool
    negative: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _View:
        lies = tensor.size(), tensor.stride(), tensor.storage_offset()
        return cls(*lies, tensor.dtype, tensor.is_conj(), tensor.is_neg())

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        made = torch.empty(0, dtype=self.dtype, device="cpu")
        made.set_(storage, self.offset, self.size, self.stride)
        made = made.conj() if self.conjugate else made
        return torch.ops.aten._neg_view(made) if self.negative else made


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


_UNNEEDED: weakref.WeakKeyDictionary[DeviceNode, list[_Place]] = weakref.WeakKeyDictionary()
"""What may be freed, by device: graphs may outlive the overlay that they were made under."""


@dataclass(eq=False)
class _Saved:
    """A storage that the backward pass needs."""

    number: int
    key: Any
    place: _Place
    values: torch.Tensor | None = None
    """All bytes of the storage, while they are on the device."""
    counter: torch.Tensor | None = None
    """A tensor without bytes, of the storage's version; if the storage itself was saved."""
    recipe: tuple[_Call, _Saved] | None = None
    """How it is made again, and of what."""


@dataclass(eq=False)
class _Packed:
    """What autograd holds of a saved tensor."""

    counter: torch.Tensor
    """The tensor itself if it stays; else one without its bytes, which shares its version."""
    version: int
    saved: _Saved | None = None
    view: _View | None = None


@dataclass(eq=False)
class _Call:
    """A call of a cheap layer, with all that its output depends on but the input's bytes."""

    source: Any
    """Storage and version of the input."""
    view: _View
    """The input, as a view of its storage."""
    random: torch.Tensor | None
    """State of the random numbers before the call."""
    autocast: tuple[bool, torch.dtype]
    threads: int
    """The order of sums depends on it."""
    layer: nn.Module | None = None
    """The layer as it was, with parameters and buffers of its own."""

    def again(self, values: torch.Tensor) -> torch.Tensor:
        """All bytes of the output's storage, from those of the input's."""
        assert self.layer is not None
        if getattr(self.layer, "inplace", False):
            values = values.clone()
        enabled, dtype = self.autocast
        threads = torch.get_num_threads()
        with (
            torch.no_grad(),
            torch.autocast("cpu", dtype, enabled),
            torch.random.fork_rng([], enabled=self.random is not None),
        ):
            if self.random is not None:
                torch.set_rng_state(self.random)
            torch.set_num_threads(self.threads)
            try:
                return _bytes_of(self.layer.forward(self.view.on(values.untyped_storage())))
            finally:
                torch.set_num_threads(threads)


class MemoryOverlay:
    """Moves what forward passes of ``model`` save to the memory-nodes of ``device`` and back.

    ::

        with MemoryOverlay(model, device):
            criterion(model(inputs), targets).backward()

    Losses, gradients and buffers are those without it, bit for bit, and so is the error if a saved
    tensor has been changed in place; a change past PyTorch's count of them (``.data``, NumPy) is
    seen only while somebody else holds the tensor. The device's own memory holds what is under way
    only; when it is full, moves wait for those before them. Parameters, buffers, small tensors and
    whatever is not a plain tensor of the CPU (sparse, nested, quantized, of another class) stay
    where they are.

    Raises :class:`~sw_driver.device.errors.OutOfMemoryError`, in the forward pass, if remote memory
    is full, or if a storage does not fit into the device's memory.

    Parameters
    ----------
    recomputed
        Types of :data:`CHEAP` whose output is computed again where their input comes back anyway.
        Outputs of subclasses and of calls with keywords, hooks or modes of PyTorch are moved.
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
        for each in recomputed:
            if each not in CHEAP:
                names = ", ".join(cheap.__name__ for cheap in CHEAP)
                raise ValueError(
                    f"recomputed has {each!r}, which is none of {names}: leave it out, so that its "
                    "output is moved"
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
        self._calls: dict[Any, _Call] = {}
        """How outputs of the last cheap layers were made, by storage and version."""
        self._running: list[_Call | None] = []
        """Layers that run now, and how those are called whose output can be made again."""
        self._new: list[tuple[_Saved, torch.Tensor]] = []
        """Storages that were saved by the layer or operation that runs now."""
        self._operation = 0
        self._leaving: deque[tuple[int, Event]] = deque()
        """Addresses in device memory that are being copied from, each with the end of the copy."""
        self._coming: weakref.WeakSet[_Saved] = weakref.WeakSet()
        self._unneeded = _UNNEEDED.setdefault(device, [])
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
        self._calls.clear()
        if error[0] is not None:
            self._new.clear()  # it stays where it is
        self._settle()
        self._out.synchronize()
        self._back.synchronize()
        self._collect()
        if self._compressed:
            self.statistics.compression = self._device.compression.since(self._before_all)

    # Forward: what layers save.

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        call = None
        if len(inputs) == 1 and _plain(inputs[0]) and self._cheap_call_of(module):
            call = _Call(
                _key(inputs[0]),
                _View.of(inputs[0]),
                torch.get_rng_state() if isinstance(module, nn.Dropout) else None,
                (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
                torch.get_num_threads(),
            )
        self._running.append(call)

    def _cheap_call_of(self, module: nn.Module) -> bool:
        """Whether calling a module is a cheap layer's calculation and nothing else."""
        return (
            type(module) in self._cheap
            and len(module._forward_pre_hooks) == len(module._forward_hooks) == 1
            and not nn.modules.module._global_forward_hooks
            and not (_C._len_torch_function_stack() or _C._len_torch_dispatch_stack())
        )

    def _after(self, module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        call = self._running.pop() if self._running else None
        if (
            call is not None
            and _plain(output)
            and call.source != _key(output)
            and (call.source in self._saved or call.source in self._calls)
            and (layer := _as_it_is(module)) is not None
        ):
            call.layer = layer
            self._calls[_key(output)] = call
            if len(self._calls) > _REACH:
                del self._calls[next(iter(self._calls))]
        self._settle()

    def _pack(self, tensor: torch.Tensor) -> _Packed:
        if (
            not _plain(tensor)
            or (storage := tensor.untyped_storage()).nbytes() < max(self._least_bytes, 1)
            or StorageWeakRef(storage) in self._kept
        ):
            # Its gradient function, if it has one, holds what this returns.
            stays = tensor.detach() if tensor.grad_fn is not None else tensor
            return _Packed(stays, stays._version)
        operation = _C._autograd._get_sequence_nr()
        if not self._running and operation != self._operation:
            self._settle()
        self._operation = operation
        self._collect()
        key = _key(tensor)
        saved = self._saved.get(key) or self._made_again(key)
        if saved is None:
            saved = self._note(key)
            saved.values = _bytes_of(tensor)
            self._new.append((saved, tensor.detach()))
        counter = tensor.detach()
        counter.data = torch.empty(0, dtype=tensor.dtype, device="cpu")
        saved.counter = counter
        return _Packed(counter, counter._version, saved, _View.of(tensor))

    def _note(self, key: Any) -> _Saved:
        saved = _Saved(self._count, key, _Place())
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

    def _recipe(self, key: Any) -> tuple[_Call, _Saved] | None:
        call = self._calls.get(key)
        source = call and (self._saved.get(call.source) or self._made_again(call.source))
        return (call, source) if call and source else None

    def _settle(self) -> None:
        """Sends off what layers have saved, but for what can be made again.

        An operation may save what it is yet to fill in (``rrelu`` its noise): it is over now.
        """
        while self._new:
            saved, tensor = self._new.pop(0)
            if _key(tensor) != saved.key:
                # Changed in place since. Unpacking raises, and nothing is made of it.
                self._saved.pop(saved.key, None)
            saved.recipe = self._recipe(saved.key)
            if saved.recipe is None:
                self._send(saved)
            saved.values = None

    def _send(self, saved: _Saved) -> None:
        values, place = saved.values, saved.place
        assert values is not None
        place.size = values.numel()
        place.remote = self._device.cuda_malloc_remote(place.size, compressed=self._compressed)
        staged = self._room(place.size)
        self._device.write(staged, values.numpy())
        self._device.cuda_memcpy_async(
            place.remote, staged, place.size, Direction.LOCAL_TO_REMOTE, self._out
        )
        place.written = self._out.record()
        self._leaving.append((staged, place.written))
        self.statistics.bytes_out += place.size

    # Backward: what it needs.

    def _unpack(self, packed: _Packed) -> torch.Tensor:
        saved, view, counter = packed.saved, packed.view, packed.counter
        if counter._version != packed.version:
            size = list(counter.size() if view is None else view.size)
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{counter.type()} {size}] is at version {counter._version}; "
                f"expected version {packed.version} instead: change a copy of it"
            )
        if saved is None or view is None:
            return counter
        self._settle()
        self._collect()
        values = self._values(saved)
        before = (self._numbered.get(saved.number - step) for step in range(1, _REACH))
        for other in islice(filter(None, before), self._prefetched):
            self._ask_for(other)
        held = torch.UntypedStorage._new_with_weak_ptr(saved.key[0].cdata)
        made = counter.detach()
        made.data = view.on(values.untyped_storage() if held is None else held)
        return made

    def _values(self, saved: _Saved) -> torch.Tensor:
        """All bytes of a saved storage; from now on they are there."""
        if saved.counter is not None and saved.counter._version != saved.key[1]:
            saved.values = None  # The backward pass itself may have changed them.
        if saved.values is None and saved.recipe is not None:
            call, source = saved.recipe
            saved.values = call.again(self._values(source))
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
            saved = saved.recipe[1]
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
        place.staged = place.back = None
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


def _plain(tensor: Any) -> bool:
    """Whether something is a tensor on the CPU that is a view of bytes, and no more than that."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_inference())
        and not _C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _as_it_is(module: nn.Module) -> nn.Module | None:
    """A copy of a cheap layer that keeps its values, if all its attributes do."""
    for name, value in vars(module).items():
        if name[0] != "_" and not isinstance(value, int | float | str | tuple | None):
            return None
    copied = type(module).__new__(type(module))
    vars(copied).update(vars(module))
    for own in ("_parameters", "_buffers"):
        held = getattr(module, own).items()
        vars(copied)[own] = {
            name: each if each is None else each.detach().clone() for name, each in held
        }
    return copied


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())
