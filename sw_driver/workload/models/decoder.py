"""Decoders from GPT-2 to Llama 3: one model whose parts a configuration chooses.

Attention is PyTorch's ``scaled_dot_product_attention``, which keeps no scores. Keys and values that
heads share are not repeated (``enable_gqa``). Rotary positions and RMSNorm are element-wise
operations, as in Transformers' code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..networks import BlocksConfig, DecoderConfig

__all__ = ["Block", "Decoder", "decoder_loss", "decoder_with_batch", "norm_of"]


def decoder_with_batch(config: DecoderConfig) -> tuple[Decoder, tuple[Tensor, Tensor]]:
    """Return a new model and the batch of :func:`decoder_loss`: tokens and labels."""
    shape = config.batch, config.context
    tokens, labels = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
    return Decoder(config), (tokens, labels)


def decoder_loss(model: Decoder, tokens: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy over all positions."""
    return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


class Decoder(nn.Module):
    """A decoder with one kind of positions: a learned table, rotations or ALiBi's biases."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        context, width, heads = config.context, config.d_model, config.n_heads
        self.words = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(context, width) if config.positions == "learned" else None
        self.blocks = nn.ModuleList(Block(config, causal=True) for _ in range(config.n_layers))
        self.norm = norm_of(config)
        self.logits = nn.Linear(width, config.vocabulary, bias=False)
        if config.tied:
            self.logits.weight = self.words.weight
        numbers, waves, bias = torch.arange(context), None, None
        if config.positions == "rotary":
            angles = torch.outer(
                numbers, 1e4 ** -torch.linspace(0, 1, width // heads // 2 + 1)[:-1]
            )
            waves = torch.stack((angles.cos(), angles.sin())).repeat(1, 1, 2)
        elif config.positions == "alibi":
            # Softmax ignores what a row shares, so the key's number replaces the distance.
            bias = torch.outer(2 ** -torch.linspace(0, 8, heads + 1)[1:], numbers)[:, None]
        self.register_buffer("numbers", numbers if self.positions is not None else None)
        self.register_buffer("waves", waves)
        self.register_buffer("bias", bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each position."""
        values = self.words(tokens)
        if self.positions is not None:
            values = values + self.positions(self.numbers)
        for block in self.blocks:
            values = block(values, self.waves, self.bias)
        return self.logits(self.norm(values))


class Block(nn.Module):
    """Attention and MLP, each behind a normalization and with a sum around it."""

    def __init__(self, config: BlocksConfig, *, causal: bool) -> None:
        super().__init__()
        self.attention_norm = norm_of(config)
        self.attention = _Attention(config, causal)
        self.norm = None if config.parallel else norm_of(config)
        self.mlp = _Gated(config) if config.gated else _Mlp(config)
        self.attention_scale, self.scale = (
            nn.Parameter(torch.ones(config.d_model)) if config.scaled else None for _ in range(2)
        )

    def forward(
        self, values: Tensor, waves: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Return the block's output for ``values`` of (batch, context, width)."""
        ready = self.attention_norm(values)
        attended = _scaled(self.attention(ready, waves, bias), self.attention_scale)
        if self.norm is None:
            return values + (attended + _scaled(self.mlp(ready), self.scale))
        values = values + attended
        return values + _scaled(self.mlp(self.norm(values)), self.scale)


def norm_of(config: BlocksConfig) -> nn.Module:
    """Return a normalization of the configuration's kind."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=1e-6)
    return nn.LayerNorm(config.d_model, bias=config.norm == "layer")


class _Attention(nn.Module):
    def __init__(self, config: BlocksConfig, causal: bool) -> None:
        super().__init__()
        width, self.group, self.causal = config.d_model, config.group, causal
        self.one = width // config.n_heads
        self.widths = (width, width // self.group, width // self.group)
        outputs = [sum(self.widths)] if config.fused else self.widths
        self.query_key_value = nn.ModuleList(
            nn.Linear(width, size, bias=config.bias != "none") for size in outputs
        )
        self.dense = nn.Linear(width, width, bias=config.bias == "all")

    def forward(self, values: Tensor, waves: Tensor | None, bias: Tensor | None) -> Tensor:
        mixed = [linear(values) for linear in self.query_key_value]
        parts = mixed[0].split(self.widths, 2) if len(mixed) == 1 else mixed
        query, key, value = (part.unflatten(2, (-1, self.one)).transpose(1, 2) for part in parts)
        if waves is not None:
            query, key = _rotated(query, waves), _rotated(key, waves)
        attended = _attended(query, key, value, bias, self.causal, self.group > 1)
        return self.dense(attended.transpose(1, 2).flatten(2))


def _attended(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, shared: bool
) -> Tensor:
    if bias is None:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=shared
        )
    # PyTorch's function refuses a bias beside the causal mask; its kernel takes both.
    bias = bias.expand(1, -1, query.shape[2], -1)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(query, key, value, 0.0, causal, attn_mask=bias)[0]


def _rotated(values: Tensor, waves: Tensor) -> Tensor:
    low, high = values.chunk(2, -1)
    return values * waves[0] + torch.cat((-high, low), -1) * waves[1]


def _scaled(values: Tensor, scale: Tensor | None) -> Tensor:
    return values if scale is None else values * scale


class _Mlp(nn.Module):
    def __init__(self, config: BlocksConfig) -> None:
        super().__init__()
        has_bias = config.bias == "all"
        self.widen = nn.Linear(config.d_model, config.d_inner, bias=has_bias)
        self.narrow = nn.Linear(config.d_inner, config.d_model, bias=has_bias)

    def forward(self, values: Tensor) -> Tensor:
        return self.narrow(functional.gelu(self.widen(values)))


class _Gated(_Mlp):
    def __init__(self, config: BlocksConfig) -> None:
        super().__init__(config)
        self.gate = nn.Linear(config.d_model, config.d_inner, bias=config.bias == "all")

    def forward(self, values: Tensor) -> Tensor:
        return self.narrow(functional.silu(self.gate(values)) * self.widen(values))
