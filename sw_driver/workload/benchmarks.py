"""The networks of Kwon and Rhu's Table III: four for ImageNet, and recurrent layers of DeepBench.

Those for ImageNet are as published: AlexNet of *One weird
trick* in one piece, VGG-E without normalization, GoogLeNet with it and without its two side
classifiers, ResNet-34. The recurrent ones are as DeepBench measures them: the products with the
inputs are done before, and only the state's count.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from .networks import CELLS, RecurrentConfig, VisionConfig

__all__ = ["Recurrent", "loss_of", "network_with_batch"]

_CLASSES = 1000


def network_with_batch(config: VisionConfig | RecurrentConfig) -> tuple[nn.Module, tuple]:
    """A new model, and a batch for :func:`loss_of`."""
    if isinstance(config, VisionConfig):
        images = torch.zeros(config.batch, 3, 224, 224)
        return _VISION[config.network](), (images, torch.zeros(config.batch, dtype=torch.int64))
    shape = config.batch, CELLS[config.cell] * config.hidden
    return Recurrent(config), tuple(torch.zeros(shape) for _ in range(config.steps))


def loss_of(model: nn.Module, *batch: Tensor) -> Tensor:
    """Cross entropy of a classifier; of a recurrent layer, whose rest is not there, the sum."""
    if isinstance(model, Recurrent):
        return model(*batch).sum()
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


class Recurrent(nn.Module):
    """A recurrent layer over all its time steps; what it gets for each are the sums of its gates
    so far."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(CELLS[config.cell] * config.hidden, config.hidden))

    def forward(self, *inputs: Tensor) -> Tensor:
        """The last state of the layer."""
        state = cell = inputs[0].new_zeros(self.config.batch, self.config.hidden)
        for given in inputs:
            if self.config.cell == "gru":
                state = self._gru(given, state)
                continue
            gates = torch.addmm(given, state, self.weight.t())
            if self.config.cell == "vanilla":
                state = gates.relu()
            else:
                enter, forget, leave, change = gates.chunk(4, 1)
                cell = forget.sigmoid() * cell + enter.sigmoid() * change.tanh()
                state = leave.sigmoid() * cell.tanh()
        return state

    def _gru(self, given: Tensor, state: Tensor) -> Tensor:
        products = torch.mm(state, self.weight.t())
        reset, update, new = zip(given.chunk(3, 1), products.chunk(3, 1), strict=True)
        kept = (update[0] + update[1]).sigmoid()
        changed = (new[0] + (reset[0] + reset[1]).sigmoid() * new[1]).relu()
        return kept * state + (1 - kept) * changed


def _classifier(inputs: int) -> list[nn.Module]:
    return [
        nn.Dropout(),
        nn.Linear(inputs, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, _CLASSES),
    ]


def _alexnet() -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, size, stride, pad, pooled in (
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    ):
        layers += [nn.Conv2d(inputs, outputs, size, stride, pad), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(3, 2)] * pooled
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), *_classifier(256 * 6 * 6))


def _vgg_e() -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    first, *others = _classifier(512 * 7 * 7)
    return nn.Sequential(*layers, nn.Flatten(), *others[:2], first, *others[2:])


def _normalized(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


def _activated(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(*_normalized(inputs, outputs, size, stride), nn.ReLU(inplace=True))


class _Inception(nn.Module):
    def __init__(self, inputs: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        one, reduced_3, three, reduced_5, five, pooled = widths
        self.branches = nn.ModuleList(
            (
                _activated(inputs, one, 1),
                nn.Sequential(_activated(inputs, reduced_3, 1), _activated(reduced_3, three, 3)),
                # 5 x 5 as published, where torchvision has 3 x 3.
                nn.Sequential(_activated(inputs, reduced_5, 1), _activated(reduced_5, five, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), _activated(inputs, pooled, 1)),
            )
        )

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([branch(values) for branch in self.branches], 1)


_INCEPTIONS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    ((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
     (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128)),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)  # fmt: skip


def _googlenet() -> nn.Module:
    layers: list[nn.Module] = [
        _activated(3, 64, 7, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _activated(64, 64, 1),
        _activated(64, 192, 3),
    ]
    inputs = 192
    for group in _INCEPTIONS:
        layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        for widths in group:
            layers.append(_Inception(inputs, widths))
            inputs = widths[0] + widths[2] + widths[4] + widths[5]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inputs, _CLASSES)
    return nn.Sequential(*layers, *head)


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.first = _activated(inputs, outputs, 3, stride)
        self.second = _normalized(outputs, outputs, 3)
        self.beside = None if stride == 1 else _normalized(inputs, outputs, 1, stride)

    def forward(self, values: Tensor) -> Tensor:
        changed = self.second(self.first(values))
        kept = values if self.beside is None else self.beside(values)
        return (changed + kept).relu_()


def _resnet_34() -> nn.Module:
    widths = [64] * 4 + [128] * 4 + [256] * 6 + [512] * 3
    blocks = [_Block(*pair) for pair in pairwise(widths)]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, _CLASSES)
    return nn.Sequential(_activated(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, *head)


_VISION = {
    "alexnet": _alexnet,
    "googlenet": _googlenet,
    "vgg-e": _vgg_e,
    "resnet-34": _resnet_34,
}
