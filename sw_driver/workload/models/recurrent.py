"""Recurrent layers of DeepBench, and a language model of LSTM layers.

DeepBench measures a recurrent layer without its products with the inputs, which are computed
before. Only the products with the state count.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..networks import CELLS, LstmConfig, RecurrentConfig
from .gpt import dropout

__all__ = ["Lstm", "Recurrent", "lstm_with_batch", "recurrent_loss", "recurrent_with_batch"]

WORDS, HIDDEN, LAYERS, STEPS, DROPOUT = 10000, 1500, 2, 35, 0.65


def recurrent_with_batch(config: RecurrentConfig) -> tuple[Recurrent, tuple[Tensor, ...]]:
    """Return a new layer, and the partial sums of its gates for each time step."""
    shape = config.batch, CELLS[config.cell] * config.hidden
    return Recurrent(config), tuple(torch.zeros(shape) for _ in range(config.steps))


def recurrent_loss(model: Recurrent, *inputs: Tensor) -> Tensor:
    """Return the sum of the outputs, in place of the layers that would follow."""
    return model(*inputs).sum()


class Recurrent(nn.Module):
    """A recurrent layer over all its time steps; its inputs are partial sums of the gates."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(CELLS[config.cell] * config.hidden, config.hidden))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the last state of the layer."""
        state = cell = inputs[0].new_zeros(self.config.batch, self.config.hidden)
        for given in inputs:
            if self.config.cell == "gru":
                state = self._gru(given, state)
                continue
            gates = torch.addmm(given, state, self.weight.t())
            if self.config.cell == "vanilla":
                state = gates.relu()
            else:
                state, cell = _lstm(gates, cell)
        return state

    def _gru(self, given: Tensor, state: Tensor) -> Tensor:
        products = torch.mm(state, self.weight.t())
        reset, update, new = zip(given.chunk(3, 1), products.chunk(3, 1), strict=True)
        kept = (update[0] + update[1]).sigmoid()
        changed = (new[0] + (reset[0] + reset[1]).sigmoid() * new[1]).relu()
        return kept * state + (1 - kept) * changed


def _lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, leave, change = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * change.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def lstm_with_batch(config: LstmConfig) -> tuple[Lstm, tuple[Tensor, ...]]:
    """Return a new model and its batch: words, next words, and states of the previous step."""
    words, labels = (torch.zeros((STEPS, config.batch), dtype=torch.int64) for _ in range(2))
    states = (torch.zeros(config.batch, HIDDEN) for _ in range(2 * LAYERS))
    return Lstm(), (words, labels, *states)


class Lstm(nn.Module):
    """Large model of *Recurrent Neural Network Regularization*, without gradient clipping.

    As in TensorFlow's tutorial for the Penn Treebank: all gates of a layer are one product.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(nn.Linear(2 * HIDDEN, 4 * HIDDEN) for _ in range(LAYERS))
        self.logits = nn.Linear(HIDDEN, WORDS)

    def forward(self, words: Tensor, labels: Tensor, *given: Tensor) -> Tensor:
        """Return the loss."""
        before = [*zip(given[::2], given[1::2], strict=True)]
        outputs = []
        for values in dropout(self.words(words), DROPOUT).unbind():
            for number, gates in enumerate(self.layers):
                state, cell = before[number]
                before[number] = _lstm(gates(torch.cat([values, state], 1)), cell)
                values = dropout(before[number][0], DROPOUT)
            outputs.append(values)
        return functional.cross_entropy(self.logits(torch.cat(outputs)), labels.flatten())
