"""DCGAN for MNIST, conditioned on the digits' classes; networks of carpedm20/DCGAN-tensorflow."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..networks import GanConfig

__all__ = ["Dcgan", "dcgan_step", "dcgan_with_batch"]

CLASSES, NOISE, WIDTH, DENSE, SIDE = 10, 100, 64, 1024, 28


def dcgan_with_batch(config: GanConfig) -> tuple[Dcgan, tuple[Tensor, ...]]:
    """Return a new model and arguments of :func:`dcgan_step`: images, their classes and noise."""
    shapes = (1, SIDE, SIDE), (CLASSES,), (NOISE,)
    return Dcgan(), tuple(torch.zeros(config.batch, *shape) for shape in shapes)


def dcgan_step(model: Dcgan, images: Tensor, classes: Tensor, noise: Tensor) -> None:
    """Run the backward passes of both losses; each network gets the gradients of its own loss.

    Images are generated once. The discriminator judges real images, and generated ones twice: for
    its own loss and for the generator's. The backward pass of the latter goes through the
    discriminator without giving its weights gradients.
    """
    made = model.made(classes, noise)
    own = _loss(model.judged(images, classes), 1) + _loss(model.judged(made.detach(), classes), 0)
    own.backward()
    _loss(model.judged(made, classes), 1).backward(inputs=[*model.generator.parameters()])


def _loss(logits: Tensor, real: int) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, real))


class Dcgan(nn.Module):
    """Generator and discriminator; the classes are an input of each of their layers."""

    def __init__(self) -> None:
        super().__init__()
        last, planes = SIDE // 4, 2 * WIDTH
        self.generator = nn.ModuleList(
            (
                _dense(NOISE, DENSE, nn.ReLU()),
                _dense(DENSE, planes * last**2, nn.ReLU(), nn.Unflatten(1, (planes, last, last))),
                nn.Sequential(
                    nn.ConvTranspose2d(planes + CLASSES, planes, 5, 2, 2, 1),
                    nn.BatchNorm2d(planes),
                    nn.ReLU(),
                ),
                nn.Sequential(nn.ConvTranspose2d(planes + CLASSES, 1, 5, 2, 2, 1), nn.Sigmoid()),
            )
        )
        few, many = 1 + CLASSES, WIDTH + CLASSES
        self.discriminator = nn.ModuleList(
            (
                nn.Sequential(nn.Conv2d(1 + CLASSES, few, 5, 2, 2), nn.LeakyReLU(0.2)),
                nn.Sequential(
                    nn.Conv2d(few + CLASSES, many, 5, 2, 2),
                    nn.BatchNorm2d(many),
                    nn.LeakyReLU(0.2),
                    nn.Flatten(),
                ),
                _dense(many * last**2, DENSE, nn.LeakyReLU(0.2)),
                nn.Linear(DENSE + CLASSES, 1),
            )
        )

    def made(self, classes: Tensor, noise: Tensor) -> Tensor:
        """Return generated images of these classes."""
        return _given(classes, noise, self.generator)

    def judged(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the logits of the images being real."""
        return _given(classes, images, self.discriminator)


def _dense(inputs: int, outputs: int, *rest: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs + CLASSES, outputs), nn.BatchNorm1d(outputs), *rest)


def _given(classes: Tensor, values: Tensor, layers: nn.ModuleList) -> Tensor:
    for layer in layers:
        places = values.shape[2:]
        planes = classes.view(*classes.shape, *[1] * len(places)).expand(-1, -1, *places)
        values = layer(torch.cat([values, planes], 1))
    return values
