"""Cost of a training step under Sentinel's compiled guard, beside other ways to train.

``python -m hw_tests.speed.guard [MODEL ...]`` trains each model in a process for each way. The
processes take turns, one step each, so that other work on the machine slows all of them alike.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import sw_driver.torch.guard
from sw_driver.torch.sentinel import Sentinel

__all__ = ["main"]

ROUNDS = 9
THREADS = 1
"""Threads that compute; Sentinel's copies have threads of their own."""


class _Blocks(nn.Module):
    """Blocks one after the other; some ways compute them again in the backward pass."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks, self.again = nn.ModuleList(blocks), False

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.inner(x))


class _Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0]


def _transformer() -> tuple[_Blocks, Tensor]:
    blocks = [nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)]
    return _Blocks([*blocks]), torch.randn(8, 64, 256)


def _resnet() -> tuple[_Blocks, Tensor]:
    return _Blocks([_Residual(48) for _ in range(9)]), torch.randn(8, 48, 32, 32)


def _lstm() -> tuple[_Blocks, Tensor]:
    return _Blocks([_Recurrent(320) for _ in range(3)]), torch.randn(16, 64, 320)


MODELS = {"transformer": _transformer, "resnet": _resnet, "lstm": _lstm}

WAYS = {
    "plain": 2, "guarded": 4, "half": 24, "python mode": 4, "save_on_cpu": 2, "checkpointing": 2,
}  # fmt: skip
"""Steps before the measured ones, by way: Sentinel profiles a step, and tries plans for half."""


def _work(name: str, way: str) -> None:
    """Train one step for each line from stdin; print its times and the bytes moved so far."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.again = way == "checkpointing"
    optimizer = torch.optim.AdamW(model.parameters())
    if way == "python mode":
        sw_driver.torch.guard.load = lambda: None
    budget = {"guarded": "100%", "python mode": "100%", "half": "50%"}.get(way)
    policy = Sentinel(model, optimizer, budget=budget) if budget else None
    saving: Callable[[], AbstractContextManager[Any]] = (
        save_on_cpu if way == "save_on_cpu" else nullcontext
    )

    def step() -> None:
        optimizer.zero_grad()
        with saving():
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    for _ in range(WAYS[way]):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        began, thread = time.perf_counter(), time.thread_time()
        step()
        ended, thread_ended = time.perf_counter(), time.thread_time()
        report = policy.report() if policy is not None else {}
        moved = report.get("out_bytes", 0) + report.get("back_bytes", 0)
        print(json.dumps([ended - began, thread_ended - thread, moved, report]), flush=True)


def _copy_bytes_per_s() -> float:
    """Measure the rate of copies in memory whose pages are mapped."""
    size = 64 << 20
    one, other = (ctypes.create_string_buffer(size) for _ in range(2))
    times = []
    for _ in range(7):
        began = time.perf_counter()
        ctypes.memmove(one, other, size)
        times.append(time.perf_counter() - began)
    return size / median(times)


def measure(name: str) -> None:
    """Measure and print one model."""
    workers = {
        way: subprocess.Popen(
            [sys.executable, "-m", __spec__.name, name, way],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for way in WAYS
    }  # fmt: skip
    times: dict[str, list[list[Any]]] = {way: [] for way in WAYS}
    for worker in workers.values():
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for _ in range(ROUNDS):
        for way, worker in workers.items():
            assert worker.stdin is not None
            assert worker.stdout is not None
            print(file=worker.stdin, flush=True)
            times[way].append(json.loads(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()
    wall, thread = (
        {way: median(row[n] for row in rows) for way, rows in times.items()} for n in range(2)
    )
    moved_bytes = (times["half"][-1][2] - times["half"][0][2]) / (ROUNDS - 1)
    copy_s = moved_bytes / _copy_bytes_per_s()
    print(f"{name}: a plain step takes {wall['plain'] * 1e3:,.0f} ms with {THREADS} thread")
    for way in WAYS:
        print(
            f"{way:>15}: {wall[way] * 1e3:9,.1f} ms, {wall[way] / wall['plain']:5.2f} x plain; "
            f"{thread[way] * 1e3:9,.1f} ms of the training thread's processor, "
            f"{thread[way] / thread['plain']:5.2f} x plain"
        )
    least = max(wall["plain"], copy_s)
    peak, budget = (times["half"][-1][3][key] / 2**20 for key in ("peak_bytes", "budget_bytes"))
    print(
        f"     half moves {moved_bytes / 2**20:,.0f} MiB a step, {copy_s * 1e3:,.0f} ms of copies: "
        f"{wall['half'] / least:.2f} x the longer of both; peak {peak:.1f} of {budget:.1f} MiB",
        flush=True,
    )


def main(*arguments: str) -> None:
    """Measure and print; with a model and a way, be that worker."""
    if len(arguments) == 2 and arguments[1] in WAYS:
        _work(*arguments)
        return
    for name in arguments or MODELS:
        measure(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
