"""GPU memory: CUDA memory where there is a GPU and PyTorch, a stand-in in host memory elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from typing import Any, TypeAlias

from sw_driver.errors import GpuError, OutOfMemoryError
from sw_driver.memory.allocations import AllocationTable, checked_size
from sw_driver.memory.cuda import CudaMemory, tensor_of
from sw_driver.memory.host import HostMemory, MappedMemory, Pages, typed_bytes
from sw_driver.memory.interface import FreeSpace, Leg
from sw_driver.memory.pointers import GpuPointer, Pointer
from sw_driver.runtime.schedule import Schedule

__all__ = ["STAND_IN_BYTES", "GpuMemory", "GpuStandIn", "GpuTiming", "import_torch", "open_gpu"]

STAND_IN_BYTES = 16 << 30
"""Capacity of the stand-in, as of the smaller V100; the host gives memory as it is touched."""


@dataclass(frozen=True, kw_only=True)
class GpuTiming:
    """Simulated time of transfers between a GPU and the host.

    The defaults are those of a V100 on PCIe 3.0 x16 with pinned host memory. About 12 GB/s is what
    such GPUs reach of the link's 15.75 GB/s: 12 GB/s for the V100 (ZaidQureshi/bam, issue 54),
    12.2 to the device and 12.9 from it, as NVIDIA's bandwidthTest counts, for the P100 before it
    (mpicbg-scicomp/gearshifft, pull request 82). A small copy takes about 7 us with cudaMemcpy,
    measured by NVIDIA on a machine with V100s (developer.nvidia.com/gdrcopy).

    Raises ``ValueError`` for a rate that is not positive or a latency that is negative.
    """

    host_to_device_gb_per_s: float = 12.0
    """GB are 10^9 bytes."""
    device_to_host_gb_per_s: float = 12.0
    latency_us: float = 7.0
    """From the call to the first byte, for every transfer."""

    def __post_init__(self) -> None:
        for name in ("host_to_device_gb_per_s", "device_to_host_gb_per_s"):
            rate = getattr(self, name)
            if not isinstance(rate, int | float) or not isfinite(rate) or rate <= 0:
                raise ValueError(f"{name} must be a positive number, got {rate!r}")
        latency = self.latency_us
        if not isinstance(latency, int | float) or not isfinite(latency) or latency < 0:
            raise ValueError(f"latency_us must be a number of at least 0, got {latency!r}")

    def duration_ns(self, nbytes: int, *, writing: bool) -> float:
        """Time of a transfer of ``nbytes`` from or, ``writing``, to the GPU."""
        rate = self.host_to_device_gb_per_s if writing else self.device_to_host_gb_per_s
        return 1e3 * self.latency_us + nbytes / rate


class GpuStandIn(MappedMemory[GpuPointer]):
    """Host memory in the place of a GPU's, with the simulated time of the paper's. One GPU, 0.

    Parameters
    ----------
    device: number of the opened device, for its pointers.
    reason: why there is no GPU.
    timing: of its transfers.
    capacity_bytes: of all allocations together.
    torch: the module, if it can be used without a GPU.
    """

    def __init__(
        self,
        device: int,
        *,
        reason: str,
        timing: GpuTiming,
        capacity_bytes: int = STAND_IN_BYTES,
        torch: Any = None,
    ) -> None:
        name = "gpu stand-in (host memory)"
        source = f"MallocGpu of the {name}"
        super().__init__(name, AllocationTable(GpuPointer, device=device, source=source))
        self.capacity_bytes = checked_size("capacity_bytes", capacity_bytes, minimum=1)
        self.reason = reason
        self.timing = timing
        self._torch = torch
        self.schedules = [Schedule("GPU 0 stand-in")]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.reason}>"

    @property
    def description(self) -> str:
        """What it is, in words."""
        return f"stand-in in host memory: {self.reason}"

    def tensor(self, pointer: GpuPointer, dtype: Any, count: int | None = None) -> Any:
        """As :meth:`~sw_driver.memory.cuda.CudaMemory.tensor`, of a tensor in host memory.

        Raises, besides, :class:`~sw_driver.errors.GpuError` where PyTorch cannot be used.
        """
        if self._torch is None:
            raise GpuError(
                f"tensors of the {self.name} need PyTorch: {self.reason}; array() does without"
            )
        nbytes = typed_bytes(self.allocations, pointer, dtype.itemsize, count)
        return tensor_of(pointer, self._torch.from_numpy(self._bytes(pointer, nbytes)), dtype)

    def free_space(self) -> list[FreeSpace]:
        """Of the one GPU."""
        with self._lock:
            free = self.capacity_bytes - self.allocated_bytes
            return [
                FreeSpace(
                    channel=0,
                    total_bytes=self.capacity_bytes,
                    free_bytes=free,
                    largest_free_bytes=free,
                    allocations=len(self._pages),
                )
            ]

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """One: transfers in either direction take turns, as on the GPU's own stream."""
        return [Leg(self.schedules[0], self.timing.duration_ns(nbytes, writing=writing))]

    def _obtain(self, size: int) -> Pages:
        free = self.capacity_bytes - self.allocated_bytes
        if size > free:
            raise OutOfMemoryError(
                f"no room for {size} bytes in the {self.name}: {free} of {self.capacity_bytes} "
                "bytes are free",
                nbytes=size,
                free_bytes=free,
                capacity_bytes=self.capacity_bytes,
            )
        return super()._obtain(size)


GpuMemory: TypeAlias = CudaMemory | GpuStandIn
"""What :func:`open_gpu` returns; ``reason`` is None for CUDA."""


def open_gpu(
    device: int,
    *,
    host: HostMemory | None = None,
    timing: GpuTiming | None = None,
    capacity_bytes: int = STAND_IN_BYTES,
) -> GpuMemory:
    """Opens the GPUs of the machine or, where there are none that PyTorch can use, the stand-in.

    Imports PyTorch, which takes seconds: call it when a program first asks for GPU memory.

    Parameters
    ----------
    device: number of the opened device, for the pointers.
    host: memory that is to be pinned for the GPU from now on.
    timing: simulated time of transfers.
    capacity_bytes: of the stand-in.
    """
    timing = timing or GpuTiming()
    torch, reason = import_torch()
    if torch is not None:
        try:
            if torch.cuda.is_available():
                memory = CudaMemory(torch, device, timing)
                if host is not None:
                    host.pin_with(memory.pinned_bytes)
                return memory
            reason = f"PyTorch {torch.__version__} finds no CUDA GPU"
        except Exception as error:  # a broken driver raises what it likes
            reason = f"PyTorch cannot use the GPU ({_said(error)})"
    return GpuStandIn(
        device, reason=reason, timing=timing, capacity_bytes=capacity_bytes, torch=torch
    )


@cache
def import_torch() -> tuple[Any, str]:
    """PyTorch and its version, or None and why it cannot be used.

    It is looked for once in a process: after an import that failed, the next one fails too, but
    says another reason.
    """
    try:
        if find_spec("torch") is None:
            return None, "PyTorch is not installed (pip install -e '.[torch]')"
        torch = import_module("torch")
        # A folder of that name would be imported as well.
        return torch, torch.__version__
    except Exception as error:  # a broken installation raises what it likes
        return None, f"PyTorch cannot be imported ({_said(error)})"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
