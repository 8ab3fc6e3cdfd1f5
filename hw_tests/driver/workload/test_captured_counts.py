"""Captured networks of different kinds, against PyTorch's own counts of work and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from sw_driver.workload import Trace, peak_bytes
from sw_driver.workload.capture import capture
from sw_driver.workload.products import has_products
from sw_driver.workload.trace import KINDS, TraceError, load_trace


class Runs(nn.Module):
    """Modules by their names, and how they run."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, values: Any) -> Any:
        return self.run(self, values)


def tied() -> nn.Module:
    model = Runs(
        lambda m, x: m.out(m.hidden(m.table(x)).relu()),
        table=nn.Embedding(50, 16), hidden=nn.Linear(16, 16), out=nn.Linear(16, 50, bias=False),
    )  # fmt: skip
    model.out.weight = model.table.weight
    return model


def branches() -> nn.Module:
    def run(m: Any, x: Any) -> Any:
        stem = m.relu(m.stem(x))
        both = torch.cat([m.relu(m.left(stem)), m.relu(m.right(stem))], 1)
        return m.head(both.mean((2, 3)))

    return Runs(
        run, stem=nn.Conv2d(3, 8, 3, padding=1), left=nn.Conv2d(8, 8, 1), relu=nn.ReLU(),
        right=nn.Conv2d(8, 8, 3, padding=1), head=nn.Linear(16, 5),
    )  # fmt: skip


def recomputed(reentrant: bool) -> nn.Module:
    def run(m: Any, x: Any) -> Any:
        for block in m.blocks:
            x = x + checkpoint(block, x, use_reentrant=reentrant)
        return x

    blocks = (nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3))
    return Runs(run, blocks=nn.ModuleList(blocks))


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, groups=4), nn.BatchNorm2d(16), nn.ReLU6(inplace=True),
        nn.Conv2d(16, 16, 3, groups=16, bias=False), nn.Conv2d(16, 4, 1),
    )  # fmt: skip


def cells() -> nn.Module:
    def run(m: Any, x: Any) -> Any:
        state = x.new_zeros(3, 16), x.new_zeros(3, 16)
        for values in x:
            state = m.cell(values, state)
        return m.out(state[0])

    return Runs(run, cell=nn.LSTMCell(8, 16), out=nn.Linear(16, 4))


def attention() -> nn.Module:
    return Runs(
        lambda m, x: m.out(m.norm(x + m.attend(x, x, x, need_weights=False)[0])),
        attend=nn.MultiheadAttention(16, 4, batch_first=True),
        norm=nn.LayerNorm(16), out=nn.Linear(16, 16),
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 8))


def autocast() -> nn.Module:
    return Runs(torch.autocast("cpu", dtype=torch.bfloat16)(lambda m, x: m.a(x)), a=perceptron())


def dilated() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, dilation=2, stride=2), nn.Tanh(), nn.ConvTranspose2d(6, 3, 3, stride=2)
    )


def in_place() -> nn.Module:
    def run(m: Any, x: Any) -> Any:
        values = m.first(x)
        values[:, :2].mul_(2)
        values.add_(1).relu_()
        return m.second(values.clone().clamp_(max=6))

    return Runs(run, first=nn.Linear(4, 4), second=nn.Linear(4, 4))


INDICES = {"dtype": torch.int64}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any], int]] = {
    "tied weights": (tied, (4, 6), INDICES, 3),
    "branches": (branches, (2, 3, 8, 8), {}, 4),
    "recomputed": (lambda: recomputed(False), (4, 8), {}, 6),
    "recomputed, reentrant": (lambda: recomputed(True), (4, 8), {"requires_grad": True}, 6),
    "groups": (grouped, (2, 8, 9, 9), {}, 3),
    "bags": (
        lambda: nn.Sequential(nn.EmbeddingBag(100, 8), nn.Linear(8, 4)), (5, 3), INDICES, 2,
    ),
    "LSTM": (lambda: nn.LSTM(8, 16, 2), (5, 3, 8), {}, 2 * 5),
    "both ways": (lambda: nn.GRU(8, 16, bidirectional=True), (5, 3, 8), {}, 2 * 5),
    "cells": (cells, (5, 3, 8), {}, 5 + 1),
    "attention": (attention, (2, 7, 16), {}, 2),
    "half precision": (lambda: perceptron().half(), (4, 16), {"dtype": torch.float16}, 2),
    "autocast": (autocast, (4, 16), {}, 2),
    "dilated and transposed": (dilated, (2, 3, 13, 13), {}, 2),
    "in place": (in_place, (5, 4), {}, 2),
}  # fmt: skip
"""Model, shape and type of the batch, and how many layers there are."""


