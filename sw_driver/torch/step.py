"""A step in flight, and its report."""

from __future__ import annotations

import _signal
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from hw.narrow.formats import BLOCK_PARAMETERS
from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm import Axdimm, KernelRun, RunResult
from sw_driver.device.streams import Handle, Stream

from .shards import Shard, Span

__all__ = [
    "Interrupts",
    "Operations",
    "StepHandle",
    "StepReport",
    "calls_of",
    "uninterrupted",
    "untraced",
    "unwatched",
]

SIGNALS = [int(number) for number in signal.valid_signals()]
# Integers, and functions of `_signal`: enumerations of `signal` take 50 times as long, and every
# copy of the residency uses them.

untraced = torch.compiler.disable(reason="the module has the step: compile the model alone")
"""Decorator that hides a function from ``torch.compile``: device calls cannot be replayed."""


class Interrupts:
    """Context that delivers signals with a Python handler only where a step tolerates them.

    While ``kept`` is set, signals are held back until the context ends. Otherwise they are
    delivered at once, or during a device's call where that takes Ctrl-C: between two steps of the
    simulation. Only the main thread is interrupted.

    With ``recent``, a signal that got its first handler in the last tenth of a second may come at
    any place: to look for all handlers takes longer than a small copy.
    """

    _with_handlers: ClassVar[list[int]] = []
    _looked_s: ClassVar = 0.0

    def __init__(self, *, recent: bool = False) -> None:
        self.kept, self._recent = True, recent
        self._came: list[tuple[int, Any]] = []
        self._handlers: dict[int, Any] = {}
        self._installed: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            now_s = time.monotonic()
            recent = self._recent and now_s < Interrupts._looked_s + 0.1
            numbers = Interrupts._with_handlers if recent else SIGNALS
            handlers = {number: _signal.getsignal(number) for number in numbers}
            self._handlers = {number: call for number, call in handlers.items() if callable(call)}
            if not recent:
                Interrupts._with_handlers, Interrupts._looked_s = [*self._handlers], now_s
            try:
                for number in self._handlers:
                    self._installed.append(number)
                    own = self._take if number == signal.SIGINT else self._as_ctrl_c
                    _signal.signal(number, own)
            except BaseException:  # raised by a handler not yet replaced
                self._restore()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kept = True
        try:
            self._restore()
        finally:
            self._restore()  # if a restored handler has raised
            self.kept = False
            for number, frame in self._came:
                self._take(number, frame)

    def _restore(self) -> None:
        while self._installed:
            number = self._installed[-1]
            _signal.signal(number, self._handlers[number])
            self._installed.pop()

    def _take(self, number: int, frame: Any) -> None:
        if self.kept:
            self._came.append((number, frame))
        else:
            self._handlers[number](number, frame)

    def _as_ctrl_c(self, number: int, frame: Any) -> None:
        current: Any = signal.getsignal(signal.SIGINT)  # the device's own during its call
        is_devices = callable(current) and current is not self._handlers.get(signal.SIGINT)
        (current if is_devices else self._take)(number, frame)


def uninterrupted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method during which no signal comes."""

    @wraps(method)
    def whole(*args: Any) -> Any:
        with Interrupts(recent=True):
            return method(*args)

    return whole


@contextmanager
def unwatched() -> Iterator[None]:
    """Leave all dispatch modes for a while; a signal comes only once they are back."""
    with Interrupts(recent=True), _disable_current_modes():
        yield


def calls_of(method: Any, owner: object) -> int:
    """Count the calls of an object's method that are in progress in this thread.

    PyTorch has no hook that runs after a ``KeyboardInterrupt``, so a policy has to look.
    """
    count, frame = 0, sys._getframe(1)
    while frame is not None:
        if frame.f_code is method.__code__ and frame.f_locals.get("self") is owner:
            count += 1
        frame = frame.f_back
    return count


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Work and simulated times of a step; times are None on a backend without a clock.

    Channels work in parallel and share the host link, so the times of copies and kernels do not add
    up to the total.
    """

    parameters: int
    runs: int
    """Kernel runs on all channels."""
    bytes_to_module: int
    bytes_to_host: int
    total_ns: float | None
    """Time from the start of the first copy to the end of the last, in ns."""
    copy_ns: float | None
    """Time of copies, including waits for the link, on the channel with the most, in ns."""
    kernel_ns: float | None
    """Time of the kernel, from START to DONE, on the channel with the most, in ns."""
    results: tuple[tuple[int, RunResult], ...] = field(default=(), repr=False)
    """Channel and result of each kernel run."""
    not_finite: int = 0
    """Infinite and NaN gradients, as the module loads them.

    Counted by kernels with narrow formats or ``skip_not_finite``.
    """

    def __str__(self) -> str:
        text = f"{self.parameters:,} parameters in {self.runs} runs"
        times = self.total_ns, self.copy_ns, self.kernel_ns
        if None not in times:
            total, copies, kernels = (f"{ns:,.0f} ns" for ns in times)
            text += f", {total} (copies {copies}, kernels {kernels})"
        return f"{text}; {self.bytes_to_module:,} bytes there, {self.bytes_to_host:,} back"


