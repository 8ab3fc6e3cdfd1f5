"""A GPT equivalent to Megatron's of 2021, on one GPU and in FP32.

Parameters are registered in Megatron's order. Attention is explicit: scores, softmax and dropout
are separate tensors. Element-wise operations that Megatron fuses are separate, which saves the same
tensors for the backward pass. Nothing is recomputed there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..networks import BertConfig, GptConfig

__all__ = ["Attention", "Gpt", "Mlp", "dropout", "gpt_loss", "gpt_with_batch"]


def gpt_with_batch(config: GptConfig) -> tuple[Gpt, tuple[Tensor, ...]]:
    """Return a new model and arguments of :func:`gpt_loss`: tokens, positions, mask and labels."""
    shape = (config.batch, config.context)
    tokens, positions, labels = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    mask = torch.zeros((1, 1, config.context, config.context), dtype=torch.bool)
    return Gpt(config), (tokens, positions, mask, labels)


def gpt_loss(model: Gpt, tokens: Tensor, positions: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy."""
    logits = model(tokens, positions, mask)
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Gpt(nn.Module):
    """GPT with Megatron's names of submodules and parameters."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.embedding = _Embedding(config)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.n_layers))
        self.final_layernorm = nn.LayerNorm(config.d_model)
        self.logits = nn.Linear(config.d_model, config.vocabulary, bias=False)
        self.logits.weight = self.embedding.word_embeddings.weight

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of the next token at each position.

        ``mask`` is true at positions that attention ignores.
        """
        values = self.embedding(tokens, positions).transpose(0, 1).contiguous()
        for layer in self.layers:
            values = layer(values, mask)
        return self.logits(self.final_layernorm(values.transpose(0, 1).contiguous()))


class _Embedding(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocabulary, config.d_model)
        self.position_embeddings = nn.Embedding(config.context, config.d_model)
        self.dropout = config.dropout

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        values = self.word_embeddings(tokens) + self.position_embeddings(positions)
        return dropout(values, self.dropout)


class _Layer(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.d_model)
        self.attention = Attention(config)
        self.post_attention_layernorm = nn.LayerNorm(config.d_model)
        self.mlp = Mlp(config)
        self.dropout = config.dropout

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        attended = self.attention(self.input_layernorm(values), mask)
        values = values + dropout(attended, self.dropout)
        return values + dropout(self.mlp(self.post_attention_layernorm(values)), self.dropout)


class Attention(nn.Module):
    """Self-attention of a GPT or BERT."""

    def __init__(self, config: GptConfig | BertConfig) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(config.d_model, 3 * config.d_model)
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.heads = config.n_heads
        self.dropout = config.dropout

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return the attention's output for ``values`` of (context, batch, width)."""
        context, batch, width = values.shape
        one = width // self.heads
        mixed = self.query_key_value(values).view(context, batch * self.heads, 3 * one)
        query, key, value = (part.transpose(0, 1) for part in mixed.split(one, dim=2))
        scores = torch.bmm(query, key.transpose(1, 2)).view(batch, self.heads, context, context)
        scores = (scores * (1 / math.sqrt(one))).masked_fill_(mask, -10000.0)
        shares = dropout(scores.softmax(3), self.dropout).flatten(0, 1)
        attended = torch.bmm(shares, value).transpose(0, 1).contiguous()
        return self.dense(attended.view(context, batch, width))


class Mlp(nn.Module):
    """Feed-forward part of a layer, after its attention."""

    def __init__(self, config: GptConfig | BertConfig) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(config.d_model, 4 * config.d_model)
        self.dense_4h_to_h = nn.Linear(4 * config.d_model, config.d_model)

    def forward(self, values: Tensor) -> Tensor:
        """Apply a layer four times as wide, and one back to the model's width."""
        return self.dense_4h_to_h(functional.gelu(self.dense_h_to_4h(values), approximate="tanh"))


def dropout(values: Tensor, share: float) -> Tensor:
    """Apply dropout as on a GPU, with a mask of one byte per element; the CPU's mask is FP32."""
    return torch.native_dropout(values, share, True)[0] if share else values
