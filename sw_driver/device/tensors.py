"""Host and GPU memory: arrays and tensors of bytes."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sw_driver.device.errors import ClosedError, GpuError, InvalidArgumentError, OutOfMemoryError
from sw_driver.device.link import Leg, LinkTiming, ReservedLink
from sw_driver.device.memory import (
    AllocationTable,
    GpuPointer,
    HostPointer,
    Pointer,
    checked_channel,
    checked_size,
)

__all__ = [
    "STAND_IN_BYTES",
    "CudaMemory",
    "GpuStandIn",
    "HostMemory",
    "MappedMemory",
    "PieceMemory",
    "byte_view",
    "import_torch",
    "open_gpu",
    "zeroed_pages",
]


def byte_view(buffer: Any, nbytes: int | None, *, writable: bool) -> NDArray[np.uint8]:
    """Return the first ``nbytes`` bytes of a C-contiguous buffer or array, without a copy.

    None means all bytes. Raises :class:`InvalidArgumentError` if ``buffer`` has no bytes, too few
    of them, or is read-only although ``writable``.
    """
    role = "destination" if writable else "source"
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError):
        raise InvalidArgumentError(
            f"the {role} is a {type(buffer).__name__}: expected bytes, a bytearray or a numpy array"
        ) from None
    if view.format == "O":
        raise InvalidArgumentError(f"the {role} is an array of objects: expected numbers")
    nbytes = view.nbytes if nbytes is None else nbytes
    if not view.c_contiguous:
        raise InvalidArgumentError(
            f"the {role} of {view.nbytes} bytes is not contiguous: pass a contiguous copy",
            buffer_bytes=view.nbytes,
        )
    if view.nbytes < nbytes:
        raise InvalidArgumentError(
            f"the {role} holds {view.nbytes} bytes, {nbytes} are to be copied",
            buffer_bytes=view.nbytes,
            nbytes=nbytes,
        )
    if writable and view.readonly:
        raise InvalidArgumentError(
            f"the {role} of {view.nbytes} bytes is read-only", buffer_bytes=view.nbytes
        )
    if nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    if isinstance(buffer, np.ndarray):
        return buffer.reshape(-1).view(np.uint8)[:nbytes]
    return np.frombuffer(view.cast("B"), dtype=np.uint8, count=nbytes)


def zeroed_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return at least 1 byte of zeroed, page-aligned memory; pages cost memory once touched.

    Raises ``OSError`` or ``OverflowError`` if the system has none.
    """
    # A private mapping is not shared with a forked child.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=np.uint8)


P = TypeVar("P", bound=Pointer)


