"""A step that is under way, and what it took."""

from __future__ import annotations

import _signal
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from hw.narrow.formats import BLOCK_PARAMETERS
from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm import Axdimm, KernelRun, RunResult
from sw_driver.device.streams import Handle, Stream

from .shards import Shard, Span

__all__ = ["Interrupts", "Operations", "StepHandle", "StepReport", "untraced"]

SIGNALS = [int(each) for each in signal.valid_signals()]
# Numbers, and the functions below those of `signal`: its enumerations take 50 times as long, and
# every copy of the residency asks.

untraced = torch.compiler.disable(reason="the module has the step: compile the model alone")
"""Keeps a function out of what ``torch.compile`` traces: a device's calls cannot be replayed."""


class Interrupts:
    """While it is entered, signals with a handler of Python's come where a step can bear it.

    That is at the end; those that come while they are not ``kept``, at once or, in a device's call,
    where that takes Ctrl-C: between two steps of the simulation. Other threads than the main one
    are not interrupted.
    """

    def __init__(self) -> None:
        self.kept = True
        self._came: list[tuple[int, Any]] = []
        self._handlers: dict[int, Any] = {}
        self._installed: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            found = {each: _signal.getsignal(each) for each in SIGNALS}
            self._handlers = {each: handler for each, handler in found.items() if callable(handler)}
            try:
                for each in self._handlers:
                    self._installed.append(each)
                    _signal.signal(each, self._take if each == signal.SIGINT else self._as_ctrl_c)
            except BaseException:  # a signal whose turn had not come
                self._restore()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kept = True
        try:
            self._restore()
        finally:
            self._restore()  # if a handler that was back already has raised
            self.kept = False
            for each in self._came:
                self._take(*each)

    def _restore(self) -> None:
        while self._installed:
            each = self._installed[-1]
            _signal.signal(each, self._handlers[each])
            self._installed.pop()

    def _take(self, number: int, frame: Any) -> None:
        if self.kept:
            self._came.append((number, frame))
        else:
            self._handlers[number](number, frame)

    def _as_ctrl_c(self, number: int, frame: Any) -> None:
        found: Any = signal.getsignal(signal.SIGINT)  # in a device's call, its own
        is_devices = callable(found) and found is not self._handlers.get(signal.SIGINT)
        (found if is_devices else self._take)(number, frame)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What a step took; times are None on a backend without a clock.

    Channels work beside each other and share the host link, so the times of copies and kernels do
    not add up to the total.
    """

    parameters: int
    runs: int
    """Runs of the kernels, on all channels."""
    bytes_to_module: int
    bytes_to_host: int
    total_ns: float | None
    """Nanoseconds from the begin of the first copy to the end of the last."""
    copy_ns: float | None
    """Nanoseconds in copies, waiting for the link included, on the channel with the most."""
    kernel_ns: float | None
    """Nanoseconds in the kernel, from START to DONE, on the channel with the most."""
    results: tuple[tuple[int, RunResult], ...] = field(default=(), repr=False)
    """Results of the kernels' runs, with their channels."""
    not_finite: int = 0
    """Infinite and NaN gradients, as the module loads them, where kernels with narrow formats or
    ``skip_not_finite`` count them."""

    def __str__(self) -> str:
        text = f"{self.parameters:,} parameters in {self.runs} runs"
        times = self.total_ns, self.copy_ns, self.kernel_ns
        if None not in times:
            total, copies, kernels = (f"{ns:,.0f} ns" for ns in times)
            text += f", {total} (copies {copies}, kernels {kernels})"
        return f"{text}; {self.bytes_to_module:,} bytes there, {self.bytes_to_host:,} back"


@dataclass(kw_only=True)
class Operations:
    """What is queued for the device, each channel's in a stream of its own."""

    device: Axdimm
    streams: list[Stream]
    queued: list[tuple[int, Handle]] = field(default_factory=list)
    """Handles of what is queued, with their channels, in their order."""
    to_module: int = 0
    to_host: int = 0
    not_finite: int = 0
    """Gradients because of which there is no step."""

    def copy(
        self, shard: Shard, name: str, values: Tensor, spans: list[Span], *, back: bool = False
    ) -> None:
        """Queues copies of these parts of a shard's tensor to the module, or ``back`` from it."""
        for channel, start, stop in shard.parts(spans):
            there = shard.pointer(name, channel, start)
            here = shard.part(name, values, (start, stop)).view(torch.uint8).numpy()
            device, how = self.device, self._how(channel)
            if back:
                handle = device.MemcpyAxdimm2Host(here, there, here.nbytes, **how)
                self.to_host += here.nbytes
            else:
                handle = device.MemcpyHost2Axdimm(there, here, here.nbytes, **how)
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
        """Queues runs of ``rule`` over these parts of a shard; ``seed`` is that of its first."""
        for channel, start, stop in shard.parts(spans):
            names = shard.formats.tensors(rule)
            tensors = {name: shard.pointer(name, channel, start) for name in names}
            how = self._how(channel) | {
                "formats": shard.formats, "seed": seed + start // BLOCK_PARAMETERS
            }  # fmt: skip
            run = self.device.RunOnAxdimmAsync(
                rule.name, tensors, stop - start, hyperparameters, channel, **how
            )
            self.queued.append((channel, run))

    def _how(self, channel: int) -> dict[str, Any]:
        return {"stream": self.streams[channel], "modes": "wait"}

    @property
    def runs(self) -> list[tuple[int, RunResult]]:
        """Results of the runs, with their channels."""
        return [(channel, run.wait()) for channel, run in self.queued if isinstance(run, KernelRun)]

    @property
    def done(self) -> bool:
        """Whether all operations have ended."""
        return all(handle.done for _, handle in self.queued)

    @property
    def failed(self) -> bool:
        """Whether an operation has failed."""
        return any(handle.failed for _, handle in self.queued)

    def wait(self) -> None:
        """Waits for all operations. Raises what the first that failed raised, when none is under
        way."""
        try:
            for _, handle in self.queued:
                handle.wait()
        except BaseException:
            if self.failed:
                self.recover()
            raise

    def recover(self) -> None:
        """Lets all that is queued come to its end, and the streams take more after a failure."""
        for stream in self.streams:
            with suppress(Exception):
                stream.wait()
        for stream in self.streams:
            stream.recover()

    def report(self, parameters: int) -> StepReport:
        """What the operations took, when all have ended."""
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
    """A step that goes on beside the program; parameters change when it has been waited for."""

    def __init__(self, operations: Operations, finish: Callable[[], None]) -> None:
        self._operations = operations
        self._finish = finish

    @property
    @untraced
    def done(self) -> bool:
        """Whether the module is through with the step.

        To ask takes the simulated time of reading a register, so that a loop that asks ends.
        """
        return self._operations.done

    @untraced
    def wait(self) -> None:
        """Completes the step: parameters and step counts are the new ones. Again, it does nothing.

        Raises what the driver raises if the module failed. Interrupted, it can be called again.
        """
        self._finish()
