"""The networks' layers: published sizes and parameter counts, and layers scaled for RTL."""

from __future__ import annotations

from dataclasses import fields

import pytest

from sw_driver.experiments.pim.networks import NETWORKS, named_layer
from sw_driver.pim.layers import Convolution, FullyConnected, Layer

EVERY = [
    pytest.param(layer, id=f"{network}-{name}")
    for network, layers in NETWORKS.items()
    for name, layer in layers.items()
]


@pytest.mark.parametrize(
    ("network", "layers", "parameters"),
    [
        # 60 million (Krizhevsky et al., abstract), and layer by layer as in Caffe's model.
        ("alexnet", 8, 60_965_224),
        # 144 million (Simonyan and Zisserman, table 2, E), and as in torchvision's vgg19.
        ("vgg-19", 19, 143_667_240),
    ],
)
def test_parameters(network: str, layers: int, parameters: int) -> None:
    weights_and_biases = 0
    for layer in NETWORKS[network].values():
        if isinstance(layer, Convolution):
            taps = layer.group_channels * layer.filter_height * layer.filter_width
            weights_and_biases += layer.filters * (taps + 1)
        else:
            weights_and_biases += layer.outputs * (layer.inputs + 1)
    assert (len(NETWORKS[network]), weights_and_biases) == (layers, parameters)


def test_sizes() -> None:
    alexnet, vgg = NETWORKS["alexnet"], NETWORKS["vgg-19"]

    def outputs(layers: dict[str, Layer]) -> list[tuple[int, int]]:
        convolutions = [layer for layer in layers.values() if isinstance(layer, Convolution)]
        assert all(layer.rows == layer.columns for layer in convolutions)
        return [(layer.filters, layer.rows) for layer in convolutions]

    assert outputs(alexnet) == [(96, 55), (256, 27), (384, 13), (384, 13), (256, 13)]
    assert outputs(vgg) == [
        *[(64, 224)] * 2,
        *[(128, 112)] * 2,
        *[(256, 56)] * 4,
        *[(512, 28)] * 4,
        *[(512, 14)] * 4,
    ]
    assert (alexnet["fc6"], vgg["fc6"]) == (
        FullyConnected(samples=32, inputs=256 * 6 * 6, outputs=4096),
        FullyConnected(samples=32, inputs=512 * 7 * 7, outputs=4096),
    )
    # 105,415,200 multiplications for an image: 363 for each of 96 x 55 x 55 results.
    assert named_layer("alexnet", "conv1", images=1).products == 105_415_200
    assert named_layer("vgg-19", "fc8", images=3) == FullyConnected(
        samples=3, inputs=4096, outputs=1000
    )


@pytest.mark.parametrize("layer", EVERY)
@pytest.mark.parametrize("most", [20_000_000, 2_000_000, 100_000])
def test_scaled_layers_are_of_the_same_kind(layer: Layer, most: int) -> None:
    scaled = layer.scaled(most)
    assert type(scaled) is type(layer)
    for item in fields(layer):
        before, after = getattr(layer, item.name), getattr(scaled, item.name)
        assert after <= before
        if item.name in ("filter_height", "filter_width", "stride", "padding", "groups"):
            assert after == before
    if isinstance(scaled, Convolution) and isinstance(layer, Convolution):
        for size in ("rows", "columns"):
            assert getattr(scaled, size) in [getattr(layer, size) >> halved for halved in range(8)]
    if most >= 2_000_000:
        assert most / 8 < scaled.products <= most
    assert scaled.scaled(most) == scaled
