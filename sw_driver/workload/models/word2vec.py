"""Word2vec's skip-gram model with noise-contrastive estimation.

Sizes are those of TensorFlow's tutorial (``word2vec_basic.py``). Gradients of the tables are dense,
where TensorFlow's have only the rows that are used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..networks import Word2vecConfig

__all__ = ["Word2vec", "word2vec_with_batch"]

VOCABULARY, WIDTH, NOISE = 50000, 128, 64


def word2vec_with_batch(config: Word2vecConfig) -> tuple[Word2vec, tuple[Tensor, ...]]:
    """Return a new model and its batch.

    The batch is words, a neighbour of each, and words drawn as noise; then the expected counts of
    neighbours and of noise.
    """
    sizes = config.batch, config.batch, NOISE
    words, near, noise = (torch.zeros(size, dtype=torch.int64) for size in sizes)
    return Word2vec(), (words, near, noise, torch.ones(config.batch, 1), torch.ones(1, NOISE))


class Word2vec(nn.Module):
    """Vectors of words, and the weights and biases that tell neighbours from noise."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.weights = (nn.Embedding(VOCABULARY, WIDTH) for _ in range(2))
        self.biases = nn.Embedding(VOCABULARY, 1)

    def forward(self, words: Tensor, near: Tensor, noise: Tensor, *expected: Tensor) -> Tensor:
        """Return the loss of telling neighbours from noise, as a mean over the words."""
        vectors, drawn = self.vectors(words), torch.cat([near, noise])
        sizes = len(near), len(noise)
        weights, of_noise = self.weights(drawn).split(sizes)
        bias, bias_of_noise = self.biases(drawn).split(sizes)
        near_logits = (vectors * weights).sum(1, keepdim=True) + bias - expected[0].log()
        noise_logits = vectors @ of_noise.t() + bias_of_noise.t() - expected[1].log()
        losses = (
            binary_cross_entropy_with_logits(logits, torch.full_like(logits, real), reduction="sum")
            for logits, real in ((near_logits, 1), (noise_logits, 0))
        )
        return torch.add(*losses) / len(words)
