"""CUDA memory through PyTorch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import AlignmentError, GpuError, OutOfMemoryError
from sw_driver.memory.allocations import AllocationTable
from sw_driver.memory.interface import FreeSpace, Leg
from sw_driver.memory.pieces import Piece, PieceMemory
from sw_driver.memory.pointers import GpuPointer, Pointer
from sw_driver.memory.timing import GpuTiming
from sw_driver.runtime.schedule import Schedule

__all__ = ["CudaMemory", "tensor_of"]

COPY_LIMIT_S = 60.0
"""A copy waits for the work that the program queued before it, and no longer than this for all."""

POLL_S = 50e-6


class CudaMemory(PieceMemory[GpuPointer]):
    """The memory of the machine's NVIDIA GPUs; a channel is a GPU's index.

    Copies go over a stream of their own on each GPU, as in the paper (section 5.2), after all that
    was queued on PyTorch's default stream of that GPU when they began; a program that computes on
    other streams synchronises those itself. They have ended when the call returns.

    Memory comes from PyTorch's allocator and goes back to it, which keeps it for later
    allocations. It does not start out as zero.

    Parameters
    ----------
    torch: the module; its CUDA must be available.
    device: number of the opened device, for the pointers.
    """

    reason: str | None = None
    """A stand-in says here why it is one."""
    timing = GpuTiming()
    """Simulated time of transfers, whatever GPU there really is."""

    def __init__(self, torch: Any, device: int) -> None:
        super().__init__("gpu", AllocationTable(GpuPointer, device=device, source="MallocGpu"))
        self._torch = torch
        self._streams: dict[int, Any] = {}
        self._abandoned: list[tuple[Any, Any]] = []
        names = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
        self.description = ", ".join(names)
        self.channels = len(names)
        self.schedules = [Schedule(f"GPU {gpu}") for gpu in range(len(names))]
        # Here already it shows whether a GPU can really be used.
        self._stream(0)

    def free_space(self) -> Mapping[int, FreeSpace]:
        """Of GPU 0 and those with allocations, without what PyTorch keeps for later ones.

        Other programs share it, and it need not be free in one piece. Other GPUs are left alone:
        asking one makes it ready for use, which takes its memory. Raises
        :class:`~sw_driver.errors.GpuError` and :class:`~sw_driver.errors.ClosedError`.
        """
        with self._lock:
            self._refuse_closed()
            used = Counter(each.channel for each in self.allocations)
            spaces = {}
            for gpu in sorted({0, *used}):
                with self._reported("look at memory", gpu, 0):
                    free, capacity = self._torch.cuda.mem_get_info(gpu)
                spaces[gpu] = FreeSpace(
                    total_bytes=capacity,
                    free_bytes=free,
                    largest_free_bytes=free,
                    allocations=used[gpu],
                )
            return spaces

    def tensor(self, pointer: GpuPointer, dtype: Any, count: int | None = None) -> Any:
        """A torch tensor in the allocation: ``count`` elements from ``pointer`` on.

        Without ``count``, as many as there is room for. ``dtype`` is torch's. What a program does
        to the tensor it does to the memory.

        Raises :class:`~sw_driver.errors.ForeignPointerError`,
        :class:`~sw_driver.errors.FreedPointerError`,
        :class:`~sw_driver.errors.CopyRangeError`, :class:`~sw_driver.errors.InvalidSizeError`,
        and :class:`~sw_driver.errors.AlignmentError` if ``pointer`` is not at a multiple of the
        element's size.
        """
        return tensor_of(pointer, self._elements(pointer, dtype.itemsize, count), dtype)

    def array(self, pointer: GpuPointer, *_: object) -> NDArray[Any]:
        """Refused, with :class:`~sw_driver.errors.GpuError`: only the stand-in has arrays."""
        raise GpuError(
            f"address {pointer.address:#x} is in the memory of a GPU, which the host cannot "
            "address: use tensor(), or copy it",
            address=pointer.address,
        )

    def read(self, pointer: GpuPointer, destination: NDArray[np.uint8]) -> None:
        """Copies the bytes from ``pointer`` on to ``destination``, as many as it holds.

        Raises :class:`~sw_driver.errors.GpuError`; the bytes of ``destination`` are then
        undefined, the GPU's are as they were.
        """
        part = self._bytes(pointer, destination.nbytes)
        with self._reported("read", pointer.channel, destination.nbytes):
            pinned = self._pinned(destination)
            buffer = self._staging(destination.nbytes) if pinned is None else pinned
            self._copy(buffer, part, pointer.channel)
            if pinned is None:
                np.copyto(destination, buffer.numpy())

    def write(self, pointer: GpuPointer, source: NDArray[np.uint8]) -> None:
        """Copies ``source`` to the bytes from ``pointer`` on.

        Raises :class:`~sw_driver.errors.GpuError`; the bytes that were to be written are then
        undefined, all others as they were.
        """
        part = self._bytes(pointer, source.nbytes)
        with self._reported("write", pointer.channel, source.nbytes):
            buffer = self._pinned(source)
            if buffer is None:
                buffer = self._staging(source.nbytes)
                np.copyto(buffer.numpy(), source)
            self._copy(part, buffer, pointer.channel)

    def pinned_bytes(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory that the GPUs reach themselves; ``RuntimeError`` where there is none."""
        return self._staging(nbytes).numpy()

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """One: transfers of a GPU in either direction take turns, as on its stream."""
        duration = self.timing.duration_ns(nbytes, writing=writing)
        return [Leg(self.schedules[pointer.channel], duration)]

    def close(self) -> None:
        """Gives all allocations back to PyTorch. Calling it twice does no harm."""
        super().close()
        self._streams.clear()

    def _obtain(self, size: int, channel: int) -> Piece:
        cuda = self._torch.cuda
        with self._reported("allocation", channel, size):
            free, capacity = cuda.mem_get_info(channel)
            try:
                if size > capacity:
                    raise cuda.OutOfMemoryError
                # PyTorch reuses memory in the order of the stream that it was allocated on: the
                # one that copies wait for.
                with cuda.stream(cuda.default_stream(channel)):
                    tensor = self._torch.empty(
                        size, dtype=self._torch.uint8, device=f"cuda:{channel}"
                    )
            except cuda.OutOfMemoryError:
                raise OutOfMemoryError(
                    f"no room for {size} bytes on GPU {channel}: {free} of {capacity} bytes are "
                    "free, and what PyTorch keeps",
                    nbytes=size,
                    gpu=channel,
                    free_bytes=free,
                    capacity_bytes=capacity,
                ) from None
        return Piece(tensor, tensor.data_ptr())

    def _stream(self, gpu: int) -> Any:
        with self._lock:
            if gpu not in self._streams:
                self._streams[gpu] = self._torch.cuda.Stream(device=gpu)
            return self._streams[gpu]

    def _staging(self, nbytes: int) -> Any:
        # PyTorch keeps pinned memory that is given back, so this is cheap from the second time on.
        return self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True)

    def _pinned(self, data: NDArray[np.uint8]) -> Any:
        """``data`` as a tensor if the GPU reaches it, else None."""
        if not data.flags.writeable:  # of which PyTorch makes no tensor without a warning
            return None
        tensor = self._torch.from_numpy(data)
        return tensor if tensor.is_pinned() else None

    def _copy(self, target: Any, source: Any, gpu: int) -> None:
        cuda = self._torch.cuda
        stream = self._stream(gpu)
        try:
            stream.wait_stream(cuda.default_stream(gpu))
            with cuda.stream(stream):
                target.copy_(source, non_blocking=True)
                ended = cuda.Event()
                ended.record(stream)
            deadline = time.monotonic() + COPY_LIMIT_S
            while not ended.query():
                if time.monotonic() > deadline:
                    raise GpuError(
                        f"GPU {gpu} did not end a copy of {target.numel()} bytes in "
                        f"{COPY_LIMIT_S} s",
                        gpu=gpu,
                        nbytes=target.numel(),
                        limit_s=COPY_LIMIT_S,
                    )
                time.sleep(POLL_S)
        except BaseException:
            # The GPU may still come to the copy, so nobody else may ever have the memory.
            self._abandoned.append((target, source))
            raise

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


def tensor_of(pointer: GpuPointer, data: Any, dtype: Any) -> Any:
    """The bytes ``data`` from ``pointer`` on as a tensor of ``dtype``.

    Raises :class:`~sw_driver.errors.AlignmentError`.
    """
    if pointer.address % dtype.itemsize:
        raise AlignmentError(
            f"address {pointer.address:#x} is no multiple of {dtype.itemsize}, the bytes of a "
            f"{dtype}",
            address=pointer.address,
            itemsize=dtype.itemsize,
        )
    return data.view(dtype)
