"""Captures training steps of PyTorch models as traces, without their memory and without a GPU.

The model runs on PyTorch's fake tensors, which have shapes but no contents. Operations are those
that PyTorch's dispatcher gets, below autograd, in its order.
``python -m sw_driver.workload.capture NAME`` makes a shipped trace again and prints what is in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import _get_sequence_nr  # pyright: ignore[reportPrivateImportUsage]
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from hw.rules import PAPER_RULES
from hw.rules import rule as rule_called
from hw.rules.update_rule import UpdateRule

from .benchmarks import loss_of, network_with_batch
from .gpt import gpt_loss, gpt_with_batch
from .networks import NETWORKS, GptConfig
from .products import BAGS, GATHERS, has_products, product_flops
from .summary import summary_text
from .trace import SHIPPED, SUFFIX, Op, Tensor, Trace

__all__ = ["capture", "capture_shipped", "main"]

OUTSIDE = "(model)"
"""The layer of what the model does in no module of it, and of the loss."""

_MOVES = frozenset(
    ("embedding", "clone", "copy_", "_to_copy", "cat", "stack", "constant_pad_nd", "index_select",
     "zeros", "ones", "full", "arange", "zeros_like", "ones_like", "full_like", "fill_", "zero_")
)  # fmt: skip
"""Operations that compute nothing."""
_OVERWRITES = frozenset(("copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_"))
"""Operations that do not read what they change."""
_CHANGED_IN_TRAINING = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm"), ("running_mean", "running_var")
)
"""Arguments that operations change without their schema saying so."""


def capture(
    build: Callable[[], tuple[nn.Module, tuple[Any, ...]]],
    step: Callable[..., torch.Tensor | None],
    *,
    name: str,
    rule: str = PAPER_RULES[0],
    origin: Mapping[str, Any] | None = None,
) -> Trace:
    """A training step: forward pass, loss, backward pass and update of all parameters.

    A piece of storage is a tensor; views of it are the same. A layer is the innermost module that
    runs, and an operation of the backward pass has the layer of the one that it differentiates.
    Products have the operations of :mod:`~sw_driver.workload.products`, or of a formula that
    PyTorch's flop counter has; others one for each element. What runs in a call of ``backward`` or
    ``autograd.grad`` is of the backward pass. The update is an operation for each parameter that
    has a gradient, after all others, in the order of ``model.parameters()``; its reads and writes
    are in the rule's order.

    Parameters
    ----------
    build
        Makes the model and a batch, on the CPU and dense; nothing of it is captured.
    step
        Takes the model and the batch, and returns the loss; or None if it has called ``backward``
        itself.
    name, origin
        Name and origin of the trace; the origin gets rule and versions.
    rule
        Name of a rule of :mod:`hw.rules` with tensors ``p`` and ``g``; what else it reads is
        optimizer state.

    Raises
    ------
    ValueError
        For a rule that is none or updates no parameter; for a step that runs an optimizer, which
        the rule stands for, or leaves no gradient; for tensors that are not dense; and for
        operations of unknown work: ``torch.utils.flop_counter.register_flop_formula`` makes theirs
        known.
    RuntimeError
        Raised by PyTorch for a loss without a gradient, and for what depends on the contents of
        tensors.
    """
    updating = rule_called(rule)
    if not {"p", "g"} <= set(updating.inputs) or "p" not in updating.outputs:
        raise ValueError(
            f"rule {rule!r} updates no parameter: choose one that reads p, g, writes p"
        )
    with FakeTensorMode(), _without_mkldnn():
        with _casts():
            model, batch = build()
        recorder = _Recorder(model, batch)
        with recorder.layers_of(model), _without_optimizers(rule), _Phases(recorder), recorder:
            loss = step(model, *batch)
            if loss is not None:
                loss.backward()
        recorder.update(model, updating)
    versions = {"rule": rule, "torch": torch.__version__.partition("+")[0]}
    return recorder.trace(name, {**(origin or {}), **versions})


def capture_shipped(name: str) -> Trace:
    """The trace that comes with the package as ``name``, made again; KeyError for others."""
    config = NETWORKS[name]
    if isinstance(config, GptConfig):
        origin = {"model": "gpt", **asdict(config)}
        return capture(lambda: gpt_with_batch(config), gpt_loss, name=name, origin=origin)
    origin = asdict(config)
    return capture(
        lambda: network_with_batch(config), loss_of, name=name, rule="sgd", origin=origin
    )


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Keeps MKL-DNN off: it makes one operation of a recurrent layer, unknown to flop counters."""
    # Not by the attribute, which PyTorch's test suite freezes, nor by the context manager, which
    # sets flags for GPUs, too.
    before, *_ = torch.backends.mkldnn.set_flags(False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before)


