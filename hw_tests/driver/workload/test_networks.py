"""The networks of Sentinel, the heterogeneous PIM and MemFerry, from their shipped traces."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from sw_driver.workload import NETWORKS, load_trace
from sw_driver.workload.networks import MEMFERRY, PIM, SENTINEL, TransformerXlConfig
from sw_driver.workload.trace import SHIPPED

PARAMETERS = {
    "resnet32": 464_154,
    "resnet152": 60_236_904 - 990 * 2049,
    "mobilenet": 4_231_976 - 990 * 1025,
    "vgg-19": 143_667_240,
    "alexnet-32": 61_100_840,
    "resnet-50": 25_557_032,
    "inception-v3": 27_161_264,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "roberta": 124_697_433,
    "gpt2-medium": 354_823_168,
    "lstm-ptb": 66_022_000,
    "word2vec": 50_000 * (2 * 128 + 1),
    "dcgan": 1024 * (110 + 3) + 6272 * (1034 + 3) + 128 * (138 * 25 + 3) + 138 * 25 + 1
    + 11 * (11 * 25 + 1) + 74 * (21 * 25 + 3) + 1024 * (74 * 49 + 10 + 3) + 1035,
}  # fmt: skip
"""As torchvision, Keras (whose thousand classes are ten here) and Hugging Face's Transformers have
them, with the heads for pretraining; of ResNet-32 as akamaster/pytorch_resnet_cifar10. Of the LSTM,
Zaremba et al. say 66 millions. The last two by their sizes."""

GIGA_MACS = {
    "resnet-50": 4.089,
    "vgg-19": 19.632,
    "inception-v3": 5.713 + 25 * 768 * (128 + 128) / 1e9,
    "mobilenet": 0.569,
    "resnet32": 0.069,
    "lstm-ptb": 35 * (2 * 3000 * 6000 + 1500 * 10000) / 1e9,
    "bert-base": (128 * (12 * 12 + 1) * 768**2 + 12 * 2 * 128**2 * 768 + 128 * 768 * 30522) / 1e9,
    "transformer-xl-1.0b-8": (
        17 * 378 * 2048 * ((2 * 3 + 2 / 8 + 9) * 2048 + 3 * 756) + 378 * 2048 * 32768
    ) / 1e9,
}  # fmt: skip
"""Of a sample forward. Of classifiers as torchvision has them, and Howard et al.; Inception's side
classifier is not in its. Others by their matrices: a Transformer-XL has queries, keys and values of
the tokens before, too, and keys of distances once for the batch."""

LAYERS = {
    "resnet32": 32,
    "mobilenet": 28,
    "vgg-19": 19,
    "resnet-50": 50 + 4,
    "resnet152": 152 + 4,
    "inception-v3": 94 + 1 + 3,
    "lstm-ptb": 1 + 2 * 35 + 1,
    "dcgan": 4 + 3 * 4,
    "word2vec": 3,
    "bert-base": 3 + 12 * 4 + 2 + 2,
    "transformer-xl-6.7b": 1 + 28 * 5 + 1,
}
"""As the networks' names and papers say, with four projections of a ResNet, Inception's side
classifier, every time step of the LSTM, and each run of the discriminator."""


def parameters(name: str) -> int:
    """How many a network has."""
    return sum(each.nbytes for each in load_trace(name).tensors if each.kind == "parameter") // 4


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_their_published_parameters(name: str) -> None:
    assert parameters(name) == PARAMETERS[name]


def test_transformer_xls_have_the_size_in_their_name_and_the_papers_widths() -> None:
    configs = {
        name: each for name, each in MEMFERRY.items() if isinstance(each, TransformerXlConfig)
    }
    for name, config in configs.items():
        billions = float(name.removeprefix("transformer-xl-").partition("b")[0])
        assert parameters(name) == pytest.approx(1e9 * billions, rel=0.03)
        assert config.context >= 378
    widths, vocabularies = zip(*((c.d_model, c.vocabulary) for c in configs.values()), strict=True)
    assert (min(widths), max(widths)) == (2048, 4096)
    assert (min(vocabularies), max(vocabularies)) == (32768, 130528)


@pytest.mark.parametrize("name", GIGA_MACS)
def test_products_are_those_of_a_sample(name: str) -> None:
    trace = load_trace(name)
    products = ("mm", "addmm", "bmm", "convolution")
    macs = sum(op.flops for op in trace.ops if op.phase == "forward" and op.kind in products) / 2
    assert macs / NETWORKS[name].batch / 1e9 == pytest.approx(GIGA_MACS[name], rel=3e-3)


@pytest.mark.parametrize("name", LAYERS)
def test_networks_have_their_layers(name: str) -> None:
    assert len(load_trace(name).stages) == 2 * LAYERS[name]


def test_a_gans_losses_give_gradients_to_their_own_network() -> None:
    trace = load_trace("dcgan")
    counts = Counter(op.kind for op in trace.ops)
    # Forward two of the generator and three times two of the discriminator. Backward through the
    # discriminator twice for its own weights, but not to the images; once to them, for no weights.
    assert counts["convolution"] == 2 + 3 * 2
    assert counts["convolution_backward_filter"] == 2 * 2 + 2
    assert counts["convolution_backward_input"] == 2 * 1 + 2 + 2
    updated = [op for op in trace.ops if op.phase == "update"]
    assert len(updated) == sum(each.kind == "parameter" for each in trace.tensors) == 26


def test_the_page_has_every_network() -> None:
    page = (Path(__file__).parents[3] / "docs" / "systems.md").read_text()
    rows = re.findall(r"^\| `(.+)` \| (.+) \| (.+) \| (.+) \| .+ \|$", page, re.MULTILINE)
    assert rows == [
        (name, str(config.batch), f"{parameters(name):,}", f"{len(load_trace(name).ops):,}")
        for name, config in {**SENTINEL, **PIM, **MEMFERRY}.items()
    ]


def test_all_traces_are_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 2_000_000
