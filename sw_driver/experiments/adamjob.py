"""One Adam job on all channels of a device at once, as the measuring commands run it."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from golden.rules.adam import adam_constants, adam_step
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.runs import PARAMETER_BYTES, AdamResult, AdamRun
from sw_driver.experiments.figures import mparams_per_s
from sw_driver.memory.pointers import AxdimmPointer

__all__ = ["HYPERPARAMETERS", "AdamJob", "Hyperparameters"]


class Hyperparameters(TypedDict):
    """Of a job, the same in all its steps."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float


HYPERPARAMETERS: Hyperparameters = {
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.01,
}


class AdamJob:
    """``parameters`` random parameters in each channel of ``device``.

    Tensors are written through the backdoor; without ``fill`` they are left as they are, for jobs
    of which only the time matters. The channels are left in acceleration mode. Raises what the
    driver raises, ``OutOfMemoryError`` if a channel is too small.
    """

    def __init__(self, device: Axdimm, parameters: int, *, fill: bool = True) -> None:
        self.device = device
        self.parameters = parameters
        rng = np.random.default_rng(1)
        self._tensors: list[dict[str, AxdimmPointer]] = []
        self._start: list[dict[str, NDArray[np.float32]]] = []
        for channel in range(device.channels):
            pointers, values = {}, {}
            for name in "pmvg":
                nbytes = PARAMETER_BYTES * parameters
                pointers[name] = device.MallocAxdimm(nbytes, channel)
                if fill:
                    values[name] = rng.random(parameters, dtype=np.float32)
                    device.MemcpyHost2Axdimm(pointers[name], values[name], nbytes, backdoor=True)
            device.SetArbiterAcc(channel)
            self._tensors.append(pointers)
            self._start.append(values)

    def start(self, channel: int, t: int) -> AdamRun:
        """Queues step ``t`` of one channel in its stream."""
        p, m, v, g = (self._tensors[channel][name] for name in "pmvg")
        stream = self.device.stream(channel)
        return self.device.RunAdamOnAxdimmAsync(
            p, m, v, g, self.parameters, **HYPERPARAMETERS, t=t, channel=channel, stream=stream
        )

    def step(self, t: int) -> list[AdamResult]:
        """Step ``t`` on all channels at once."""
        with self.device.queueing():
            runs = [self.start(channel, t) for channel in range(self.device.channels)]
        return [run.wait() for run in runs]

    def mparams_per_s(self, results: list[AdamResult]) -> float:
        """Parameters of all channels in the time of the slowest, in 10^6 a second."""
        slowest = max(result.fabric_cycles for result in results)
        updated = len(results) * self.parameters
        return mparams_per_s(updated, slowest, self.device.transport.fabric_mhz)

    def bit_exact(self) -> bool:
        """Whether, after step 1 alone, p, m and v are what the golden model makes of them.

        The job must have been filled.
        """
        constants = adam_constants(**HYPERPARAMETERS, t=1)
        nbytes = PARAMETER_BYTES * self.parameters
        for pointers, start in zip(self._tensors, self._start, strict=True):
            p, g, m, v = (start[name] for name in "pgmv")
            expected = adam_step(p, g, m, v, constants)
            for name, wanted in zip("pmv", expected, strict=True):
                result = np.empty(self.parameters, np.float32)
                self.device.MemcpyAxdimm2Host(result, pointers[name], nbytes, backdoor=True)
                if not np.array_equal(result.view(np.uint32), wanted.view(np.uint32)):
                    return False
        return True

    def release(self) -> None:
        """Frees the tensors and leaves the channels in normal mode."""
        for channel, pointers in enumerate(self._tensors):
            self.device.SetArbiterNormal(channel)
            for pointer in pointers.values():
                self.device.FreeAxdimm(pointer)
