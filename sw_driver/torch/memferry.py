"""MemFerry for real: a PyTorch model trained by a plan, with its parameters in the host's memory.

Parameters and gradients are in a long vector each in the host's memory, pinned and mapped, where
kernels of the GPU read and write them. Layers that a plan copies have room in a vector in the GPU's
memory. A parameter is a view of the former, and of the latter while a layer that is copied is
computed. Without a GPU all vectors are in the host's memory, and the same is copied.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from types import MethodType
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from sw_driver.device.errors import InvalidArgumentError, shown
from sw_driver.numbers import check_integer, check_name

from .copies import PlainCopies
from .parameters import HOOK_RESULT, check_own_memory, check_training
from .profiler import Cuda, layers_of
from .residency import described

__all__ = ["MemFerry"]

_ALIGNED_BYTES = 256
"""For the fastest kernels."""

_WAYS = "to_gpu", "to_host", "written"

_C: Any = torch._C


class _Host:
    """In place of a GPU: copies are made at once."""

    device = torch.device("cpu")

    def pinned(self, nbytes: int) -> tuple[Tensor, Tensor]:
        block = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return block, block

    def begin(self) -> None:
        pass

    def load(self, target: Tensor, source: Tensor) -> Any:
        target.copy_(source)
        return True

    def wait(self, loaded: Any) -> None:
        pass

    def save(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def settle(self) -> None:
        pass


class _Gpu(Cuda):
    """Copies in streams of their own, one for each direction."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        if device.index is not None:
            self.device = device
        self._up, self._down = (torch.cuda.Stream(self.device) for _ in range(2))

    def begin(self) -> None:
        """What was read until here may be overwritten by what is loaded from here on."""
        self._up.wait_stream(torch.cuda.current_stream(self.device))

    def load(self, target: Tensor, source: Tensor) -> Any:
        with torch.cuda.stream(self._up):
            target.copy_(source, non_blocking=True)
            return self._up.record_event()

    def wait(self, loaded: Any) -> None:
        torch.cuda.current_stream(self.device).wait_event(loaded)

    def save(self, target: Tensor, source: Tensor) -> None:
        self._down.wait_stream(torch.cuda.current_stream(self.device))
        source.record_stream(self._down)
        with torch.cuda.stream(self._down):
            target.copy_(source, non_blocking=True)

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)


@dataclass(eq=False)
class _Held:
    """A parameter. Of two tensors the first is its values, the second its gradient."""

    name: str
    parameter: nn.Parameter
    host: tuple[Tensor, Tensor]
    mapped: tuple[Tensor, Tensor]
    """The same as the GPU has them."""
    copy: Tensor
    """Its values in the layer's room; those of the host for DHA."""

    def give(self, *, host: bool) -> None:
        """Has the host work on it, or the GPU."""
        parameter, (values, gradient) = self.parameter, self.host if host else self.mapped
        if (parameter.data_ptr(), parameter.dtype) != (values.data_ptr(), values.dtype):
            raise RuntimeError(
                f"parameter {self.name!r} was given other memory, as by model.to() or "
                "share_memory(): change it in place, or before MemFerry(...)"
            )
        if parameter.device == values.device:
            return
        before, parameter.grad = parameter.grad, None
        parameter.data = values
        if before is not None:
            if before.data_ptr() != gradient.data_ptr():
                gradient.copy_(before)
            parameter.grad = gradient


@dataclass(eq=False)
class _Layer:
    name: str
    mode: str
    copies_gradients: bool
    held: list[_Held] = field(default_factory=list)
    nbytes: int = 0
    source: Tensor = field(init=False)
    """Its part of the host's vector of parameters."""
    room: Tensor = field(init=False)
    """Its part of the GPU's; empty for DHA."""
    loaded: Any = None
    """When the room has what the source has."""
    calls: list[Any] = field(default_factory=list)
    """Those that run: hooks, and versions of its parameters before."""

    def in_room(self, tensor: Tensor) -> Tensor:
        """A tensor of its source as it is in its room."""
        vector = self.room[tensor.data_ptr() - self.source.data_ptr() :].view(tensor.dtype)
        return vector.as_strided(tensor.shape, tensor.stride())


class _Saved:
    """What the backward pass needs, and its version, which PyTorch does not check then."""

    def __init__(self, tensor: Tensor) -> None:
        self.version = tensor._version
        self.tensor = tensor.detach()

    def checked(self) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(
                f"a tensor {tuple(self.tensor.shape)} that the backward pass needs was modified by "
                "an inplace operation, such as an optimizer's step: call backward() before it"
            )
        return self.tensor


