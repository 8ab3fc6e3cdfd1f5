"""Measured profile of a PyTorch model's training steps on a GPU with CUDA.

A layer is a module with parameters of its own, and all modules in it. It runs from its call to its
return, and in the backward pass from the gradient of its output to the last gradient it makes. All
other work is in the gap between layers. Steps run with the parameters in the GPU's memory, and then
in the host's, pinned and mapped, where the GPU's kernels read them. Work is queued before the GPU
begins, so times are the GPU's and not Python's.

A kernel of its own writes a gradient to the host's memory, after the kernel that makes it. A
parameter of several layers belongs to the last of them. The others always read it in the host's
memory, since it is copied only for the last.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Adam, Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_integer
from sw_driver.system.memferry.profile import LayerProfile, ModelProfile

__all__ = ["Cuda", "in_host_memory", "layers_of", "profile_model"]

_HELD_CYCLES = 2 * 10**8
"""Cycles, about a tenth of a second, in which Python queues a step."""


class Cuda:
    """The current CUDA GPU.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if there is none.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise InvalidArgumentError(
                "PyTorch finds no GPU with CUDA: profile on a machine with one, or use the cost "
                "model, sw_driver.system.memferry.costs.profile_of"
            )
        self.name = torch.cuda.get_device_name()
        self.device = torch.device("cuda", torch.cuda.current_device())

    def hold(self) -> None:
        """End running work, and let the GPU wait until the following work is queued."""
        torch.cuda.synchronize()
        torch.cuda._sleep(_HELD_CYCLES)

    def mark(self) -> Any:
        """Return a time mark between the work queued before it and after it."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ns(self, before: Any, after: Any) -> int:
        """Return the time between two marks, in ns."""
        after.synchronize()
        return round(before.elapsed_time(after) * 1e6)

    def host_ns(self) -> int:
        """Return the host's time, in ns."""
        return time.perf_counter_ns()

    def peak_bytes(self) -> int:
        """Return the peak of the GPU's memory in use since the last call, in bytes."""
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak

    def pinned(self, nbytes: int) -> tuple[Tensor, Tensor]:
        """Return ``nbytes`` of pinned host memory: for copies, and as GPU kernels see it."""
        block = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        # Pinned memory has the same address for the GPU.
        interface = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (block.data_ptr(), False),
            "version": 3,
        }
        mapped = SimpleNamespace(block=block, __cuda_array_interface__=interface)
        return block, torch.as_tensor(mapped, dtype=torch.uint8, device=self.device)

    def host(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return a copy in host memory, twice as in :meth:`pinned`."""
        there, seen = (
            memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
            for memory in self.pinned(tensor.nbytes)
        )
        there.copy_(tensor)
        return there, seen


def profile_model(
    model: nn.Module,
    batch: Sequence[Any],
    step: Callable[..., Tensor],
    *,
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None,
    repeats: int = 5,
    gpu: Cuda | None = None,
) -> ModelProfile:
    """Return the profile of a training step with the loss ``step(model, *batch)``.

    Parameters and their gradients are restored. Buffers, such as running statistics, and random
    numbers advance. Activations of the first layer include the batch and the model's buffers.

    Parameters
    ----------
    optimizer
        Makes the optimizer that updates parameters on the host; PyTorch's fused Adam by default.
    repeats
        Number of measurements, of which the median is taken.
    gpu
        GPU with model and batch; the current one by default.

    Raises
    ------
    InvalidArgumentError
        Without a GPU; for parameters that are not on it or belong to the whole model; for a module
        with parameters that the step does not call, or calls in the backward pass; and for a step
        that returns no loss or makes gradients itself.
    """
    check_integer("repeats", repeats)
    gpu = Cuda() if gpu is None else gpu
    steps = _Steps(model, batch, step, gpu)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with steps.watched():
            for parameter, _ in gradients:
                parameter.grad = None
            kept, workspace = steps.memory()
            on_gpu = steps.times(repeats)
            with in_host_memory(model, gpu) as there:
                by_dha = steps.times(repeats)
    finally:
        for parameter, grad in gradients:
            parameter.grad = grad
    by_layer = [[*steps.layers[name].parameters()] for name in steps.numbers]
    owners = {one: number for number, parameters in enumerate(by_layer) for one in parameters}
    own = [
        [(one, *there[one]) for one in parameters if owners[one] == number]
        for number, parameters in enumerate(by_layer)
    ]
    trained = [[copied for copied in layer if copied[0] in steps.trained] for layer in own]
    with torch.no_grad():
        copies = _layers_ns(own, lambda here, host, _: here.copy_(host, True), gpu, repeats)
        writes = _layers_ns(
            trained, lambda here, _, host: torch.mul(here, 1, out=host), gpu, repeats
        )
    layers: list[LayerProfile] = []
    for number, name in enumerate(steps.numbers):
        borrows = any(owners[parameter] != number for parameter in by_layer[number])
        gaps, slow = on_gpu[number], by_dha[number]
        times = slow if borrows else gaps
        layers.append(
            LayerProfile(
                name=name,
                nbytes=sum(parameter.nbytes for parameter, *_ in own[number]),
                transfer_ns=copies[number],
                forward_ns=times["forward"],
                forward_dha_ns=slow["forward"],
                backward_ns=times["backward"],
                backward_dha_ns=slow["backward"],
                backward_gradient_dha_ns=times["backward"] + writes[number],
                gap_forward_ns=gaps["forward gap"],
                gap_backward_ns=gaps["backward gap"],
                activation_bytes=kept[number],
                workspace_bytes=workspace[number],
            )
        )
    largest = max(layers, key=lambda layer: layer.nbytes)
    return ModelProfile(
        device=f"{gpu.name}, measured",
        link_bytes_per_s=largest.nbytes * 1e9 / max(largest.transfer_ns, 1),
        update_ns=_update_ns(
            [parameter for parameter, _ in gradients if parameter in steps.trained],
            optimizer or partial(Adam, fused=True),
            gpu,
            repeats,
        ),
        layers=tuple(layers),
    )


@contextmanager
def in_host_memory(
    model: nn.Module, gpu: Cuda
) -> Iterator[Mapping[nn.Parameter, tuple[Tensor, Tensor]]]:
    """Place a module's parameters in the host's memory for the context, where the GPU reads them.

    Yield the result of :meth:`Cuda.host` for each parameter.
    """
    before = {parameter: parameter.data for parameter in model.parameters()}
    try:
        there = {parameter: gpu.host(data) for parameter, data in before.items()}
        for parameter, (_, seen) in there.items():
            parameter.data = seen
        yield there
    finally:
        for parameter, data in before.items():
            parameter.data = data


class _Steps:
    """Steps of a model with marks at the beginning and end of each layer."""

    def __init__(
        self, model: nn.Module, batch: Sequence[Any], step: Callable[..., Tensor], gpu: Cuda
    ) -> None:
        self.layers = layers_of(model)
        for name, parameter in model.named_parameters():
            if parameter.device != gpu.device:
                raise InvalidArgumentError(
                    f"parameter {name!r} is on {parameter.device}: "
                    f"move model and batch to {gpu.device}"
                )
        self.numbers: dict[str, int] = {}
        """Numbers of the layers, in the order of their first calls."""
        self.trained: set[Tensor] = set()
        """Parameters that get a gradient."""
        self._model, self._batch, self._step, self._gpu = model, batch, step, gpu
        self._read: Callable[[], Any] = gpu.mark
        self._forward: list[tuple[Any, int | None]] = []
        """Reading at each point, and the layer that runs from there on."""
        self._backward: list[tuple[Any, int | None]] = []
        self._latest = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Mark beginnings and ends of layers within this context."""
        hooks: list[Any] = []
        for parameter in self._model.parameters():
            if parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(self._accumulated))
        for name, layer in self.layers.items():
            enter = partial(self._enter, name)
            hooks.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(layer.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def times(self, repeats: int) -> list[Counter[str]]:
        """Return ns of each layer by pass and gap: medians of repeats after a warm-up step."""
        self._read = self._gpu.mark
        measured: list[Counter[tuple[int, str]]] = []
        for _ in range(repeats + 1):
            self._run()
            measured.append(Counter())
            for layer, part, before, after in self._spans():
                measured[-1][layer, part] += self._gpu.ns(before, after)
        middle = [Counter[str]() for _ in self.numbers]
        for layer, part in measured[0]:
            middle[layer][part] = int(median(times[layer, part] for times in measured[1:]))
        return middle

    def memory(self) -> tuple[list[int], list[int]]:
        """Return the bytes of each layer's activations, and of its workspace."""
        given = [leaf for leaf in tree_leaves(self._batch) if isinstance(leaf, Tensor)]
        given += self._model.buffers()
        known = {one.untyped_storage().data_ptr() for one in (*given, *self._model.parameters())}
        kept = Counter[int]()

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                known.add(storage.data_ptr())
                kept[self._latest] += storage.nbytes()
            return tensor

        self._read = self._gpu.peak_bytes
        self._read()
        base = self._read()
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            self._run()
        for name in self.layers:
            if name not in self.numbers:
                raise InvalidArgumentError(
                    f"the step does not call {name!r}, which has parameters: expected it to "
                    "call every module with parameters"
                )
        workspace = Counter[int]()
        layers = [self.layers[name] for name in self.numbers]
        for layer, part, _, peak in self._spans():
            used = base + sum(kept[number] for number in range(layer + 1))
            if part == "backward":
                own = layers[layer].parameters()
                used += sum(parameter.nbytes for parameter in own if parameter in self.trained)
            workspace[layer] = max(workspace[layer], peak - used)
        kept[0] += sum(storage.nbytes() for storage in {one.untyped_storage() for one in given})
        return [kept[number] for number in range(len(layers))], [*workspace.values()]

    def _run(self) -> None:
        self._forward, self._backward, self._latest = [], [], 0
        self._gpu.hold()
        self._mark(None)
        loss = self._step(self._model, *self._batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise InvalidArgumentError(
                f"step gives {loss!r:.80}: expected the loss, a tensor of one number that depends "
                "on a parameter"
            )
        self._mark(None)
        self._backward = [self._forward[-1]]
        loss.backward()
        self._mark(None)

    def _spans(self) -> Iterator[tuple[int, str, Any, Any]]:
        """Yield layer, part of the step, and the readings before and after it.

        A gap follows its layer in the forward pass, and precedes it in the backward pass.
        """
        latest = 0
        for (before, layer), (after, _) in pairwise(self._forward):
            latest = latest if layer is None else layer
            yield latest, "forward gap" if layer is None else "forward", before, after
        for (before, layer), (after, then) in pairwise(self._backward):
            if layer is None:
                yield then or 0, "backward gap", before, after
            else:
                yield layer, "backward", before, after

    def _mark(self, layer: int | None) -> None:
        marks = self._backward or self._forward
        marks.append((self._read(), layer))
        self._latest = self._latest if layer is None else layer

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._backward:
            raise InvalidArgumentError(
                f"{name!r} is called in the backward pass: expected no recomputation"
            )
        self._mark(self.numbers.setdefault(name, len(self.numbers)))
        return tree_map_only(Tensor, self._seen_back, (args, kwargs))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        number = self._latest
        self._mark(None)
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                leaf.register_hook(lambda _: self._mark(number))

    def _seen_back(self, given: Tensor) -> Tensor:
        """Return a view of a tensor; its gradient marks the time when it is there."""
        view = given.view_as(given)
        if view.requires_grad:
            view.register_hook(lambda _: self._until_here())
        return view

    def _accumulated(self, parameter: Tensor) -> None:
        parameter.grad = None
        self.trained.add(parameter)
        self._until_here()

    def _until_here(self) -> None:
        """Extend the layer that began last up to now."""
        if not self._backward:
            raise InvalidArgumentError("step makes gradients: expected it to return the loss only")
        at, layer = self._backward[-1]
        if layer is None and len(self._backward) > 1:
            self._backward[-1] = at, self._latest
        self._mark(None)


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost modules with parameters of their own, by name.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for a parameter of the model
    itself, and for a model without parameters.
    """
    for name, _ in model.named_parameters():
        if "." not in name:
            raise InvalidArgumentError(
                f"parameter {name!r} is of the whole model: expected parameters of modules in it, "
                "which are copied or read one by one"
            )
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in layers)
        if not inside and [*module.parameters(recurse=False)]:
            layers[name] = module
    if not layers:
        raise InvalidArgumentError(f"{type(model).__name__} has no parameters: expected some")
    return layers


def _layers_ns(
    layers: Sequence[Sequence[tuple[Tensor, ...]]],
    act: Callable[..., object],
    gpu: Cuda,
    repeats: int,
) -> list[int]:
    """Return, for each layer, the median ns of ``act`` on all its parameters after a warm-up."""
    measured: list[list[int]] = []
    for _ in range(repeats + 1):
        gpu.hold()
        marks = [gpu.mark()]
        for layer in layers:
            for parameter in layer:
                act(*parameter)
            marks.append(gpu.mark())
        measured.append([gpu.ns(*pair) for pair in pairwise(marks)])
    return [int(median(times)) for times in zip(*measured[1:], strict=True)]


def _update_ns(
    parameters: Sequence[nn.Parameter],
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    gpu: Cuda,
    repeats: int,
) -> int:
    trained = [nn.Parameter(one.detach().to("cpu", copy=True)) for one in parameters]
    for parameter in trained:
        parameter.grad = parameter.detach().clone()
    updating = optimizer(trained)
    measured: list[int] = []
    for _ in range(repeats + 1):
        before = gpu.host_ns()
        updating.step()
        measured.append(gpu.host_ns() - before)
    return int(median(measured[1:]))
