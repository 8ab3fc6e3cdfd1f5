"""MemFerry on a PyTorch model: trained by a plan, with its parameters in the host's memory.

Parameters and gradients each have a long vector in the host's memory, pinned and mapped, which
kernels of the GPU read and write. Layers that the plan copies have room in a vector in the GPU's
memory. A parameter is a view of the host's vector, and of the GPU's while a copied layer is
computed. Without a GPU all vectors are in the host's memory, and the same copies are made.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from math import inf
from pathlib import Path
from types import MethodType
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from sw_driver.device.errors import InvalidArgumentError, shown
from sw_driver.numbers import check_name, check_size

from .copies import PlainCopies
from .moves import Moves, table
from .parameters import HOOK_RESULT, check_own_memory, check_training
from .profiler import Cuda, layers_of
from .step import Interrupts, calls_of

__all__ = ["MemFerry"]

_ALIGNED_BYTES = 256
"""Alignment for the fastest kernels, in bytes."""

_WAYS = "to_gpu", "to_host", "written"

_C: Any = torch._C


class _Copies:
    """Copies between the host's memory and a device's, in a stream each way; a CPU's are at once.

    ``torch.cpu`` has what stands for streams.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpu = Cuda() if device.type == "cuda" else None
        self.device = device
        if self._gpu is not None and device.index is None:
            self.device = self._gpu.device
        self._torch: Any = torch.get_device_module(device)
        places = () if self._gpu is None else (self.device,)
        self._up, self._down = (self._torch.Stream(*places) for _ in range(2))

    def mark(self, *, back: bool = True) -> Any:
        """Return a mark of the time between copies, those ``back`` to the device or the others."""
        if self._gpu is None:
            return time.perf_counter_ns()
        stream = self._up if back else self._down
        return stream.record_event(torch.cuda.Event(enable_timing=True))

    def pinned(self, nbytes: int) -> tuple[Tensor, Tensor]:
        """Return host memory, for copies and as the device sees it."""
        if self._gpu is not None:
            return self._gpu.pinned(nbytes)
        block = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return block, block

    def begin(self) -> None:
        """Let later loads overwrite memory that earlier work reads, once that work is done."""
        self._up.wait_stream(self._torch.current_stream(self.device))

    def load(self, target: Tensor, source: Tensor) -> Any:
        with self._torch.stream(self._up):
            target.copy_(source, non_blocking=True)
            return self._up.record_event() or True

    def wait(self, loaded: Any) -> None:
        self._torch.current_stream(self.device).wait_event(loaded)

    def save(self, target: Tensor, source: Tensor) -> None:
        self._down.wait_stream(self._torch.current_stream(self.device))
        if self._gpu is not None:
            source.record_stream(self._down)
        with self._torch.stream(self._down):
            target.copy_(source, non_blocking=True)

    def settle(self) -> None:
        self._torch.synchronize(self.device)


@dataclass(eq=False)
class _Held:
    """A parameter. The tuples have its values first and its gradient second."""

    name: str
    parameter: nn.Parameter
    host: tuple[Tensor, Tensor]
    mapped: tuple[Tensor, Tensor]
    """The same tensors as the GPU sees them."""
    copy: Tensor
    """Values in the layer's room; those in host memory for DHA."""

    def give(self, *, host: bool) -> None:
        """Give the parameter the host's tensors, or the GPU's."""
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
    """Layer's part of the host's vector of parameters."""
    room: Tensor = field(init=False)
    """Layer's part of the GPU's vector; empty for DHA."""
    loaded: Any = None
    """Event after which the room has the values of the source."""
    calls: list[Any] = field(default_factory=list)
    """Running calls: saved-tensor hooks, and versions of the parameters before the call."""

    def in_room(self, tensor: Tensor) -> Tensor:
        """Return the tensor in the room that corresponds to a tensor in the source."""
        vector = self.room[tensor.data_ptr() - self.source.data_ptr() :].view(tensor.dtype)
        return vector.as_strided(tensor.shape, tensor.stride())


