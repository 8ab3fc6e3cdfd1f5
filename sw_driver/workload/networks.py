"""Networks with shipped traces of their training steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sw_driver.numbers import check_fields, check_name, check_number

__all__ = [
    "BENCHMARKS", "CELLS", "GPTS", "MEMFERRY", "NETWORKS", "PIM", "SENTINEL", "VISION",
    "BertConfig", "GanConfig", "GptConfig", "LstmConfig", "RecurrentConfig", "TransformerXlConfig",
    "VisionConfig", "Word2vecConfig",
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
