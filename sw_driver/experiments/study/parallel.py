"""The host copies to one channel while the kernel runs on the other (paper 3.1 and 4.3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.axdimm.config import ModuleConfig
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.registers import arbiter_registers
from sw_driver.experiments.adamjob import AdamJob
from sw_driver.experiments.figures import gb_per_s, mparams_per_s
from sw_driver.experiments.study import check_memory
from sw_driver.memory.pointers import AxdimmPointer

__all__ = ["measure_parallel"]


class _Copier:
    """Copies a buffer to and from a channel, and tells the simulated rate."""

    def __init__(self, device: Axdimm, channel: int, nbytes: int) -> None:
        self._device = device
        self._channel = channel
        self._pointer: AxdimmPointer = device.MallocAxdimm(nbytes, channel)
        self._data: NDArray[np.uint8] = np.random.default_rng(channel).integers(
            0, 256, nbytes, np.uint8
        )

    @property
    def nbytes(self) -> int:
        """Bytes of a copy."""
        return self._data.nbytes

    def bring_up_to_date(self) -> None:
        """A channel's clock stands still while the host is busy elsewhere: it catches up."""
        arbiter_registers(self._device.transport, self._channel).read("status")

    def gb_per_s(self, *, to_device: bool) -> float:
        transport = self._device.transport
        self.bring_up_to_date()
        before = transport.now(self._channel)
        if to_device:
            self._device.MemcpyHost2Axdimm(self._pointer, self._data, self._data.nbytes)
        else:
            back = np.empty_like(self._data)
            self._device.MemcpyAxdimm2Host(back, self._pointer, back.nbytes)
            if not np.array_equal(back, self._data):
                raise RuntimeError(f"channel {self._channel}: what was copied did not come back")
        cycles = transport.now(self._channel) - before
        return gb_per_s(self._data.nbytes, cycles, transport.fabric_mhz)


def measure_parallel(
    config: ModuleConfig,
    *,
    parameters: int,
    copy_bytes: int,
    announce: Callable[[str], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields a row for each combination of what the two channels do.

    ``kernel_mparams_per_s`` is of one channel's kernel, over a run of ``parameters``;
    ``copy_gb_per_s`` of each copy that goes on meanwhile, ``copy_bytes`` long, one after the other
    until the run is over.
    """
    check_memory(config, buffer_bytes=copy_bytes, parameters=parameters)
    transport = VerilatedTransport(config=config, arithmetic=False, announce=announce)
    with Axdimm(transport) as device:
        job = AdamJob(device, parameters, fill=False)
        copiers = [_Copier(device, channel, copy_bytes) for channel in range(2)]

        device.SetArbiterNormal(1)
        for to_device in (True, False):
            alone = copiers[1].gb_per_s(to_device=to_device)
            yield _row("idle", _copy(to_device), None, [alone])
        yield _row("kernel", "idle", _kernel(job, 0), [])
        for to_device in (True, False):
            rates: list[float] = []
            run = job.start(0, 1)
            while not run.done:
                rates.append(copiers[1].gb_per_s(to_device=to_device))
            result = run.wait()
            # The last copy may have outlasted the run.
            yield _row(
                "kernel", _copy(to_device), _speed(job, result.fabric_cycles), rates[:-1] or rates
            )
        device.SetArbiterAcc(1)
        yield _row("kernel", "kernel", _both(job), [])
        for channel in range(2):
            device.SetArbiterNormal(channel)
        rate = _two_copies_gb_per_s(transport, copiers)
        yield _row(_copy(True), _copy(True), None, [rate, rate])


def _two_copies_gb_per_s(transport: VerilatedTransport, copiers: list[_Copier]) -> float:
    """Of each of two copies at once, over the time until both are done.

    Which goes first, and how long the other waits, is up to the host's threads.
    """
    together = threading.Barrier(2, timeout=60)
    spans: list[tuple[int, int]] = [(0, 0), (0, 0)]

    def copy(channel: int) -> None:
        copiers[channel].bring_up_to_date()
        together.wait()
        start = transport.now(channel)
        copiers[channel].gb_per_s(to_device=True)
        spans[channel] = (start, transport.now(channel))

    with ThreadPoolExecutor(max_workers=2) as threads:
        list(threads.map(copy, range(2)))
    cycles = max(end for _, end in spans) - min(start for start, _ in spans)
    return gb_per_s(copiers[0].nbytes, cycles, transport.fabric_mhz)


def _copy(to_device: bool) -> str:
    return "copy to it" if to_device else "copy from it"


def _speed(job: AdamJob, fabric_cycles: int) -> float:
    return mparams_per_s(job.parameters, fabric_cycles, job.device.transport.fabric_mhz)


def _kernel(job: AdamJob, channel: int) -> float:
    return _speed(job, job.start(channel, 1).wait().fabric_cycles)


def _both(job: AdamJob) -> float:
    """Of the slower channel."""
    return _speed(job, max(result.fabric_cycles for result in job.step(1)))


def _row(first: str, second: str, kernel: float | None, copies: list[float]) -> dict[str, Any]:
    return {
        "channel_0": first,
        "channel_1": second,
        "kernel_mparams_per_s": kernel,
        "copy_gb_per_s": float(np.mean(copies)) if copies else None,
        "copies": len(copies),
    }
