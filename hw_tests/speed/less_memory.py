"""How much a training process grows under each policy of docs/less-memory.md, on this machine.

``python -m hw_tests.speed.less_memory`` trains two models, each in a process of its own for each
policy, and prints the most memory that it had above that after its imports.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.memory_node import DeviceNode
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.torch import Adam
from sw_driver.torch.memferry import MemFerry
from sw_driver.torch.offloading import Offloading
from sw_driver.torch.overlay import MemoryOverlay
from sw_driver.torch.profiler import layers_of
from sw_driver.torch.sentinel import Sentinel

MIB = 1 << 20
STEPS = 2


def products() -> tuple[nn.Module, Tensor]:
    """Wide layers: parameters and their states are most of it."""
    layers = [each for _ in range(6) for each in (nn.Linear(3072, 3072), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(3072, 10)), torch.randn(1024, 3072)


def convolutions() -> tuple[nn.Module, Tensor]:
    """Activations are most of it."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(14):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*layers), torch.randn(64, 3, 64, 64)


MODELS = {"products": products, "convolutions": convolutions}


def plain(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    return torch.optim.Adam(model.parameters())


def sentinel(
    stack: ExitStack, model: nn.Module, folder: Path, budget: int | str = "25%"
) -> Optimizer:
    optimizer = plain(stack, model, folder)
    stack.enter_context(Sentinel(model, optimizer, budget=budget, slow=folder))
    return optimizer


def tight(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    return sentinel(stack, model, folder, "18%")


def fixed(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    return sentinel(stack, model, folder, "256MiB")


def memferry(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    optimizer = plain(stack, model, folder)
    modes = dict.fromkeys(layers_of(model), "GFGB")
    MemFerry(model, optimizer, plan={"modes": modes, "gradients_on_gpu": [*modes]})
    return optimizer


def overlay(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    network = GoldenNetwork(devices=2, local_bytes=64 * MIB, share_bytes=512 * MIB)
    stack.enter_context(MemoryOverlay(model, DeviceNode(network)))
    return plain(stack, model, folder)


def offloading(stack: ExitStack, model: nn.Module, folder: Path) -> Optimizer:
    file = folder / "nvme.img"
    with file.open("wb") as made:
        made.truncate(2 << 30)
    options = BackendOptions(settings={"rules": ("adam",), "capacity_bytes": 512 * MIB})
    device = stack.enter_context(Axdimm("golden", options=options))
    platform = stack.enter_context(Offloading(device, Adam, capacity_bytes=160 * MIB, storage=file))
    platform.take(model)
    return platform.optimizer()


POLICIES = {
    each.__name__: each for each in (plain, sentinel, tight, fixed, memferry, overlay, offloading)
}


def memory_bytes(name: str) -> int:
    """A line of the process' status."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(each.split()[1]) for each in lines if each.startswith(f"{name}:")) << 10


def trained(policy: str, name: str) -> dict[str, Any]:
    """Some steps in this process."""
    Path("/proc/self/clear_refs").write_text("5", "utf-8")  # the most so far is what is there
    before = memory_bytes("VmRSS")
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    targets = torch.randint(10, (len(inputs),))
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        optimizer = POLICIES[policy](stack, model, Path(folder))
        for _ in range(STEPS):
            began = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - began)
        most = memory_bytes("VmHWM")
    bits = hashlib.sha256()
    for each in model.state_dict().values():
        bits.update(each.numpy().tobytes())
    return {"mib": (most - before) / MIB, "seconds": seconds, "bits": bits.hexdigest()}


def main(*arguments: str) -> None:
    """Measures and prints; with a policy and a model, that alone as JSON."""
    if arguments:
        print(json.dumps(trained(*arguments)))
        return
    for name in MODELS:
        for policy in POLICIES:
            command = [sys.executable, "-m", __spec__.name, policy, name]
            made = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(made.stdout)
            seconds = " ".join(f"{each:.1f}" for each in found["seconds"])
            print(f"{name} {policy}: {found['mib']:.0f} MiB, {seconds} s, {found['bits'][:8]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
