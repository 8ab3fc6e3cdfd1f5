"""Mapped memory of the module, as a program accesses it without the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..device.errors import RangeError
from ..device.memory import AxdimmPointer, checked_size
from ..device.tensors import byte_view
from .channel import Channel, Mode
from .transport import finished

__all__ = ["MappedView"]

T = TypeVar("T")


class MappedView:
    """A piece of the module's memory, mapped with the host's cache enabled (paper section 4.1).

    Its methods are the instructions of a program. Loads and stores go through the host's cache, as
    modelled by :mod:`sw_driver.axdimm.hostcache`. Offsets are bytes from the start of the view.
    Cached lines can be loaded in every mode, however old they are. Other lines need normal mode
    and an idle kernel.

    Raises
    ------
    RangeError, PointerError, InvalidArgumentError, ClosedError: from every method, before anything
        happens.
    BusyError, WrongModeError: the access needs the DRAM, but the kernel has it.
    """

    def __init__(self, channel: Channel, pointer: AxdimmPointer, nbytes: int) -> None:
        self._channel = channel
        self._pointer = pointer
        self._nbytes = nbytes

    def __len__(self) -> int:
        return self._nbytes

    def load(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return bytes as ordinary loads do: from the cache, missing lines from the DRAM."""

        def load(address: int) -> NDArray[np.uint8]:
            self._check_reach(address, nbytes)
            return self._channel.cache.load(address, nbytes)

        return self._access(offset, nbytes, "load", load)

    def store(self, offset: int, data: Any) -> None:
        """Write bytes as ordinary stores do: into the cache, and later from there to the DRAM."""
        view = byte_view(data, None, writable=False)

        def store(address: int) -> None:
            self._check_reach(address, view.size)
            self._channel.cache.store(address, view)

        self._access(offset, view.size, "store", store)

    def stream_store(self, offset: int, data: Any) -> None:
        """Write bytes past the cache, as non-temporal stores do; on return the DRAM has them."""
        view = byte_view(data, None, writable=False)

        def store(address: int) -> None:
            self._check_owned()
            finished(self._channel.write(address, view, "non-temporal store"))

        self._access(offset, view.size, "non-temporal store", store)

    def flush(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Write back the lines that a store changed, and drop all of them, as CLFLUSH does.

        While the kernel has the DRAM, the arbiter refuses the write and the data is lost.
        """
        size = self._nbytes - checked_size("offset", offset) if nbytes is None else nbytes
        self._access(offset, size, "flush", lambda at: self._channel.cache.flush(at, size))

    def fence(self) -> None:
        """Do nothing, in place of SFENCE: non-temporal stores are already in the DRAM."""

    def _access(self, offset: int, nbytes: int, name: str, access: Callable[[int], T]) -> T:
        size = checked_size("nbytes", nbytes)
        if checked_size("offset", offset) + size > self._nbytes:
            raise RangeError(
                f"bytes {offset} to {offset + size} of a mapping of {self._nbytes} bytes",
                offset=offset,
                nbytes=size,
                mapped_bytes=self._nbytes,
            )
        channel = self._channel

        def call() -> T:
            channel.allocations.range(self._pointer, self._nbytes)
            with channel.using_link(f"cached {name} of {size} bytes", size):
                return access(self._pointer.address + offset)

        return channel.use(f"cached {name} of {size} bytes", call, idle=False)

    def _check_reach(self, address: int, nbytes: int) -> None:
        if not self._channel.cache.holds(address, nbytes):
            self._check_owned()

    def _check_owned(self) -> None:
        self._channel.check_idle()
        self._channel.check_mode(Mode.NORMAL)
