"""Models with what makes offloading hard, and training them without it, by the golden rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from golden.rules import reference
from hw.rules import rule as rule_named

__all__ = ["MODELS", "Plain", "batches", "loss_of"]

WIDTH = 24


class Tied(nn.Module):
    """The embedding is the output's weight, and another one's rows are added in part."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.places = nn.Parameter(torch.randn(9, WIDTH))
        self.middle = nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, WIDTH))
        self.head = nn.Linear(WIDTH, 50, bias=False)
        nn.init.normal_(self.table.weight, std=0.1)
        self.head.weight = self.table.weight

    def forward(self, numbers: Tensor) -> Tensor:
        values = self.table(numbers) + self.places[: numbers.shape[1]]
        return self.head(values + self.middle(values))


class Frozen(nn.Module):
    """Layers that do not learn, at the begin, in the middle, and with a bias that does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.table.weight.requires_grad_(False)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight.requires_grad_(False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(self.norm(self.second(self.first(self.table(numbers)).relu())))


class Branches(nn.Module):
    """Takes one way or the other, by what it is given; the scale is a number, one tensor empty."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.ways = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.nothing = nn.Parameter(torch.zeros(0))
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, numbers: Tensor) -> Tensor:
        values = self.table(numbers)
        return self.head(values * self.scale + self.ways[int(numbers.flatten()[0]) % 2](values))


class Shared(nn.Module):
    """A layer that is used again and again, and once more detached, late in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.gates = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, numbers: Tensor) -> Tensor:
        values = self.table(numbers)
        values = values + functional.linear(values, self.again.weight.detach())
        for _ in range(3):
            values = self.again(values).tanh()
        return self.head(self.gates(values)[0])


class Checkpointed(nn.Module):
    """Layers whose activations are computed again, in both of PyTorch's ways."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True)
            for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, numbers: Tensor) -> Tensor:
        values = self.table(numbers)
        for number, block in enumerate([*self.blocks, self.blocks[0]]):
            if torch.is_grad_enabled():
                values = checkpoint(block, values, use_reentrant=number % 2 == 1)
            else:
                values = block(values)
        return self.head(values)


class Convolutions(nn.Module):
    """With buffers of statistics, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.layers = nn.Sequential(
            nn.Conv1d(WIDTH, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3),
            nn.Conv1d(16, WIDTH, 3, padding=1),
        )  # fmt: skip
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(self.layers(self.table(numbers).transpose(1, 2)).transpose(1, 2))


MODELS = [Tied, Frozen, Branches, Shared, Checkpointed, Convolutions]


def batches(count: int, seed: int = 0) -> list[Tensor]:
    """Batches of numbers, all of one shape."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 50, (4, 8), generator=generator) for _ in range(count)]


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Of the guess which number comes next."""
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


class Plain:
    """Trains with the golden rule, of a plain optimizer's groups."""

    def __init__(self, optimizer: torch.optim.Optimizer, rule: str) -> None:
        self.optimizer = optimizer
        self._golden = reference(rule)
        self._rule = rule
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.steps: dict[Tensor, int] = {}

    def clip(self, limit: float) -> float:
        """Scales the gradients, as the module does."""
        squares = reference("sum_squares")
        gradients = [
            each.grad for group in self.optimizer.param_groups for each in group["params"]
            if each.grad is not None
        ]  # fmt: skip
        norm = math.sqrt(
            math.fsum(squares.step({"g": each.numpy().copy()}, {})["squares"] for each in gradients)
        )
        if limit / (norm + 1e-6) < 1:
            for each in gradients:
                each.copy_(torch.from_numpy(np.float32(limit / (norm + 1e-6)) * each.numpy()))
        return norm

    @torch.no_grad()
    def step(self) -> None:
        """Updates all that have a gradient, which is gone then."""
        for group in self.optimizer.param_groups:
            beta1, beta2 = group.get("betas", (0.0, 0.0))
            values = {**group, "beta1": beta1, "beta2": beta2}
            for parameter in group["params"]:
                if parameter.grad is None or not parameter.numel():
                    continue
                shape = tuple(parameter.shape)
                values["t"] = self.steps[parameter] = self.steps.get(parameter, 0) + 1
                names = [each for each in self._golden.inputs if each not in "pg"]
                state = self.state.setdefault(
                    parameter, {each: np.zeros(shape, np.float32) for each in names}
                )
                gradient = np.array(parameter.grad.numpy(), order="C")
                if group.get("maximize"):
                    gradient = -gradient
                now = self._golden.step(
                    {**state, "p": parameter.numpy().copy(), "g": gradient},
                    self._golden.constants(**{each: values[each] for each in self._needs(values)}),
                )
                parameter.copy_(torch.from_numpy(now.pop("p")).view(parameter.shape))
                state.update(now)
                parameter.grad = None

    def _needs(self, values: dict[str, Any]) -> list[str]:
        return [each for each in rule_named(self._rule).hyperparameters if each in values]