@contextmanager
def _casts() -> Iterator[None]:
    """Lets modules be cast: PyTorch swaps their fake tensors, which it refuses for some."""
    swap = torch.utils.swap_tensors

    def assign(one: torch.Tensor, other: torch.Tensor) -> None:
        one.data = other.data

    torch.utils.swap_tensors = assign
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap


@contextmanager
def _without_optimizers(rule: str) -> Iterator[None]:
    def refuse(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        raise ValueError(
            f"the step runs {type(optimizer).__name__}.step(): leave it out, for the update is "
            f"captured as rule {rule!r}"
        )

    refusing = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        refusing.remove()


class _Phases(TorchFunctionMode):
    """Tells the recorder when a backward pass runs, whoever calls it."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._recorder.phase
        if func in (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad):
            self._recorder.phase = "backward"
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._recorder.phase = before


class _Recorder(TorchDispatchMode):
    def __init__(self, model: nn.Module, batch: Iterable[Any]) -> None:
        super().__init__()
        self.phase = "forward"
        self._numbers: dict[StorageWeakRef, int] = {}  # which keep addresses from being used again
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._layers: dict[str, int] = {}
        self._running: list[str] = []
        self._layer_of_node: dict[int, str] = {}
        self._latest = OUTSIDE
        for name, each in model.named_parameters():
            self._number(each, "parameter", name)
        for name, each in [*model.named_buffers(), *(("", each) for each in _tensors_in(batch))]:
            self._number(each, "input", name)

    @contextmanager
    def layers_of(self, model: nn.Module) -> Iterator[None]:
        """Keeps count of which modules of the model are running."""
        names = {module: name or OUTSIDE for name, module in model.named_modules()}

        def enter(module: nn.Module, _: Any) -> None:
            outer = self._running[-1] if self._running else OUTSIDE
            self._running.append(names.get(module, outer))

        def leave(*_: Any) -> None:
            self._running.pop()

        entering = register_module_forward_pre_hook(enter)
        leaving = register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            entering.remove()
            leaving.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and func.namespace != "prim":
            # Without autograd nothing has taken it apart.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        layer = self._layer()
        result = func(*args, **kwargs)
        kind = func.overloadpacket.__name__
        if func.namespace == "prim" or kind.startswith(("empty", "new_empty")):
            return result
        schema = func._schema.arguments
        arguments = {each.name: value for each, value in zip(schema, args, strict=False)} | kwargs
        changed = {each.name for each in schema if each.alias_info and each.alias_info.is_write}
        if arguments.get("training"):
            changed.update(_CHANGED_IN_TRAINING.get(kind, ()))
        unread = changed if kind in _OVERWRITES or "out" in changed else set()
        if kind.endswith("_like") or kind.startswith("new_"):
            unread = set(arguments)  # they look at shapes only
        read = self._bytes_of([each for name, each in arguments.items() if name not in unread])
        if kind in GATHERS:
            first = self._number(args[0])
            gathered = sum(self._bytes_of(result).values())
            if kind in BAGS:
                gathered = arguments["indices"].numel() * args[0][:1].nbytes
            read[first] = min(read[first], gathered)
        given = set(self._bytes_of([*arguments.values()]))
        written = self._bytes_of([each for name, each in arguments.items() if name in changed])
        made = self._bytes_of(result).items()
        written |= {number: nbytes for number, nbytes in made if number not in given}
        if written:  # or it is a view
            flops = self._flops(func, args, kwargs, result, arguments, layer)
            self._add(kind, layer, self.phase, read, written, flops)
        return result

    def update(self, model: nn.Module, rule: UpdateRule) -> None:
        """Appends the operations that update parameters."""
        if all(each.grad is None for each in model.parameters()):
            raise ValueError("the step leaves no gradient: return the loss, or call its backward")
        operators = len(rule.flow().placed)
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            number, gradient = self._number(parameter), self._number(parameter.grad)
            if self._tensors[gradient].kind == "temporary":
                self._tensors[gradient] = replace(
                    self._tensors[gradient], kind="gradient", name=name, parameter=number
                )
            size = self._tensors[number].nbytes
            tensors = {"p": number, "g": gradient}
            for each in rule.tensors:
                if each not in tensors:
                    tensors[each] = self._new(size, "optimizer_state", name, parameter=number)
            read, written = (
                {tensors[each]: size for each in names} for names in (rule.inputs, rule.outputs)
            )
            layer = name.rpartition(".")[0] or OUTSIDE
            self._add(rule.name, layer, "update", read, written, operators * parameter.numel())

    def trace(self, name: str, origin: Mapping[str, Any]) -> Trace:
        """The trace of all that was captured."""
        draft = Trace(
            name=name,
            tensors=tuple(self._tensors),
            ops=tuple(self._ops),
            layers=tuple(self._layers),
            origin=origin,
        )
        tensors = tuple(
            replace(each, kind=_use(draft, each)) if each.kind == "temporary" else each
            for each in draft.tensors
        )
        return replace(draft, tensors=tensors)

    def _layer(self) -> str:
        """The layer of the operation that begins.

        A node of autograd's graph is made just before the operation that it will differentiate,
        and numbered; in the backward pass, too, if that has a gradient.
        """
        node = torch._C._current_autograd_node()
        if node is None or self._running:
            self._latest = self._running[-1] if self._running else OUTSIDE
        else:
            self._latest = self._layer_of_node.get(node._sequence_nr(), self._latest)
        self._layer_of_node.setdefault(_get_sequence_nr() - 1, self._latest)
        return self._latest

    def _number(self, tensor: torch.Tensor, kind: str = "temporary", name: str = "") -> int:
        if tensor.layout != torch.strided or tensor.is_nested:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} is {tensor.layout} or nested, and "
                f"capture takes dense ones: give embeddings sparse=False, and pad what is nested"
            )
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference not in self._numbers:
            size = tensor.element_size() if kind == "parameter" else 4
            self._numbers[reference] = self._new(storage.nbytes(), kind, name, element_bytes=size)
        return self._numbers[reference]

    def _new(self, nbytes: int, kind: str, name: str, **fields: int) -> int:
        number = len(self._tensors)
        self._tensors.append(Tensor(id=number, nbytes=nbytes, kind=kind, name=name, **fields))
        return number

    def _bytes_of(self, values: Any) -> dict[int, int]:
        """Bytes that ``values`` show of each tensor in them, by the tensor's number."""
        shown: dict[int, dict[Any, int]] = {}
        for each in _tensors_in(values):
            sizes = [size for size, step in zip(each.shape, each.stride(), strict=True) if step]
            nbytes = prod(sizes) * each.element_size() if each.numel() else 0
            view = (each.storage_offset(), each.shape, each.stride())
            shown.setdefault(self._number(each), {})[view] = nbytes
        return {
            number: min(sum(views.values()), self._tensors[number].nbytes)
            for number, views in shown.items()
        }

    def _flops(
        self, func: Any, args: Any, kwargs: Any, result: Any, given: Mapping[str, Any], layer: str
    ) -> int:
        kind = func.overloadpacket.__name__
        known = func.namespace in ("aten", "prims")
        if known and (flops := product_flops(kind, given, result)) is not None:
            return flops
        packet = getattr(torch.ops.aten, kind.replace("_for_cpu", ""), func.overloadpacket)
        if (count := flop_registry.get(packet if known else func.overloadpacket)) is not None:
            return int(count(*args, **kwargs, out_val=result))
        if not known or has_products(kind):
            raise ValueError(
                f"operation {func.name()} of layer {layer!r} has work that is not known here: give "
                f"its count with torch.utils.flop_counter.register_flop_formula"
            )
        if kind in _MOVES:
            return 0
        if kind.startswith("_foreach"):
            return sum(each.numel() for each in _tensors_in(args[0]))
        return max(each.numel() for each in _tensors_in((args, kwargs, result)))

    def _add(
        self,
        kind: str,
        layer: str,
        phase: str,
        read: Mapping[int, int],
        written: Mapping[int, int],
        flops: int,
    ) -> None:
        self._ops.append(
            Op(
                id=len(self._ops),
                kind=kind,
                layer=self._layers.setdefault(layer, len(self._layers)),
                phase=phase,
                reads=tuple(read),
                writes=tuple(written),
                flops=flops,
                nbytes=sum(read.values()) + sum(written.values()),
            )
        )


def _use(trace: Trace, tensor: Tensor) -> str:
    """The kind of a tensor that is no parameter and does not belong to one."""
    accesses = [trace.ops[each] for each in trace.accesses[tensor.id]]
    if not accesses or tensor.id not in accesses[0].writes:
        return "input"
    both = accesses[0].phase == "forward" and accesses[-1].phase == "backward"
    return "activation" if both else "temporary"


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    return (each for each in tree_leaves(values) if isinstance(each, torch.Tensor))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m sw_driver.workload.capture", description="Captures shipped traces again."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NETWORKS)}; or all"
    )
    parser.add_argument("--to", type=Path, default=SHIPPED, help="the folder; else the package's")
    settings = parser.parse_args(arguments)
    if unknown := set(settings.names) - set(NETWORKS):
        parser.error(f"no trace {min(unknown)!r}: choose from {', '.join(NETWORKS)}")
    for name in settings.names or NETWORKS:
        trace = capture_shipped(name)
        try:
            settings.to.mkdir(parents=True, exist_ok=True)
            trace.save(settings.to / f"{name}{SUFFIX}")
        except OSError as error:
            parser.error(f"{error.filename}: {error.strerror}; choose another folder with --to")
        print(summary_text(trace), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
