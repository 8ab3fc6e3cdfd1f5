"""Vision transformers as classifiers, made of the decoder's blocks; attention is not causal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..networks import VitConfig
from .decoder import Block, norm_of

__all__ = ["Vit", "vit_with_batch"]


def vit_with_batch(config: VitConfig) -> tuple[Vit, tuple[Tensor, Tensor]]:
    """Return a new model and a batch: images and labels."""
    images = torch.zeros(config.batch, 3, config.image, config.image)
    return Vit(config), (images, torch.zeros(config.batch, dtype=torch.int64))


class Vit(nn.Module):
    """A vision transformer with a class token, which the head reads."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        width, patch = config.d_model, config.patch
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        places = (config.image // patch) ** 2 + 1
        self.positions = nn.Parameter(torch.zeros(1, places, width))
        self.blocks = nn.ModuleList(Block(config, causal=False) for _ in range(config.n_layers))
        self.norm = norm_of(config)
        self.head = nn.Linear(width, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the classes."""
        values = self.patches(images).flatten(2).transpose(1, 2)
        values = torch.cat((self.token.expand(len(values), -1, -1), values), 1) + self.positions
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values)[:, 0])
