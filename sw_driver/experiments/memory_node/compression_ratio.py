"""Compression ratio of activations that move to memory-nodes without their zeros.

``python -m sw_driver.experiments.memory_node.compression_ratio`` trains a small CNN on handwritten
digits. In the first and the last step, activations move to golden memory-nodes, and the ratio is
printed: for all saved activations, and without the outputs of cheap layers.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from sw_driver.experiments.training.data import load_split_digits
from sw_driver.memory_node import DeviceNode
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.torch.overlay import CHEAP, MemoryOverlay

__all__ = ["main"]

STEPS = 200
BATCH = 64


def main() -> None:
    """Measure and print the ratios."""
    digits = load_split_digits()
    images = torch.tensor(digits.train_images).float().reshape(-1, 1, 8, 8)
    labels = torch.tensor(digits.train_labels).long()
    for moved, recomputed in (("all", ()), ("what is not recomputed", CHEAP)):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(128 * 16, 10),
        )  # fmt: skip
        network = GoldenNetwork(local_bytes=1 << 22, share_bytes=1 << 24)
        device = DeviceNode(network)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            chosen = torch.randint(len(images), (BATCH,))
            optimizer.zero_grad()
            overlay = MemoryOverlay(model, device, recomputed=recomputed, compressed=True)
            with overlay if step in (0, STEPS - 1) else nullcontext():
                loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
                loss.backward()
            optimizer.step()
            compression = overlay.statistics.compression
            if compression is not None:
                print(
                    f"{moved} moved, step {step + 1}: loss {loss.item():.3f}, "
                    f"{compression.bytes_out} bytes, {compression.moved_out} without zeros: "
                    f"{compression.ratio:.2f} times less",
                    flush=True,
                )


if __name__ == "__main__":
    main()
