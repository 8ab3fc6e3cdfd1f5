"""GPU memory: CUDA memory where there is a GPU and PyTorch, a stand-in in host memory elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import GpuError, InvalidArgumentError, OutOfMemoryError
from sw_driver.memory.allocations import AllocationTable
from sw_driver.memory.host import MappedMemory, PieceMemory
from sw_driver.memory.interface import Leg
from sw_driver.memory.pointers import GpuPointer, Pointer
from sw_driver.memory.timing import GpuTiming, LinkTiming
from sw_driver.runtime.schedule import Schedule

__all__ = ["STAND_IN_BYTES", "CudaMemory", "GpuStandIn", "import_torch", "open_gpu"]

STAND_IN_BYTES = 16 << 30
"""Capacity of the stand-in, as of the smaller V100; the host gives memory as it is touched."""


class CudaMemory(PieceMemory[GpuPointer]):
    """The memory of the machine's NVIDIA GPUs; a channel is a GPU's index.

    A copy comes after all that the program has queued on that GPU, and has ended when the call
    returns. Memory comes from PyTorch's allocator and goes back to it, which keeps it for later
    allocations. It does not start out as zero.

    Parameters
    ----------
    torch: the module; its CUDA must be available.
    device: number of the opened device, for the pointers.
    """

    reason: str | None = None
    """Why the memory is a stand-in: None, for it is not one."""
    timing = GpuTiming()
    """Simulated time of transfers, whatever GPU there really is."""

    def __init__(self, torch: Any, device: int) -> None:
        super().__init__("gpu", AllocationTable(GpuPointer, device=device, source="MallocGpu"))
        self._torch = torch
        names = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
        self.description = ", ".join(names)
        self.channels = len(names)
        self.schedules = [Schedule(f"GPU {gpu}") for gpu in range(len(names))]
        # Here already it shows whether a GPU can really be used.
        torch.cuda.synchronize(0)

    def tensor(self, pointer: GpuPointer, dtype: Any, count: int | None = None) -> Any:
        """A torch tensor in the allocation: ``count`` elements from ``pointer`` on.

        Without ``count``, as many as there is room for. ``dtype`` is torch's. What a program does
        to the tensor it does to the memory.

        Raises :class:`~sw_driver.errors.PointerError`, :class:`~sw_driver.errors.RangeError`, and
        :class:`~sw_driver.errors.InvalidArgumentError` for a count that is none, and if ``pointer``
        is not at a multiple of the element's size.
        """
        return _viewed(pointer, self._elements(pointer, dtype.itemsize, count), dtype)

    def array(self, pointer: GpuPointer, *_: object) -> NDArray[Any]:
        """Refused, with :class:`~sw_driver.errors.GpuError`: only the stand-in has arrays."""
        raise GpuError(
            f"address {pointer.address:#x} is in the memory of a GPU, which the host cannot "
            "address: use tensor(), or copy it",
            address=pointer.address,
        )

    def read(self, pointer: GpuPointer, destination: NDArray[np.uint8]) -> None:
        """Copies the bytes from ``pointer`` on to ``destination``, as many as it holds.

        Raises :class:`~sw_driver.errors.GpuError`; the GPU's bytes are then as they were.
        """
        part = self._bytes(pointer, destination.nbytes)
        with self._reported("read", pointer.channel, destination.nbytes):
            self._torch.cuda.synchronize(pointer.channel)
            np.copyto(destination, part.cpu().numpy())

    def write(self, pointer: GpuPointer, source: NDArray[np.uint8]) -> None:
        """Copies ``source`` to the bytes from ``pointer`` on.

        Raises :class:`~sw_driver.errors.GpuError`; the bytes that were to be written are then
        undefined, all others as they were.
        """
        part = self._bytes(pointer, source.nbytes)
        with self._reported("write", pointer.channel, source.nbytes):
            self._torch.cuda.synchronize(pointer.channel)
            part.copy_(self._torch.from_numpy(source.copy()))  # of read-only memory it would warn
            self._torch.cuda.synchronize(pointer.channel)

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """One leg: transfers of a GPU in either direction take turns."""
        duration = self.timing.duration_ns(nbytes, writing=writing)
        return [Leg(self.schedules[pointer.channel], duration)]

    def _obtain(self, size: int, channel: int) -> tuple[Any, int]:
        cuda = self._torch.cuda
        with self._reported("allocation", channel, size):
            free, capacity = cuda.mem_get_info(channel)
            try:
                if size > capacity:
                    raise cuda.OutOfMemoryError
                tensor = self._torch.empty(size, dtype=self._torch.uint8, device=f"cuda:{channel}")
            except cuda.OutOfMemoryError:
                raise OutOfMemoryError(
                    f"no room for {size} bytes on GPU {channel}: {free} of {capacity} bytes are "
                    "free, and what PyTorch keeps",
                    nbytes=size,
                    gpu=channel,
                    free_bytes=free,
                    capacity_bytes=capacity,
                ) from None
        return tensor, tensor.data_ptr()

    @contextmanager
    def _reported(self, what: str, gpu: int, nbytes: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            raise GpuError(
                f"{what} of {nbytes} bytes on GPU {gpu} ({self.description}) failed: {said}",
                gpu=gpu,
                nbytes=nbytes,
            ) from error


class GpuStandIn(MappedMemory[GpuPointer]):
    """Host memory in the place of a GPU's, with the simulated time of the paper's. One GPU, 0.

    Parameters
    ----------
    device: number of the opened device, for its pointers.
    reason: why there is no GPU.
    torch: the module, if it can be used without a GPU.
    timing: simulated time of its transfers.
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
        """A torch tensor in host memory, else as of :meth:`CudaMemory.tensor`.

        Raises, besides, :class:`~sw_driver.errors.GpuError` where PyTorch cannot be used.
        """
        if self._torch is None:
            raise GpuError(
                f"tensors of the {self.name} need PyTorch: {self.reason}; array() does without"
            )
        data = self._torch.from_numpy(self._elements(pointer, dtype.itemsize, count))
        return _viewed(pointer, data, dtype)

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """One leg: transfers in either direction take turns."""
        return [Leg(self.schedules[0], self.timing.duration_ns(nbytes, writing=writing))]

    def _obtain(self, size: int, channel: int) -> tuple[Any, int]:
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


def open_gpu(device: int) -> CudaMemory | GpuStandIn:
    """Opens the GPUs of the machine or, where there are none that PyTorch can use, the stand-in.

    ``reason`` of what it returns is None for CUDA.

    Imports PyTorch, which takes seconds: call it when a program first asks for GPU memory.

    Parameters
    ----------
    device: number of the opened device, for the pointers.
    """
    torch, reason = import_torch()
    if torch is not None:
        try:
            if torch.cuda.is_available():
                return CudaMemory(torch, device)
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


def _viewed(pointer: GpuPointer, data: Any, dtype: Any) -> Any:
    """The bytes ``data`` from ``pointer`` on as a tensor. Raises :class:`InvalidArgumentError`."""
    if pointer.address % dtype.itemsize:
        raise InvalidArgumentError(
            f"address {pointer.address:#x} is no multiple of {dtype.itemsize}, the bytes of a "
            f"{dtype}",
            address=pointer.address,
            itemsize=dtype.itemsize,
        )
    return data.view(dtype)
