"""GPU memory: CUDA memory where there is a GPU and PyTorch, a stand-in in host memory elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

from sw_driver.errors import GpuError, OutOfMemoryError
from sw_driver.memory.allocations import AllocationTable
from sw_driver.memory.cuda import CudaMemory, tensor_of
from sw_driver.memory.host import HostMemory, MappedMemory
from sw_driver.memory.interface import FreeSpace, Leg
from sw_driver.memory.pieces import Piece
from sw_driver.memory.pointers import GpuPointer, Pointer
from sw_driver.memory.timing import GpuTiming, LinkTiming
from sw_driver.runtime.schedule import Schedule

__all__ = ["STAND_IN_BYTES", "GpuMemory", "GpuStandIn", "import_torch", "open_gpu"]

STAND_IN_BYTES = 16 << 30
"""Capacity of the stand-in, as of the smaller V100; the host gives memory as it is touched."""


class GpuStandIn(MappedMemory[GpuPointer]):
    """Host memory in the place of a GPU's, with the simulated time of the paper's. One GPU, 0.

    Parameters
    ----------
    device: number of the opened device, for its pointers.
    reason: why there is no GPU.
    torch: the module, if it can be used without a GPU.
    timing: of its transfers.
    capacity_bytes: of all allocations together.
    """

    def __init__(
        self,
        device: int,
        *,
        reason: str,
        torch: Any = None,
        timing: LinkTiming | None = None,
        capacity_bytes: int = STAND_IN_BYTES,
    ) -> None:
        name = "gpu stand-in (host memory)"
        source = f"MallocGpu of the {name}"
        super().__init__(name, AllocationTable(GpuPointer, device=device, source=source))
        self.capacity_bytes = capacity_bytes
        self.reason = reason
        self.description = f"stand-in in host memory: {reason}"
        self.timing = timing or GpuTiming()
        self._torch = torch
        self.schedules = [Schedule("GPU 0 stand-in")]

    def tensor(self, pointer: GpuPointer, dtype: Any, count: int | None = None) -> Any:
        """As :meth:`~sw_driver.memory.cuda.CudaMemory.tensor`, of a tensor in host memory.

        Raises, besides, :class:`~sw_driver.errors.GpuError` where PyTorch cannot be used.
        """
        if self._torch is None:
            raise GpuError(
                f"tensors of the {self.name} need PyTorch: {self.reason}; array() does without"
            )
        data = self._torch.from_numpy(self._elements(pointer, dtype.itemsize, count))
        return tensor_of(pointer, data, dtype)

    def free_space(self) -> Mapping[int, FreeSpace]:
        """Of the one GPU."""
        with self._lock:
            free = self.capacity_bytes - self.allocated_bytes
            space = FreeSpace(
                total_bytes=self.capacity_bytes,
                free_bytes=free,
                largest_free_bytes=free,
                allocations=len(self._pieces),
            )
            return {0: space}

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """One: transfers in either direction take turns, as on the GPU's own stream."""
        return [Leg(self.schedules[0], self.timing.duration_ns(nbytes, writing=writing))]

    def _obtain(self, size: int, channel: int) -> Piece:
        free = self.capacity_bytes - self.allocated_bytes
        if size > free:
            raise OutOfMemoryError(
                f"no room for {size} bytes in the {self.name}: {free} of {self.capacity_bytes} "
                "bytes are free",
                nbytes=size,
                free_bytes=free,
                capacity_bytes=self.capacity_bytes,
            )
        return super()._obtain(size, channel)


GpuMemory: TypeAlias = CudaMemory | GpuStandIn
"""What :func:`open_gpu` returns; ``reason`` is None for CUDA."""


def open_gpu(device: int, *, host: HostMemory | None = None) -> GpuMemory:
    """Opens the GPUs of the machine or, where there are none that PyTorch can use, the stand-in.

    Imports PyTorch, which takes seconds: call it when a program first asks for GPU memory.

    Parameters
    ----------
    device: number of the opened device, for the pointers.
    host: memory that is to be pinned for the GPU from now on.
    """
    torch, reason = import_torch()
    if torch is not None:
        try:
            if torch.cuda.is_available():
                memory = CudaMemory(torch, device)
                if host is not None:
                    host.pin_with(memory.pinned_bytes)
                return memory
            reason = f"PyTorch {torch.__version__} finds no CUDA GPU"
        except Exception as error:  # a broken driver raises what it likes
            reason = f"PyTorch cannot use the GPU ({_said(error)})"
    return GpuStandIn(device, reason=reason, torch=torch)


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
