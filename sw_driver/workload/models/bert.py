"""BERT and RoBERTa in pretraining, made of the GPT's parts.

Attention has one product for queries, keys and values, where Hugging Face's has three.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..networks import BertConfig
from .gpt import Attention, Mlp, dropout

__all__ = ["Bert", "bert_with_batch"]


def bert_with_batch(config: BertConfig) -> tuple[Bert, tuple[Tensor, ...]]:
    """Return a new model and its batch.

    The batch is tokens, positions, segments, labels, mask, and for each sample whether its second
    segment follows the first.
    """
    shape = config.batch, config.context
    numbers = (torch.zeros(shape, dtype=torch.int64) for _ in range(4))
    mask = torch.zeros((config.batch, 1, 1, config.context), dtype=torch.bool)
    return Bert(config), (*numbers, mask, torch.zeros(config.batch, dtype=torch.int64))


class Bert(nn.Module):
    """BERT with its heads for pretraining; it has a pooler only if there are two segments."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width, rows = config.d_model, (config.vocabulary, config.positions, config.segments)
        self.words, self.positions, self.segments = (nn.Embedding(count, width) for count in rows)
        self.norm = nn.LayerNorm(width)
        self.dropout = config.dropout
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.n_layers))
        pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
        self.pooler = pooler if config.segments > 1 else None
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.logits = nn.Linear(width, config.vocabulary)
        self.logits.weight = self.words.weight

    def forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor, labels: Tensor, mask: Tensor,
        follows: Tensor,
    ) -> Tensor:  # fmt: skip
        """Return the loss. ``mask`` is true at positions that attention ignores."""
        values = self.words(tokens) + self.segments(segments) + self.positions(positions)
        values = dropout(self.norm(values), self.dropout).transpose(0, 1).contiguous()
        for layer in self.layers:
            values = layer(values, mask)
        values = values.transpose(0, 1)
        loss = cross_entropy(self.logits(self.head(values)).flatten(0, 1), labels.flatten())
        if self.pooler is None:
            return loss
        return loss + cross_entropy(self.pooler(values[:, 0]), follows)


class _Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(config), Mlp(config)
        self.attention_norm, self.norm = (nn.LayerNorm(config.d_model) for _ in range(2))
        self.dropout = config.dropout

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        attended = dropout(self.attention(values, mask), self.dropout)
        values = self.attention_norm(values + attended)
        return self.norm(values + dropout(self.mlp(values), self.dropout))
