"""Training with every optimizer step on the device, checked by the golden model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.rules import reference
from hw.rules import RULES
from hw.rules import rule as rule_of
from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.rulejob import hyperparameters_of
from sw_driver.axdimm.runs import DramActivity, KernelRun, RunResult
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.report import Watch

from .data import CLASSES, PIXELS, Digits
from .mlp import Mlp

__all__ = [
    "TRAINING_RULES",
    "ChannelFigures",
    "Mismatch",
    "MismatchError",
    "Share",
    "Trainer",
    "TrainingResult",
    "TrainingSettings",
    "channel_figures",
    "first_mismatch",
    "training_rule",
]

Array = NDArray[np.float32]

TRAINING_RULES = tuple(
    name
    for name, rule in RULES.items()
    if "p" in rule.outputs and {*rule.inputs} == {"g", *rule.outputs}
)
"""Names of the rules that update ``p`` and their state from gradients ``g``, and load no more."""

_HYPERPARAMETERS = {"lr": 3e-3, "weight_decay": 1e-4}
"""Hyper-parameters of the training that differ from the rule's defaults."""
_GRADIENT_LEARNING_RATE = 0.1
"""Learning rate of rules without ``eps`` and ``beta1``: their steps grow with the gradient."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Training job; the defaults pass 90 % test accuracy after about half of the steps."""

    steps: int = 50
    seed: int = 1
    batch_images: int = 256
    hidden: tuple[int, ...] = (256, 320)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """First difference of a device's tensor from the golden model's."""

    step: int
    channel: int
    tensor: str
    differing: int
    """Number of elements that differ in a bit."""
    elements: int
    first_index: int
    device_bits: int
    golden_bits: int

    def __str__(self) -> str:
        return (
            f"step {self.step}, channel {self.channel}: {self.differing} of {self.elements} "
            f"elements of {self.tensor} differ from the golden model, first at index "
            f"{self.first_index}: device {self.device_bits:#010x}, golden {self.golden_bits:#010x}"
        )


class MismatchError(Exception):
    """Error for differences from the golden model; ``result`` covers all steps until then."""

    def __init__(self, mismatches: list[Mismatch], result: TrainingResult) -> None:
        super().__init__("\n".join(map(str, mismatches)))
        self.mismatches = mismatches
        self.result = result


@dataclass(frozen=True, kw_only=True)
class Share:
    """Figures of a part of the device, over all steps."""

    bit_exact: bool
    params: int
    fabric_cycles: int
    """Kernel's CYCLES counter, summed over the steps; for several channels the slowest one's."""
    simulated_fabric_cycles: int
    """All fabric cycles with copies and mode switches, summed over channels."""


