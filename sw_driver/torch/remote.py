"""Memory-nodes as a store of the residency, by way of the memory of a simulated device."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sw_driver.device.errors import OutOfMemoryError
from sw_driver.memory_node import DeviceNode, Direction, Event

from .stores import Job

__all__ = ["RemoteStore"]


@dataclass(eq=False)
class _Place:
    address: int
    moved: Event
    """The end of the last copy to or from it."""


@dataclass(eq=False)
class _Move:
    store: RemoteStore
    staged: int
    event: Event
    back: NDArray[np.uint8] | None = None
    """Memory that it is to be in; one to remote memory has left that already."""

    def done(self) -> bool:
        return self.back is None or self not in self.store.moves

    def wait(self) -> None:
        if not self.done():
            self.store.end(self)


class RemoteStore:
    """Remote memory of a device.

    The device's own memory has what is under way only; when it is full, moves wait for those
    before them. Raises :class:`~sw_driver.device.errors.OutOfMemoryError` if remote memory is full,
    or if something does not fit into the device's memory.
    """

    def __init__(self, device: DeviceNode, *, compressed: bool = False) -> None:
        self.moves: list[_Move] = []
        self._device, self._compressed = device, compressed
        self._out, self._back = device.stream(), device.stream()
        self._given: list[_Place] = []
        """What may be freed when it is copied to and from no more."""

    def take(self, nbytes: int) -> _Place:
        self._collect()
        address = self._device.cuda_malloc_remote(nbytes, compressed=self._compressed)
        return _Place(address, self._out.record())

    def give(self, place: _Place, nbytes: int) -> None:
        self._given.append(place)
        self._collect()

    def write(self, place: _Place, address: int, nbytes: int) -> Job:
        staged = self._room(nbytes)
        self._device.write(staged, _memory(address, nbytes))
        self._device.cuda_memcpy_async(
            place.address, staged, nbytes, Direction.LOCAL_TO_REMOTE, self._out
        )
        place.moved = self._out.record()
        self.moves.append(_Move(self, staged, place.moved))
        return self.moves[-1]

    def read(self, place: _Place, address: int, nbytes: int) -> Job:
        staged = self._room(nbytes)
        self._back.wait_event(place.moved)
        self._device.cuda_memcpy_async(
            staged, place.address, nbytes, Direction.REMOTE_TO_LOCAL, self._back
        )
        place.moved = self._back.record()
        self.moves.append(_Move(self, staged, place.moved, _memory(address, nbytes)))
        return self.moves[-1]

    def close(self) -> None:
        """Ends what is under way; places stay."""
        while self.moves:
            self.end(self.moves[0])
        self._collect()

    def end(self, move: _Move) -> None:
        """Waits for a move, and frees the device's memory of it."""
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
        for move in [each for each in self.moves if each.back is None]:
            if not move.event.happened:
                break
            self._free(move)  # what failed is told when it is wanted back
        for place in self._given[:]:
            if place.moved.happened:
                self._given.remove(place)
                self._device.cuda_free_remote(place.address)


def _memory(address: int, nbytes: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
