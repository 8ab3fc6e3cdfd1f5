"""Capture of PyTorch training steps as traces, without a GPU or memory for the tensors.

The model runs on PyTorch's fake tensors, which have shapes but no contents. Operations are those
that reach PyTorch's dispatcher, below autograd, in their order.
``python -m sw_driver.workload.capture NAME`` captures a shipped trace again.
"""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from math import prod
from operator import itemgetter
from pathlib import Path
from traceback import walk_tb
from typing import Any, ClassVar, Literal
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import _get_sequence_nr  # pyright: ignore[reportPrivateImportUsage]
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

from .models import MODELS
from .networks import NETWORKS
from .products import BAGS, GATHERS, GRADIENTS, geometry_of, has_products, product_flops
from .stages import OUTSIDE, Layering
from .trace import LASTING, SHIPPED, SUFFIX, Geometry, Op, Tensor, Trace
from .writes import written_arguments

__all__ = [
    "Recorder",
    "add_layer",
    "capture",
    "capture_config",
    "capture_shipped",
    "main",
    "recording",
    "without_mkldnn",
]

_MOVES = frozenset(
    ("embedding", "clone", "copy_", "_to_copy", "cat", "stack", "constant_pad_nd", "index_select",
     "index", "gather", "take", "zeros", "ones", "full", "arange", "zeros_like", "ones_like",
     "full_like", "fill_", "zero_")
)  # fmt: skip
"""Operations that move or set values without computing."""
_FORMATS = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
_ALLOCATIONS = ("empty", "new_empty", "lift_fresh")
"""Prefixes of operations that allocate memory and write nothing to it."""
_OVERWRITES = frozenset(("copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_"))
"""Operations that overwrite a tensor without reading it."""


def capture(
    build: Callable[[], tuple[nn.Module, tuple[Any, ...]]],
    step: Callable[..., torch.Tensor | None],
    *,
    name: str,
    rule: str = PAPER_RULES[0],
    origin: Mapping[str, Any] | None = None,
) -> Trace:
    """Return the trace of a training step: forward pass, loss, backward pass and update.

    A tensor is a piece of storage, from its allocation by PyTorch to its release; views are the
    same tensor. A layer is the innermost running module. An operation of the backward pass has the
    layer of the operation it differentiates, and the other
    :class:`~sw_driver.workload.trace.Stage` of that layer. Tensors left in cycles of Python objects
    live until the end of the step.
    The work of a product is counted by :mod:`~sw_driver.workload.products`, or by a formula of
    PyTorch's flop counter; other operations do one operation per element. All that runs in a call
    of ``backward`` or ``autograd.grad`` belongs to the backward pass. The update is one operation
    for each parameter with a gradient, after all others, in the order of ``model.parameters()``.
    Its reads and writes are in the rule's order.

    Parameters
    ----------
    build
        Makes the model and a batch, on the CPU and dense; it is not captured.
    step
        Takes the model and the batch, and returns the loss, or None if it has called ``backward``
        itself.
    name, origin
        Name and origin of the trace; rule and versions are added to the origin.
    rule
        Name of a rule of :mod:`hw.rules` with tensors ``p`` and ``g``. Other tensors that it reads
        are optimizer state.

    Raises
    ------
    ValueError
        For an unknown rule or one that updates no parameter; for a step that runs an optimizer (the
        rule takes its place), makes a parameter, or leaves no gradient; for tensors that are not
        dense; and for operations of unknown work, which
        ``torch.utils.flop_counter.register_flop_formula`` can define.
    RuntimeError
        Raised by PyTorch for a loss without a gradient, and for a dependence on the contents of
        tensors.
    """
    with FakeTensorMode():
        with _casts_and_copies():
            model, batch = build()
        with recording(model, batch, rule) as recorder:
            loss = step(model, *batch)
            if loss is not None:
                loss.backward()
            del loss
    versions = {"rule": rule, "torch": torch.__version__.partition("+")[0]}
    return recorder.trace(name, {**(origin or {}), **versions})


def capture_shipped(name: str) -> Trace:
    """Capture the shipped trace ``name`` again; raise KeyError for another name."""
    return capture_config(name, NETWORKS[name])


def capture_config(name: str, config: Any) -> Trace:
    """Capture the network of a configuration of :mod:`~sw_driver.workload.networks`."""
    model, build, step = MODELS[type(config)]
    return capture(
        lambda: build(config),
        step,
        name=name,
        rule=config.rule,
        origin={**({"model": model} if model else {}), **asdict(config)},
    )


