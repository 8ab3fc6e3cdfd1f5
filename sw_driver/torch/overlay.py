"""Training with activations in remote memory, for models too large for the device's memory.

Tensors saved for the backward pass leave the device after the layer that saves them, and come back
before they are needed (Rhu et al., vDNN, MICRO 2016; Kwon and Rhu, MICRO 2018, sections II-B and
III-B). Outputs of cheap layers are recomputed instead if their input comes back anyway.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from sw_driver.device.errors import shown
from sw_driver.memory_node import CompressionStatistics, DeviceNode
from sw_driver.numbers import check_integer

from .copies import PlainCopies
from .moves import Moves, Watched, table
from .remote import RemoteStore
from .residency import Held, Policy, Residency, Statistics

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
"""Layers computed faster than their output is moved: the exception of the paper (IV)."""

_C: Any = torch._C


@dataclass
class OverlayStatistics(Statistics):
    """Bytes moved since the overlay was made."""

    bytes_recomputed: int = 0
    """Bytes recomputed instead of moved, including intermediate results."""
    compression: CompressionStatistics | None = None
    """Statistics of the device's compressed copies, in whole lines; set when the overlay exits."""


class _Alias:
    """A tensor saved by autograd or a call; others may use the same storage."""

    def __init__(self, tensor: Tensor, held: Held | None = None) -> None:
        self.tensor, self.version = tensor, tensor._version
        self.held = held
        """Record of the storage, if it may leave."""

    @property
    def same(self) -> bool:
        return self.tensor._version == self.version


