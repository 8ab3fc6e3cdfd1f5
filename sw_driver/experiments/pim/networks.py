"""Layers of the paper's networks that run on the fixed-function pools.

AlexNet: Krizhevsky, Sutskever, Hinton, *ImageNet Classification with Deep Convolutional Neural
Networks* (NIPS 2012), section 3.5, with the groups of its two GPUs. The images have 227 x 227
pixels, as in Caffe's ``bvlc_alexnet``: the paper's 224 do not give its 55 x 55 results.

VGG-19: Simonyan, Zisserman, *Very Deep Convolutional Networks for Large-Scale Image Recognition*
(ICLR 2015), table 1, column E.

The batch of 32 comes from the PIM's paper (section V-C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...device.errors import InvalidArgumentError
from ...pim.layers import Convolution, FullyConnected, Layer

__all__ = ["BATCH", "MOST_PRODUCTS", "NETWORKS", "PAIRS", "Scaled", "named_layer", "scaled"]

Scaled = tuple[str, Layer, Layer]
"""Name of a layer, the layer to run, and the layer before scaling."""

MOST_PRODUCTS = 25_000_000
"""Multiplications in a forward pass, at most; RTL computes them in some seconds."""

BATCH = 32
"""Images of a batch."""


def _convolution(size: int, channels: int, filters: int, k: int, **others: int) -> Convolution:
    return Convolution(
        images=BATCH,
        channels=channels,
        height=size,
        width=size,
        filters=filters,
        filter_height=k,
        filter_width=k,
        **others,
    )


def _vgg_19() -> dict[str, Layer]:
    layers: dict[str, Layer] = {}
    channels, size = 3, 224
    for block, (count, filters) in enumerate(((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)), 1):
        for number in range(1, count + 1):
            layers[f"conv{block}_{number}"] = _convolution(size, channels, filters, 3, padding=1)
            channels = filters
        size //= 2  # 2 x 2 max pooling after each block
    return layers | _classifier(channels * size * size)


def _classifier(inputs: int) -> dict[str, Layer]:
    return {
        "fc6": FullyConnected(samples=BATCH, inputs=inputs, outputs=4096),
        "fc7": FullyConnected(samples=BATCH, inputs=4096, outputs=4096),
        "fc8": FullyConnected(samples=BATCH, inputs=4096, outputs=1000),
    }


NETWORKS: dict[str, dict[str, Layer]] = {
    "alexnet": {
        "conv1": _convolution(227, 3, 96, 11, stride=4),
        "conv2": _convolution(27, 96, 256, 5, padding=2, groups=2),
        "conv3": _convolution(13, 256, 384, 3, padding=1),
        "conv4": _convolution(13, 384, 384, 3, padding=1, groups=2),
        "conv5": _convolution(13, 384, 256, 3, padding=1, groups=2),
        **_classifier(256 * 6 * 6),
    },
    "vgg-19": _vgg_19(),
}
"""Layers by network and name, at a batch of 32."""

PAIRS = (
    ("alexnet", "conv1", "conv3", "forward"),
    ("alexnet", "conv1", "fc6", "forward"),
    ("alexnet", "conv2", "conv5", "forward"),
    ("alexnet", "conv4", "fc7", "forward"),
    ("alexnet", "conv1", "conv2", "backward-filter"),
    ("alexnet", "conv3", "fc6", "backward-filter"),
    ("alexnet", "conv2", "conv4", "backward-input"),
    ("alexnet", "fc6", "fc7", "backward-input"),
    ("vgg-19", "conv1_2", "conv3_1", "forward"),
    ("vgg-19", "conv2_2", "conv5_1", "forward"),
    ("vgg-19", "conv4_1", "fc7", "forward"),
    ("vgg-19", "conv3_1", "conv5_4", "backward-filter"),
    ("vgg-19", "conv2_1", "fc8", "backward-filter"),
    ("vgg-19", "conv2_1", "conv4_2", "backward-input"),
)
"""Pairs to measure side by side: network, two layers, pass."""


def named_layer(network: str, layer: str, *, images: int = BATCH) -> Layer:
    """Return a layer of a network for a batch of ``images``.

    Raise :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown name.
    """
    if network not in NETWORKS:
        raise InvalidArgumentError(
            f"no network {network!r}: expected one of {', '.join(NETWORKS)}", network=network
        )
    layers = NETWORKS[network]
    if layer not in layers:
        raise InvalidArgumentError(
            f"{network} has no layer {layer!r}: expected one of {', '.join(layers)}",
            network=network,
            layer=layer,
        )
    published = layers[layer]
    if isinstance(published, Convolution):
        return replace(published, images=images)
    return replace(published, samples=images)


def scaled(
    network: str, names: Sequence[str], images: int = BATCH, most_products: int = MOST_PRODUCTS
) -> list[Scaled]:
    """Return layers of a network, scaled down to ``most_products`` in a forward pass, at most.

    0 keeps the published sizes. Errors are those of :func:`named_layer`.
    """
    layers = [named_layer(network, name, images=images) for name in names]
    return [
        (f"{network} {name}", layer.scaled(most_products) if most_products else layer, layer)
        for name, layer in zip(names, layers, strict=True)
    ]
