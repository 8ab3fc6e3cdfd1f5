"""Models with what makes it hard to keep tensors elsewhere; all take batches of numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

__all__ = ["MODELS", "WORDS", "Branches", "Buckets", "Tied", "batches", "loss_of"]

WORDS, WIDTH = 40, 32


class _Model(nn.Module):
    """Begins with a table and ends with words."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.made()

    def made(self) -> None:
        """Makes the layers between."""

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(self.between(self.table(numbers)))


class Tied(_Model):
    """The table is the output's weight, and another one's rows are added in part."""

    def made(self) -> None:
        self.head.weight = self.table.weight
        self.places = nn.Embedding(64, WIDTH)
        self.middle = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def between(self, x: Tensor) -> Tensor:
        x = x + self.places.weight[: x.shape[1]]
        return x + self.middle(x)


class Frozen(_Model):
    """Layers that do not learn, at the begin, in the middle, and with a bias that does."""

    def made(self) -> None:
        self.table.requires_grad_(False)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight.requires_grad_(False)
        self.norm = nn.LayerNorm(WIDTH)

    def between(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.first(x).relu()))


class Branches(_Model):
    """Takes one way or the other, by what it is given; the scale is a number, one tensor empty."""

    def made(self) -> None:
        self.ways = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.scale = nn.PReLU()
        self.nothing = nn.ParameterList([torch.zeros(0)])

    def between(self, x: Tensor) -> Tensor:
        return self.scale(x) + self.ways[int(x[0, 0, 0] > 0)](x)


class Shared(_Model):
    """A layer that is used again and again, and once more detached, late in the backward pass."""

    def made(self) -> None:
        self.again = nn.Linear(WIDTH, WIDTH)

    def between(self, x: Tensor) -> Tensor:
        x = x + functional.linear(x, self.again.weight.detach())
        for _ in range(3):
            x = self.again(x).tanh()
        return x


class InPlace(_Model):
    """Results that are changed where they are, views of them, and a buffer that counts."""

    def made(self) -> None:
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("seen", torch.zeros(WIDTH, WIDTH))

    def between(self, x: Tensor) -> Tensor:
        x = functional.relu_(self.first(x))
        half = x.clone()
        half[:, ::2].mul_(0.5)
        half[..., : WIDTH // 2] += self.second(x)[..., WIDTH // 2 :]
        if self.training:
            self.seen.add_(x.detach().flatten(0, 1).T @ x.detach().flatten(0, 1))
        return self.norm(half.transpose(1, 2)).transpose(1, 2)


class Checkpointed(_Model):
    """Layers whose activations are computed again, in both of PyTorch's ways."""

    def made(self) -> None:
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.1, batch_first=True)
            for _ in range(2)
        )

    def between(self, x: Tensor) -> Tensor:
        for number, block in enumerate([*self.blocks, self.blocks[0]]):
            x = checkpoint(block, x, use_reentrant=number % 2 == 1) if self.training else block(x)
        return x


class Dropping(_Model):
    """Convolutions, statistics and dropout."""

    def made(self) -> None:
        self.layers = nn.Sequential(
            nn.Conv1d(WIDTH, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU(inplace=True),
            nn.Dropout(0.3), nn.Conv1d(16, WIDTH, 3, padding=1), nn.AlphaDropout(0.1),
        )  # fmt: skip

    def between(self, x: Tensor) -> Tensor:
        return self.layers(x.transpose(1, 2)).transpose(1, 2)


class Recurrent(_Model):
    """Two layers of LSTM, of which one operation has all parameters."""

    def made(self) -> None:
        self.cells = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, dropout=0.1)

    def between(self, x: Tensor) -> Tensor:
        return self.cells(x)[0]


class Autocast(_Model):
    """Products in another format, whose weights are cast once for both."""

    def made(self) -> None:
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def between(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            for layer in [*self.layers, *self.layers]:
                x = x + layer(x).sin()
        return x.float()


class Buckets(_Model):
    """Attention; its batches have ten lengths."""

    def made(self) -> None:
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)

    def between(self, x: Tensor) -> Tensor:
        return x + self.attention(x, x, x, need_weights=False)[0]


MODELS: list[Callable[[], nn.Module]] = [
    Tied, Frozen, Branches, Shared, InPlace, Checkpointed, Dropping, Recurrent, Autocast, Buckets,
]  # fmt: skip


def batches(count: int, make: Callable[[], nn.Module] | None = None, seed: int = 0) -> list[Tensor]:
    """Batches of numbers, all of one shape but for :class:`Buckets`."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [8 + 4 * (7 * number % 10) * (make is Buckets) for number in range(count)]
    return [torch.randint(0, WORDS, (8, each), generator=generator) for each in lengths]


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Of the guess which number comes next."""
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
