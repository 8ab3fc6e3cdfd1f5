"""Trains a GPT on bytes that is larger than the device's memory, with PyTorch.

First plainly, without a limit, for the losses and the memory that this takes; then plainly with the
limit, which ends it; then with parameters, gradients and the optimizer's state on a module that is
too small for them either, and a file as its NVMe storage.

Usage: python docs/examples/offloading.py [DEVICE [STEPS [MAX_NORM [PLACEMENT [TIMELINE]]]]]; DEVICE
is golden by default. With a MAX_NORM that is not none gradients are clipped; PLACEMENT is
round_robin, or by_bytes; TIMELINE is a file for what each channel and link did when, such as t.svg.
"""

import sys
import tempfile

import numpy as np
import torch

from nearmem import Axdimm, BackendOptions
from nearmem.torch import AdamW, DeviceMemory, Offloading
from sw_driver.experiments.training.data import load_library_text
from sw_driver.experiments.training.gpt import Gpt, GptSettings

LARGE = GptSettings(layers=5, width=128, context=32, batch_windows=1)
SMALL = GptSettings(layers=2, width=32, context=16, batch_windows=1)  # for the RTL


def batches(settings, steps):
    text = torch.from_numpy(load_library_text().train)
    windows = text.unfold(0, settings.context + 1, 1)
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(steps):
        size = (settings.batch_windows,)
        yield windows[torch.randint(0, len(windows), size, generator=generator)]


def train(model, optimizer, settings, steps, max_norm):
    losses = []
    for batch in batches(settings, steps):
        optimizer.zero_grad()
        loss = model.loss(batch)
        losses.append(loss.item())
        loss.backward()
        del loss  # or what it was computed from lives until the next one is there
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return losses


def plainly(settings, steps, max_norm, budget=None):
    with DeviceMemory(budget) as memory:
        torch.manual_seed(settings.seed)
        model = Gpt(settings)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return train(model, optimizer, settings, steps, max_norm), memory.peak_bytes


def main(name="golden", steps=None, max_norm=None, placement="round_robin", timeline=None):
    torch.set_num_threads(1)
    settings = SMALL if name.startswith("rtl") else LARGE
    steps = int(steps or (3 if name.startswith("rtl") else 100))
    max_norm = None if max_norm in (None, "none") else float(max_norm)
    largest = 4 * max(4 * settings.width**2, 256 * settings.width)  # bytes of a weight
    budget, channel_bytes = 10 * largest, 5 * largest

    theirs, plain_bytes = plainly(settings, steps, max_norm)
    try:
        plainly(settings, 1, max_norm, budget)
    except torch.OutOfMemoryError as error:
        print(f"plain training: {error}")

    options = BackendOptions(settings={"rules": ("adamw",)})
    with (
        tempfile.NamedTemporaryFile() as storage,
        Axdimm(name, options=options, timeline=timeline) as device,
    ):
        storage.truncate(64 << 20)
        with Offloading(
            device,
            AdamW,
            lr=1e-3,
            budget=budget,
            capacity_bytes=channel_bytes,
            placement=placement,
            storage=storage.name,
        ) as platform:
            torch.manual_seed(settings.seed)
            model = platform.build(Gpt, settings)
            optimizer = platform.optimizer()
            before, built = platform.store.statistics(), device.simulated_ns
            losses = train(model, optimizer, settings, steps, max_norm)
            after, took = platform.store.statistics(), device.simulated_ns - built

    parameters = sum(each.numel() for each in model.parameters())
    difference = float(np.abs(np.subtract(losses, theirs)).max())
    print(f"{parameters} parameters, {16 * parameters} bytes with gradients and state, on {name}")
    print(f"loss, {steps} steps: {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"torch.optim.AdamW:  {theirs[0]:.3f} -> {theirs[-1]:.3f}, at most {difference:.1e} away")
    print(f"device: {platform.peak_bytes} bytes at most of {budget}", end=", ")
    print(f"plainly {plain_bytes}")
    print(f"channels: {after.peak_module_bytes} bytes at most of {channel_bytes} each", end=", ")
    print(f"NVMe: {after.nvme_bytes}")
    for route, copied in sorted((after.copied_bytes - before.copied_bytes).items()):
        print(
            f"{route:>14}: {copied // steps:9d} bytes a step, {copied / steps / parameters:5.1f}",
            end="",
        )
        print(" a parameter")
    if device.transport.timed:
        print(f"a step: {took / steps / 1e6:.3f} ms in simulated time, without the GPU's computing")
    return platform, losses, theirs


if __name__ == "__main__":
    main(*sys.argv[1:])
