"""Experiment: the host copies to a channel while the kernel runs on another (paper 3.1, 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.axdimm.config import ModuleConfig
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.figures import gb_per_s, mparams_per_s
from sw_driver.axdimm.rulejob import RuleJob
from sw_driver.device.memory import AxdimmPointer
from sw_driver.device.streams import Handle
from sw_driver.experiments.study.sharing import check_memory

__all__ = ["measure_parallel"]


class _Copier:
    """Buffer with copies to and from a channel, in the channel's stream."""

    def __init__(self, device: Axdimm, channel: int, nbytes: int) -> None:
        self._device = device
        self._channel = channel
        self._pointer: AxdimmPointer = device.MallocAxdimm(nbytes, channel)
        self._data: NDArray[np.uint8] = np.random.default_rng(channel).integers(
            0, 256, nbytes, np.uint8
        )
        self._back = np.empty_like(self._data)

    def queue(self, *, to_device: bool) -> Handle[None]:
        stream = self._device.stream(self._channel)
        nbytes = self._data.nbytes
        if to_device:
            return self._device.MemcpyHost2Axdimm(self._pointer, self._data, nbytes, stream=stream)
        return self._device.MemcpyAxdimm2Host(self._back, self._pointer, nbytes, stream=stream)

    def check(self) -> None:
        """Raise ``RuntimeError`` if the data copied back differs from the data copied."""
        if not np.array_equal(self._back, self._data):
            raise RuntimeError(f"channel {self._channel}: the copied data came back changed")


def measure_parallel(
    config: ModuleConfig,
    *,
    parameters: int,
    copy_bytes: int,
    announce: Callable[[str], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each combination of activities on the two channels.

    ``kernel_mparams_per_s`` is the throughput of one channel's kernel, over a run of
    ``parameters``. ``copy_gb_per_s`` is the rate of copies of ``copy_bytes``, which follow each
    other for nine tenths of the run. Two copies at once share one link: the rate of each counts the
    time until both are done.
    """
    check_memory(config, buffer_bytes=copy_bytes, parameters=parameters)
    transport = VerilatedTransport(config=config, arithmetic=False, announce=announce)
    fabric_mhz = transport.fabric_mhz

    def rate(copies: list[Handle[None]], share: int = 1) -> float:
        """Wait for the copies; return the rate of a ``share``-th of their bytes, in GB/s."""
        for copy in copies:
            copy.wait()
        cycles = max(copy.ended for copy in copies) - min(copy.began for copy in copies)
        return gb_per_s(len(copies) * copy_bytes // share, cycles, fabric_mhz)

    def speed(fabric_cycles: int) -> float:
        return mparams_per_s(parameters, fabric_cycles, fabric_mhz)

    with Axdimm(transport) as device:
        job = RuleJob(device, parameters, fill=False)
        copiers = [_Copier(device, channel, copy_bytes) for channel in range(2)]

        run_cycles = job.start(0, 1).wait().fabric_cycles
        device.SetArbiterNormal(1)
        counts = {}
        for to_device in (True, False):
            copy = copiers[1].queue(to_device=to_device)
            yield _row("idle", _copy(to_device), None, rate([copy]), 1)
            counts[to_device] = max(1, run_cycles * 9 // (10 * (copy.ended - copy.began)))
        copiers[1].check()
        yield _row("kernel", "idle", speed(run_cycles))
        for to_device, count in counts.items():
            run = job.start(0, 1)
            copies = [copiers[1].queue(to_device=to_device) for _ in range(count)]
            copied = rate(copies)
            yield _row("kernel", _copy(to_device), speed(run.wait().fabric_cycles), copied, count)
        copiers[1].check()
        device.SetArbiterAcc(1)
        slowest = max(result.fabric_cycles for result in job.step(1))
        yield _row("kernel", "kernel", speed(slowest))
        for channel in range(2):
            device.SetArbiterNormal(channel)
        copies = [copier.queue(to_device=True) for copier in copiers]
        yield _row(_copy(True), _copy(True), None, rate(copies, share=2), 2)


def _copy(to_device: bool) -> str:
    return "copy to it" if to_device else "copy from it"


def _row(
    first: str,
    second: str,
    kernel: float | None,
    copy_gb_per_s: float | None = None,
    copies: int = 0,
) -> dict[str, Any]:
    return {
        "channel_0": first,
        "channel_1": second,
        "kernel_mparams_per_s": kernel,
        "copy_gb_per_s": copy_gb_per_s,
        "copies": copies,
    }
