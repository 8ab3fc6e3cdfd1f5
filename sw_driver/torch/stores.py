"""Stores of tensors outside fast memory: the host's memory, or a file."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor

from .step import unwatched

__all__ = ["FileStore", "HostStore", "Job", "Store"]

_CPU = torch.device("cpu")

_PAGE_BYTES = 4096

_FULL = "so a tensor stays in memory; give slow= a place with more room, or a larger budget"
"""Consequence of a full disk, for messages."""

_PIECE_BYTES = 4 << 20
"""Bytes that pass through the buffer for direct I/O at a time."""


class Job(Protocol):
    """A copy, possibly in flight."""

    def done(self) -> bool:
        """Return whether :meth:`wait` would return at once."""
        ...

    def wait(self) -> None:
        """Wait for the end; raise the copy's error. It can be called again after an interrupt."""


class Store(Protocol):
    """Storage for bytes in places.

    The training thread makes all calls. A place never has two copies in flight.
    """

    def take(self, nbytes: int) -> Any:
        """Return a place for ``nbytes`` bytes."""

    def give(self, place: Any, nbytes: int) -> None:
        """Give back a place of ``nbytes`` bytes."""

    def write(self, place: Any, address: int, nbytes: int) -> Job:
        """Start to copy memory to a place."""
        ...

    def read(self, place: Any, address: int, nbytes: int) -> Job:
        """Start to copy the content of a place to memory."""
        ...

    def close(self) -> None:
        """Release all places."""


class _Copy:
    """A job of a thread. A ``Future`` may raise ``RuntimeError`` when Ctrl-C interrupts it."""

    def __init__(self, copy: Callable[..., None], *args: Any) -> None:
        self._copy, self._args = copy, args
        self._over, self._error = False, None
        self.began = self.ended = 0
        """Begin and end in ns, by ``time.perf_counter_ns()``; 0 before."""
        self._ended = threading.Lock()
        self._ended.acquire()

    def __call__(self) -> None:
        self.began = time.perf_counter_ns()
        try:
            self._copy(*self._args)
        except BaseException as error:
            self._error = error
        self.ended, self._args = time.perf_counter_ns(), ()
        self._over = True
        self._ended.release()

    def done(self) -> bool:
        return self._over

    def wait(self) -> None:
        if not self._over:
            self._ended.acquire()
        if self._error is not None:
            raise self._error


