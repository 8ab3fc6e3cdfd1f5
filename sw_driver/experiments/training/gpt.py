"""Training of a GPT twice from the same start: on the module, and by PyTorch alone."""

from __future__ import annotations

import copy
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

import sw_driver.torch
from golden.rules import reference
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.rulejob import hyperparameters_of
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.report import Watch
from sw_driver.torch import ModuleOptimizer, StepReport

from .data import MODULE_BYTES, MODULES, Text
from .trainer import (
    Mismatch,
    MismatchError,
    TrainingResult,
    channel_figures,
    first_mismatch,
    training_rule,
)

__all__ = ["Gpt", "GptSettings", "GptTrainer", "SignedMomentum"]

BYTES = 256
TEST_STRIDE = 512
"""Bytes between the starts of two test windows."""

_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {}),
    "amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {}),
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.01}),
    "nesterov": ("SGD", {"lr": 0.01, "nesterov": True}),
    "adagrad": ("Adagrad", {"lr": 0.01}),
    "rmsprop": ("RMSprop", {}),
    "lion": ("Lion", {"lr": 3e-4}),
}
"""Optimizers by rule: class name, and arguments that differ from the rule's defaults."""


@dataclass(frozen=True, kw_only=True)
class GptSettings:
    """Training job of the GPT; the defaults give 1,032,576 parameters."""

    steps: int = 200
    seed: int = 1
    batch_windows: int = 16
    context: int = 64
    layers: int = 5
    width: int = 128
    heads: int = 4


