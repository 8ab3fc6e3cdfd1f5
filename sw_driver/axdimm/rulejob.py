"""One update rule on all channels of a device at once, for the measuring commands."""

from __future__ import annotations

from typing import Any

import numpy as np

from golden.narrow import encode, packed, step
from golden.rules import Reference, reference
from hw.narrow.formats import FP32_FORMATS, Formats
from hw.rules import rule as rule_of
from hw.rules.update_rule import UpdateRule
from sw_driver.device.memory import AxdimmPointer

from .device import Axdimm
from .figures import mparams_per_s
from .runs import KernelRun, RunResult

__all__ = ["RuleJob", "hyperparameters_of"]

_HYPERPARAMETERS = {
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.01,
    "momentum": 0.9,
    "dampening": 0.0,
    "alpha": 0.99,
    "lr_decay": 0.0,
}


def hyperparameters_of(rule: UpdateRule, t: int) -> dict[str, float]:
    """Return common hyper-parameters of step ``t``; 1 for those without a common value."""
    return {name: _HYPERPARAMETERS.get(name, 1) for name in rule.hyperparameters} | (
        {"t": t} if "t" in rule.hyperparameters else {}
    )


class RuleJob:
    """Random tensors of ``parameters`` parameters in each channel, for the device's first rule.

    Tensors are written through the backdoor. Without ``fill`` they are left as they are, for jobs
    where only the time matters. Tensors are in ``formats``, which the kernels must support. The
    channels are left in acceleration mode. Raises the driver's errors, ``OutOfMemoryError`` if a
    channel is too small.

    Examples
    --------
    >>> from nearmem import Axdimm
    >>> with Axdimm("cycles:tiny") as device:
    ...     job = RuleJob(device, 1024)
    ...     results = job.step(1)
    ...     print(job.bit_exact(), round(job.mparams_per_s(results)))
    True 479
    """

    def __init__(
        self,
        device: Axdimm,
        parameters: int,
        *,
        fill: bool = True,
        formats: Formats = FP32_FORMATS,
    ) -> None:
        self.device = device
        self.parameters = parameters
        self.formats = formats
        self.rule = rule_of(device.rules(0)[0])
        rng = np.random.default_rng(1)
        self.tensors: list[dict[str, AxdimmPointer]] = []
        """Pointers of the tensors in each channel, by name."""
        self._start: list[dict[str, Any]] = []
        self._results: list[RunResult] = []
        for channel in range(device.channels):
            pointers = {
                name: device.MallocAxdimm(self._bytes(name), channel)
                for name in formats.tensors(self.rule)
            }
            values: dict[str, Any] = {}
            for name, form in formats.forms(self.rule).items() if fill else ():
                random = rng.random(parameters, dtype=np.float32)
                values[name] = encode(random, form, device.transport.subnormals)
            for name, held in packed(values).items():
                device.MemcpyHost2Axdimm(pointers[name], held, held.nbytes, backdoor=True)
            device.SetArbiterAcc(channel)
            self.tensors.append(pointers)
            self._start.append(values)

    def _bytes(self, name: str) -> int:
        return self.formats.tensor_bytes(self.rule, name, self.parameters)

    def start(self, channel: int, t: int, *, timeout_fabric_cycles: int | None = None) -> KernelRun:
        """Queue step ``t`` of one channel in its stream."""
        return self.device.RunOnAxdimmAsync(
            self.rule.name,
            self.tensors[channel],
            self.parameters,
            hyperparameters_of(self.rule, t),
            channel,
            timeout_fabric_cycles=timeout_fabric_cycles,
            stream=self.device.stream(channel),
            formats=self.formats,
        )

    def step(self, t: int) -> list[RunResult]:
        """Run step ``t`` on all channels at once."""
        return self.wait([self.start(channel, t) for channel in range(self.device.channels)])

    def wait(self, runs: list[KernelRun]) -> list[RunResult]:
        """Wait for the runs of a step on all channels."""
        self._results = [run.wait() for run in runs]
        return self._results

    def mparams_per_s(self, results: list[RunResult]) -> float:
        """Return the rate of all channels by the slowest, in 10^6 parameters a second."""
        slowest = max(result.fabric_cycles for result in results)
        updated = len(results) * self.parameters
        return mparams_per_s(updated, slowest, self.device.transport.fabric_mhz)

    def bit_exact(self) -> bool:
        """Return True if outputs and sums equal the golden model's, after step 1 alone.

        The job must have been filled.
        """
        golden = reference(self.rule.name, self.device.transport.subnormals)
        constants = golden.constants(**hyperparameters_of(self.rule, 1))
        for pointers, start, result in zip(self.tensors, self._start, self._results, strict=True):
            expected = self._expected(golden, start, constants)
            results: dict[str, bytes] = {
                name: np.float32(value).tobytes() for name, value in result.sums.items()
            }
            for name in self.formats.stores(self.rule):
                held = np.empty(self._bytes(name), np.uint8)
                self.device.MemcpyAxdimm2Host(held, pointers[name], held.nbytes, backdoor=True)
                results[name] = held.tobytes()
            if results != {name: wanted.tobytes() for name, wanted in expected.items()}:
                return False
        return True

    def _expected(
        self, golden: Reference, start: dict[str, Any], constants: dict[str, np.float32]
    ) -> dict[str, Any]:
        formats = self.formats
        if formats.usual:
            return golden.step(start, constants)
        results, _ = step(
            golden,
            start,
            constants,
            formats.forms(self.rule),
            t=1,
            copy=formats.copy,
            skip_not_finite=formats.skip_not_finite,
        )
        return packed(results)

    def release(self) -> None:
        """Free the tensors and leave the channels in normal mode."""
        for channel, pointers in enumerate(self.tensors):
            self.device.SetArbiterNormal(channel)
            for pointer in pointers.values():
                self.device.FreeAxdimm(pointer)