@dataclass(frozen=True, kw_only=True)
class ChannelFigures(Share):
    """Figures of a channel, over all steps."""

    channel: int
    beats_read: int
    beats_written: int
    idle_fabric_cycles: int
    activity: DramActivity | None
    """DRAM activity, summed over the runs; None on a backend without a clock."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult(Share):
    """Figures of the training job."""

    rule: str
    """Name of the update rule."""
    timed: bool
    steps: int
    losses: tuple[float, ...]
    """Loss of the batch before the step, by step."""
    test_accuracy: float
    host_seconds: float
    """Host time of the training loop with checks, in seconds."""
    device_seconds: float
    """Host time in which the device worked, in seconds."""
    channels: tuple[ChannelFigures, ...]


def training_rule(device: Axdimm) -> UpdateRule:
    """Return the rule that trains on ``device``, the first rule of its kernels.

    Raise :class:`~sw_driver.device.errors.InvalidArgumentError` if it is not in
    :data:`TRAINING_RULES`.
    """
    rule = rule_of(device.rules(0)[0])
    if rule.name not in TRAINING_RULES:
        raise InvalidArgumentError(
            f"rules is {','.join(device.rules(0))!r}: {rule.name} loads "
            f"{', '.join(rule.inputs) or 'nothing'} and stores "
            f"{', '.join(rule.outputs) or 'nothing'}, but training needs a rule that updates p and "
            f"its state by g: one of {', '.join(TRAINING_RULES)}",
            rule=rule.name,
        )
    return rule


def first_mismatch(
    values: Array, wanted: Array, *, step: int, channel: int, tensor: str
) -> Mismatch | None:
    """Return the first bit difference of ``values`` from the golden ``wanted``, if any."""
    device_bits, golden_bits = values.view(np.uint32), wanted.view(np.uint32)
    differing = np.flatnonzero(device_bits != golden_bits)
    if not len(differing):
        return None
    first = int(differing[0])
    return Mismatch(
        step=step,
        channel=channel,
        tensor=tensor,
        differing=len(differing),
        elements=len(wanted),
        first_index=first,
        device_bits=int(device_bits[first]),
        golden_bits=int(golden_bits[first]),
    )


def channel_figures(
    device: Axdimm,
    channel: int,
    results: Sequence[RunResult],
    *,
    bit_exact: bool,
    params: int,
    cycles_before: int,
) -> ChannelFigures:
    """Return the figures of a channel from the ``results`` of its runs."""
    return ChannelFigures(
        channel=channel,
        bit_exact=bit_exact,
        params=params,
        fabric_cycles=sum(result.fabric_cycles for result in results),
        simulated_fabric_cycles=device.transport.fabric_cycles(channel) - cycles_before,
        beats_read=sum(result.beats_read for result in results),
        beats_written=sum(result.beats_written for result in results),
        idle_fabric_cycles=sum(result.idle_fabric_cycles for result in results),
        activity=DramActivity.total(
            result.activity for result in results if result.activity is not None
        )
        if device.transport.timed
        else None,
    )


class _Share:
    """Part of the parameter vector on one channel, as flat tensors."""

    def __init__(self, device: Axdimm, channel: int, rule: UpdateRule, values: Array) -> None:
        self._device = device
        self._channel = channel
        self.params = len(values)
        self._nbytes = values.nbytes
        self._rule = rule
        self._tensors = {name: device.MallocAxdimm(self._nbytes, channel) for name in rule.tensors}
        self._golden = {name: np.zeros_like(values) for name in rule.outputs}
        self._golden["p"] = values.copy()
        self.values = values.copy()
        self.results: list[RunResult] = []
        self.bit_exact = True
        self._stream = device.stream(channel)
        self._run: KernelRun | None = None
        self._cycles_before = device.transport.fabric_cycles(channel)

    def upload(self) -> None:
        """Queue copies of parameters and zeroed state to the device, over the link."""
        for name, data in self._golden.items():
            self._device.MemcpyHost2Axdimm(
                self._tensors[name], data, self._nbytes, backdoor=False, stream=self._stream
            )

    def step(self, gradient: Array, t: int) -> None:
        """Queue gradients over the link, the kernel's run, and parameters back over the link."""
        device, channel, stream = self._device, self._channel, self._stream
        tensors = self._tensors
        device.MemcpyHost2Axdimm(
            tensors["g"], gradient, self._nbytes, backdoor=False, stream=stream
        )
        device.SetArbiterAcc(channel, stream=stream)
        self._run = device.RunOnAxdimmAsync(
            self._rule.name,
            tensors,
            self.params,
            self._hyperparameters(t),
            channel,
            stream=stream,
        )
        device.SetArbiterNormal(channel, stream=stream)
        device.MemcpyAxdimm2Host(
            self.values, tensors["p"], self._nbytes, backdoor=False, stream=stream
        )

    def _hyperparameters(self, t: int) -> dict[str, float]:
        own = dict(_HYPERPARAMETERS)
        if not {"eps", "beta1"} & {*self._rule.hyperparameters}:
            own["lr"] = _GRADIENT_LEARNING_RATE
        usual = hyperparameters_of(self._rule, t)
        return {name: own.get(name, value) for name, value in usual.items()}

    def wait(self) -> None:
        """Wait for all queued actions of the channel; raise their errors."""
        self._stream.wait()
        if self._run is not None:
            self.results.append(self._run.wait())
            self._run = None

    def compare(self, gradient: Array, t: int) -> list[Mismatch]:
        """Advance the golden state by ``gradient``, and compare all outputs bit for bit.

        After the initial values, the golden state takes nothing from the device. The comparison
        takes parameters from the copy over the link, and other state through the backdoor, as a
        training loop does not read it.
        """
        golden = reference(self._rule.name, self._device.transport.subnormals)
        constants = golden.constants(**self._hyperparameters(t))
        self._golden = golden.step({"g": gradient, **self._golden}, constants)
        mismatches = []
        for name, wanted in self._golden.items():
            values = self.values
            if name != "p":
                values = np.empty_like(wanted)
                self._device.MemcpyAxdimm2Host(
                    values, self._tensors[name], self._nbytes, backdoor=True
                )
            mismatch = first_mismatch(values, wanted, step=t, channel=self._channel, tensor=name)
            if mismatch is not None:
                mismatches.append(mismatch)
        self.bit_exact &= not mismatches
        return mismatches

    def figures(self) -> ChannelFigures:
        return channel_figures(
            self._device,
            self._channel,
            self.results,
            bit_exact=self.bit_exact,
            params=self.params,
            cycles_before=self._cycles_before,
        )

    def free(self) -> None:
        """Free the share's memory on the device."""
        for pointer in self._tensors.values():
            self._device.FreeAxdimm(pointer)


