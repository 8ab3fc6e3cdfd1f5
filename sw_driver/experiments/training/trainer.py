"""Training in which the device executes every optimizer step and the golden model checks it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.rules.adam import adam_constants, adam_step
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.runs import AdamResult, AdamRun, DramActivity
from sw_driver.experiments.adamjob import Hyperparameters

from .data import CLASSES, PIXELS, Digits
from .mlp import Mlp

__all__ = [
    "ChannelFigures",
    "Mismatch",
    "MismatchError",
    "Share",
    "Trainer",
    "TrainingResult",
    "TrainingSettings",
]

Array = NDArray[np.float32]

_HYPERPARAMETERS: Hyperparameters = {
    "lr": 3e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 1e-4,
}


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The job. The defaults pass 90 % test accuracy after about half of the steps."""

    steps: int = 50
    seed: int = 1
    batch_images: int = 256
    hidden: tuple[int, ...] = (256, 320)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Where a tensor of the device first differs from the golden model's."""

    step: int
    channel: int
    tensor: str
    differing: int
    """Elements that differ in a bit."""
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
    """The device and the golden model disagree; ``result`` is what was done until then."""

    def __init__(self, mismatches: list[Mismatch], result: TrainingResult) -> None:
        super().__init__("\n".join(map(str, mismatches)))
        self.mismatches = mismatches
        self.result = result


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a part of the device did, over all steps."""

    bit_exact: bool
    params: int
    fabric_cycles: int
    """Sum over the steps of the kernel's CYCLES counter; of several channels, which run at once,
    the slowest one's."""
    simulated_fabric_cycles: int
    """All fabric cycles, copies and mode switches included, those of several channels added."""


@dataclass(frozen=True, kw_only=True)
class ChannelFigures(Share):
    """What one channel did, over all steps."""

    channel: int
    beats_read: int
    beats_written: int
    idle_fabric_cycles: int
    activity: DramActivity | None
    """Sum over the runs; None on a backend without a clock."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult(Share):
    """What the job did."""

    timed: bool
    steps: int
    losses: tuple[float, ...]
    """Of the batch of each step, before the step."""
    test_accuracy: float
    host_seconds: float
    """Host time of the training loop, checks included."""
    device_seconds: float
    """Host time in which the device worked."""
    channels: tuple[ChannelFigures, ...]


class _Share:
    """The part of the parameter vector that lives on one channel, as flat tensors."""

    def __init__(self, device: Axdimm, channel: int, values: Array) -> None:
        self._device = device
        self._channel = channel
        self.params = len(values)
        self._nbytes = values.nbytes
        self._p, self._g, self._m, self._v = (
            device.MallocAxdimm(self._nbytes, channel) for _ in "pgmv"
        )
        self._golden = (values.copy(), np.zeros_like(values), np.zeros_like(values))
        self._first_values = values
        self.values = values.copy()
        self.results: list[AdamResult] = []
        self.bit_exact = True
        self._stream = device.stream(channel)
        self._run: AdamRun | None = None
        self._cycles_before = device.transport.fabric_cycles(channel)

    def upload(self) -> None:
        """Queues the copies of parameters and zeroed moments to the device, over the link."""
        zeros = np.zeros_like(self._first_values)
        for pointer, data in ((self._p, self._first_values), (self._m, zeros), (self._v, zeros)):
            self._device.MemcpyHost2Axdimm(
                pointer, data, self._nbytes, backdoor=False, stream=self._stream
            )

    def step(self, gradient: Array, t: int) -> None:
        """Queues: gradients in over the link, the kernel's run, parameters out over the link."""
        device, channel, stream = self._device, self._channel, self._stream
        device.MemcpyHost2Axdimm(self._g, gradient, self._nbytes, backdoor=False, stream=stream)
        device.SetArbiterAcc(channel, stream=stream)
        self._run = device.RunAdamOnAxdimmAsync(
            self._p,
            self._m,
            self._v,
            self._g,
            self.params,
            **_HYPERPARAMETERS,
            t=t,
            channel=channel,
            stream=stream,
        )
        device.SetArbiterNormal(channel, stream=stream)
        device.MemcpyAxdimm2Host(self.values, self._p, self._nbytes, backdoor=False, stream=stream)

    def wait(self) -> None:
        """Waits for what is queued. Raises what it ended with."""
        self._stream.wait()
        if self._run is not None:
            self.results.append(self._run.wait())
            self._run = None

    def compare(self, gradient: Array, t: int) -> list[Mismatch]:
        """Advances the golden state from ``gradient`` and compares p, m and v bit for bit.

        The golden state is its own: nothing of the device enters it after the first values. The
        parameters compared are those copied over the link; the moments, which a training loop
        does not read, come through the backdoor.
        """
        p, m, v = self._golden
        self._golden = adam_step(p, gradient, m, v, adam_constants(**_HYPERPARAMETERS, t=t))
        moments = (np.empty_like(p), np.empty_like(p))
        for pointer, data in zip((self._m, self._v), moments, strict=True):
            self._device.MemcpyAxdimm2Host(data, pointer, self._nbytes, backdoor=True)
        mismatches = []
        for name, found, golden in zip("pmv", (self.values, *moments), self._golden, strict=True):
            found_bits, golden_bits = found.view(np.uint32), golden.view(np.uint32)
            differing = np.flatnonzero(found_bits != golden_bits)
            if len(differing):
                first = int(differing[0])
                mismatches.append(
                    Mismatch(
                        step=t,
                        channel=self._channel,
                        tensor=name,
                        differing=len(differing),
                        elements=self.params,
                        first_index=first,
                        device_bits=int(found_bits[first]),
                        golden_bits=int(golden_bits[first]),
                    )
                )
        self.bit_exact &= not mismatches
        return mismatches

    def figures(self) -> ChannelFigures:
        cycles = self._device.transport.fabric_cycles(self._channel) - self._cycles_before
        return ChannelFigures(
            channel=self._channel,
            bit_exact=self.bit_exact,
            params=self.params,
            fabric_cycles=sum(result.fabric_cycles for result in self.results),
            simulated_fabric_cycles=cycles,
            beats_read=sum(result.beats_read for result in self.results),
            beats_written=sum(result.beats_written for result in self.results),
            idle_fabric_cycles=sum(result.idle_fabric_cycles for result in self.results),
            activity=DramActivity.total(
                result.activity for result in self.results if result.activity is not None
            )
            if self._device.transport.timed
            else None,
        )

    def free(self) -> None:
        """Gives the memory back."""
        for pointer in (self._p, self._g, self._m, self._v):
            self._device.FreeAxdimm(pointer)