class MemFerry:
    """Trains a model by a plan for its layers from here on; the training loop stays as it is.

    Losses, gradients and parameters are bit for bit those of training without, with the update on
    the host. Parameters may be read and changed in place whenever the model is not called,
    gradients after ``backward()``. Layers are copied anew for each call of the model. The update is
    all in the optimizer's ``step()``, behind clipping and accumulation. State dicts are PyTorch's.

    Parameters
    ----------
    model
        Its parameters have other memory afterwards.
    optimizer
        One of PyTorch's, of the model's parameters. Its state is in the host's memory afterwards.
    plan
        What ``nearmem plan memferry --json`` prints, its results, or a file of either.
    device
        Where the model is computed, by default where its parameters are: the CPU, or a GPU with
        CUDA. Buffers are moved there.
    budget_bytes
        The most of the GPU's memory for copies of parameters, by default what the plan needs.

    Raises
    ------
    InvalidArgumentError
        For a plan of other layers, or one whose copies need more than the budget; an optimizer of
        other parameters; parameters on several devices, or of the whole model. Nothing has changed
        then.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        plan: Mapping[str, Any] | str | Path,
        device: torch.device | str | None = None,
        budget_bytes: int | None = None,
    ) -> None:
        check_training(model, optimizer)
        check_own_memory(model)
        modules = layers_of(model)
        self._layers = _planned(plan, modules)
        names = {each: name for name, each in model.named_parameters()}
        devices = {each.device: name for each, name in names.items()}
        if len(devices) > 1:
            where = ", ".join(f"{name!r} on {each}" for each, name in devices.items())
            raise InvalidArgumentError(f"parameters {where}: expected all on one device")
        # A parameter of several layers belongs to the last, as in a profile.
        owners = {p: layer for layer in self._layers for p in modules[layer.name].parameters()}
        for parameter, layer in owners.items():
            layer.nbytes += _padded(parameter)
        self.gpu_bytes = sum(each.nbytes for each in self._layers if each.mode != "DHA")
        """Of the GPU's memory, for copies of parameters."""
        self.budget_bytes = self.gpu_bytes if budget_bytes is None else budget_bytes
        check_integer("budget_bytes", self.budget_bytes, 0)
        if self.gpu_bytes > self.budget_bytes:
            raise InvalidArgumentError(
                f"budget_bytes is {budget_bytes}, but the plan's copies take {self.gpu_bytes}: "
                "give as much, or plan for less with --gpu-memory"
            )
        self.counts = {each.name: Counter[str]() for each in self._layers}
        """Bytes by layer: ``to_gpu`` of parameters that were copied, ``to_host`` of gradients that
        were, ``written`` of gradients that kernels wrote to the host's memory."""
        self._task = -1
        self._inside = False
        """Whether the model is called."""
        self._of: dict[Tensor, tuple[_Layer, _Held]] = {}
        self._device = _device(next(iter(devices)) if device is None else device)
        self._place(owners, names)
        for each in model.buffers():
            each.data = each.to(self._device.device)
        self._hook(model, modules, optimizer)
        if optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())

    def report(self) -> dict[str, Any]:
        """Bytes of memory, what was moved so far, and the same for each layer; ready for JSON."""
        moved = sum(self.counts.values(), Counter[str]())
        return {
            "budget_bytes": self.budget_bytes,
            "gpu_bytes": self.gpu_bytes,
            "host_bytes": 2 * sum(each.nbytes for each in self._layers),
            **{f"{way}_bytes": moved[way] for way in _WAYS},
            "layers": {
                each.name: {
                    "mode": each.mode,
                    "gradients": "copied" if each.copies_gradients else "written",
                    **{f"{way}_bytes": self.counts[each.name][way] for way in _WAYS},
                }
                for each in self._layers
            },
        }

    def __str__(self) -> str:
        report = self.report()
        modes = Counter(each["mode"] for each in report.pop("layers").values())
        counted = ", ".join(f"{number} layers {mode}" for mode, number in modes.items())
        return described(f"MemFerry: {counted}", report)

    def __getstate__(self) -> Any:
        raise TypeError("MemFerry is of one model: copy the model, which is a plain one then")

    def _place(self, owners: Mapping[nn.Parameter, _Layer], names: Mapping[Any, str]) -> None:
        """Gives the parameters their memory on the host, and layers theirs on the GPU."""
        total = sum(each.nbytes for each in self._layers)
        vectors = [self._device.pinned(total) for _ in range(2)]
        rooms = torch.empty(self.gpu_bytes, dtype=torch.uint8, device=self._device.device)
        at = 0
        for layer in self._layers:
            layer.source = vectors[0][0][at : at + layer.nbytes]
            layer.room, rooms = rooms.tensor_split([(layer.mode != "DHA") * layer.nbytes])
            for parameter in [each for each, owner in owners.items() if owner is layer]:
                view = partial(_view, at, parameter.data)
                host, mapped = zip(*(map(view, each) for each in vectors), strict=True)
                host[0].copy_(parameter.data)
                before, parameter.grad = parameter.grad, None
                parameter.data = mapped[0]
                if before is not None:
                    parameter.grad = mapped[1].copy_(before)
                copy = host[0] if layer.mode == "DHA" else layer.in_room(host[0])
                layer.held.append(_Held(names[parameter], parameter, host, mapped, copy))
                at += _padded(parameter)

    def _hook(self, model: nn.Module, modules: Mapping[str, Any], optimizer: Optimizer) -> None:
        accumulate = WeakMethod(self._accumulated)  # Python frees no cycle with a parameter's hook

        def accumulated(parameter: Tensor) -> None:
            if (call := accumulate()) is not None:
                call(parameter)

        hooks = [
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._turn, always_call=True),
        ]
        for layer in self._layers:
            if layer.mode != "DHA":
                module = modules[layer.name]
                enter, leave = partial(self._enter, layer), partial(self._leave, layer)
                hooks.append(module.register_forward_pre_hook(enter))
                hooks.append(module.register_forward_hook(leave, always_call=True))
            for each in layer.held:
                self._of[each.parameter] = layer, each
                if each.parameter.requires_grad:
                    each.parameter.register_post_accumulate_grad_hook(accumulated)
        PlainCopies(model, hooks)
        optimizer.step = MethodType(self._stepping(optimizer.step), optimizer)
        optimizer.register_load_state_dict_pre_hook(lambda *_: self._give_all(host=True))
        optimizer.register_load_state_dict_post_hook(lambda *_: self._give_all(host=False))

    def _give_all(self, *, host: bool) -> None:
        if host:
            self._device.settle()
        for layer in self._layers:
            layer.loaded = None
            for each in layer.held:
                each.give(host=host)

    def _begin(self, module: nn.Module, args: Any) -> None:
        if not _in_backward() and not _is_transformed():
            self._give_all(host=False)
            self._device.begin()
            for layer in self._layers:
                if layer.mode == "GFGB":
                    self._load(layer)
            self._inside = True

    def _turn(self, module: nn.Module, args: Any, output: Any) -> None:
        if _in_backward() or _is_transformed():
            return
        self._inside = False
        if torch.is_grad_enabled() and output is not None:
            for layer in reversed(self._layers):
                if layer.mode == "DFGB":
                    self._load(layer)

    def _load(self, layer: _Layer) -> None:
        layer.loaded = self._device.load(layer.room, layer.source)
        self.counts[layer.name]["to_gpu"] += layer.nbytes

    def _enter(self, layer: _Layer, module: nn.Module, args: Any) -> None:
        if _is_transformed():
            return
        hooks = saved_tensors_hooks(*self._saving(layer))
        hooks.__enter__()
        layer.calls.append((hooks, [each.parameter._version for each in layer.held]))
        beside = not self._inside and not _in_backward()
        if layer.mode == "GFGB" and (beside or layer.loaded is None):
            self._device.begin()
            self._load(layer)  # the program may have changed its parameters since the last time
        if layer.loaded is not None and (layer.mode == "GFGB" or _in_backward()):
            self._device.wait(layer.loaded)
            for each in layer.held:
                each.parameter.data = each.copy

    def _leave(self, layer: _Layer, module: nn.Module, args: Any, output: Any) -> None:
        if not layer.calls or _is_transformed():
            return  # it failed before it was entered
        hooks, versions = layer.calls.pop()
        hooks.__exit__()
        for each, version in zip(layer.held, versions, strict=True):
            if each.parameter._version != version:
                each.mapped[0].copy_(each.parameter.data)
            each.parameter.data = each.mapped[0]

    def _saving(self, layer: _Layer) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
        """Hooks for what a layer saves: its parameters are then taken from its room, all else is
        for the hooks around, such as those of checkpoints."""
        around = _C._autograd._top_saved_tensors_default_hooks(False)

        def pack(tensor: Tensor) -> Any:
            if around is None or any(_has(each, tensor) for each in (layer.source, layer.room)):
                return _Saved(tensor)
            return around[0](tensor)

        def unpack(saved: Any) -> Tensor:
            if not isinstance(saved, _Saved):
                return around[1](saved)
            tensor = saved.checked()
            if layer.loaded is not None and _has(layer.source, tensor):
                self._device.wait(layer.loaded)
                return layer.in_room(tensor)
            return tensor

        return pack, unpack

    @torch.no_grad()
    def _accumulated(self, parameter: Tensor) -> None:
        if parameter not in self._of:
            raise RuntimeError(HOOK_RESULT)
        layer, held = self._of[parameter]
        if (task := _C._current_graph_task_id()) != self._task:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._device.settle)
        gradient: Any = parameter.grad
        if gradient.layout is not torch.strided:
            raise InvalidArgumentError(
                f"the gradient of {held.name!r} is {gradient.layout}: expected a dense one"
            )
        way = "written"
        if gradient.data_ptr() == held.host[1].data_ptr():
            pass  # it was added to the one there
        elif layer.copies_gradients:
            way = "to_host"
            self._device.save(held.host[1], gradient)
        else:
            torch.mul(gradient, 1, out=held.mapped[1])
        self.counts[layer.name][way] += gradient.nbytes
        parameter.grad = held.mapped[1]

    def _stepping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """An optimizer's step, on the host."""

        @wraps(step)
        def stepping(_: Optimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
            def on_gpu() -> Any:
                self._give_all(host=False)
                try:
                    return closure and closure()
                finally:
                    self._give_all(host=True)

            self._give_all(host=True)
            try:
                return step(*[on_gpu] * (closure is not None), **options)
            finally:
                self._give_all(host=False)

        return stepping


def _planned(plan: Mapping[str, Any] | str | Path, modules: Mapping[str, Any]) -> list[_Layer]:
    """The layers in the plan's order."""
    try:
        found = plan if isinstance(plan, Mapping) else json.loads(Path(plan).read_text("utf-8-sig"))
        found = found.get("results", found)
        modes, stay = dict(found["modes"]), list(found["gradients_on_gpu"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"plan is {shown(plan)}: expected what `nearmem plan memferry --json` prints, with "
            "modes and gradients_on_gpu"
        ) from error
    for name in (*modes, *stay):
        check_name("a layer of the plan", name, modules)
    if missing := [name for name in modules if name not in modes]:
        raise InvalidArgumentError(
            f"the plan has no mode for {', '.join(missing)}: expected one for each layer"
        )
    for name, mode in modes.items():
        check_name(f"the mode of {name!r}", mode, ("GFGB", "DHA", "DFGB"))
    return [_Layer(name, mode, name in stay) for name, mode in modes.items()]


def _device(given: torch.device | str) -> _Host | _Gpu:
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError, ValueError):
        raise InvalidArgumentError(f"device is {shown(given)}: expected cpu or cuda") from None
    check_name("the device's type", device.type, ("cpu", "cuda"))
    return _Host() if device.type == "cpu" else _Gpu(device)


def _span_bytes(tensor: Tensor) -> int:
    """From a tensor's first element to the end of its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((size - 1) * stride for size, stride in steps)
    return elements * tensor.itemsize if tensor.numel() else 0


def _padded(tensor: Tensor) -> int:
    return -(-_span_bytes(tensor) // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _view(begin: int, like: Tensor, vector: Tensor) -> Tensor:
    """A tensor in a vector, laid out as another is, so that it is computed alike.

    It has a storage of its own, as what saves models takes those that share one for the same.
    """
    storage = vector.untyped_storage()[begin : begin + _span_bytes(like)]
    made = torch.empty(0, dtype=like.dtype, device=vector.device)
    return made.set_(storage, 0, like.shape, like.stride())


def _has(vector: Tensor, tensor: Tensor) -> bool:
    return 0 <= tensor.data_ptr() - vector.data_ptr() < vector.nbytes


def _in_backward() -> bool:
    return _C._current_graph_task_id() != -1


def _is_transformed() -> bool:
    """Return whether ``torch.func`` transforms what runs: layers are then read where they are."""
    return _C._functorch.peek_interpreter_stack() is not None
