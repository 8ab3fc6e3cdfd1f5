"""Transformer-XL as in the code of Dai et al.; embedding and output share their weight.

Attention is explicit: distances have a product of their own, which is shifted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from ..networks import TransformerXlConfig
from .gpt import dropout

__all__ = ["TransformerXl", "transformer_xl_with_batch"]


def transformer_xl_with_batch(
    config: TransformerXlConfig,
) -> tuple[TransformerXl, tuple[Tensor, ...]]:
    """Return a new model and its batch: tokens, labels, and each layer's input of the last step."""
    context, batch, width = config.context, config.batch, config.d_model
    tokens, labels = (torch.zeros((context, batch), dtype=torch.int64) for _ in range(2))
    memories = (torch.zeros(context, batch, width) for _ in range(config.n_layers))
    return TransformerXl(config), (tokens, labels, *memories)


class TransformerXl(nn.Module):
    """Transformer-XL. All samples share the sines and cosines of distances, and the mask.

    The mask is true at positions that attention ignores.
    """

    waves: Tensor
    mask: Tensor

    def __init__(self, config: TransformerXlConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.d_model)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.n_layers))
        self.logits = nn.Linear(config.d_model, config.vocabulary)
        self.logits.weight = self.words.weight
        self.dropout = config.dropout
        context = config.context
        self.register_buffer("waves", torch.zeros(2 * context, config.d_model))
        self.register_buffer("mask", torch.zeros((context, 2 * context), dtype=torch.bool))

    def forward(self, tokens: Tensor, labels: Tensor, *memories: Tensor) -> Tensor:
        """Return the loss."""
        values = self.words(tokens)
        values = dropout(values * math.sqrt(values.shape[2]), self.dropout)
        waves = dropout(self.waves, self.dropout)
        for layer, memory in zip(self.layers, memories, strict=True):
            values = layer(values, waves, self.mask, memory)
        logits = self.logits(dropout(values, self.dropout))
        return cross_entropy(logits.flatten(0, 1), labels.flatten())


class _Layer(nn.Module):
    def __init__(self, config: TransformerXlConfig) -> None:
        super().__init__()
        width, self.heads = config.d_model, config.n_heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.distance, self.dense = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.content_bias, self.distance_bias = (
            nn.Parameter(torch.zeros(self.heads, width // self.heads)) for _ in range(2)
        )
        self.attention_norm, self.norm = (nn.LayerNorm(width) for _ in range(2))
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = config.dropout

    def forward(self, values: Tensor, waves: Tensor, mask: Tensor, memory: Tensor) -> Tensor:
        attended = self.dense(self._attend(values, waves, mask, memory))
        values = self.attention_norm(values + dropout(attended, self.dropout))
        inner = dropout(self.widen(values).relu_(), self.dropout)
        return self.norm(values + dropout(self.narrow(inner), self.dropout))

    def _attend(self, values: Tensor, waves: Tensor, mask: Tensor, memory: Tensor) -> Tensor:
        """Return the attention of ``values`` to ``memory`` and themselves.

        ``values`` and ``memory`` are (context, batch, width), ``waves`` is (distance, width).
        """
        mixed = self.query_key_value(torch.cat([memory, values])).chunk(3, 2)
        query, key, value = (part.unflatten(2, (self.heads, -1)) for part in mixed)
        query, far = query[-len(values) :], self.distance(waves).unflatten(1, (self.heads, -1))
        scores = torch.einsum("ibnd,jnd->bnij", query + self.distance_bias, far)
        # Columns are distances. Shift each row by one more than the next: columns become positions.
        batch, heads, rows, columns = scores.shape
        scores = pad(scores, (1, 0)).view(batch, heads, columns + 1, rows)[:, :, 1:].view_as(scores)
        scores = torch.einsum("ibnd,jbnd->bnij", query + self.content_bias, key) + scores
        scores = scores.mul_(1 / math.sqrt(query.shape[3])).masked_fill(mask, -math.inf)
        return torch.einsum("bnij,jbnd->ibnd", scores.softmax(3), value).flatten(2)
