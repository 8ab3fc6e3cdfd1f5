"""Store of a GPU's tensors in the host's pinned memory, with a stream of copies each way.

The host only queues copies. Each copy waits on the GPU for the work queued before it, which makes
its bytes or has used its memory; work that needs the copy waits for it on the GPU, too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .step import unwatched
from .stores import Job, Store

__all__ = ["CudaStore", "Gpu"]


class Gpu:
    """Part of ``torch.cuda`` that the store uses, for one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new_stream(self) -> Any:
        """Return a stream for copies."""
        return torch.cuda.Stream(self._device)

    def current_stream(self) -> Any:
        """Return the stream that this thread's operations are queued in."""
        return torch.cuda.current_stream(self._device)

    def new_event(self) -> Any:
        """Return an event with a time."""
        return torch.cuda.Event(enable_timing=True)

    def pinned(self, nbytes: int) -> Tensor:
        """Return pinned memory of the host. PyTorch keeps it until copies of it have ended."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def memory(self, address: int, nbytes: int) -> Tensor:
        """Return the GPU's memory at an address as a tensor; it does not keep the memory."""
        there = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
        memory = SimpleNamespace(__cuda_array_interface__=there)
        return torch.as_tensor(memory, dtype=torch.uint8, device=self._device)

    def copy(self, stream: Any, to: Tensor, source: Tensor) -> None:
        """Queue a copy in a stream."""
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)


@dataclass(eq=False)
class _Place:
    memory: Tensor
    last: Any = None
    """End of the last copy from or to the place."""


@dataclass(eq=False)
class _Copy(Job):
    """A queued copy.

    The GPU's memory has to stay until :meth:`wait`. Then it may be freed: what PyTorch makes in it
    next is computed in the stream of the work before the copy, which waits for the copy, as the
    present stream does.
    """

    store: CudaStore
    before: Any
    """Stream of the work before the copy."""
    began: Any
    ended: Any
    stall: tuple[Any, Any] | None = None
    """Events around the present stream's wait."""

    def done(self) -> bool:
        return self.ended.query()

    def wait(self) -> None:
        if not self.done():
            self.store.let_wait(self)


class CudaStore(Store):
    """Store of a GPU's tensors in the host's pinned memory.

    :meth:`_Copy.wait` lets the present stream wait, and not the host.

    Parameters
    ----------
    gpu: the GPU, or what stands for it.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._out, self._back = gpu.new_stream(), gpu.new_stream()
        self._stalls: deque[tuple[Any, Any]] = deque()
        """Waits of streams: events around them, the oldest first."""
        self._stalled_ns = 0

    def take(self, nbytes: int) -> _Place:
        """Return a place for ``nbytes`` bytes in pinned memory."""
        with unwatched(), torch.inference_mode(False):
            return _Place(self._gpu.pinned(nbytes))

    def give(self, place: _Place, nbytes: int) -> None:
        """Free a place; its memory goes with the last reference to it."""

    def write(self, place: _Place, address: int, nbytes: int) -> Job:
        """Queue a copy of the GPU's memory to a place."""
        return self._copy(self._out, place, address, nbytes, back=False)

    def read(self, place: _Place, address: int, nbytes: int) -> Job:
        """Queue a copy of a place to the GPU's memory."""
        return self._copy(self._back, place, address, nbytes, back=True)

    def _copy(self, stream: Any, place: _Place, address: int, nbytes: int, *, back: bool) -> _Copy:
        gpu, before = self._gpu, self._gpu.current_stream()
        stream.wait_event(before.record_event(gpu.new_event()))
        if place.last is not None:
            stream.wait_event(place.last)
        began = stream.record_event(gpu.new_event())
        with unwatched(), torch.inference_mode(False):
            memory = gpu.memory(address, nbytes)
            to, source = (memory, place.memory) if back else (place.memory, memory)
            gpu.copy(stream, to, source)
        place.last = stream.record_event(gpu.new_event())
        return _Copy(self, before, began, place.last)

    def let_wait(self, copy: _Copy) -> None:
        """Let the present stream wait for a copy, and the stream of the work before it."""
        present = self._gpu.current_stream()
        begun = present.record_event(self._gpu.new_event())
        for stream in {present, copy.before}:
            stream.wait_event(copy.ended)
        copy.stall = begun, present.record_event(self._gpu.new_event())
        self._stalls.append(copy.stall)
        self._count()

    def anchor(self) -> Any:
        """Return an event of the present stream, which other events' times count from."""
        return self._gpu.current_stream().record_event(self._gpu.new_event())

    def stalled_ns(self) -> int:
        """Return how long streams have waited for copies, in ns, as far as they have come."""
        self._count()
        return self._stalled_ns

    def _count(self) -> None:
        while self._stalls and self._stalls[0][1].query():
            begun, ended = self._stalls.popleft()
            self._stalled_ns += round(begun.elapsed_time(ended) * 1e6)

    def close(self) -> None:
        """Wait for the end of all copies."""
        for stream in (self._out, self._back):
            stream.synchronize()
