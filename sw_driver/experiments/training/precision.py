"""Comparison of the loss after training in narrow formats and in FP32, with golden steps.

``python -m sw_driver.experiments.training.precision --seeds 5`` trains a perceptron on digits and,
if PyTorch is installed, a GPT on Python's sources. All formats have the same start and batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden import narrow
from golden.rules import reference
from hw.narrow.formats import FP32_FORMATS, Formats
from hw.rules import rule as rule_of

from .data import CLASSES, PIXELS, load_library_text, load_split_digits
from .mlp import Mlp

__all__ = ["FORMATS", "NarrowOptimizer", "beside_fp32", "train_digits", "train_gpt"]

Array = NDArray[np.float32]
Array64 = NDArray[np.float64]

_BF16 = Formats(gradients="bf16", parameters="bf16")
FORMATS = {
    "FP32": FP32_FORMATS,
    "BF16 gradients": Formats(gradients="bf16"),
    "BF16 gradients, dynamic 8-bit states": Formats(gradients="bf16", states="dynamic"),
    "BF16 gradients, linear 8-bit states": Formats(gradients="bf16", states="linear"),
    "BF16 gradients and parameters": _BF16,
    "BF16 gradients and parameters, dynamic 8-bit states": replace(_BF16, states="dynamic"),
}
"""Formats of tensors, by their names in the printed table."""


class NarrowOptimizer:
    """Optimizer with golden steps on encoded tensors, each padded to whole blocks."""

    def __init__(
        self, rule: str, values: Iterable[Array], formats: Formats, seed: int,
        **hyperparameters: float,
    ) -> None:  # fmt: skip
        self._model = reference(rule)
        self._forms = formats.forms(rule_of(rule))
        self._seed = seed
        self._hyperparameters = hyperparameters
        self._t = 0
        self._sizes: list[int] = []
        self._tensors: list[dict[str, Any]] = []
        for p in values:
            self._sizes.append(p.size)
            start = {name: np.zeros_like(p) for name in self._model.outputs} | {"p": p}
            self._tensors.append({name: self._encoded(name, start[name]) for name in start})

    def _encoded(self, name: str, values: Array) -> Any:
        filled = np.append(values.ravel(), np.zeros(-values.size % narrow.BLOCK, np.float32))
        return narrow.encode(filled, self._forms[name])

    def values(self) -> Iterator[Array]:
        """Yield the decoded parameters of each tensor, flat."""
        for size, tensors in zip(self._sizes, self._tensors, strict=True):
            yield narrow.decode(tensors["p"], self._forms["p"])[:size]

    def step(self, gradients: Iterable[Array]) -> None:
        """Update all tensors."""
        self._t += 1
        constants = self._model.constants(t=self._t, **self._hyperparameters)
        for number, gradient in enumerate(gradients):
            tensors = {"g": self._encoded("g", gradient), **self._tensors[number]}
            self._tensors[number], _ = narrow.step(
                self._model, tensors, constants, self._forms,
                t=self._t, seed=self._seed << 32 | number,
            )  # fmt: skip


def train_digits(formats: Formats, seed: int, steps: int = 100) -> float:
    """Train on digits; return the mean loss of all training images after the last step."""
    digits = load_split_digits()
    rng = np.random.default_rng(seed)
    network = Mlp((PIXELS, 256, 320, CLASSES))
    optimizer = NarrowOptimizer(
        "adam", [network.initial(rng)], formats, seed,
        lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=1e-4,
    )  # fmt: skip
    for _ in range(steps):
        batch = rng.choice(len(digits.train_labels), 256, replace=False)
        images, labels = digits.train_images[batch], digits.train_labels[batch]
        optimizer.step([network.loss_and_gradient(next(optimizer.values()), images, labels)[1]])
    parameters = next(optimizer.values())
    return network.loss_and_gradient(parameters, digits.train_images, digits.train_labels)[0]


def train_gpt(formats: Formats, seed: int, steps: int = 200) -> float:
    """Train a GPT; return the mean loss of the test text after the last step."""
    import torch  # pyright: ignore[reportMissingImports]

    from .gpt import Gpt, GptSettings

    settings = GptSettings(seed=seed, layers=2, width=64)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = Gpt(settings)
    parameters = list(model.parameters())
    optimizer = NarrowOptimizer(
        "adamw", [parameter.detach().numpy() for parameter in parameters], formats, seed,
        lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01,
    )  # fmt: skip
    text = load_library_text()
    windows, tested = (
        torch.from_numpy(part).unfold(0, settings.context + 1, stride)
        for part, stride in ((text.train, 1), (text.test, settings.context))
    )

    def load() -> None:
        for parameter, values in zip(parameters, optimizer.values(), strict=True):
            parameter.data = torch.from_numpy(values.reshape(parameter.shape))

    for _ in range(steps):
        load()
        model.zero_grad()
        model.loss(windows[torch.randint(0, len(windows), (settings.batch_windows,))]).backward()
        optimizer.step(p.grad.numpy() for p in parameters if p.grad is not None)
    load()
    with torch.no_grad():
        return model.loss(tested).item()


def beside_fp32(
    train: Callable[[Formats, int], float], formats: Mapping[str, Formats], seeds: range
) -> Iterator[tuple[str, Array64, Array64]]:
    """Yield the name of each format, its losses by seed, and the differences from FP32 in percent.

    The first of ``formats`` is FP32. A difference compares losses of the same seed.
    """
    plain = None
    for name, chosen in formats.items():
        losses = np.array([train(chosen, seed) for seed in seeds])
        plain = losses if plain is None else plain
        yield name, losses, 100 * (losses / plain - 1)


def compare(train: Callable[[Formats, int], float], seeds: range) -> None:
    """Print a line for each format, with mean loss and difference from FP32.

    The difference is in percent of FP32's loss with the same seed: mean, standard deviation,
    minimum and maximum.
    """
    for name, losses, percent in beside_fp32(train, FORMATS, seeds):
        if FORMATS[name].usual:
            spread = 100 * losses.std(ddof=1) / losses.mean()
            print(f"{name}: loss {losses.mean():.4f}, standard deviation {spread:.2f} %")
            continue
        print(
            f"{name}: loss {losses.mean():.4f}, difference {percent.mean():+.3f} % "
            f"(standard deviation {percent.std(ddof=1):.3f}, {percent.min():+.3f} to "
            f"{percent.max():+.3f})",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", nargs="+", default=["digits", "gpt"])
    arguments = parser.parse_args()
    for job in arguments.jobs:
        print(job)
        compare({"digits": train_digits, "gpt": train_gpt}[job], range(1, arguments.seeds + 1))
