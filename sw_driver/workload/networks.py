"""The networks whose training steps are shipped as traces."""

from __future__ import annotations

from dataclasses import dataclass

from sw_driver.numbers import check_fields, check_name, check_number

__all__ = [
    "BENCHMARKS",
    "CELLS",
    "GPTS",
    "NETWORKS",
    "VISION",
    "GptConfig",
    "RecurrentConfig",
    "VisionConfig",
]


@dataclass(frozen=True, kw_only=True)
class GptConfig:
    """A GPT as Megatron has it, in FP32, and the batch that it is trained with.

    The embedding is the output's weight, too; positions are learned, and as many as ``context``.
    """

    n_layers: int
    d_model: int
    n_heads: int
    batch: int
    context: int
    vocabulary: int = 50304
    """GPT-2's 50257 byte pairs, padded to a multiple of 128."""
    dropout: float = 0.1
    """Share that is dropped of embeddings, attention and a layer's two sums: Megatron's default."""

    def __post_init__(self) -> None:
        check_fields(self, "dropout")
        check_number("dropout", self.dropout, 0, 1)
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model is {self.d_model}, which {self.n_heads} heads cannot share: choose a "
                f"multiple of n_heads"
            )


GPTS = {
    "gpt3-large": GptConfig(n_layers=24, d_model=1536, n_heads=16, batch=3, context=1152),
    "gpt3-xl": GptConfig(n_layers=24, d_model=2064, n_heads=24, batch=2, context=1024),
    "gpt3-2.7b": GptConfig(n_layers=32, d_model=2560, n_heads=32, batch=1, context=1024),
    "gpt3-6.7b": GptConfig(n_layers=32, d_model=4096, n_heads=32, batch=1, context=1024),
    "gpt3-13b": GptConfig(n_layers=40, d_model=5120, n_heads=40, batch=1, context=512),
    "gpt-tiny": GptConfig(n_layers=2, d_model=32, n_heads=2, batch=2, context=16, vocabulary=128),
}
"""The GPTs of Table 4 of Kim et al., and a tiny one for tests."""


VISION = ("alexnet", "googlenet", "vgg-e", "resnet-34")
"""The classifiers."""


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """A classifier for ImageNet's 1000 classes, of images of 224 x 224."""

    network: str
    """One of :data:`VISION`."""
    batch: int = 64
    """Images of a device's batch, if eight devices share one of 512."""

    def __post_init__(self) -> None:
        check_name("network", self.network, VISION)
        check_fields(self)


CELLS = {"vanilla": 1, "lstm": 4, "gru": 3}
"""Kinds of recurrent layers, and how many gates each has: the products' width in states."""


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """A recurrent layer of DeepBench."""

    cell: str
    hidden: int
    steps: int
    batch: int = 64

    def __post_init__(self) -> None:
        check_name("cell", self.cell, CELLS)
        check_fields(self)


BENCHMARKS = {
    **{network: VisionConfig(network=network) for network in VISION},
    "rnn-gemv": RecurrentConfig(cell="vanilla", hidden=2560, steps=50),
    "rnn-lstm-1": RecurrentConfig(cell="lstm", hidden=1024, steps=25),
    "rnn-lstm-2": RecurrentConfig(cell="lstm", hidden=2048, steps=25),
    "rnn-gru": RecurrentConfig(cell="gru", hidden=2816, steps=187),
}
"""Table III of Kwon and Rhu. It has time steps but no widths: these are of DeepBench's training set
(baidu-research/DeepBench, code/kernels/rnn_problems.h), in which 2560, 1024 and 2816 are those that
its README shows for these kinds; of its LSTMs with 25 steps 2048 is the next."""

NETWORKS: dict[str, GptConfig | VisionConfig | RecurrentConfig] = {**GPTS, **BENCHMARKS}
"""All networks of which traces are shipped, by name."""