class Gpt(nn.Module):
    """Model that predicts a byte from the bytes before it; embedding and output share weights."""

    def __init__(self, settings: GptSettings) -> None:
        super().__init__()
        width = settings.width
        self.bytes = nn.Embedding(BYTES, width)
        self.positions = nn.Embedding(settings.context, width)
        for embedding in (self.bytes, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, settings.heads, 4 * width,
                dropout=0, activation="gelu", batch_first=True, norm_first=True,
            )
            for _ in range(settings.layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)

    def forward(self, windows: Tensor) -> Tensor:
        """Return the logits of the next byte, for each byte of each window."""
        length = windows.shape[1]
        values = self.bytes(windows) + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.blocks:
            values = block(values, src_mask=mask, is_causal=True)
        return functional.linear(self.norm(values), self.bytes.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """Return the mean cross entropy of all bytes but each window's first."""
        return functional.cross_entropy(
            self(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
        )


class SignedMomentum:
    """Lion (Chen et al., 2023) as published; PyTorch does not have it."""

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._momenta = {parameter: torch.zeros_like(parameter) for parameter in params}
        self._lr, self._betas, self._weight_decay = lr, betas, weight_decay

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters."""
        beta1, beta2 = self._betas
        for parameter, momentum in self._momenta.items():
            gradient = parameter.grad
            update = (beta1 * momentum + (1 - beta1) * gradient).sign()
            parameter.mul_(1 - self._lr * self._weight_decay).sub_(self._lr * update)
            momentum.mul_(beta2).add_((1 - beta2) * gradient)


class GptTrainer:
    """Training of a GPT on ``text`` with an optimizer of :mod:`sw_driver.torch`.

    Rule and errors are those of :func:`~sw_driver.experiments.training.trainer.training_rule`; a
    rule without an optimizer is an ``InvalidArgumentError``, too.
    """

    title = "Training a GPT on Python's sources"

    def __init__(self, device: Axdimm, text: Text, settings: GptSettings) -> None:
        self._device = device
        self._rule = training_rule(device)
        if self._rule.name not in _OPTIMIZERS:
            raise InvalidArgumentError(
                f"no optimizer of sw_driver.torch has {self._rule.name}: choose one of "
                f"{', '.join(_OPTIMIZERS)}",
                rule=self._rule.name,
            )
        self._text = text
        self._settings = settings
        self._class, self._options = _OPTIMIZERS[self._rule.name]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._model = Gpt(settings)
        self._other = copy.deepcopy(self._model)
        self._other_losses: list[float] = []
        self._losses: list[float] = []
        self._reports: list[StepReport] = []
        self._golden = {
            name: {tensor: np.zeros(parameter.numel(), np.float32) for tensor in self._rule.outputs}
            | {"p": parameter.detach().flatten().numpy().copy()}
            for name, parameter in self._model.named_parameters()
        }
        self._wrong: set[int] = set()

    @property
    def params(self) -> int:
        """Parameters of the network."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def train(self, watch: Watch = Watch()) -> TrainingResult:
        """Train, as :meth:`~sw_driver.experiments.training.trainer.Trainer.train` does.

        The same kind of CPU, Python and PyTorch give the same losses.
        """
        with _one_thread():
            return self._train(watch)

    def _train(self, watch: Watch) -> TrainingResult:
        device = self._device
        start, device_seconds = time.perf_counter(), 0.0
        before = [device.transport.fabric_cycles(channel) for channel in range(device.channels)]
        arguments = self._arguments(self._hyperparameters(1))
        batches = self._batches()
        mismatches: list[Mismatch] = []
        other = self._others_optimizer(arguments)
        kind: Callable[..., ModuleOptimizer] = getattr(sw_driver.torch, self._class)
        optimizer = kind(self._model.parameters(), device=device, **arguments)
        for step in watch.track(range(1, self._settings.steps + 1), "training"):
            batch = next(batches)
            loss = _gradients(self._model, batch)
            self._losses.append(loss)
            self._other_losses.append(_gradients(self._other, batch))
            other.step()
            began = time.perf_counter()
            optimizer.step()
            device_seconds += time.perf_counter() - began
            assert optimizer.last_step is not None
            self._reports.append(optimizer.last_step)
            mismatches = list(self._compare(optimizer, step))
            if mismatches:
                break
            watch.say(f"training, loss {loss:.3f}")
        seconds = time.perf_counter() - start
        result = self._result(self._shares(optimizer), before, seconds, device_seconds)
        optimizer.state.clear()  # otherwise close() copies it back over the link
        optimizer.close()
        if mismatches:
            raise MismatchError(mismatches, result)
        return result

    def context(self) -> dict[str, Any]:
        """Return the additional figures of this kind of job.

        ``losses``: loss of the batch before each step, on the module and by PyTorch alone.
        ``torch``: figures of PyTorch's optimizer, with the ``largest_difference`` of a step's two
        losses. ``step_ns``: simulated ns of the first step, which also copies parameters and state,
        and the mean of the others, see :class:`~sw_driver.torch.step.StepReport`.
        """
        differences = np.subtract(self._losses, self._other_losses)
        return {
            "losses": {"module": self._losses, "torch": self._other_losses},
            "torch": {
                "version": torch.__version__,
                "loss_last": self._other_losses[-1],
                "test_accuracy": self._accuracy(self._other),
                "largest_difference": float(np.abs(differences).max()),
            },
            "step_ns": {"first": _times(self._reports[:1]), "later": _times(self._reports[1:])},
        }

    def workload(self) -> dict[str, Any]:
        """Return the description of the job; the last module of ``text`` is for testing."""
        return {
            "model": "gpt",
            "rule": self._rule.name,
            "lr": self._hyperparameters(1)["lr"],
            "steps": self._settings.steps,
            "seed": self._settings.seed,
            "text": {
                "python": platform.python_version(),
                "modules": MODULES,
                "bytes_of_each": MODULE_BYTES,
            },
        }

    def _hyperparameters(self, t: int) -> dict[str, float]:
        usual = hyperparameters_of(self._rule, t)
        return {name: self._options.get(name, value) for name, value in usual.items()}

    def _arguments(self, hyperparameters: Mapping[str, float]) -> dict[str, Any]:
        """Return the optimizer's arguments for ``hyperparameters``."""
        arguments = {**hyperparameters, **self._options}
        arguments.pop("t", None)
        betas = [arguments.pop(name) for name in ("beta1", "beta2") if name in arguments]
        return {**arguments, "betas": tuple(betas)} if betas else arguments

    def _others_optimizer(self, arguments: Mapping[str, Any]) -> Any:
        kind = getattr(torch.optim, self._class, SignedMomentum)
        return kind(self._other.parameters(), **arguments)

    def _batches(self) -> Iterator[Tensor]:
        """Yield batches of text windows without end, each a byte longer than the context."""
        generator = torch.Generator().manual_seed(self._settings.seed)
        windows = torch.from_numpy(self._text.train).unfold(0, self._settings.context + 1, 1)
        while True:
            size = (self._settings.batch_windows,)
            yield windows[torch.randint(0, len(windows), size, generator=generator)]

    def _compare(self, optimizer: ModuleOptimizer, step: int) -> Iterator[Mismatch]:
        """Advance the golden state by the gradients; yield differences of the outputs.

        The golden state takes nothing else from the device. The comparison takes parameters from
        the copy over the link.
        """
        golden = reference(self._rule.name, self._device.transport.subnormals)
        constants = golden.constants(**self._hyperparameters(step))
        for name, parameter in self._model.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad.flatten().numpy()
            state = golden.step({"g": gradient, **self._golden[name]}, constants)
            self._golden[name] = state
            for tensor, wanted in state.items():
                for channel, first, values in optimizer.inspect(parameter, tensor):
                    last = first + len(values)
                    if tensor == "p":
                        values = parameter.detach().flatten().numpy()[first:last]
                    mismatch = first_mismatch(
                        values,
                        wanted[first:last],
                        step=step,
                        channel=channel,
                        tensor=f"{tensor} of {name}",
                    )
                    if mismatch is not None:
                        self._wrong.add(channel)
                        yield mismatch

    def _shares(self, optimizer: ModuleOptimizer) -> list[int]:
        """Return the number of parameters, by channel."""
        shares = [0] * self._device.channels
        for parameter in self._model.parameters():
            for channel, _, values in optimizer.inspect(parameter, "p"):
                shares[channel] += len(values)
        return shares

    def _result(
        self, shares: list[int], before: list[int], host_seconds: float, device_seconds: float
    ) -> TrainingResult:
        results = [report.results for report in self._reports]
        channels = tuple(
            channel_figures(
                self._device,
                channel,
                [run for step in results for where, run in step if where == channel],
                bit_exact=channel not in self._wrong,
                params=shares[channel],
                cycles_before=before[channel],
            )
            for channel in range(self._device.channels)
        )
        return TrainingResult(
            rule=self._rule.name,
            bit_exact=not self._wrong,
            timed=self._device.transport.timed,
            params=self.params,
            steps=len(self._losses),
            losses=tuple(self._losses),
            test_accuracy=self._accuracy(self._model),
            fabric_cycles=sum(
                max(
                    sum(run.fabric_cycles for where, run in step if where == channel)
                    for channel in range(self._device.channels)
                )
                for step in results
            ),
            host_seconds=host_seconds,
            device_seconds=device_seconds,
            simulated_fabric_cycles=sum(part.simulated_fabric_cycles for part in channels),
            channels=channels,
        )

    @torch.no_grad()
    def _accuracy(self, model: Gpt) -> float:
        """Return the share of test bytes that the model predicts as most likely."""
        size = self._settings.context + 1
        windows = torch.from_numpy(self._text.test).unfold(0, size, TEST_STRIDE)
        with _one_thread():
            right = [
                model(part[:, :-1]).argmax(2) == part[:, 1:]
                for part in windows.split(self._settings.batch_windows)
            ]
        return float(torch.cat(right).float().mean())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch use one thread: several change the order of sums and gain little."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _gradients(model: Gpt, windows: Tensor) -> float:
    model.zero_grad()
    loss = model.loss(windows)
    loss.backward()
    return loss.item()


def _times(reports: list[StepReport]) -> dict[str, float] | None:
    """Return mean times of the steps in ns; None without a step or a clock."""
    if not reports or reports[0].total_ns is None:
        return None
    return {
        name: float(np.mean([getattr(report, f"{name}_ns") for report in reports]))
        for name in ("total", "copy", "kernel")
    }
