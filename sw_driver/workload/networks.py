"""Networks by name: those with shipped traces of a training step, and those captured when used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sw_driver.numbers import check_fields, check_name, check_number

__all__ = [
    "BENCHMARKS", "CAPTURED", "CELLS", "DECODERS", "GPTS", "MEMFERRY", "NETWORKS", "PIM",
    "SENTINEL", "VISION", "VITS", "BertConfig", "BlocksConfig", "DecoderConfig", "GanConfig",
    "GptConfig", "LstmConfig", "RecurrentConfig", "TransformerXlConfig", "VisionConfig",
    "VitConfig", "Word2vecConfig",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Transformer:
    n_layers: int
    d_model: int
    n_heads: int
    batch: int
    context: int
    vocabulary: int
    dropout: float = 0.1
    """Dropout rate of embeddings, attention and a layer's two sums: Megatron's default."""
    rule: str = "adam"

    def __post_init__(self) -> None:
        check_fields(self, "dropout")
        check_number("dropout", self.dropout, 0, 1)
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model is {self.d_model}, which {self.n_heads} heads cannot share: choose a "
                f"multiple of n_heads"
            )


@dataclass(frozen=True, kw_only=True)
class GptConfig(_Transformer):
    """Megatron's GPT in FP32, and its training batch.

    Embedding and output share their weight. There are ``context`` positions, which are learned.

    Examples
    --------
    >>> GptConfig(n_layers=2, d_model=64, n_heads=4, batch=2, context=32).vocabulary
    50304
    >>> GptConfig(n_layers=2, d_model=64, n_heads=5, batch=2, context=32)
    Traceback (most recent call last):
        ...
    ValueError: d_model is 64, which 5 heads cannot share: choose a multiple of n_heads
    """

    vocabulary: int = 50304
    """Size of GPT-2's 50257 byte pairs, padded to a multiple of 128."""


GPTS = {
    "gpt3-large": GptConfig(n_layers=24, d_model=1536, n_heads=16, batch=3, context=1152),
    "gpt3-xl": GptConfig(n_layers=24, d_model=2064, n_heads=24, batch=2, context=1024),
    "gpt3-2.7b": GptConfig(n_layers=32, d_model=2560, n_heads=32, batch=1, context=1024),
    "gpt3-6.7b": GptConfig(n_layers=32, d_model=4096, n_heads=32, batch=1, context=1024),
    "gpt3-13b": GptConfig(n_layers=40, d_model=5120, n_heads=40, batch=1, context=512),
    "gpt-tiny": GptConfig(n_layers=2, d_model=32, n_heads=2, batch=2, context=16, vocabulary=128),
}
"""GPTs of Table 4 of Kim et al., and a tiny one for tests."""


VISION = {
    **dict.fromkeys(("alexnet", "googlenet", "vgg-e", "resnet-34", "resnet-50"), (224, 1000)),
    "inception-v3": (299, 1000),
    "resnet-32": (32, 10),
    **dict.fromkeys(("resnet-v2-152", "mobilenet"), (224, 10)),
}
"""Image classifiers: height and width of the images, and number of classes.

Those with 10 classes are for CIFAR-10. Two of them reduce images to a 32nd of their size; for these
the 32 x 32 images are enlarged, as TensorFlow's Slim does by default.
"""


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """An image classifier and its training batch."""

    network: str
    """Name of the network, one of :data:`VISION`."""
    batch: int = 64
    """Images in a device's batch, if eight devices share a batch of 512."""
    rule: str = "sgd"

    def __post_init__(self) -> None:
        check_name("network", self.network, VISION)
        check_fields(self)


CELLS = {"vanilla": 1, "lstm": 4, "gru": 3}
"""Kinds of recurrent layers, and the number of gates in each: width of its products in states."""


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """A recurrent layer of DeepBench."""

    cell: str
    hidden: int
    steps: int
    batch: int = 64
    rule: str = "sgd"

    def __post_init__(self) -> None:
        check_name("cell", self.cell, CELLS)
        check_fields(self)