class MemoryOverlay(Policy):
    """Moves tensors that forward passes of ``model`` save to ``device``'s memory-nodes and back.

    ::

        with MemoryOverlay(model, device):
            criterion(model(inputs), targets).backward()

    Losses, gradients and buffers are bit for bit those without the overlay. So is the error for a
    saved tensor that was changed in place. A saved tensor stays on the device as long as anything
    else uses its storage. The device's own memory holds only moves in flight; when it is full, a
    move waits for earlier ones. Parameters, buffers, small tensors, NumPy memory, and tensors that
    are not plain CPU tensors (sparse, nested, quantized, of another class) are not moved.

    Raises :class:`~sw_driver.device.errors.OutOfMemoryError`, in the forward pass, if remote memory
    is full, or if a storage does not fit into the device's memory.

    Parameters
    ----------
    recomputed
        Types of :data:`CHEAP` with outputs to recompute if their input comes back anyway. Outputs
        of subclasses, and of calls with keywords or PyTorch modes, are moved.
    prefetched
        Number of storages fetched before the backward pass needs them, the last saved first.
    least_bytes
        Size in bytes below which storages are not moved.
    compressed
        Omit zeros from transfers over the links.

    Examples
    --------
    >>> import torch
    >>> from nearmem import DeviceNode
    >>> from sw_driver.memory_node.backends.golden import GoldenNetwork
    >>> node = DeviceNode(GoldenNetwork(local_bytes=1 << 20, share_bytes=1 << 24))
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 1))
    >>> with MemoryOverlay(model, node) as overlay:
    ...     print(model(torch.ones(128, 64)).sum().backward(), overlay.statistics.bytes_out)
    None 163840
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
        if not isinstance(model, nn.Module):
            raise ValueError(f"model is {shown(model)}: expected a torch Module")
        if not isinstance(device, DeviceNode):
            raise ValueError(f"device is {shown(device)}: expected a DeviceNode")
        if not isinstance(compressed, bool):
            raise ValueError(f"compressed is {shown(compressed)}: expected a bool")
        if not isinstance(recomputed, tuple | list):
            raise ValueError(f"recomputed is {shown(recomputed)}: expected a tuple of types")
        for name, value in (("prefetched", prefetched), ("least_bytes", least_bytes)):
            check_integer(name, value, 0, error=ValueError)
        for kind in recomputed:
            if kind not in CHEAP:
                names = ", ".join(cheap.__name__ for cheap in CHEAP)
                raise ValueError(
                    f"recomputed has {shown(kind)}, which is none of {names}: leave it out, so "
                    "that its output is moved"
                )
        self.statistics = OverlayStatistics()
        self._model, self._device = model, device
        self._cheap, self._prefetched, self._compressed = recomputed, prefetched, compressed
        self._before_all = device.compression
        self._moves = Moves()
        self._store = Watched(RemoteStore(device, compressed=compressed), self._moves)
        self._residency = Residency(None, self, least_bytes=least_bytes)
        self._residency.statistics = self.statistics
        self._aliases: dict[Held, weakref.WeakSet[_Alias]] = defaultdict(weakref.WeakSet)
        """Aliases of storages, in the order in which they were saved."""
        self._leaving: dict[Held, None] = {}
        """Saved storages that something else may still use."""
        self._calls: dict[Held, tuple[Held, Callable[[], Tensor]]] = {}
        """Input storage and recomputing function of each output of a cheap layer."""
        self._layers: list[nn.Module] = []
        """Cheap layers with a replaced ``forward``."""
        self._copies: list[PlainCopies] = []
        self._packing: Any = None
        self._modes = 0

    def report(self) -> dict[str, Any]:
        """Return the totals so far, ready for JSON; memory is of the model and results."""
        recomputed = self.statistics.bytes_recomputed
        return {**self._residency.report(), "recomputed_bytes": recomputed}

    def __str__(self) -> str:
        return table("MemoryOverlay", self.report())

    def timeline(self, path: Path | str) -> Path:
        """Write what has moved since the overlay was entered, and return the file.

        The file is for https://ui.perfetto.dev, or a picture if its name ends in ``.svg`` or
        ``.png``. Times are the host's, not the simulated links'. Raises ``InvalidArgumentError``
        for a path that cannot be written.
        """
        return self._moves.write(path, "MemoryOverlay")

    def __getstate__(self) -> Any:
        raise TypeError(
            "MemoryOverlay belongs to its model: copy the model, which gives a plain model"
        )

    def __enter__(self) -> MemoryOverlay:
        self._residency.__enter__()
        self._moves.restart()
        self._modes = _modes()
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            if (held := self._residency.held(tensor)) is not None:
                held.pinned = True
        for layer in self._model.modules():
            if type(layer) in self._cheap and "forward" not in vars(layer):
                layer.forward = partial(self._forward, layer)
                self._layers.append(layer)
                self._copies.append(PlainCopies(layer, (), names=("forward",)))
        self._packing = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._packing.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._packing.__exit__(*error)
        while self._layers:
            vars(self._layers.pop()).pop("forward", None)
            self._copies.pop().close()
        try:
            if error[0] is None:
                self.before(None, [])
            for source in [source for source, _ in self._calls.values()]:
                if source.here:
                    self.written(source)  # it may change from now on
            if error[0] is None:
                self.before(None, [])
        finally:
            self._residency.__exit__()
            for held in self._residency:
                if held.here:
                    self._residency.forget(held)
                    self.freed(held)
            self._store.close()
        if self._compressed:
            self.statistics.compression = self._device.compression.since(self._before_all)

    # Forward pass: tensors that layers save.

    def _forward(self, layer: Any, *inputs: Any, **keywords: Any) -> Any:
        """Call a cheap layer, and record how to recompute its output from the input's bytes."""
        hooks = _C._autograd._top_saved_tensors_default_hooks(False)
        ours = hooks is not None and hooks[0] == self._pack  # not another overlay's
        source = self._held(inputs[0]) if ours and len(inputs) == 1 and not keywords else None
        if source is None or inputs[0].is_complex() or _modes() != self._modes:
            return type(layer).forward(layer, *inputs, **keywords)
        lies = inputs[0].size(), inputs[0].stride(), inputs[0].storage_offset()
        alias: Any = None
        before: Any = None
        if source in self._calls and source.slot < 0:
            source, before = self._calls[source]
        else:
            alias = self._alias(inputs[0], source)
        random = torch.get_rng_state() if isinstance(layer, nn.Dropout) else None
        output = type(layer).forward(layer, *inputs)
        autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        threads = torch.get_num_threads()  # the order of sums depends on it
        layer = _as_it_is(layer)

        def again() -> Tensor:
            threads_now = torch.get_num_threads()
            with (
                torch.no_grad(),
                torch.autocast("cpu", *autocast),
                torch.random.fork_rng([], enabled=random is not None),
            ):
                values = alias.tensor if alias else before().as_strided(*lies)
                self._residency.bring(values)
                if random is not None:
                    torch.set_rng_state(random)
                torch.set_num_threads(threads)
                try:
                    inplace = getattr(layer, "inplace", False)
                    made = layer.forward(values.clone() if inplace else values)
                finally:
                    torch.set_num_threads(threads_now)
            self.statistics.bytes_recomputed += made.untyped_storage().nbytes()
            return made

        held = self._held(output)
        unchanged = alias is None or (source.slot >= 0 and alias.same)
        if unchanged and layer is not None and held not in (None, source):
            self._calls[held] = source, again
        return output

    def _held(self, value: Any) -> Held | None:
        """Return the record of a plain tensor's storage, None for other tensors."""
        if (
            type(value) not in (Tensor, nn.Parameter)
            or value.layout != torch.strided
            or value.is_nested
            or value.is_quantized
            or value.is_inference()
            or _C._functorch.is_functorch_wrapped_tensor(value)
        ):
            return None
        return self._residency.held(value)

    def _alias(self, tensor: Tensor, held: Held) -> _Alias:
        alias = _Alias(tensor.detach(), held)
        self._aliases[held].add(alias)
        return alias

    def _pack(self, tensor: Tensor) -> _Alias:
        held = self._held(tensor)
        if held is None or held.pinned:
            # The gradient function holds the result; if that held this tensor, it would be a cycle.
            return _Alias(tensor if tensor.grad_fn is None else tensor.detach())
        held.slot, held.store = 0, self._store
        self._leaving[held] = None
        return self._alias(tensor, held)

    def before(self, func: Any, used: list[Held]) -> int:
        """Let saved storages leave that nothing else uses."""
        for held in [*self._leaving]:
            storage = held.storage()
            ours = 1 + len(self._aliases[held])  # PyTorch's object in Python has it, too
            if storage is None or not self._residency.can_leave(held):
                continue
            if _C._storage_Use_Count(storage._cdata) == ours:
                del self._leaving[held]
                held.make = self._calls.get(held, (held, None))[1]
                self._residency.drop(held)
        return 0

    def written(self, held: Held) -> None:
        """Recompute the tensors that depend on a storage before it is written."""
        self._calls.pop(held, None)
        for made in [made for made, (source, _) in self._calls.items() if source is held]:
            if made in self._calls:
                del self._calls[made]
                if not made.here and made.storage() is not None:
                    self._residency.fetch(made)
                    self._leaving[made] = None
                made.make = None

    def freed(self, held: Held) -> None:
        for records in (self._leaving, self._calls, self._aliases):
            records.pop(held, None)

    # Backward pass: tensors that it needs.

    def _unpack(self, saved: _Alias) -> Tensor:
        tensor, held = saved.tensor, saved.held
        if not saved.same:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{tensor.type()} {list(tensor.size())}] is at version "
                f"{tensor._version}; expected version {saved.version} instead: change a copy of it"
            )
        self._residency.bring(tensor)
        if held in self._aliases and self._residency.takes:
            self._leaving.pop(held, None)
            order = [*self._aliases]
            at = order.index(held)
            for other in order[max(at - self._prefetched, 0) : at][::-1]:
                while other in self._calls:
                    other = self._calls[other][0]
                self._residency.fetch(other)
        return tensor


def _modes() -> int:
    """Return the number of PyTorch modes entered."""
    return _C._len_torch_function_stack() + _C._len_torch_dispatch_stack()


def _as_it_is(module: nn.Module) -> nn.Module | None:
    """Return a copy of a cheap layer that keeps its present values, None if it cannot."""
    copied = copy(module)
    vars(copied).pop("forward", None)
    for name, value in vars(copied).items():
        if name[0] != "_" and not isinstance(value, int | float | str | tuple | None):
            return None
    for own in ("_parameters", "_buffers"):
        held = vars(module)[own].items()
        vars(copied)[own] = {
            name: value if value is None else value.detach().clone() for name, value in held
        }
    return copied
