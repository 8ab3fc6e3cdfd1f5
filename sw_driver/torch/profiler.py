"""A profile by measurement: training steps of a PyTorch model on a GPU with CUDA.

A layer is a module with parameters of its own, with all modules in it, and runs from its call to
its return, and on the way back from the gradient of its output to the last gradient that it makes.
What else runs is in the gap between layers. Steps are run with the parameters in the GPU's memory,
and with all of them in the host's, pinned and mapped, where the GPU's kernels read them. Work is
queued before the GPU begins, so that times are the GPU's and not those of Python.

A gradient is written to the host's memory by a kernel of its own, after the one that makes it. A
parameter of several layers belongs to the last of them; the others read it in the host's memory in
any case, as it is copied for the last.
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
"""A tenth of a second, in which Python queues a step."""


class Cuda:
    """The current GPU with CUDA. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` if there is none."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise InvalidArgumentError(
                "PyTorch finds no GPU with CUDA: profile on a machine with one, or use the cost "
                "model, sw_driver.system.memferry.costs.profile_of"
            )
        self.name = torch.cuda.get_device_name()
        self.device = torch.device("cuda", torch.cuda.current_device())

    def hold(self) -> None:
        """Ends what runs, and has the GPU wait until what follows is queued."""
        torch.cuda.synchronize()
        torch.cuda._sleep(_HELD_CYCLES)

    def mark(self) -> Any:
        """A point of time between what is queued before it and after."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ns(self, before: Any, after: Any) -> int:
        """From one mark to the next."""
        after.synchronize()
        return round(before.elapsed_time(after) * 1e6)

    def host_ns(self) -> int:
        """The host's time."""
        return time.perf_counter_ns()

    def peak_bytes(self) -> int:
        """The most of the GPU's memory in use since this was last asked."""
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak

    def pinned(self, nbytes: int) -> tuple[Tensor, Tensor]:
        """Bytes of the host's memory, for copies from there, and as kernels of the GPU see them."""
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
        """A copy in the host's memory, as :meth:`pinned` has it twice."""
        there, seen = (
            each.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
            for each in self.pinned(tensor.nbytes)
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
    """The profile of a training step, of which ``step(model, *batch)`` is the loss.

    Parameters and their gradients are afterwards what they were; buffers, such as running
    statistics, and random numbers go on. Activations of the first layer include the batch and the
    model's buffers.

    Parameters
    ----------
    optimizer
        Makes the one that updates parameters on the host, by default PyTorch's fused Adam.
    repeats
        Of each measurement, whose median is taken.
    gpu
        By default the current one, where model and batch have to be.

    Raises
    ------
    InvalidArgumentError
        For no GPU; for parameters that are not on it, are the whole model's, or are of a module
        that the step does not call or calls in the backward pass; for a step that gives no loss, or
        makes gradients itself.
    """
    check_integer("repeats", repeats)
    gpu = Cuda() if gpu is None else gpu
    steps = _Steps(model, batch, step, gpu)
    gradients = [(each, each.grad) for each in model.parameters()]
    try:
        with steps.watched():
            for each, _ in gradients:
                each.grad = None
            kept, workspace = steps.memory()
            on_gpu = steps.times(repeats)
            with in_host_memory(model, gpu) as there:
                by_dha = steps.times(repeats)
    finally:
        for each, grad in gradients:
            each.grad = grad
    of = [[*steps.layers[name].parameters()] for name in steps.numbers]
    owners = {each: number for number, parameters in enumerate(of) for each in parameters}
    own = [
        [(each, *there[each]) for each in parameters if owners[each] == number]
        for number, parameters in enumerate(of)
    ]
    trained = [[each for each in layer if each[0] in steps.trained] for layer in own]
    with torch.no_grad():
        copies = _each_ns(own, lambda here, host, _: here.copy_(host, True), gpu, repeats)
        writes = _each_ns(trained, lambda here, _, host: torch.mul(here, 1, out=host), gpu, repeats)
    layers: list[LayerProfile] = []
    for number, name in enumerate(steps.numbers):
        borrows = any(owners[each] != number for each in of[number])
        gaps, slow = on_gpu[number], by_dha[number]
        times = slow if borrows else gaps
        layers.append(
            LayerProfile(
                name=name,
                nbytes=sum(each.nbytes for each, *_ in own[number]),
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
    largest = max(layers, key=lambda each: each.nbytes)
    return ModelProfile(
        device=f"{gpu.name}, measured",
        link_bytes_per_s=largest.nbytes * 1e9 / max(largest.transfer_ns, 1),
        update_ns=_update_ns(
            [each for each, _ in gradients if each in steps.trained],
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
    """Has the GPU read a module's parameters in the host's memory, within the block. Gives for each
    what :meth:`Cuda.host` does."""
    before = {each: each.data for each in model.parameters()}
    try:
        there = {each: gpu.host(data) for each, data in before.items()}
        for each, (_, seen) in there.items():
            each.data = seen
        yield there
    finally:
        for each, data in before.items():
            each.data = data


class _Steps:
    """Steps of a model, in which it is seen when layers begin and end."""

    def __init__(
        self, model: nn.Module, batch: Sequence[Any], step: Callable[..., Tensor], gpu: Cuda
    ) -> None:
        self.layers = layers_of(model)
        for name, each in model.named_parameters():
            if each.device != gpu.device:
                raise InvalidArgumentError(
                    f"parameter {name!r} is on {each.device}: move model and batch to {gpu.device}"
                )
        self.numbers: dict[str, int] = {}
        """In the order of their first calls."""
        self.trained: set[Tensor] = set()
        """That get a gradient."""
        self._model, self._batch, self._step, self._gpu = model, batch, step, gpu
        self._read: Callable[[], Any] = gpu.mark
        self._forward: list[tuple[Any, int | None]] = []
        """What is read at each point, and the layer that runs from there on."""
        self._backward: list[tuple[Any, int | None]] = []
        self._latest = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        hooks: list[Any] = []
        for each in self._model.parameters():
            if each.requires_grad:
                hooks.append(each.register_post_accumulate_grad_hook(self._accumulated))
        for name, layer in self.layers.items():
            enter = partial(self._enter, name)
            hooks.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(layer.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for each in hooks:
                each.remove()

    def times(self, repeats: int) -> list[Counter[str]]:
        """ns of each layer in both passes and in the gaps, after a step to warm up."""
        self._read = self._gpu.mark
        found: list[Counter[tuple[int, str]]] = []
        for _ in range(repeats + 1):
            self._run()
            found.append(Counter())
            for layer, what, before, after in self._spans():
                found[-1][layer, what] += self._gpu.ns(before, after)
        middle = [Counter[str]() for _ in self.numbers]
        for layer, what in found[0]:
            middle[layer][what] = int(median(each[layer, what] for each in found[1:]))
        return middle

    def memory(self) -> tuple[list[int], list[int]]:
        """Bytes of each layer's activations, and of its workspace."""
        given = [each for each in tree_leaves(self._batch) if isinstance(each, Tensor)]
        given += self._model.buffers()
        known = {each.untyped_storage().data_ptr() for each in (*given, *self._model.parameters())}
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
                    f"the step does not call {name!r}, which has parameters: expected a call of "
                    "each module that has some"
                )
        workspace = Counter[int]()
        layers = [self.layers[name] for name in self.numbers]
        for layer, what, _, peak in self._spans():
            used = base + sum(kept[each] for each in range(layer + 1))
            if what == "backward":
                own = layers[layer].parameters()
                used += sum(each.nbytes for each in own if each in self.trained)
            workspace[layer] = max(workspace[layer], peak - used)
        kept[0] += sum(each.nbytes() for each in {each.untyped_storage() for each in given})
        return [kept[each] for each in range(len(layers))], [*workspace.values()]

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
        """A layer, what is done, and what was read before and after. A gap is behind a layer in the
        forward pass, and before it in the backward pass."""
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
        for each in tree_leaves(output):
            if isinstance(each, Tensor) and each.grad_fn is not None:
                each.register_hook(lambda _: self._mark(number))

    def _seen_back(self, given: Tensor) -> Tensor:
        """A tensor with a gradient of its own, of which it is seen when it is there."""
        view = given.view_as(given)
        if view.requires_grad:
            view.register_hook(lambda _: self._until_here())
        return view

    def _accumulated(self, parameter: Tensor) -> None:
        parameter.grad = None
        self.trained.add(parameter)
        self._until_here()

    def _until_here(self) -> None:
        """The layer that began last runs until here."""
        if not self._backward:
            raise InvalidArgumentError("step makes gradients: expected that it only gives the loss")
        at, layer = self._backward[-1]
        if layer is None and len(self._backward) > 1:
            self._backward[-1] = at, self._latest
        self._mark(None)


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost modules with parameters of their own. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` for a parameter of the model itself, and
    if there is none."""
    for name, _ in model.named_parameters():
        if "." not in name:
            raise InvalidArgumentError(
                f"parameter {name!r} is of the whole model: expected parameters of modules in it, "
                "which are copied or read one by one"
            )
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if not inside and [*module.parameters(recurse=False)]:
            found[name] = module
    if not found:
        raise InvalidArgumentError(f"{type(model).__name__} has no parameters: expected some")
    return found


def _each_ns(
    layers: Sequence[Sequence[tuple[Tensor, ...]]],
    act: Callable[..., object],
    gpu: Cuda,
    repeats: int,
) -> list[int]:
    """What ``act`` takes with all of a layer's, for each layer, after one go to warm up."""
    found: list[list[int]] = []
    for _ in range(repeats + 1):
        gpu.hold()
        marks = [gpu.mark()]
        for layer in layers:
            for each in layer:
                act(*each)
            marks.append(gpu.mark())
        found.append([gpu.ns(*pair) for pair in pairwise(marks)])
    return [int(median(each)) for each in zip(*found[1:], strict=True)]


def _update_ns(
    parameters: Sequence[nn.Parameter],
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    gpu: Cuda,
    repeats: int,
) -> int:
    trained = [nn.Parameter(each.detach().to("cpu", copy=True)) for each in parameters]
    for each in trained:
        each.grad = each.detach().clone()
    updating = optimizer(trained)
    found: list[int] = []
    for _ in range(repeats + 1):
        before = gpu.host_ns()
        updating.step()
        found.append(gpu.host_ns() - before)
    return int(median(found[1:]))