@contextmanager
def recording(model: nn.Module, batch: Iterable[Any], rule: str) -> Iterator[Recorder]:
    """Record all that runs within the context, and add the update at its end.

    Raises as :func:`capture` does, and ``ValueError`` inside another recording.
    """
    updating = rule_called(rule)
    if not {"p", "g"} <= set(updating.inputs) or "p" not in updating.outputs:
        raise ValueError(
            f"rule {rule!r} updates no parameter: choose one that reads p, g, writes p"
        )
    if Recorder.latest:
        raise ValueError("a step is being captured already: end that capture first")
    # Otherwise PyTorch imports it in the first step, and keeps that step's tensors alive.
    import_module("torch._dynamo")
    with without_mkldnn(), _without_garbage():
        recorder = Recorder.latest = Recorder(model, batch)
        try:
            with recorder.layers_of(model), _without_optimizers(rule), _Phases(recorder), recorder:
                yield recorder
        finally:
            Recorder.latest = False
        recorder.update(model, updating)


def add_layer() -> None:
    """End a layer here, in the model or the step.

    All layers of a captured step are then those ended by hand, and modules begin none. Operations
    after the last end belong to the last layer. After a capture the call does nothing, so a model
    may train on with it.

    Raises ``ValueError`` before the first capture.
    """
    if Recorder.latest is None:
        raise ValueError(
            "add_layer() is called outside a profile: call start_profile() before the step, or "
            "give the step to nearmem as FILE.py:FUNCTION"
        )
    if Recorder.latest:
        Recorder.latest.end_layer()


@contextmanager
def without_mkldnn() -> Iterator[None]:
    """Disable MKL-DNN, which makes a recurrent layer one operation, unknown to flop counters."""
    # Neither by the attribute, which PyTorch's test suite freezes, nor by the context manager,
    # which sets flags for GPUs, too.
    before, *_ = torch.backends.mkldnn.set_flags(False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before)