BENCHMARKS = {
    **{name: VisionConfig(network=name) for name in ("alexnet", "googlenet", "vgg-e", "resnet-34")},
    "rnn-gemv": RecurrentConfig(cell="vanilla", hidden=2560, steps=50),
    "rnn-lstm-1": RecurrentConfig(cell="lstm", hidden=1024, steps=25),
    "rnn-lstm-2": RecurrentConfig(cell="lstm", hidden=2048, steps=25),
    "rnn-gru": RecurrentConfig(cell="gru", hidden=2816, steps=187),
}
"""Networks of Table III of Kwon and Rhu.

The table has time steps but no widths. Widths are those of DeepBench's training set
(baidu-research/DeepBench, code/kernels/rnn_problems.h). Its README shows 2560, 1024 and 2816 for
these kinds; 2048 is the next width among its LSTMs with 25 steps.
"""


@dataclass(frozen=True, kw_only=True)
class _Fixed:
    batch: int
    rule: str = "sgd"

    def __post_init__(self) -> None:
        check_fields(self)


class LstmConfig(_Fixed):
    """Large language model of Zaremba et al. for the Penn Treebank, with 35 time steps."""


class Word2vecConfig(_Fixed):
    """Skip-gram model of 50,000 words with noise-contrastive estimation."""


class GanConfig(_Fixed):
    """DCGAN for MNIST, conditioned on the digits' classes."""


@dataclass(frozen=True, kw_only=True)
class BertConfig(_Transformer):
    """BERT in FP32, in pretraining; with one segment RoBERTa, without next-sentence prediction."""

    positions: int = 512
    segments: int = 2


class TransformerXlConfig(_Transformer):
    """Transformer-XL in FP32, which also attends to ``context`` tokens before the batch's."""


SENTINEL = {
    "resnet32": VisionConfig(network="resnet-32", batch=128, rule="momentum"),
    "resnet152": VisionConfig(network="resnet-v2-152", batch=32, rule="momentum"),
    "lstm-ptb": LstmConfig(batch=20),
    "dcgan": GanConfig(batch=64, rule="adam"),
    "mobilenet": VisionConfig(network="mobilenet", batch=64),
}
"""Networks of Table 3 of Sentinel (Ren et al.)."""

PIM = {
    "vgg-19": VisionConfig(network="vgg-e", batch=32, rule="adam"),
    "alexnet-32": VisionConfig(network="alexnet", batch=32, rule="adam"),
    "inception-v3": VisionConfig(network="inception-v3", batch=32, rule="adam"),
    "resnet-50": VisionConfig(network="resnet-50", batch=128, rule="adam"),
    "word2vec": Word2vecConfig(batch=128),
    "dcgan": SENTINEL["dcgan"],
    "lstm-ptb": SENTINEL["lstm-ptb"],
}
"""Networks of Liu et al., Section V-C; Adam is the only rule that they name."""

_BASE = BertConfig(n_layers=12, d_model=768, n_heads=12, batch=8, context=128, vocabulary=30522)
_XL = {
    "0.7b": (11, 2048, 49152, 1),
    "1.0b": (17, 2048, 32768, 1),
    "1.0b-8": (17, 2048, 32768, 8),
    "1.6b": (18, 2560, 32768, 1),
    "1.9b": (21, 2560, 32768, 1),
    "2.4b": (27, 2560, 32768, 1),
    "2.9b": (33, 2560, 32768, 1),
    "4.3b": (17, 4096, 130528, 8),
    "6.7b": (28, 4096, 130528, 8),
}
"""Layers, width, vocabulary and batch of the Transformer-XLs."""

