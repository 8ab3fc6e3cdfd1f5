"""A model with separate projections, a gated layer and root-mean-square norms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from sw_driver.workload import Trace
from sw_driver.workload.capture import capture

__all__ = ["LAYERS", "captured_llama"]

LAYERS, _WIDE, _HEADS, _ROWS = 4, 32, 4, 16


class Block(nn.Module):
    """A transformer's block; queries are normed for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.RMSNorm(_WIDE), nn.RMSNorm(_WIDE)
        self.query_norm = nn.LayerNorm(_WIDE // _HEADS)
        for name in ("query", "key", "value", "out"):
            self.add_module(name, nn.Linear(_WIDE, _WIDE, bias=False))
        self.gate, self.up = (nn.Linear(_WIDE, 3 * _WIDE, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * _WIDE, _WIDE, bias=False)

    def forward(self, values: Any) -> Any:
        """Return the values of the next block."""
        normed = self.norm(values)
        query, key, value = (
            part(normed).unflatten(-1, (_HEADS, -1)) for part in (self.query, self.key, self.value)
        )
        parts = (part.transpose(1, 2) for part in (self.query_norm(query), key, value))
        attended = scaled_dot_product_attention(*parts, is_causal=True)
        values = values + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.other_norm(values)
        return values + self.down(silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Blocks between an embedding and an output layer."""

    def __init__(self, again: Callable[..., Any] | None) -> None:
        super().__init__()
        self.words = nn.Embedding(64, _WIDE)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.output = nn.RMSNorm(_WIDE), nn.Linear(_WIDE, 64, bias=False)
        self.again = again

    def forward(self, tokens: Any) -> Any:
        """Return logits."""
        values = self.words(tokens)
        for layer in self.layers:
            values = partial(self.again, layer)(values) if self.again else layer(values)
        return self.output(self.norm(values))


def captured_llama(again: Callable[..., Any] | None = None) -> Trace:
    """Capture a step; ``again`` runs each block, such as a checkpoint does."""
    return capture(
        lambda: (Llama(again), (torch.zeros((2, _ROWS), dtype=torch.int64),)),
        lambda model, tokens: model(tokens).square().mean(),
        name="llama",
        origin={"n_heads": _HEADS},
    )