class Trainer:
    """Training of a perceptron on digits, with parameters split over the device's channels.

    All channels work at once, each in its stream, with the rule and errors of
    :func:`training_rule`.
    """

    title = "Training on handwritten digits"

    def __init__(self, device: Axdimm, digits: Digits, settings: TrainingSettings) -> None:
        self._device = device
        self._rule = training_rule(device)
        self._digits = digits
        self._settings = settings
        self._network = Mlp((PIXELS, *settings.hidden, CLASSES))
        self._losses: list[float] = []
        self._fabric_cycles = 0
        self._device_seconds = 0.0

    @property
    def params(self) -> int:
        """Parameters of the network."""
        return self._network.parameters

    def train(self, watch: Watch = Watch()) -> TrainingResult:
        """Train, and show each step and its loss.

        The same settings give the same losses and state on every backend, and the same counts on
        the same backend. Raise :class:`MismatchError` after the first step with a wrong bit; other
        errors are those of the driver.
        """
        settings = self._settings
        rng = np.random.default_rng(settings.seed)
        parameters = self._network.initial(rng)
        shares = [
            _Share(self._device, channel, self._rule, values)
            for channel, values in enumerate(np.array_split(parameters, self._device.channels))
        ]
        batches = self._batches(rng)
        start = time.perf_counter()
        with self._at_once(shares):
            for share in shares:
                share.upload()
        for step in watch.track(range(1, settings.steps + 1), "training"):
            batch = next(batches)
            loss, gradient = self._network.loss_and_gradient(
                parameters,
                self._digits.train_images[batch],
                self._digits.train_labels[batch],
            )
            self._losses.append(loss)
            parts = np.array_split(gradient, len(shares))
            with self._at_once(shares):
                for share, part in zip(shares, parts, strict=True):
                    share.step(part, step)
            self._fabric_cycles += max(share.results[-1].fabric_cycles for share in shares)
            mismatches = [
                mismatch
                for share, part in zip(shares, parts, strict=True)
                for mismatch in share.compare(part, step)
            ]
            parameters = np.concatenate([share.values for share in shares])
            if mismatches:
                seconds = time.perf_counter() - start
                raise MismatchError(mismatches, self._result(parameters, shares, seconds))
            watch.say(f"training, loss {loss:.3f}")
        result = self._result(parameters, shares, time.perf_counter() - start)
        for share in shares:
            share.free()
        return result

    def context(self) -> dict[str, Any]:
        """Return the additional figures of this kind of job; there are none."""
        return {}

    def workload(self) -> dict[str, Any]:
        """Return the description of the job for the report."""
        job = {"steps": self._settings.steps, "seed": self._settings.seed}
        return {"model": "digits", "rule": self._rule.name, **job}

    @contextmanager
    def _at_once(self, shares: list[_Share]) -> Iterator[None]:
        """Run all actions queued in the ``with`` block, and wait for them at its end."""
        began = time.perf_counter()
        yield
        for share in shares:
            share.wait()
        self._device_seconds += time.perf_counter() - began

    def _batches(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield batches of image numbers without end; use all images before any repeats."""
        size = self._settings.batch_images
        rest = np.empty(0, dtype=np.int64)
        while True:
            while len(rest) < size:
                rest = np.concatenate([rest, rng.permutation(len(self._digits.train_labels))])
            yield rest[:size]
            rest = rest[size:]

    def _result(
        self, parameters: Array, shares: list[_Share], host_seconds: float
    ) -> TrainingResult:
        channels = tuple(share.figures() for share in shares)
        return TrainingResult(
            rule=self._rule.name,
            bit_exact=all(share.bit_exact for share in shares),
            timed=self._device.transport.timed,
            params=self._network.parameters,
            steps=len(self._losses),
            losses=tuple(self._losses),
            test_accuracy=self._network.accuracy(
                parameters, self._digits.test_images, self._digits.test_labels
            ),
            fabric_cycles=self._fabric_cycles,
            host_seconds=host_seconds,
            device_seconds=self._device_seconds,
            simulated_fabric_cycles=sum(part.simulated_fabric_cycles for part in channels),
            channels=channels,
        )
