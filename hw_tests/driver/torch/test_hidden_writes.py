"""PyTorch's operators write to what the list says: those that PyTorch's own test suite has samples
of, its modules in training, and recurrent layers in FP32 and BF16.

It takes about a minute. PyTorch has no public list of samples, so these are its test suite's.
"""

from __future__ import annotations

import sys
import unittest
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sw_driver.workload.writes import HIDDEN_WRITES

FORMATS = {torch.float32: 2, torch.bfloat16: 1}
"""Samples of an operator by format."""
MODULES = 4
"""Calls of a module and format."""


def storages_of(values: Any) -> Iterator[tuple[int, Any]]:
    """Yield number and storage of tensors."""
    for each in tree_leaves(values):
        if not isinstance(each, torch.Tensor):
            continue
        if each.layout is torch.sparse_coo:
            yield from storages_of([each._indices(), each._values()])
        if each.layout is not torch.strided or not each.is_cpu:
            continue
        with suppress(RuntimeError):  # a derivative of zeros has no memory
            storage = each.untyped_storage()
            if storage.data_ptr():
                yield storage._cdata, storage


def same(one: Any, other: Any) -> bool:
    """Return whether two storages have the same bytes."""
    these, those = (torch.empty(0, dtype=torch.uint8).set_(each) for each in (one, other))
    return torch.equal(these, those)


class Comparing(TorchDispatchMode):
    """Compares the storages of all arguments of an operator before and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: dict[str, set[str]] = defaultdict(set)
        self.operators: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema.arguments
        given = {each.name: value for each, value in zip(schema, args, strict=False)}
        given |= kwargs or {}
        storages = {name: dict(storages_of(value)) for name, value in given.items()}
        written = {each.name for each in schema if each.alias_info and each.alias_info.is_write}
        allowed = {number for name in written & storages.keys() for number in storages[name]}
        before = {
            number: storage.clone()
            for those in storages.values()
            for number, storage in those.items()
        }
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        self.operators.add(name)
        for argument, those in storages.items():
            for number, storage in those.items():
                if number not in allowed and not same(storage, before[number]):
                    self.hidden[name].add(argument)
        return result


def run(call: Any, comparing: Comparing, *, inference: bool = False) -> None:
    """Run forward and backward pass; what PyTorch does not support is left out."""
    with suppress(Exception), comparing, torch.inference_mode(inference):
        results = [each for each in tree_leaves(call()) if isinstance(each, torch.Tensor)]
        results = [each for each in results if each.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.ones_like(each) for each in results])


def calls_of_operators() -> Iterator[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    for operator in op_db:
        for dtype, count in FORMATS.items():
            if dtype not in operator.supported_dtypes("cpu"):
                continue
            with suppress(Exception):
                samples = operator.sample_inputs(
                    "cpu", dtype, requires_grad=operator.supports_autograd
                )
                for _, each in zip(range(count), samples, strict=False):
                    yield lambda op=operator, it=each: op(it.input, *it.args, **it.kwargs)


def calls_of_modules() -> Iterator[Any]:
    from torch.testing._internal.common_modules import module_db

    for module in module_db:
        for dtype in FORMATS:
            if dtype not in module.dtypes:
                continue
            inputs = module.module_inputs_func(
                module, device="cpu", dtype=dtype, requires_grad=True, training=True
            )
            for each in inputs[:MODULES]:
                made, given = each.constructor_input, each.forward_input
                if given is not None:
                    layer = module.module_cls(*made.args, **made.kwargs).to(dtype)
                    yield lambda layer=layer, it=given: layer(*it.args, **it.kwargs)


def calls_of_layers() -> Iterator[Any]:
    for dtype in FORMATS:
        for kind in nn.LSTM, nn.GRU, nn.RNN:
            for options in {}, {"num_layers": 2, "bidirectional": True, "dropout": 0.5}:
                layer = kind(8, 16, **options).to(dtype)
                values = torch.randn(5, 3, 8, dtype=dtype, requires_grad=True)
                yield lambda layer=layer, values=values: layer(values)
        for norm in nn.BatchNorm2d(8), nn.InstanceNorm2d(8, track_running_stats=True):
            values = torch.randn(4, 8, 5, 5, dtype=dtype, requires_grad=True)
            norm.to(dtype)
            yield lambda norm=norm, values=values: norm(values)
    import_module("torch._inductor")  # which has operators of its own
    values = torch.randn(6, 8)  # of 192 bytes
    for func, options in (
        (torch.ops.inductor.resize_storage_bytes_, (256,)),
        (
            torch.ops.aten._batch_norm_impl_index,
            (None, None, *statistics(), True, 0.1, 1e-5, False),
        ),
        (torch.ops.aten.batch_norm_update_stats, (*statistics(), 0.1)),
    ):
        yield lambda func=func, options=options: func(values, *options)


def statistics() -> tuple[Any, Any]:
    return torch.zeros(8), torch.ones(8)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_what_operators_write_to_is_what_the_list_says(monkeypatch: Any) -> None:
    stand_in: Any = ModuleType("expecttest")  # of which PyTorch's test suite imports a class
    stand_in.TestCase = unittest.TestCase
    if "expecttest" not in sys.modules:
        monkeypatch.setitem(sys.modules, "expecttest", stand_in)
    torch.manual_seed(1)
    comparing = Comparing()
    for call in calls_of_operators():
        run(call, comparing)
    for calls in calls_of_modules, calls_of_layers:
        for call in calls():
            for inference in False, True:  # in which PyTorch takes no operator apart
                run(call, comparing, inference=inference)
    assert len(comparing.operators) > 550
    measured = {name: tuple(sorted(writes)) for name, writes in comparing.hidden.items()}
    listed = {name: tuple(sorted(writes)) for name, writes in HIDDEN_WRITES.items()}
    assert not {name: writes for name, writes in measured.items() if writes != listed.get(name)}
    for name in listed.keys() - measured.keys():
        has, full_name = torch._C._dispatch_has_kernel_for_dispatch_key, f"aten::{name}"
        kernels = "CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd"
        assert not any(has(full_name, each) for each in kernels), f"{name} hides no write"