MEMFERRY = {
    "bert-base": _BASE,
    "bert-large": replace(_BASE, n_layers=24, d_model=1024, n_heads=16),
    "roberta": replace(_BASE, vocabulary=50265, positions=514, segments=1),
    "gpt2-medium": GptConfig(
        n_layers=24, d_model=1024, n_heads=16, batch=8, context=1024, vocabulary=50257
    ),
    **{
        f"transformer-xl-{size}": TransformerXlConfig(
            n_layers=n_layers,
            d_model=width,
            n_heads=width // 128,
            batch=batch,
            context=378,
            vocabulary=vocabulary,
        )
        for size, (n_layers, width, vocabulary, batch) in _XL.items()
    },
}
"""Networks of MemFerry (Yao et al.)."""

NETWORKS = {**GPTS, **BENCHMARKS, **SENTINEL, **PIM, **MEMFERRY}
"""All networks with shipped traces, by name."""


NORMS = ("layer", "layer without bias", "rms")
BIASES = ("all", "qkv", "none")
POSITIONS = ("learned", "rotary", "alibi")


@dataclass(frozen=True, kw_only=True)
class BlocksConfig:
    """Blocks of a transformer without dropout, and a training batch."""

    n_layers: int
    d_model: int
    n_heads: int
    group: int = 1
    """Heads of queries that share keys and values."""
    d_inner: int
    """Width between the products of the MLP."""
    gated: bool = False
    """SwiGLU instead of GELU in the MLP."""
    norm: str = "layer"
    """Kind of the normalization, one of ``NORMS``."""
    bias: str = "all"
    """Products with a bias, one of ``BIASES``."""
    fused: bool = True
    """One product for queries, keys and values, if the network's code has one."""
    parallel: bool = False
    """One normalization and one sum for attention and MLP, side by side."""
    scaled: bool = False
    """Learned scales of the channels that attention and MLP return."""
    batch: int = 1
    rule: str = "adam"

    def __post_init__(self) -> None:
        check_fields(self)
        check_name("norm", self.norm, NORMS)
        check_name("bias", self.bias, BIASES)
        if self.d_model % (2 * self.n_heads):
            raise ValueError(
                f"d_model is {self.d_model}, of which {self.n_heads} heads cannot have an even "
                "share: choose a multiple of 2 n_heads"
            )
        if self.n_heads % self.group:
            raise ValueError(
                f"group is {self.group}, which does not divide {self.n_heads} heads: choose a "
                "divisor of n_heads"
            )


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(BlocksConfig):
    """A language model of decoder blocks."""

    context: int
    """Tokens of a sample; learned positions are as many."""
    vocabulary: int
    positions: str = "learned"
    """Kind of the positions, one of ``POSITIONS``."""
    tied: bool = True
    """One weight for embedding and output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("positions", self.positions, POSITIONS)


@dataclass(frozen=True, kw_only=True)
class VitConfig(BlocksConfig):
    """A vision transformer with a class token, as a classifier."""

    image: int = 224
    """Height and width of the images."""
    patch: int
    """Height and width of a patch."""
    classes: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image % self.patch:
            raise ValueError(
                f"patch is {self.patch}, which does not divide images of {self.image}: choose a "
                "divisor of image"
            )


_LLAMA = {"norm": "rms", "gated": True, "positions": "rotary", "bias": "none", "fused": False}
_FAMILIES: list[tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = [
    (
        {"context": 1024, "vocabulary": 50304},
        {
            "gpt2-124m": (12, 768, 12),
            "gpt2-355m": (24, 1024, 16),
            "gpt2-774m": (36, 1280, 20),
            "gpt2-xl": (48, 1600, 25),
        },
    ),
    (
        {"context": 2048, "vocabulary": 50368},
        {
            "mpt-125m": (12, 768, 12),
            "mpt-350m": (24, 1024, 16),
            "mpt-760m": (24, 1536, 12),
            "mpt-1b": (24, 2048, 16),
            "mpt-3b": (32, 2560, 20),
            "mpt-7b": (32, 4096, 32),
            "mpt-13b": (40, 5120, 40),
            "mpt-30b": (48, 7168, 56),
            "mpt-70b": (80, 8192, 64),
        },
    ),
    (
        {"context": 2048, "vocabulary": 50432, "positions": "alibi", "bias": "none"}
        | {"norm": "layer without bias"},
        {"mpt-7b-alibi": (32, 4096, 32)},
    ),
    (
        {"context": 2048, "vocabulary": 65024, "positions": "rotary", "bias": "none"}
        | {"parallel": True},
        {"falcon-7b": (32, 4544, 71, 71, 4 * 4544)},
    ),
    (
        _LLAMA | {"context": 4096, "vocabulary": 32000, "tied": False},
        {"llama2-7b": (32, 4096, 32, 1, 11008)},
    ),
    (
        _LLAMA | {"context": 8192, "vocabulary": 128256, "tied": False},
        {
            **dict.fromkeys(("llama3-8b", "llama3.1-8b"), (32, 4096, 32, 4, 14336)),
            **dict.fromkeys(("llama3-70b", "llama3.1-70b"), (80, 8192, 64, 8, 28672)),
        },
    ),
    (
        _LLAMA | {"context": 8192, "vocabulary": 128256},
        {"llama3.2-1b": (16, 2048, 32, 4, 8192), "llama3.2-3b": (28, 3072, 24, 3, 8192)},
    ),
    (
        _LLAMA
        | {"bias": "qkv", "fused": True, "tied": False}
        | {"context": 2048, "vocabulary": 151936},
        {"qwen-1.8b": (24, 2048, 16, 1, 5504), "qwen-7b": (32, 4096, 32, 1, 11008)},
    ),
    (
        _LLAMA | {"bias": "qkv", "context": 4096, "vocabulary": 151936},
        {
            "qwen2.5-0.5b": (24, 896, 14, 7, 4864),
            "qwen2.5-1.5b": (28, 1536, 12, 6, 8960),
            "qwen2.5-3b": (36, 2048, 16, 8, 11008),
        },
    ),
    (
        _LLAMA | {"bias": "qkv", "context": 4096, "vocabulary": 152064, "tied": False},
        {
            "qwen2.5-7b": (28, 3584, 28, 7, 18944),
            "qwen2.5-14b": (48, 5120, 40, 5, 13824),
            "qwen2.5-32b": (64, 5120, 40, 5, 27648),
            "qwen2.5-72b": (80, 8192, 64, 8, 29568),
        },
    ),
]
"""Fields that a family shares, and layers, width and heads of its networks.

