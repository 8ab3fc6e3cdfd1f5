"""Image classifiers, as published or as in their authors' code.

AlexNet of *One weird trick* in one piece; VGG-E, which is VGG-19, without normalization; GoogLeNet
with normalization and without its two auxiliary classifiers; Inception-v3 with its one; MobileNet;
ResNet-34, and ResNet-50 with strides in its 3 x 3 convolutions; ResNet-32 for CIFAR with shortcuts
without weights; ResNet-152 of the second kind, with strides in a stage's last block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..networks import VISION, VisionConfig

__all__ = ["classifier_loss", "classifier_with_batch"]


def classifier_with_batch(config: VisionConfig) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a new model and the batch of :func:`classifier_loss`: images and labels."""
    size, classes = VISION[config.network]
    images = torch.zeros(config.batch, 3, size, size)
    labels = torch.zeros(config.batch, dtype=torch.int64)
    return _MODELS[config.network](classes), (images, labels)


def classifier_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy; that of an auxiliary classifier counts 0.4."""
    logits = model(images)
    if isinstance(logits, Tensor):
        return functional.cross_entropy(logits, labels)
    main, side = (functional.cross_entropy(output, labels) for output in logits)
    return main + 0.4 * side


def _classifier(inputs: int, classes: int) -> list[nn.Module]:
    return [
        nn.Dropout(),
        nn.Linear(inputs, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, classes),
    ]


def _alexnet(classes: int) -> nn.Module:
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
    return nn.Sequential(*layers, nn.Flatten(), *_classifier(256 * 6 * 6, classes))


def _vgg_e(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    first, *others = _classifier(512 * 7 * 7, classes)
    return nn.Sequential(*layers, nn.Flatten(), *others[:2], first, *others[2:])


_Size = int | tuple[int, int]


def _normalized(
    inputs: int, outputs: int, size: _Size, stride: int = 1, padded: bool = True, groups: int = 1
) -> nn.Sequential:
    high, wide = (size, size) if isinstance(size, int) else size
    pads = (high // 2, wide // 2) if padded else 0
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, (high, wide), stride, pads, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


def _activated(
    inputs: int, outputs: int, size: _Size, stride: int = 1, padded: bool = True, groups: int = 1
) -> nn.Sequential:
    layers = _normalized(inputs, outputs, size, stride, padded, groups)
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


class _Branches(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([branch(values) for branch in self.branches], 1)


_POOLS = {
    "max": partial(nn.MaxPool2d, 3, 2),
    "ceil": partial(nn.MaxPool2d, 3, 2, ceil_mode=True),
    "same": partial(nn.MaxPool2d, 3, 1, 1),
    "mean": partial(nn.AvgPool2d, 3, 1, 1),
}


def _blocks(inputs: int, *blocks: str) -> Iterator[nn.Module]:
    """Yield the blocks that these texts describe; ``|`` separates the branches of a block.

    A convolution is ``outputs x height,width / stride``, followed by ``v`` if it does not pad. Two
    sizes joined by ``+`` are two convolutions of the same input.
    """
    for block in blocks:
        chains = [_chain(inputs, branch) for branch in block.split("|")]
        inputs = sum(outputs for _, outputs in chains)
        yield chains[0][0] if len(chains) == 1 else _Branches(*(chain for chain, _ in chains))


def _chain(inputs: int, words: str) -> tuple[nn.Module, int]:
    layers = []
    for word in words.split():
        if word in _POOLS:
            layers.append(_POOLS[word]())
            continue
        width, *sizes = re.split(r"[x+]", word)
        both = []
        for size in sizes:
            high, wide, stride = re.findall(r"^(\d+),?(\d*)/?(\d*)", size)[0]
            sides = int(high), int(wide or high)
            both.append(
                _activated(inputs, int(width), sides, int(stride or 1), not size.endswith("v"))
            )
        layers.append(both[0] if len(both) == 1 else _Branches(*both))
        inputs = int(width) * len(both)
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers), inputs


_INCEPTIONS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    ((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
     (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128)),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)  # fmt: skip


def _googlenet(classes: int) -> nn.Module:
    blocks = ["64x7/2", "ceil", "64x1", "192x3"]
    for group in _INCEPTIONS:
        blocks.append("ceil")
        for one, less_3, three, less_5, five, pooled in group:
            # 5 x 5 as published, where torchvision has 3 x 3.
            blocks.append(f"{one}x1 | {less_3}x1 {three}x3 | {less_5}x1 {five}x5 | same {pooled}x1")
    pool, flat, linear = _head(1024, classes)
    return nn.Sequential(*_blocks(3, *blocks), pool, flat, nn.Dropout(0.2), linear)


def _inception_v3(classes: int) -> nn.Module:
    trunk = _blocks(
        3,
        *("32x3/2v", "32x3v", "64x3", "max", "80x1", "192x3v", "max"),
        *(f"64x1 | 48x1 64x5 | 64x1 96x3 96x3 | mean {last}x1" for last in (32, 64, 64)),
        "384x3/2v | 64x1 96x3 96x3/2v | max",
        *(
            f"192x1 | {less}x1 {less}x1,7 192x7,1 | "
            f"{less}x1 {less}x7,1 {less}x1,7 {less}x7,1 192x1,7 | mean 192x1"
            for less in (128, 160, 160, 192)
        ),
    )
    rest = _blocks(
        768,
        "192x1 320x3/2v | 192x1 192x1,7 192x7,1 192x3/2v | max",
        *["320x1 | 384x1 384x1,3+3,1 | 448x1 384x3 384x1,3+3,1 | mean 192x1"] * 2,
    )
    side = nn.Sequential(nn.AvgPool2d(5, 3), *_blocks(768, "128x1", "768x5v"), *_head(768, classes))
    last = nn.Sequential(*rest, nn.Dropout(), *_head(2048, classes))
    return _WithSide(nn.Sequential(*trunk), side, last)


class _WithSide(nn.Module):
    def __init__(self, trunk: nn.Module, side: nn.Module, rest: nn.Module) -> None:
        super().__init__()
        self.trunk, self.side, self.rest = trunk, side, rest

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        values = self.trunk(images)
        return self.rest(values), self.side(values)


def _mobilenet(classes: int) -> nn.Module:
    layers = [_activated(3, 32, 3, 2)]
    widths = (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
    for inputs, outputs in pairwise(widths):
        stride = 2 if inputs in (64, 128, 256, 512) and outputs != inputs else 1
        layers.append(_activated(inputs, inputs, 3, stride, groups=inputs))
        layers.append(_activated(inputs, outputs, 1))
    return nn.Sequential(*layers, *_head(1024, classes))


def _head(inputs: int, classes: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)


class _Block(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module, beside: nn.Module | None) -> None:
        super().__init__()
        self.first, self.second, self.beside = first, second, beside

    def forward(self, values: Tensor) -> Tensor:
        changed = self.second(self.first(values))
        kept = values if self.beside is None else self.beside(values)
        return (changed + kept).relu_()


class _Widened(nn.Module):
    def __init__(self, more: int) -> None:
        super().__init__()
        self.pads = (0, 0, 0, 0, more // 2, more // 2)

    def forward(self, values: Tensor) -> Tensor:
        return functional.pad(values[:, :, ::2, ::2], self.pads)


def _basic(inputs: int, outputs: int, beside: nn.Module) -> nn.Module:
    same = inputs == outputs
    first = _activated(inputs, outputs, 3, 1 if same else 2)
    return _Block(first, _normalized(outputs, outputs, 3), None if same else beside)


def _bottleneck(inputs: int, width: int) -> nn.Module:
    outputs, stride = 4 * width, 1 if inputs in (64, 4 * width) else 2
    first = nn.Sequential(_activated(inputs, width, 1), _activated(width, width, 3, stride))
    beside = None if inputs == outputs else _normalized(inputs, outputs, 1, stride)
    return _Block(first, _normalized(width, outputs, 1), beside)


class _Preactivated(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True))
        self.changed = nn.Sequential(
            _activated(inputs, width, 1),
            _activated(width, width, 3, stride),
            nn.Conv2d(width, 4 * width, 1),
        )
        self.widened = None if inputs == 4 * width else nn.Conv2d(inputs, 4 * width, 1)
        self.thinned = None if stride == 1 else nn.MaxPool2d(1, stride)

    def forward(self, values: Tensor) -> Tensor:
        ready = self.before(values)
        if self.widened is not None:
            values = self.widened(ready)
        elif self.thinned is not None:
            values = self.thinned(values)
        return self.changed(ready) + values


def _resnet_32(classes: int) -> nn.Module:
    widths = [16] * 6 + [32] * 5 + [64] * 5
    blocks = [_basic(*pair, _Widened(pair[1] - pair[0])) for pair in pairwise(widths)]
    return nn.Sequential(_activated(3, 16, 3), *blocks, *_head(64, classes))


def _resnet_34(classes: int) -> nn.Module:
    widths = [64] * 4 + [128] * 4 + [256] * 6 + [512] * 3
    blocks = [_basic(*pair, _normalized(*pair, 1, 2)) for pair in pairwise(widths)]
    stem = _activated(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, *blocks, *_head(512, classes))


def _resnet_50(classes: int) -> nn.Module:
    widths = [64] * 3 + [128] * 4 + [256] * 6 + [512] * 3
    blocks = map(_bottleneck, [64, *(4 * width for width in widths)], widths)
    stem = _activated(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, *blocks, *_head(2048, classes))


def _resnet_152(classes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, count in ((64, 3), (128, 8), (256, 36), (512, 3)):
        for number in range(1, count + 1):
            stride = 2 if number == count and width < 512 else 1
            layers.append(_Preactivated(inputs, width, stride))
            inputs = 4 * width
    layers += [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *_head(inputs, classes))


_MODELS = {
    "alexnet": _alexnet,
    "googlenet": _googlenet,
    "vgg-e": _vgg_e,
    "resnet-34": _resnet_34,
    "resnet-32": _resnet_32,
    "resnet-50": _resnet_50,
    "resnet-v2-152": _resnet_152,
    "inception-v3": _inception_v3,
    "mobilenet": _mobilenet,
}
