"""Memory-nodes as a store of the residency, through the memory of a simulated device."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sw_driver.device.errors import OutOfMemoryError
from sw_driver.memory_node import DeviceNode, Direction, Event

from .stores import Job, Store

__all__ = ["RemoteStore"]


@dataclass(eq=False)
class _Place:
    address: int
    moved: Event
    """End of the last copy to or from the place."""


@dataclass(eq=False)
class _Move:
    store: RemoteStore
    staged: int
    event: Event
    back: NDArray[np.uint8] | None = None
    """Host memory that a read ends in; None for a write, which has left host memory already."""

    def done(self) -> bool:
        return self.back is None or self not in self.store.moves

    def wait(self) -> None:
        if not self.done():
            self.store.end(self)


class RemoteStore(Store):
    """Store in the remote memory of a device.

    The device's own memory holds only moves in flight. When it is full, a move waits for earlier
    ones. Raises :class:`~sw_driver.device.errors.OutOfMemoryError` if remote memory is full, or if
    a move does not fit into the device's memory.
    """

    def __init__(self, device: DeviceNode, *, compressed: bool = False) -> None:
        self.moves: list[_Move] = []
        self._device, self._compressed = device, compressed
        self._out, self._back = device.stream(), device.stream()
        self._given: list[_Place] = []
        """Places to free once no copy to or from them is in flight."""

    def take(self, nbytes: int) -> _Place:
        """Return a place of ``nbytes`` in remote memory."""
        self._collect()
        address = self._device.cuda_malloc_remote(nbytes, compressed=self._compressed)
        return _Place(address, self._out.record())

    def give(self, place: _Place, nbytes: int) -> None:
        """Free a place after its last copy."""
        self._given.append(place)
        self._collect()

    def write(self, place: _Place, address: int, nbytes: int) -> Job:
        """Start to copy host memory to a place."""
        staged = self._room(nbytes)
        self._device.write(staged, _memory(address, nbytes))
        self._device.cuda_memcpy_async(
            place.address, staged, nbytes, Direction.LOCAL_TO_REMOTE, self._out
        )
        place.moved = self._out.record()
        self.moves.append(_Move(self, staged, place.moved))
        return self.moves[-1]

    def read(self, place: _Place, address: int, nbytes: int) -> Job:
        """Start to copy a place to host memory."""
        staged = self._room(nbytes)
        self._back.wait_event(place.moved)
        self._device.cuda_memcpy_async(
            staged, place.address, nbytes, Direction.REMOTE_TO_LOCAL, self._back
        )
        place.moved = self._back.record()
        self.moves.append(_Move(self, staged, place.moved, _memory(address, nbytes)))
        return self.moves[-1]

    def close(self) -> None:
        """End all moves in flight; places stay."""
        while self.moves:
            self.end(self.moves[0])
        self._collect()

    def end(self, move: _Move) -> None:
        """Wait for a move and free its staging memory in the device."""
        try:
            move.event.synchronize()
            if move.back is not None:
                move.back[:] = self._device.read(move.staged, move.back.nbytes)
        finally:
            if move.event.happened:
                self._free(move)

    def _free(self, move: _Move) -> None:
        self.moves.remove(move)
        self._device.cuda_free(move.staged)

    def _room(self, nbytes: int) -> int:
        self._collect()
        while True:
            try:
                return self._device.cuda_malloc(nbytes)
            except OutOfMemoryError:
                if not self.moves:
                    raise
                self.end(self.moves[0])

    def _collect(self) -> None:
        for move in [move for move in self.moves if move.back is None]:
            if not move.event.happened:
                break
            self._free(move)  # a failure is raised when the place is read
        for place in self._given[:]:
            if place.moved.happened:
                self._given.remove(place)
                self._device.cuda_free_remote(place.address)


def _memory(address: int, nbytes: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