Group and inner width follow; by default they are 1 and four times the width.
"""


def _decoder(
    fields: dict[str, Any], n_layers: int, d_model: int, n_heads: int, group: int = 1,
    d_inner: int = 0,
) -> DecoderConfig:  # fmt: skip
    return DecoderConfig(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        group=group,
        d_inner=d_inner or 4 * d_model,
        **fields,
    )


DECODERS = {
    name: _decoder(fields, *size) for fields, sizes in _FAMILIES for name, size in sizes.items()
}
"""Language models by name.

GPT-2 has the vocabulary of nanoGPT, padded to 50304. MPTs are those of llm-foundry's training
benchmarks, with learned positions and biases; mpt-7b-alibi is the released one. Contexts are those
of pretraining.
"""

VITS = {
    "vit-l": VitConfig(n_layers=24, d_model=1024, n_heads=16, d_inner=4096, patch=16),
    "vit-g": VitConfig(
        n_layers=40, d_model=1536, n_heads=24, d_inner=4096, gated=True, scaled=True, image=518,
        patch=14,
    ),
}  # fmt: skip
"""ViT-L/16 of Dosovitskiy et al., and ViT-g/14 of DINOv2 (Oquab et al.)."""

CAPTURED = {**DECODERS, **VITS}
"""Networks captured from their code when used, by name."""