class _Saved:
    """A tensor saved for the backward pass, with its version, which PyTorch then does not check."""

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
    """Training of a model by a plan for its layers; the training loop stays as it is.

    Losses, gradients and parameters are bit for bit those of ordinary training with the update on
    the host. The program may read parameters and change them in place while the model is not
    called, and gradients after ``backward()``. Layers are copied anew for each call of the model.
    The optimizer's ``step()`` makes the whole update, after clipping and accumulation. State dicts
    are PyTorch's.

    Parameters
    ----------
    model
        Model to train; its parameters get other memory.
    optimizer
        PyTorch optimizer of the model's parameters; its state moves to the host's memory.
    plan
        Output of ``nearmem plan memferry --json``, its results, or a file of either. Without one,
        lookups and layers of vectors are read where they are, and others are copied, the largest
        first, as far as their copies fit in the budget.
    device
        Device that computes the model, the CPU or a CUDA GPU; by default that of its parameters.
        Buffers are moved there.
    budget
        Most of the GPU's memory for copies of parameters: bytes, or a size such as ``"12GiB"``; by
        default what the plan needs.

    Raises
    ------
    InvalidArgumentError
        For a plan of other layers, or with copies that need more than the budget; for an optimizer
        of other parameters; for parameters on several devices, or of the whole model. Nothing has
        changed then.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 10))
    >>> plan = {"modes": {"0": "DHA", "1": "GFGB"}, "gradients_on_gpu": ["1"]}
    >>> ferry = MemFerry(model, torch.optim.SGD(model.parameters(), lr=0.1), plan=plan)
    >>> model(torch.arange(8)).sum().backward()
    >>> ferry.report()["host_bytes"], ferry.report()["peak_bytes"]
    (517632, 2816)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        plan: Mapping[str, Any] | str | Path | None = None,
        device: torch.device | str | None = None,
        budget: int | str | None = None,
    ) -> None:
        check_training(model, optimizer)
        check_own_memory(model)
        modules = layers_of(model)
        given = None if budget is None else check_size("budget", budget, 0)
        self._layers = _planned(_by_rule(modules, given) if plan is None else plan, modules)
        names = {parameter: name for name, parameter in model.named_parameters()}
        devices = {parameter.device: name for parameter, name in names.items()}
        if len(devices) > 1:
            where = ", ".join(f"{name!r} on {place}" for place, name in devices.items())
            raise InvalidArgumentError(f"parameters {where}: expected all on one device")
        # A parameter of several layers belongs to the last, as in a profile.
        owners = {p: layer for layer in self._layers for p in modules[layer.name].parameters()}
        for parameter, layer in owners.items():
            layer.nbytes += _padded(parameter)
        self.peak_bytes = sum(layer.nbytes for layer in self._layers if layer.mode != "DHA")
        """Bytes of the GPU's memory for copies of parameters."""
        self.budget_bytes = self.peak_bytes if given is None else given
        if self.peak_bytes > self.budget_bytes:
            raise InvalidArgumentError(
                f"budget is {budget}, but the plan's copies take {self.peak_bytes}: "
                "give as much, or plan for less with --gpu-memory"
            )
        self.counts = {layer.name: Counter[str]() for layer in self._layers}
        """Bytes moved, by layer.

        ``to_gpu``: parameters copied; ``to_host``: gradients copied; ``written``: gradients that
        kernels wrote to the host's memory.
        """
        self._moves = Moves()
        self._uses = Counter[str]()
        self._waited_ns = 0
        self._began_ns = self._left_ns = 0
        """When the step and its last call of the model began and ended, in ns; 0 before."""
        self._task = -1
        self._inside = False
        """True while the model is called."""
        self._of: dict[Tensor, tuple[_Layer, _Held]] = {}
        self._origin = next(iter(devices))
        self._device = _device(self._origin if device is None else device)
        self._place(owners, names)
        for buffer in model.buffers():
            buffer.data = buffer.to(self._device.device)
        self._model, self._optimizer = model, optimizer
        self._hook(model, modules, optimizer)
        if optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())

    def close(self) -> None:
        """Give parameters memory of their own where they were, and take all hooks off."""
        if not self._hooks:
            return
        self._give_all(host=True)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._copies.close()
        if getattr(vars(self._optimizer).get("step"), "__func__", None) is self._stepping:
            del self._optimizer.step
        with torch.no_grad():
            for layer in self._layers:
                for held in layer.held:
                    parameter, gradient = held.parameter, held.parameter.grad
                    parameter.grad = None
                    parameter.data = parameter.data.to(self._origin, copy=True)
                    if gradient is not None:
                        parameter.grad = gradient.to(self._origin, copy=True)
        for buffer in self._model.buffers():
            buffer.data = buffer.to(self._origin)
        for layer in self._layers:
            layer.held.clear()
            layer.source = layer.room = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._of.clear()
        if self._optimizer.state:
            self._optimizer.load_state_dict(self._optimizer.state_dict())

    def __enter__(self) -> MemFerry:
        if not self._hooks:
            raise InvalidArgumentError("this policy is closed: make another")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report(self) -> dict[str, Any]:
        """Return bytes of memory and bytes moved so far, in total and by layer; ready for JSON.

        A hit is a use of a copy that was begun ahead. Waits are the host's, for copies in its
        memory; a GPU's own are in the timeline of its profiler.
        """
        moved = sum(self.counts.values(), Counter[str]())
        return {
            "budget_bytes": self.budget_bytes,
            "peak_bytes": self.peak_bytes,
            "out_bytes": moved["to_host"] + moved["written"],
            "back_bytes": moved["to_gpu"],
            "waited_ms": self._waited_ns // 10**6,
            "hits": self._uses["hits"],
            "misses": self._uses["misses"],
            "host_bytes": 2 * sum(layer.nbytes for layer in self._layers),
            **{f"{way}_bytes": moved[way] for way in _WAYS},
            "layers": {
                layer.name: {
                    "mode": layer.mode,
                    "gradients": "copied" if layer.copies_gradients else "written",
                    **{f"{way}_bytes": self.counts[layer.name][way] for way in _WAYS},
                }
                for layer in self._layers
            },
        }

    def __str__(self) -> str:
        report = self.report()
        modes = Counter(layer["mode"] for layer in report.pop("layers").values())
        counted = ", ".join(f"{number} layers {mode}" for mode, number in modes.items())
        return table(f"MemFerry: {counted}", report)

    def __getstate__(self) -> Any:
        raise TypeError("MemFerry belongs to its model: copy the model, which gives a plain model")

    def _place(self, owners: Mapping[nn.Parameter, _Layer], names: Mapping[Any, str]) -> None:
        """Give parameters their memory on the host, and layers their room on the GPU."""
        total = sum(layer.nbytes for layer in self._layers)
        vectors = [self._device.pinned(total) for _ in range(2)]
        rooms = torch.empty(self.peak_bytes, dtype=torch.uint8, device=self._device.device)
        at = 0
        for layer in self._layers:
            layer.source = vectors[0][0][at : at + layer.nbytes]
            layer.room, rooms = rooms.tensor_split([(layer.mode != "DHA") * layer.nbytes])
            for parameter in [own for own, owner in owners.items() if owner is layer]:
                view = partial(_view, at, parameter.data)
                host, mapped = zip(*(map(view, pair) for pair in vectors), strict=True)
                host[0].copy_(parameter.data)
                before, parameter.grad = parameter.grad, None
                parameter.data = mapped[0]
                if before is not None:
                    parameter.grad = mapped[1].copy_(before)
                copy = host[0] if layer.mode == "DHA" else layer.in_room(host[0])
                layer.held.append(_Held(names[parameter], parameter, host, mapped, copy))
                at += _padded(parameter)

    def _hook(self, model: nn.Module, modules: Mapping[str, Any], optimizer: Optimizer) -> None:
        accumulate = WeakMethod(self._accumulated)  # a parameter's hook in a cycle is never freed

        def accumulated(parameter: Tensor) -> None:
            if (call := accumulate()) is not None:
                call(parameter)

        hooks: list[Any] = [
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._turn, always_call=True),
        ]
        gradients: list[Any] = []
        for layer in self._layers:
            if layer.mode != "DHA":
                module = modules[layer.name]
                enter, leave = partial(self._enter, layer), partial(self._leave, layer)
                hooks.append(module.register_forward_pre_hook(enter))
                hooks.append(module.register_forward_hook(leave, always_call=True))
            for held in layer.held:
                self._of[held.parameter] = layer, held
                if held.parameter.requires_grad:
                    gradients.append(held.parameter.register_post_accumulate_grad_hook(accumulated))
        self._copies = PlainCopies(model, hooks)
        self._stepping = self._stepping_as(optimizer.step)
        optimizer.step = MethodType(self._stepping, optimizer)
        loading = [
            optimizer.register_load_state_dict_pre_hook(lambda *_: self._give_all(host=True)),
            optimizer.register_load_state_dict_post_hook(lambda *_: self._give_all(host=False)),
        ]
        self._hooks = [*hooks, *gradients, *loading]

    def _give_all(self, *, host: bool) -> None:
        self._end_interrupted()
        if host:
            self._device.settle()
        with Interrupts(recent=True):
            for layer in self._layers:
                layer.loaded = None
                for held in layer.held:
                    held.give(host=host)

    def _end_interrupted(self) -> None:
        """Leave the layers of a call that has ended without its last hooks."""
        self._inside = False
        for layer in self._layers:
            while layer.calls:
                self._leave(layer)

    def _begin(self, module: nn.Module, args: Any) -> None:
        if not _in_backward() and not _is_transformed():
            self._give_all(host=False)
            self._device.begin()
            if not self._began_ns:
                self._began_ns = time.perf_counter_ns()
                self._moves.restart(self._device.mark(back=True))
            for layer in self._layers:
                if layer.mode == "GFGB":
                    self._load(layer)
            self._inside = True

    def _turn(self, module: nn.Module, args: Any, output: Any) -> None:
        if _in_backward() or _is_transformed():
            return
        self._inside, self._left_ns = False, time.perf_counter_ns()
        if torch.is_grad_enabled() and output is not None:
            for layer in reversed(self._layers):
                if layer.mode == "DFGB":
                    self._load(layer)

    def _load(self, layer: _Layer) -> None:
        with self._noted("back", layer.name, layer.nbytes):
            layer.loaded = self._device.load(layer.room, layer.source)
        self.counts[layer.name]["to_gpu"] += layer.nbytes

    @contextmanager
    def _noted(self, track: str, name: str, nbytes: int) -> Iterator[None]:
        """Note when a copy is, for the timeline."""
        began = self._device.mark(back=track == "back")
        yield
        ended = self._device.mark(back=track == "back")
        self._moves.add(track, name, nbytes, began, ended)
        if isinstance(began, int):
            self._waited_ns += ended - began

    def _enter(self, layer: _Layer, module: nn.Module, args: Any) -> None:
        if _is_transformed():
            return
        if self._inside and not calls_of(nn.Module._call_impl, self._model):
            self._end_interrupted()
        with Interrupts(recent=True):
            self._begin_call(layer)

    def _begin_call(self, layer: _Layer) -> None:
        hooks = saved_tensors_hooks(*self._saving(layer))
        hooks.__enter__()
        layer.calls.append((hooks, [held.parameter._version for held in layer.held]))
        beside = not self._inside and not _in_backward()
        late = layer.mode == "GFGB" and (beside or layer.loaded is None)
        if late:
            self._device.begin()
            self._load(layer)  # the program may have changed the parameters since the last load
        if layer.loaded is not None and (layer.mode == "GFGB" or _in_backward()):
            self._uses["misses" if late else "hits"] += 1
            self._device.wait(layer.loaded)
            for held in layer.held:
                held.parameter.data = held.copy

    def _leave(self, layer: _Layer, *_: object) -> None:
        if not layer.calls or _is_transformed():
            return  # the call failed before `_enter`
        with Interrupts(recent=True):
            hooks, versions = layer.calls.pop()
            hooks.__exit__()
            for held, version in zip(layer.held, versions, strict=True):
                if held.parameter._version != version:
                    held.mapped[0].copy_(held.parameter.data)
                held.parameter.data = held.mapped[0]

    def _saving(self, layer: _Layer) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
        """Return saved-tensor hooks that read a layer's parameters from its room.

        All other tensors are left to the hooks around, such as those of checkpoints.
        """
        around = _C._autograd._top_saved_tensors_default_hooks(False)

        def pack(tensor: Tensor) -> Any:
            if around is None or any(_has(part, tensor) for part in (layer.source, layer.room)):
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
            pass  # it was added in place
        elif layer.copies_gradients:
            way = "to_host"
            with self._noted("out", held.name, gradient.nbytes):
                self._device.save(held.host[1], gradient)
        else:
            torch.mul(gradient, 1, out=held.mapped[1])
        self.counts[layer.name][way] += gradient.nbytes
        parameter.grad = held.mapped[1]

    def _stepping_as(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return an optimizer's step that runs on the host."""

        @wraps(step)
        def stepping(_: Optimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
            def on_gpu() -> Any:
                self._give_all(host=False)
                try:
                    return closure and closure()
                finally:
                    self._give_all(host=True)

            self._give_all(host=True)
            updated_ns = time.perf_counter_ns()
            try:
                return step(*[on_gpu] * (closure is not None), **options)
            finally:
                self._give_all(host=False)
                self._turn_step(updated_ns)

        return stepping

    def _turn_step(self, updated_ns: int) -> None:
        if self._began_ns:
            left_ns = self._left_ns or updated_ns
            self._moves.add("step", "forward", 0, self._began_ns, left_ns)
            self._moves.add("step", "backward", 0, left_ns, updated_ns)
            self._moves.add("step", "update", 0, updated_ns, time.perf_counter_ns())
            self._moves.turn()
            self._began_ns = self._left_ns = 0

    def timeline(self, path: Path | str) -> Path:
        """Write the last step's copies, and return the file.

        The file is for https://ui.perfetto.dev, or a picture if its name ends in ``.svg`` or
        ``.png``. Raises ``InvalidArgumentError`` for a path that cannot be written.
        """
        return self._moves.write(path, "MemFerry")


def _by_rule(modules: Mapping[str, nn.Module], budget_bytes: int | None) -> dict[str, Any]:
    """Return a plan by the layers' kinds.

    Lookups and layers of vectors, which read little, are read where they are. Others are copied,
    the largest first, as far as their copies fit.
    """
    owners = {p: name for name, module in modules.items() for p in module.parameters()}
    sizes = Counter[str]()
    for parameter, name in owners.items():
        sizes[name] += _padded(parameter)
    modes, left = dict.fromkeys(modules, "DHA"), inf if budget_bytes is None else budget_bytes
    for name, nbytes in sizes.most_common():
        lookup = isinstance(modules[name], nn.Embedding | nn.EmbeddingBag)
        matrix = any(parameter.dim() > 1 for parameter in modules[name].parameters())
        if matrix and not lookup and nbytes <= left:
            modes[name], left = "GFGB", left - nbytes
    copied = [name for name, mode in modes.items() if mode == "GFGB"]
    return {"modes": modes, "gradients_on_gpu": copied}


def _planned(plan: Mapping[str, Any] | str | Path, modules: Mapping[str, Any]) -> list[_Layer]:
    """Return the layers in the plan's order."""
    try:
        content = (
            plan if isinstance(plan, Mapping) else json.loads(Path(plan).read_text("utf-8-sig"))
        )
        content = content.get("results", content)
        modes, stay = dict(content["modes"]), list(content["gradients_on_gpu"])
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


def _device(given: torch.device | str) -> _Copies:
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError, ValueError):
        raise InvalidArgumentError(f"device is {shown(given)}: expected cpu or cuda") from None
    check_name("the device's type", device.type, ("cpu", "cuda"))
    return _Copies(device)


def _span_bytes(tensor: Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((size - 1) * stride for size, stride in steps)
    return elements * tensor.itemsize if tensor.numel() else 0


def _padded(tensor: Tensor) -> int:
    return -(-_span_bytes(tensor) // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _view(begin: int, like: Tensor, vector: Tensor) -> Tensor:
    """Return a tensor in a vector, with the strides of ``like``, so that it is computed alike.

    It has a storage of its own, since tensors in one storage are saved as one.
    """
    storage = vector.untyped_storage()[begin : begin + _span_bytes(like)]
    made = torch.empty(0, dtype=like.dtype, device=vector.device)
    return made.set_(storage, 0, like.shape, like.stride())


def _has(vector: Tensor, tensor: Tensor) -> bool:
    return 0 <= tensor.data_ptr() - vector.data_ptr() < vector.nbytes


def _in_backward() -> bool:
    return _C._current_graph_task_id() != -1


def _is_transformed() -> bool:
    """Return whether ``torch.func`` transforms the running code: layers then stay in place."""
    return _C._functorch.peek_interpreter_stack() is not None