class Trainer:
    """Trains a perceptron on the digits, its parameters split over the channels of ``device``.

    All channels work at once, each in its stream.
    """

    def __init__(self, device: Axdimm, digits: Digits, settings: TrainingSettings) -> None:
        self._device = device
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

    def train(self, on_step: Callable[[int, float], None] | None = None) -> TrainingResult:
        """Trains, calling ``on_step(step, loss)`` after each step.

        The same settings give the same losses and the same p, m and v on every backend, and the
        same counts on the same backend.

        Raises :class:`MismatchError` after the first step in which a bit differs, and what the
        driver raises.
        """
        settings = self._settings
        rng = np.random.default_rng(settings.seed)
        parameters = self._network.initial(rng)
        shares = [
            _Share(self._device, channel, values)
            for channel, values in enumerate(np.array_split(parameters, self._device.channels))
        ]
        batches = self._batches(rng)
        start = time.perf_counter()
        with self._at_once(shares):
            for share in shares:
                share.upload()
        for step in range(1, settings.steps + 1):
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
            if on_step is not None:
                on_step(step, loss)
        result = self._result(parameters, shares, time.perf_counter() - start)
        for share in shares:
            share.free()
        return result

    @contextmanager
    def _at_once(self, shares: list[_Share]) -> Iterator[None]:
        """What is queued inside begins together, and has ended after it."""
        began = time.perf_counter()
        with self._device.queueing():
            yield
        for share in shares:
            share.wait()
        self._device_seconds += time.perf_counter() - began

    def _batches(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Endless batches of image numbers; each image once before any comes again."""
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
            simulated_fabric_cycles=sum(each.simulated_fabric_cycles for each in channels),
            channels=channels,
        )
