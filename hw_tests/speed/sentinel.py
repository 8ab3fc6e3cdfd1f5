"""Training in a quarter of a step's memory, the rest in a file: Sentinel beside other ways.

``python -m hw_tests.speed.sentinel [FOLDER] [MODEL ...]`` trains each model in a process for each
way and prints what a step takes, what the process grew by, what was moved, and where time went.
The file is in FOLDER, by default the one for temporary files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from sw_driver.system.sentinel.steps import StepRecord
from sw_driver.torch.residency import Policy
from sw_driver.torch.sentinel import Sentinel
from sw_driver.torch.slow_memory import store_at

__all__ = ["main", "trained"]

LEAST_BYTES = 1 << 16
MEASURED = 3
"""Steps of which the median counts, the last ones."""
STEPS = {"plain": 6, "saved": 5, "least recent": 5, "as there is room": 7, "sentinel": 24}
"""By way; with plans, some steps are profiled or tried first."""


def _mlp() -> tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]]]:
    layers = [each for _ in range(6) for each in (nn.Linear(2048, 2048), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(2048, 10))
    return model, lambda: (torch.randn(512, 2048), torch.randint(10, (512,)))


def _cnn() -> tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]]]:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(14):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return model, lambda: (torch.randn(16, 3, 64, 64), torch.randint(10, (16,)))


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4000, 512)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(8)
        )
        self.out = nn.Linear(512, 10)

    def forward(self, words: Tensor) -> Tensor:
        h = self.words(words)
        for block in self.blocks:
            h = block(h)
        return self.out(h.mean(1))


def _transformer() -> tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]]]:
    return _Attending(), lambda: (torch.randint(4000, (8, 128)), torch.randint(10, (8,)))


MODELS = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}


class _Saved:
    """PyTorch's ``save_on_cpu`` with a file: what autograd saves is written, and read when it is
    needed, by the thread that computes."""

    def __init__(self, where: str) -> None:
        self.store = store_at(where)
        self.out_bytes = self.back_bytes = self.waited_ns = 0

    def pack(self, tensor: Tensor) -> Any:
        nbytes = tensor.untyped_storage().nbytes()
        if nbytes < LEAST_BYTES:
            return tensor
        began = time.perf_counter_ns()
        place, whole = self.store.take(tensor.nbytes), tensor.contiguous()
        self.store.write(place, whole.data_ptr(), whole.nbytes).wait()
        self.out_bytes += whole.nbytes
        self.waited_ns += time.perf_counter_ns() - began
        return place, tensor.shape, tensor.dtype

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        place, shape, dtype = packed
        began = time.perf_counter_ns()
        made = torch.empty(shape, dtype=dtype)
        self.store.read(place, made.data_ptr(), made.nbytes).wait()
        self.back_bytes += made.nbytes
        self.store.give(place, made.nbytes)
        self.waited_ns += time.perf_counter_ns() - began
        return made


def _status_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(each.split()[1]) for each in lines if each.startswith(name)) / 1024


def trained(name: str, way: str, where: str) -> dict[str, Any]:
    before_mib = _status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # others are for copies
    model, batch = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters())
    saved = _Saved(where) if way == "saved" else None
    policy = None
    if way == "least recent":
        StepRecord.plans = lambda *_: []  # pyright: ignore[reportAttributeAccessIssue]
        Sentinel.victim = Policy.victim
    if way == "as there is room":
        plans = StepRecord.plans
        StepRecord.plans = lambda *args: plans(*args)[:1]
    if way not in ("plain", "saved"):
        policy = Sentinel(model, optimizer, budget="25%", slow=where)
    rows = []
    for _ in range(STEPS[way]):
        began = time.perf_counter_ns()
        now = _moved(policy, saved)
        inputs, labels = batch()
        optimizer.zero_grad()
        context: AbstractContextManager[Any] = nullcontext()
        if saved is not None:
            context = saved_tensors_hooks(saved.pack, saved.unpack)
        with context:
            loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        taken_ns = time.perf_counter_ns() - began
        rows.append([taken_ns, *(b - a for a, b in zip(now, _moved(policy, saved), strict=True))])
        plan = policy._kind.plan if policy and policy._kind else None
        print(f"  {plan.name if plan else way}: {rows[-1][0] / 1e6:.0f} ms", file=sys.stderr)
        last = loss.item()
        del loss
    columns = [median(each) for each in zip(*rows[-MEASURED:], strict=True)]
    if policy is not None:
        print(policy, file=sys.stderr)
    return {
        "s": columns[0] / 1e9,
        "MiB growth": _status_mib("VmHWM") - before_mib,
        "MiB budget": policy.budget_bytes / 2**20 if policy else 0,
        "MiB out": columns[1] / 2**20,
        "MiB back": columns[2] / 2**20,
        "s waited": columns[3] / 1e9,
        "s bookkeeping": columns[4] / 1e9,
        "loss": last,
    }


def _moved(policy: Sentinel | None, saved: _Saved | None) -> tuple[int, ...]:
    if policy is not None:
        moved = policy.statistics
        return moved.bytes_out, moved.bytes_back, moved.waited_ns, policy._own_ns
    if saved is not None:
        return saved.out_bytes, saved.back_bytes, saved.waited_ns, 0
    return 0, 0, 0, 0


def main(folder: str = "", *models: str) -> None:
    """Measures and prints."""
    where = folder or tempfile.gettempdir()
    for name in models or MODELS:
        for way in STEPS:
            code = "import json; from hw_tests.speed.sentinel import trained; "
            code += f"print(json.dumps(trained({name!r}, {way!r}, {where!r})))"
            command = [sys.executable, "-c", code]
            made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(made.stdout)
            text = ", ".join(
                f"{value:.{2 + 2 * (key == 'loss')}f} {key}" for key, value in found.items()
            )
            print(f"{name:>12} {way:<17} {text}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
