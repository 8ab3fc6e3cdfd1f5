"""Each policy that keeps a model elsewhere, as two lines of a training script have it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.memory_node import DeviceNode
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.torch import AdamW
from sw_driver.torch.memferry import MemFerry
from sw_driver.torch.offloading import Offloading
from sw_driver.torch.overlay import MemoryOverlay
from sw_driver.torch.profiler import layers_of
from sw_driver.torch.sentinel import Sentinel

__all__ = ["POLICIES", "Begin"]

Begin = Callable[[ExitStack, nn.Module, Path], Optimizer]
"""Puts a model under a policy until the stack is left; returns its optimizer."""

LR = 1e-2
LEAST_BYTES = 1 << 10
RULES = BackendOptions(settings={"rules": ("adamw",)})


def _plain(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LR)


def _sentinel(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    optimizer = _plain(stack, model, folder)
    stack.enter_context(
        Sentinel(model, optimizer, budget="80%", slow=folder, least_bytes=LEAST_BYTES)
    )
    return optimizer


def _memferry(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    optimizer = _plain(stack, model, folder)
    names = [*layers_of(model)]
    modes = {name: ("GFGB", "DHA", "DFGB")[at % 3] for at, name in enumerate(names)}
    MemFerry(model, optimizer, plan={"modes": modes, "gradients_on_gpu": names[::2]})
    return optimizer


def _overlay(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    network = GoldenNetwork(devices=2, local_bytes=1 << 20, share_bytes=1 << 24)
    stack.enter_context(MemoryOverlay(model, DeviceNode(network, 0), least_bytes=LEAST_BYTES))
    return _plain(stack, model, folder)


def _module(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    device = stack.enter_context(Axdimm("golden:tiny", options=RULES))
    return AdamW([each for each in model.parameters() if each.requires_grad], lr=LR, device=device)


def _offloading(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    file = folder / "nvme.img"
    folder.mkdir(exist_ok=True)
    file.write_bytes(bytes(4 << 20))
    device = stack.enter_context(Axdimm("golden:tiny", options=RULES))
    platform = stack.enter_context(
        Offloading(device, AdamW, lr=LR, capacity_bytes=100_000, storage=file)
    )
    return platform.take(model) and platform.optimizer()


POLICIES: dict[str, tuple[Begin, Begin]] = {
    "sentinel": (_sentinel, _plain),
    "memferry": (_memferry, _plain),
    "overlay": (_overlay, _plain),
    "offloading": (_offloading, _module),
}
"""Each beside training without it: Offloading's arithmetic is the module's, on which the optimizer
of its plain training then is."""