class _Threaded(ABC):
    """A store with one thread per direction; for a GPU's memory each has a CUDA stream."""

    def __init__(self, device: torch.device = _CPU) -> None:
        self._out, self._back = (ThreadPoolExecutor(1, f"store-{way}") for way in ("out", "back"))
        self._device = device
        self._streams = [torch.cuda.Stream(device) for _ in range(2 * (device.type != "cpu"))]

    def write(self, place: Any, address: int, nbytes: int) -> Job:
        job = _Copy(self._write, place, address, nbytes, self._ready())
        self._out.submit(job)
        return job

    def read(self, place: Any, address: int, nbytes: int) -> Job:
        job = _Copy(self._read, place, address, nbytes, self._ready())
        self._back.submit(job)
        return job

    def _ready(self) -> Any:
        """Return the event that a copy on a GPU waits for, None without a GPU.

        It comes after all work queued so far. That work makes the bytes that leave, and may still
        use the memory that is written.
        """
        if not self._streams:
            return None
        return torch.cuda.current_stream(self._device).record_event()

    def _copy(self, own: Tensor, address: int, ready: Any, *, back: bool) -> None:
        """Copy to the host's memory, or ``back`` from it, and wait for the end."""
        if not self._streams:
            to, source = (address, own.data_ptr()) if back else (own.data_ptr(), address)
            ctypes.memmove(to, source, own.nbytes)
            return
        there = {"shape": (own.nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
        stream = self._streams[back]
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            memory = SimpleNamespace(__cuda_array_interface__=there)
            other = torch.as_tensor(memory, dtype=torch.uint8, device=self._device)
            to, source = (other, own) if back else (own, other)
            to.copy_(source, non_blocking=True)
        stream.synchronize()

    def close(self) -> None:
        self._out.shutdown()
        self._back.shutdown()

    @abstractmethod
    def _write(self, place: Any, address: int, nbytes: int, ready: Any) -> None: ...

    @abstractmethod
    def _read(self, place: Any, address: int, nbytes: int, ready: Any) -> None: ...


class HostStore(_Threaded):
    """Store of the CPU's tensors in the host's memory, outside the budget of fast memory.

    Places are kept for tensors of their size: the system takes long to map new pages. With these
    the store never has more than the most bytes that were in use at a time.

    Examples
    --------
    >>> from sw_driver.torch.stores import HostStore
    >>> store = HostStore()
    >>> place = store.take(64)
    >>> store.give(place, 64)
    >>> store.take(64) is place
    True
    >>> store.close()
    """

    def __init__(self) -> None:
        super().__init__()
        self._free: dict[int, list[Tensor]] = {}
        self._used_bytes = self._most_bytes = self._free_bytes = 0

    def take(self, nbytes: int) -> Tensor:
        """Return a place for a tensor, one that is free if there is one."""
        self._used_bytes += nbytes
        self._most_bytes = max(self._most_bytes, self._used_bytes)
        if nbytes in self._free:
            return self._kept(nbytes)
        while self._free and self._used_bytes + self._free_bytes > self._most_bytes:
            self._kept(next(iter(self._free)))
        with unwatched():
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def _kept(self, nbytes: int) -> Tensor:
        places = self._free[nbytes]
        place = places.pop()
        if not places:
            del self._free[nbytes]
        self._free_bytes -= nbytes
        return place

    def give(self, place: Tensor, nbytes: int) -> None:
        """Free a place for tensors of its size."""
        self._free.setdefault(nbytes, []).append(place)
        self._free_bytes += nbytes
        self._used_bytes -= nbytes

    def close(self) -> None:
        """Wait for all copies and release all free places."""
        super().close()
        self._free.clear()
        self._free_bytes = 0

    def _write(self, place: Tensor, address: int, nbytes: int, ready: Any) -> None:
        self._copy(place, address, ready, back=False)

    def _read(self, place: Tensor, address: int, nbytes: int, ready: Any) -> None:
        self._copy(place, address, ready, back=True)


class FileStore(_Threaded):
    """Store in a file of its own, with direct I/O where the file system supports it.

    The file grows as needed. Its name is removed once it is open, so it disappears with the
    process. Raises ``OSError``, and ``FileExistsError`` for an existing file.
    """

    def __init__(self, path: str | Path, device: torch.device = _CPU) -> None:
        super().__init__(device)
        self.path = Path(path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.direct = True
        try:
            direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        except OSError:
            self.direct = False  # tmpfs, for one
        else:
            os.close(self._file)
            self._file = direct
        self.path.unlink()
        self._free: dict[int, list[int]] = defaultdict(list)
        self.nbytes = 0
        """Size of the file in bytes."""
        # Direct I/O needs buffers of whole pages.
        self._pieces = mmap.mmap(-1, _PIECE_BYTES), mmap.mmap(-1, _PIECE_BYTES)

    def take(self, nbytes: int) -> int:
        """Return an offset in the file for a tensor, one that is free if there is one."""
        if free := self._free[_whole(nbytes)]:
            return free.pop()
        place, self.nbytes = self.nbytes, self.nbytes + _whole(nbytes)
        return place

    def give(self, place: int, nbytes: int) -> None:
        """Free an offset for tensors of as many pages."""
        self._free[_whole(nbytes)].append(place)

    def _write(self, place: int, address: int, nbytes: int, ready: Any) -> None:
        for done in range(0, nbytes, _PIECE_BYTES):
            piece = self._piece(min(nbytes - done, _PIECE_BYTES), back=False)
            self._copy(piece, address + done, ready, back=False)
            with memoryview(self._pieces[0])[: _whole(piece.nbytes)] as part:
                try:
                    moved_bytes = os.pwrite(self._file, part, place + done)
                except OSError as error:
                    problem = f"{error.strerror}, {_FULL}"
                    raise OSError(error.errno, problem, str(self.path)) from None
                self._moved(moved_bytes, len(part))

    def _read(self, place: int, address: int, nbytes: int, ready: Any) -> None:
        for done in range(0, nbytes, _PIECE_BYTES):
            piece = self._piece(min(nbytes - done, _PIECE_BYTES), back=True)
            with memoryview(self._pieces[1])[: _whole(piece.nbytes)] as part:
                self._moved(os.preadv(self._file, [part], place + done), len(part))
            self._copy(piece, address + done, ready, back=True)

    def _piece(self, nbytes: int, *, back: bool) -> Tensor:
        return torch.frombuffer(self._pieces[back], dtype=torch.uint8, count=nbytes)

    def _moved(self, nbytes: int, expected: int) -> None:
        if nbytes != expected:
            raise OSError(f"{self.path}: {nbytes} of {expected} bytes moved, {_FULL}")

    def close(self) -> None:
        """Wait for all copies and close the file."""
        super().close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _whole(nbytes: int) -> int:
    return -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