@pytest.fixture(params=NETWORKS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def built(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    model, shape, options, _ = NETWORKS[name]
    return model(), (torch.zeros(shape, **options),)


def loss(model: nn.Module, batch: Any) -> Any:
    result = model(batch)
    return (result[0] if isinstance(result, tuple) else result).float().square().mean()


def captured(name: str) -> Trace:
    return capture(lambda: built(name), loss, name=name)


def run(name: str, mode: Callable[[nn.Module, Any], Any]) -> Any:
    """The mode, after forward and backward pass in it."""
    before, *_ = torch.backends.mkldnn.set_flags(False)  # as capture does
    try:
        with FakeTensorMode():
            model, (batch,) = built(name)
            with mode(model, batch) as found:
                loss(model, batch).backward()
            return found
    finally:
        torch.backends.mkldnn.set_flags(before)


def test_products_are_as_much_work_as_pytorch_counts(name: str) -> None:
    trace = captured(name)
    ours = theirs = 0
    for op in trace.ops:
        if has_products(op.kind) and not op.kind.endswith("_bias"):
            ours += op.flops
            # Of filters' gradients it counts all pairs of channels, also those of two groups.
            filters = op.geometry and op.kind == "convolution_backward_filter"
            theirs += op.flops * (op.geometry.groups if filters else 1)
            # It knows attention on GPUs only.
            theirs -= op.flops * op.kind.endswith("flash_attention_for_cpu")
            theirs -= op.flops * op.kind.endswith("flash_attention_for_cpu_backward")
    counted = run(name, lambda *_: FlopCounterMode(display=False))
    assert counted.get_total_flops() == theirs
    assert (ours == theirs) == (name not in ("groups", "attention"))


class Storages(TorchDispatchMode):
    """Sums after each operation what storages there are."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        super().__init__()
        self.peak = 0
        self.sizes: dict[StorageWeakRef, int] = {}
        self.see([*model.parameters(), *model.buffers(), batch])

    def see(self, result: Any) -> None:
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                self.sizes[StorageWeakRef(storage)] = storage.nbytes()
        self.sizes = {each: nbytes for each, nbytes in self.sizes.items() if not each.expired()}
        self.peak = max(self.peak, sum(self.sizes.values()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace != "prim":
            self.see(result)
        return result


def tracker(model: nn.Module, batch: Any) -> MemTracker:
    found = MemTracker()
    found.track_external(model, batch)
    return found


def test_passes_take_as_much_memory_as_pytorch_does(name: str) -> None:
    """But for states, which are there in the update only. What runs again keeps more in PyTorch's
    tracker, whose hooks hold it until Python collects cycles."""
    peak = peak_bytes(captured(name), *{*KINDS} - {"optimizer_state"})
    assert run(name, Storages).peak == peak
    ((_, found),) = run(name, tracker).get_tracker_snapshot("peak").items()
    assert found["Total"] == peak or (name.startswith("recomputed") and found["Total"] > peak)


def test_a_network_has_two_stages_for_each_layer(name: str) -> None:
    trace = captured(name)
    layers = NETWORKS[name][-1]
    phases = [each.phase for each in trace.stages]
    assert phases == ["forward"] * layers + ["backward"] * layers
    names = [each.name for each in trace.stages]
    assert names == names[::-1]
    stages = [op.stage for op in trace.ops if op.phase == "forward"]
    assert stages == sorted(stages)
    assert {op.stage for op in trace.ops} == {*range(2 * layers)}


def test_two_captures_of_a_network_are_the_same_bytes(name: str, tmp_path: Path) -> None:
    for file in ("one", "two"):
        captured(name).save(tmp_path / file)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_operations_have_the_format_that_they_compute_in(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch).float().sum()

    def build() -> tuple[nn.Module, tuple[Any]]:
        return nn.Linear(8, 8), (torch.zeros(4, 8),)

    trace = capture(build, step, name="mixed")
    formats = {op.kind: op.dtype for op in reversed(trace.ops)}
    assert formats["addmm"] == formats["mm"] == "bf16"
    assert formats["sum"] == formats["adam"] == "fp32"
    sizes = {tensor.kind: tensor.element_bytes for tensor in trace.tensors}
    assert sizes["parameter"] == sizes["gradient"] == sizes["optimizer_state"] == 4
    assert sizes["activation"] == 2
    trace.save(tmp_path / "mixed.json.gz")
    assert load_trace(tmp_path / "mixed.json.gz") == trace
    with pytest.raises(TraceError, match="dtype is 'bf61': did you mean bf16"):
        replace(trace.ops[0], dtype="bf61")