@contextmanager
def _without_garbage() -> Iterator[None]:
    """Stop Python from collecting cycles, which would free tensors at arbitrary times."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _casts_and_copies() -> Iterator[None]:
    """Allow modules to be cast and copied.

    PyTorch swaps their fake tensors, which it refuses for some. It copies the mode of each tensor,
    too, and tensors of different modes do not mix.
    """

    def assign(one: torch.Tensor, other: torch.Tensor) -> None:
        one.data = other.data

    with (
        patch.object(torch.utils, "swap_tensors", assign),
        patch.object(FakeTensorMode, "__deepcopy__", lambda mode, _: mode, create=True),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        yield


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
    """Marks in the recorder when a backward pass runs, whatever calls it."""

    def __init__(self, recorder: Recorder) -> None:
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


class Recorder(TorchDispatchMode):
    """A trace recorder of PyTorch's operations."""

    latest: ClassVar[Recorder | Literal[False] | None] = None
    """Active recorder; False after the last recording, None before the first."""

    def __init__(self, model: nn.Module, batch: Iterable[Any]) -> None:
        super().__init__()
        self.phase = "forward"
        self._numbers: dict[weakref.ref[torch.UntypedStorage], int] = {}
        self._freed: dict[int, int] = {}
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._sources: list[int | None] = []
        self._layers: dict[str, int] = {}
        self._layering = Layering()
        self._running: list[tuple[str, int]] = []  # modules, with the operation each began with
        self._of_node: dict[int, tuple[str, int]] = {}
        self._latest = OUTSIDE, 0
        for name, parameter in model.named_parameters():
            self._layering.parameter(self._number(parameter, "parameter", name))
        inputs = (("", tensor) for tensor in _tensors_in(batch))
        for name, tensor in [*model.named_buffers(), *inputs]:
            self._number(tensor, "input", name)

    @contextmanager
    def layers_of(self, model: nn.Module) -> Iterator[None]:
        """Track the running modules of the model; add the module's name to an error."""
        names = {module: name or OUTSIDE for name, module in model.named_modules()}

        def enter(module: nn.Module, _: Any) -> None:
            outer = self._running[-1][0] if self._running else OUTSIDE
            self._running.append((names.get(module, outer), len(self._ops)))

        def leave(*_: Any) -> None:
            self._running.pop()

        entering = register_module_forward_pre_hook(enter)
        leaving = register_module_forward_hook(leave, always_call=True)
        try:
            yield
        except Exception as error:
            _, *frames = walk_tb(error.__traceback__)
            running = [frame.f_locals.get("self") for frame, _ in frames]
            modules = [
                names[owner] for owner in running if isinstance(owner, nn.Module) and owner in names
            ]
            modules += [self._latest[0]] * any(owner is self for owner in running)
            for module in modules[-1:]:
                error.add_note(f"in module {module!r}")
            raise
        finally:
            entering.remove()
            leaving.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and func.namespace != "prim":
            # Without autograd the operation has not been decomposed.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        layer, source = self._layer()
        result = func(*args, **kwargs)
        kind = func.overloadpacket.__name__
        if func.namespace == "prim" or kind.startswith(_ALLOCATIONS):
            self._bytes_of([made for made in _tensors_in(result) if made.nbytes], "temporary")
            return result
        schema = func._schema.arguments
        arguments = {named.name: value for named, value in zip(schema, args, strict=False)} | kwargs
        if kind == "convolution_backward":
            for (part, names), made in zip(GRADIENTS.items(), result, strict=True):
                if made is not None:
                    given = [arguments[name] for name in names]
                    flops = product_flops(part, arguments, made) or 0
                    shapes = geometry_of(part, given, made, arguments)
                    read, written = self._bytes_of(given), self._bytes_of(made, "temporary")
                    dtype = _format_of(given)
                    self._add(part, layer, source, read, written, flops, shapes, dtype)
            return result
        changed = {name for _, name in written_arguments(func, arguments)}
        unread = changed if kind in _OVERWRITES or "out" in changed else set()
        if kind.endswith("_like") or kind.startswith("new_"):
            unread = set(arguments)  # only their shapes are read
        given = [value for name, value in arguments.items() if name not in unread]
        read = self._bytes_of(given)
        parts = [(self._number(one), int(one.storage_offset())) for one in _tensors_in(given)]
        factors = parts if has_products(kind) else []
        if kind in GATHERS:
            factors = [parts[0]]
            first, _ = parts[0]
            gathered = sum(self._bytes_of(result, "temporary").values())
            if kind in BAGS:
                gathered = arguments["indices"].numel() * args[0][:1].nbytes
            read[first] = min(read[first], gathered)
        known = set(self._bytes_of([*arguments.values()]))
        written = self._bytes_of([value for name, value in arguments.items() if name in changed])
        made = self._bytes_of(result, "temporary").items()
        written |= {number: nbytes for number, nbytes in made if number not in known}
        if written:  # else the result is a view
            flops = self._flops(func, args, kwargs, result, arguments, layer)
            if self.phase == "forward":
                module = self._running[-1] if self._running else (OUTSIDE, 0)
                self._layering.run(len(self._ops), module, factors, parts, written)
            operands, results = ([*_tensors_in(side)] for side in ([*arguments.values()], result))
            shapes = geometry_of(kind, operands, results[0], arguments) if results else None
            dtype = _format_of(operands if has_products(kind) else [*results, *operands])
            self._add(kind, layer, source, read, written, flops, shapes, dtype)
        return result

    def end_layer(self) -> None:
        """End a layer of the forward pass by hand."""
        if self.phase == "forward":
            self._layering.end(len(self._ops))

    def update(self, model: nn.Module, rule: UpdateRule) -> None:
        """Append the operations that update the parameters."""
        if all(parameter.grad is None for parameter in model.parameters()):
            raise ValueError("the step leaves no gradient: return the loss, or call its backward")
        operators = len(rule.flow().placed)
        self.phase = "update"
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            number, gradient = self._number(parameter), self._number(parameter.grad)
            if self._tensors[number].kind != "parameter":
                raise ValueError(f"the step makes parameter {name!r}: make it with the model")
            if self._tensors[gradient].kind in ("temporary", "input"):
                self._tensors[gradient] = replace(
                    self._tensors[gradient], kind="gradient", name=name, parameter=number
                )
            tensors = {"p": number, "g": gradient}
            moved = self._bytes_of([parameter, parameter.grad])
            size = moved[number]
            for tensor in rule.tensors:
                if tensor not in tensors:
                    tensors[tensor] = self._new(size, "optimizer_state", name, parameter=number)
            read, written = (
                {tensors[tensor]: moved.get(tensors[tensor], size) for tensor in names}
                for names in (rule.inputs, rule.outputs)
            )
            layer = name.rpartition(".")[0] or OUTSIDE
            self._add(rule.name, layer, None, read, written, operators * parameter.numel())

    def trace(self, name: str, origin: Mapping[str, Any]) -> Trace:
        """Return the trace of everything captured. Memory in use now stays allocated to its end."""
        draft = Trace(
            name=name,
            tensors=tuple(self._tensors),
            ops=tuple(self._ops),
            layers=tuple(self._layers),
            stages=self._layering.stages(),
            origin=origin,
        )
        end = len(self._ops)
        tensors = tuple(
            tensor
            if tensor.kind in LASTING
            else replace(tensor, kind=_use(draft, tensor), freed=self._freed.get(tensor.id, end))
            for tensor in draft.tensors
        )
        stages = self._layering.stage_of(draft, self._sources)
        ops = (replace(op, stage=stage) for op, stage in zip(draft.ops, stages, strict=True))
        return replace(draft, tensors=tensors, ops=tuple(ops))

    def _layer(self) -> tuple[str, int | None]:
        """Return the layer of the operation that begins, and the operation it differentiates.

        In the forward pass the latter is the operation itself, and None for a recomputed one.
        Autograd makes and numbers the node just before the operation that it will differentiate. It
        does so in the backward pass, too, if that has a gradient.
        """
        node = torch._C._current_autograd_node()
        number, backward = len(self._ops), self.phase == "backward"
        if self._running or node is None:
            name = self._running[-1][0] if self._running else OUTSIDE
            source = number - backward
        else:
            name, source = self._of_node.get(node._sequence_nr(), self._latest)
        self._latest = name, number
        self._of_node.setdefault(_get_sequence_nr() - 1, self._latest)
        return name, None if backward and self._running else source

    def _number(self, tensor: torch.Tensor, kind: str = "input", name: str = "") -> int:
        if tensor.layout != torch.strided or tensor.is_nested:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} is {tensor.layout} or nested, and "
                f"capture takes dense ones: give embeddings sparse=False, and pad nested tensors"
            )
        storage = tensor.untyped_storage()
        reference = weakref.ref(storage, self._free)
        if reference not in self._numbers:
            size = tensor.element_size() if kind == "parameter" or tensor.is_floating_point() else 4
            allocated = 0 if kind in LASTING else len(self._ops)
            self._numbers[reference] = self._new(
                storage.nbytes(), kind, name, element_bytes=size, allocated=allocated
            )
        return self._numbers[reference]

    def _free(self, storage: weakref.ref[torch.UntypedStorage]) -> None:
        self._freed[self._numbers.pop(storage)] = len(self._ops)

    def _new(self, nbytes: int, kind: str, name: str, **fields: Any) -> int:
        number = len(self._tensors)
        self._tensors.append(Tensor(id=number, nbytes=nbytes, kind=kind, name=name, **fields))
        return number

    def _bytes_of(self, values: Any, kind: str = "input") -> dict[int, int]:
        """Return the bytes that ``values`` cover of each tensor, by the tensor's id.

        Tensors not seen before are of ``kind``.
        """
        shown: dict[int, dict[Any, int]] = {}
        for tensor in _tensors_in(values):
            sizes = [size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step]
            nbytes = prod(sizes) * tensor.element_size() if tensor.numel() else 0
            view = (tensor.storage_offset(), tensor.shape, tensor.stride())
            shown.setdefault(self._number(tensor, kind), {})[view] = nbytes
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
                f"operation {func.name()} of layer {layer!r} has an unknown amount of work: "
                f"register it with torch.utils.flop_counter.register_flop_formula"
            )
        if kind in _MOVES:
            return 0
        if kind.startswith("_foreach"):
            return sum(tensor.numel() for tensor in _tensors_in(args[0]))
        return max(tensor.numel() for tensor in _tensors_in((args, kwargs, result)))

    def _add(
        self,
        kind: str,
        layer: str,
        source: int | None,
        read: Mapping[int, int],
        written: Mapping[int, int],
        flops: int,
        geometry: Geometry | None = None,
        dtype: str = "fp32",
    ) -> None:
        self._sources.append(source)
        self._ops.append(
            Op(
                id=len(self._ops),
                kind=kind,
                layer=self._layers.setdefault(layer, len(self._layers)),
                phase=self.phase,
                stage=0,
                reads=tuple(read),
                writes=tuple(written),
                read_bytes=tuple(read.values()),
                write_bytes=tuple(written.values()),
                flops=flops,
                geometry=geometry,
                dtype=dtype,
            )
        )


def _use(trace: Trace, tensor: Tensor) -> str:
    """Return the kind of a tensor that does not outlive the step."""
    phases = [trace.ops[op].phase for op in trace.accesses[tensor.id]]
    both = phases and phases[0] == "forward" and phases[-1] == "backward"
    return "activation" if both and tensor.kind == "temporary" else tensor.kind


def _format_of(values: Iterable[Any]) -> str:
    """Return the format of the first floating-point tensor; FP32 if there is none of a known one.

    A tensor without dimensions does not count beside others.
    """
    formats = [
        (tensor.dim() == 0, _FORMATS[tensor.dtype])
        for tensor in _tensors_in(values)
        if tensor.dtype in _FORMATS
    ]
    return min(formats, key=itemgetter(0), default=(True, "fp32"))[1]


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
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
            trace.save(file := settings.to / f"{name}{SUFFIX}")
        except OSError as error:
            parser.error(f"{error.filename}: {error.strerror}; choose another folder with --to")
        print(f"{file}: {len(trace.ops)} operations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