class PieceMemory(ABC, Generic[P]):
    """A memory that stores each allocation as an array or tensor of bytes. Calls must not overlap.

    Views of an allocation stay valid after it is freed, because Python keeps the piece for them.
    Its pointers become invalid.

    Parameters
    ----------
    name: name in reports and messages.
    allocations: the memory's table, empty.
    """

    links: Sequence[ReservedLink] = ()
    channels = 1
    description = ""
    """Description in messages."""

    def __init__(self, name: str, allocations: AllocationTable[P]) -> None:
        self.name = name
        self.allocations = allocations
        self._pieces: dict[int, Any] = {}
        self._closed = False

    def __repr__(self) -> str:
        about = f", {self.description}" if self.description else ""
        held = f"{len(self._pieces)} allocations of {self.allocated_bytes} bytes"
        return f"<{self.name}: {held}{about}>"

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the allocations not yet freed, as requested."""
        return sum(map(len, list(self._pieces.values())))

    def allocate(self, nbytes: int, channel: int | None = None) -> P:
        """Allocate memory of ``channel``; None means channel 0.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for a bad size or channel,
        :class:`~sw_driver.device.errors.OutOfMemoryError`,
        :class:`~sw_driver.device.errors.ClosedError`, and for a GPU
        :class:`~sw_driver.device.errors.GpuError`.
        """
        size = checked_size("nbytes", nbytes, minimum=1)
        number = checked_channel(
            0 if channel is None else channel, self.channels, f" or None in {self.name}"
        )
        self._refuse_closed()
        piece, address = self._obtain(size, number)
        pointer = self.allocations.add(channel=number, address=address, nbytes=size)
        self._pieces[pointer.allocation] = piece
        return pointer

    def free(self, pointer: Any) -> None:
        """Free an allocation; its memory is released once no array or tensor uses it.

        Raises as :meth:`~sw_driver.device.memory.AllocationTable.remove`, and
        :class:`~sw_driver.device.errors.ClosedError`.
        """
        self._refuse_closed()
        del self._pieces[self.allocations.remove(pointer).number]

    def close(self) -> None:
        """Release all allocations; a second call does nothing."""
        self._closed = True
        self._pieces.clear()

    @abstractmethod
    def _obtain(self, size: int, channel: int) -> tuple[Any, int]:
        """Return a piece of memory and its address."""

    def _bytes(self, pointer: P, nbytes: int) -> Any:
        self._refuse_closed()
        allocation = self.allocations.range(pointer, nbytes)
        start = pointer.address - allocation.address
        return self._pieces[allocation.number][start : start + nbytes]

    def _elements(self, pointer: P, itemsize: int, count: int | None) -> Any:
        """Return the bytes of ``count`` elements from ``pointer`` on; None for all that fit."""
        if count is None:
            allocation = self.allocations.check(pointer)
            rest = allocation.address + allocation.nbytes - pointer.address
            count = max(rest, 0) // itemsize
        return self._bytes(pointer, checked_size("count", count) * itemsize)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name} was closed")


class MappedMemory(PieceMemory[P]):
    """A memory in anonymous pages of the process.

    Allocations start on a page, read zero at first, and cost memory once touched.
    """

    def array(
        self, pointer: P, dtype: DTypeLike = np.uint8, count: int | None = None
    ) -> NDArray[Any]:
        """Return a numpy array of ``count`` elements from ``pointer`` on; it shares the memory.

        Without ``count``, it has all elements that fit into the allocation.

        Raises :class:`~sw_driver.device.errors.PointerError`,
        :class:`~sw_driver.device.errors.RangeError`, and
        :class:`~sw_driver.device.errors.InvalidArgumentError` for a bad count or a dtype without a
        fixed size.
        """
        kind = np.dtype(dtype)
        if kind.hasobject or not kind.itemsize:
            raise InvalidArgumentError(
                f"elements of dtype {kind} do not lie in memory as bytes: expected a numeric dtype",
                dtype=str(kind),
            )
        return self._elements(pointer, kind.itemsize, count).view(kind)

    def read(self, pointer: P, destination: NDArray[np.uint8]) -> None:
        """Fill ``destination`` with the bytes from ``pointer`` on."""
        np.copyto(destination, self._bytes(pointer, destination.nbytes))

    def write(self, pointer: P, source: NDArray[np.uint8]) -> None:
        """Copy ``source`` to ``pointer``."""
        np.copyto(self._bytes(pointer, source.nbytes), source)

    def _obtain(self, size: int, channel: int) -> tuple[Any, int]:
        try:
            data = zeroed_pages(size)
        except (OSError, OverflowError) as error:
            raise OutOfMemoryError(
                f"no room for {size} bytes in {self.name}: the system gives none ({error}); "
                f"{self.allocated_bytes} bytes are allocated",
                nbytes=size,
                allocated_bytes=self.allocated_bytes,
            ) from None
        return data, data.ctypes.data


class HostMemory(MappedMemory[HostPointer]):
    """The paper's pinned host memory, which devices access without the processor (section 4.3).

    Here it is ordinary memory of the process, without simulated time of its own. The time of a copy
    to or from the AXDIMM is all in the host link. Its rate is that of the paper's host memory, 6.4
    GB/s (DDR4 at 800 MT/s, Table 3). A GPU or two NVMe devices are faster than that memory, so
    the simulated time of their copies to and from the host is a lower bound.

    Parameters
    ----------
    device: number of the opened device, stored in the pointers.
    """

    def __init__(self, device: int) -> None:
        super().__init__("host", AllocationTable(HostPointer, device=device, source="MallocHost"))

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """Return no legs: host memory adds no simulated time to a copy, see the class."""
        return []


STAND_IN_BYTES = 16 << 30
"""Capacity of the stand-in in bytes, that of the smaller V100; pages cost memory once touched."""


class CudaMemory(PieceMemory[GpuPointer]):
    """Memory of the machine's NVIDIA GPUs; a channel is a GPU's index.

    A copy runs after the program's queued work on that GPU, and has ended when the call returns.
    PyTorch's allocator provides the memory and keeps freed memory for later. New memory is not
    zeroed.

    Parameters
    ----------
    torch: the module, with CUDA available.
    device: number of the opened device, stored in the pointers.
    timing: simulated time of transfers, independent of the real GPU.
    """

    reason: str | None = None
    """Reason for a stand-in; None here, because this is real GPU memory."""

    def __init__(self, torch: Any, device: int, timing: LinkTiming) -> None:
        super().__init__("gpu", AllocationTable(GpuPointer, device=device, source="MallocGpu"))
        self.timing = timing
        self._torch = torch
        names = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
        self.description = ", ".join(names)
        self.channels = len(names)
        self.links = [ReservedLink(f"GPU {gpu}") for gpu in range(len(names))]
        # Fail here if a GPU cannot really be used.
        torch.cuda.synchronize(0)

    def tensor(self, pointer: GpuPointer, dtype: Any, count: int | None = None) -> Any:
        """Return a torch tensor of ``count`` elements from ``pointer`` on; it shares the memory.

        Without ``count``, it has all elements that fit into the allocation. ``dtype`` is torch's.

        Raises :class:`~sw_driver.device.errors.PointerError`,
        :class:`~sw_driver.device.errors.RangeError`, and
        :class:`~sw_driver.device.errors.InvalidArgumentError` for a bad count or a ``pointer`` that
        is no multiple of the element's size.
        """
        return _viewed(pointer, self._elements(pointer, dtype.itemsize, count), dtype)

    def array(self, pointer: GpuPointer, *_: object) -> NDArray[Any]:
        """Raise :class:`~sw_driver.device.errors.GpuError`: only the stand-in has arrays."""
        raise GpuError(
            f"address {pointer.address:#x} is in the memory of a GPU, which the host cannot "
            "address: use tensor(), or copy it",
            address=pointer.address,
        )

    def read(self, pointer: GpuPointer, destination: NDArray[np.uint8]) -> None:
        """Fill ``destination`` with the bytes from ``pointer`` on.

        Raises :class:`~sw_driver.device.errors.GpuError`; the GPU's bytes stay as they were.
        """
        part = self._bytes(pointer, destination.nbytes)
        with self._reported("read", pointer.channel, destination.nbytes):
            self._torch.cuda.synchronize(pointer.channel)
            np.copyto(destination, part.cpu().numpy())

    def write(self, pointer: GpuPointer, source: NDArray[np.uint8]) -> None:
        """Copy ``source`` to ``pointer``.

        Raises :class:`~sw_driver.device.errors.GpuError`; the destination bytes are then undefined,
        all others as they were.
        """
        part = self._bytes(pointer, source.nbytes)
        with self._reported("write", pointer.channel, source.nbytes):
            self._torch.cuda.synchronize(pointer.channel)
            # A copy, because torch warns about read-only memory.
            part.copy_(self._torch.from_numpy(source.copy()))
            self._torch.cuda.synchronize(pointer.channel)

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """Return one leg: a GPU's transfers share its link in both directions."""
        duration = self.timing.duration_ns(nbytes, writing=writing)
        return [Leg(self.links[pointer.channel], duration)]

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
                    "free, besides memory that PyTorch keeps",
                    nbytes=size,
                    gpu=channel,
                    free_bytes=free,
                    capacity_bytes=capacity,
                ) from None
        return tensor, tensor.data_ptr()

    @contextmanager
    def _reported(self, verb: str, gpu: int, nbytes: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise GpuError(
                f"{verb} of {nbytes} bytes on GPU {gpu} ({self.description}) failed: {reason}",
                gpu=gpu,
                nbytes=nbytes,
            ) from error


class GpuStandIn(MappedMemory[GpuPointer]):
    """Host memory in place of a GPU's, with the simulated time of the paper's GPU. One GPU, 0.

    Parameters
    ----------
    device: number of the opened device, stored in the pointers.
    reason: why there is no GPU.
    torch: the module, if it can be used without a GPU.
    timing: simulated time of transfers.
    capacity_bytes: limit of all allocations together.
    """

    def __init__(
        self,
        device: int,
        *,
        reason: str,
        torch: Any = None,
        timing: LinkTiming,
        capacity_bytes: int = STAND_IN_BYTES,
    ) -> None:
        name = "gpu stand-in (host memory)"
        source = f"MallocGpu of the {name}"
        super().__init__(name, AllocationTable(GpuPointer, device=device, source=source))
        self.capacity_bytes = capacity_bytes
        self.reason = reason
        self.description = f"stand-in in host memory: {reason}"
        self.timing = timing
        self._torch = torch
        self.links = [ReservedLink("GPU 0 stand-in")]

    def tensor(self, pointer: GpuPointer, dtype: Any, count: int | None = None) -> Any:
        """Return a torch tensor in host memory; see :meth:`CudaMemory.tensor`.

        Also raises :class:`~sw_driver.device.errors.GpuError` if PyTorch cannot be used.
        """
        if self._torch is None:
            raise GpuError(
                f"tensors of the {self.name} need PyTorch: {self.reason}; array() does without"
            )
        data = self._torch.from_numpy(self._elements(pointer, dtype.itemsize, count))
        return _viewed(pointer, data, dtype)

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """Return one leg: transfers share the link in both directions."""
        return [Leg(self.links[0], self.timing.duration_ns(nbytes, writing=writing))]

    def _obtain(self, size: int, channel: int) -> tuple[Any, int]:
        free = self.capacity_bytes - self.allocated_bytes
        if size > free:
            raise OutOfMemoryError(
                f"no room for {size} bytes in the {self.name}: {free} of {self.capacity_bytes} "
                "bytes are free; capacity_bytes of at least "
                f"{self.allocated_bytes + size} would do",
                nbytes=size,
                free_bytes=free,
                capacity_bytes=self.capacity_bytes,
            )
        return super()._obtain(size, channel)


def open_gpu(device: int, timing: LinkTiming) -> CudaMemory | GpuStandIn:
    """Open the machine's GPUs, or the stand-in if PyTorch cannot use any.

    ``reason`` of the returned memory is None for CUDA. Importing PyTorch takes seconds: call this
    when a program first needs GPU memory.

    Parameters
    ----------
    device: number of the opened device, stored in the pointers.
    timing: simulated time of transfers.
    """
    torch, reason = import_torch()
    if torch is not None:
        try:
            if torch.cuda.is_available():
                return CudaMemory(torch, device, timing)
            reason = f"PyTorch {torch.__version__} finds no CUDA GPU"
        except Exception as error:  # a broken driver may raise anything
            reason = f"PyTorch cannot use the GPU ({_said(error)})"
    return GpuStandIn(device, reason=reason, torch=torch, timing=timing)


@cache
def import_torch() -> tuple[Any, str]:
    """Return PyTorch and its version, or None and why it cannot be used.

    The import is tried once in a process: a second try after a failure would state another reason.
    """
    try:
        if find_spec("torch") is None:
            return None, "PyTorch is not installed (pip install -e '.[torch]')"
        torch = import_module("torch")
        # A folder of that name is imported, too, but has no version.
        return torch, torch.__version__
    except Exception as error:  # a broken installation may raise anything
        return None, f"PyTorch cannot be imported ({_said(error)})"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _viewed(pointer: GpuPointer, data: Any, dtype: Any) -> Any:
    """Return ``data`` at ``pointer`` as a tensor; raise :class:`InvalidArgumentError`."""
    if pointer.address % dtype.itemsize:
        raise InvalidArgumentError(
            f"address {pointer.address:#x} is no multiple of {dtype.itemsize}, the bytes of a "
            f"{dtype}",
            address=pointer.address,
            itemsize=dtype.itemsize,
        )
    return data.view(dtype)