@dataclass(kw_only=True)
class Operations:
    """Operations queued for the device, with one stream per channel."""

    device: Axdimm
    streams: list[Stream]
    queued: list[tuple[int, Handle]] = field(default_factory=list)
    """Channel and handle of each queued operation, in order."""
    to_module: int = 0
    to_host: int = 0
    not_finite: int = 0
    """Infinite and NaN gradients that make the step be skipped."""

    def copy(
        self, shard: Shard, name: str, values: Tensor, spans: list[Span], *, back: bool = False
    ) -> None:
        """Queue copies of these spans of a shard's tensor to the module, or ``back`` from it."""
        for channel, start, stop in shard.parts(spans):
            there = shard.pointer(name, channel, start)
            here = shard.part(name, values, (start, stop)).view(torch.uint8).numpy()
            device, options = self.device, self._options(channel)
            if back:
                handle = device.MemcpyAxdimm2Host(here, there, here.nbytes, **options)
                self.to_host += here.nbytes
            else:
                handle = device.MemcpyHost2Axdimm(there, here, here.nbytes, **options)
                self.to_module += here.nbytes
            self.queued.append((channel, handle))

    def run(
        self,
        shard: Shard,
        rule: UpdateRule,
        hyperparameters: dict[str, float],
        spans: list[Span],
        seed: int = 0,
    ) -> None:
        """Queue runs of ``rule`` over these spans of a shard; its first block has ``seed``."""
        for channel, start, stop in shard.parts(spans):
            names = shard.formats.tensors(rule)
            tensors = {name: shard.pointer(name, channel, start) for name in names}
            options = self._options(channel) | {
                "formats": shard.formats, "seed": seed + start // BLOCK_PARAMETERS
            }  # fmt: skip
            run = self.device.RunOnAxdimmAsync(
                rule.name, tensors, stop - start, hyperparameters, channel, **options
            )
            self.queued.append((channel, run))

    def _options(self, channel: int) -> dict[str, Any]:
        return {"stream": self.streams[channel], "modes": "wait"}

    @property
    def runs(self) -> list[tuple[int, RunResult]]:
        """Channel and result of each run."""
        return [(channel, run.wait()) for channel, run in self.queued if isinstance(run, KernelRun)]

    @property
    def done(self) -> bool:
        """True if all operations have ended."""
        return all(handle.done for _, handle in self.queued)

    @property
    def failed(self) -> bool:
        """True if an operation has failed."""
        return any(handle.failed for _, handle in self.queued)

    def wait(self) -> None:
        """Wait for all operations; raise the first failure once nothing is in flight."""
        try:
            for _, handle in self.queued:
                handle.wait()
        except BaseException:
            if self.failed:
                self.recover()
            raise

    def recover(self) -> None:
        """Let all queued operations end, and make the streams usable after a failure."""
        for stream in self.streams:
            with suppress(Exception):
                stream.wait()
        for stream in self.streams:
            stream.recover()

    def report(self, parameters: int) -> StepReport:
        """Return the report of the operations, all of which have ended."""
        copies: Counter[int] = Counter()
        kernels: Counter[int] = Counter()
        for channel, handle in self.queued:
            if not isinstance(handle, KernelRun):
                copies[channel] += handle.ended - handle.began
        results = tuple(self.runs)
        for channel, result in results:
            kernels[channel] += result.fabric_cycles
        began = min((handle.began for _, handle in self.queued), default=0)
        ended = max((handle.ended for _, handle in self.queued), default=0)
        transport = self.device.transport

        def ns(fabric_cycles: int) -> float | None:
            return fabric_cycles * 1000 / transport.fabric_mhz if transport.timed else None

        return StepReport(
            parameters=parameters,
            runs=len(results),
            bytes_to_module=self.to_module,
            bytes_to_host=self.to_host,
            total_ns=ns(ended - began),
            copy_ns=ns(max(copies.values(), default=0)),
            kernel_ns=ns(max(kernels.values(), default=0)),
            results=results,
            not_finite=self.not_finite or sum(result.not_finite for _, result in results),
        )


class StepHandle:
    """A step in flight. Parameters change in :meth:`wait`."""

    def __init__(self, operations: Operations, finish: Callable[[], None]) -> None:
        self._operations = operations
        self._finish = finish

    @property
    @untraced
    def done(self) -> bool:
        """True if the module has finished the step.

        Reading it takes the simulated time of a register read, so that a polling loop ends.
        """
        return self._operations.done

    @untraced
    def wait(self) -> None:
        """Complete the step: update parameters and step counts. A second call does nothing.

        Raises the driver's error if the module failed. It can be called again after an interrupt.
        """
        self._finish()
