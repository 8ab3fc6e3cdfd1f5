"""Times of a training step's operations on this computer, by PyTorch's profiler.

Operations run one after the other in the second of two steps, each on all of PyTorch's threads. A
convolution's gradients are separate calls, and so is the update of each parameter.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from sw_driver.numbers import check_name
from sw_driver.workload.capture import without_mkldnn
from sw_driver.workload.loading import Build, StepFunction
from sw_driver.workload.products import GRADIENTS
from sw_driver.workload.trace import TraceError

__all__ = ["operation_times"]

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(Adam, fused=True),
    "sgd": partial(SGD, lr=1e-3, fused=True),
    "momentum": partial(SGD, lr=1e-3, momentum=0.9, fused=True),
}


class _Marking(TorchDispatchMode):
    """Marks operations for the profiler by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []

    def marked(self, kind: str, call: Callable[[], Any]) -> Any:
        """Return the result of a call that is marked as one operation."""
        self.kinds.append(kind)
        with record_function(f"{len(self.kinds) - 1}"):
            return call()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = func.overloadpacket.__name__
        if kind != "convolution_backward":
            return self.marked(kind, lambda: func(*args, **(kwargs or {})))
        *others, wanted = args
        results: list[Any] = [None] * len(wanted)
        for number, part in enumerate(GRADIENTS):
            mask = [place == number for place in range(len(wanted))]
            if wanted[number] and not part.endswith("bias"):
                results[number] = self.marked(part, partial(func, *others, mask))[number]
            elif wanted[number]:  # PyTorch's own call would compute the filter's gradient, too
                gradient = others[0]
                summed = [dimension for dimension in range(gradient.dim()) if dimension != 1]
                results[number] = self.marked(part, partial(gradient.sum, summed))
        return tuple(results)


def operation_times(build: Build, step: StepFunction, rule: str) -> list[tuple[str, int]]:
    """Return kinds of operations with their times in ns, in order.

    ``step`` returns the loss, or None if it has called ``backward``. Raises
    :class:`~sw_driver.workload.trace.TraceError` for a rule that no optimizer of PyTorch does in
    one operation.
    """
    check_name("a rule whose time is measured", rule, _OPTIMIZERS, TraceError)
    model, batch = build()
    optimizers = [(parameter, _OPTIMIZERS[rule]([parameter])) for parameter in model.parameters()]

    def run() -> list[str]:
        model.zero_grad()
        with _Marking() as marking:
            loss = step(model, *batch)
            if loss is not None:
                loss.backward()
            del loss
        for parameter, optimizer in optimizers:
            if parameter.grad is not None:
                marking.marked(rule, optimizer.step)
        return marking.kinds

    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with without_mkldnn() if recurrent else nullcontext():
        run()
        # Without it, the profiler writes to standard error when it begins and ends.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            kinds = run()
    took_us = {event.name: event.time_range.elapsed_us() for event in profiler.events() or ()}
    return [(kind, round(1000 * took_us[str(number)])) for number, kind in enumerate(kinds)]
