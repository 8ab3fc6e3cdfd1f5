"""Trains with a checkpoint after each step, and goes on from the last: to be killed at any moment.

Usage: python -m hw_tests.driver.torch.offloading.killed FOLDER STEPS
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from hw_tests.driver.torch.offloading.models import Tied, batches, loss_of
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.torch import AdamW
from sw_driver.torch.offloading import Offloading


def main(folder: Path, steps: int) -> None:
    torch.manual_seed(7)
    options = BackendOptions(settings={"rules": ("adamw",)})
    checkpoint, file = folder / "checkpoint.pt", folder / "nvme.img"
    file.write_bytes(bytes(1 << 20))
    with (
        Axdimm("golden:tiny", options=options) as device,
        Offloading(device, AdamW, lr=0.01, capacity_bytes=20 << 10, storage=file) as platform,
    ):
        model = platform.build(Tied)
        optimizer = platform.optimizer()
        done = platform.load(checkpoint)["step"] if checkpoint.exists() else 0
        print(done, flush=True)
        for step, batch in list(enumerate(batches(steps), 1))[done:]:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            platform.save(checkpoint, step=step)
            print(step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
