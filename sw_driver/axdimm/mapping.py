"""The module's memory as a program sees it that does not go through the runtime."""

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

    The instructions of a program on it. Loads and stores go through the host's cache, of which
    :mod:`sw_driver.axdimm.hostcache` says what is modelled. Offsets are bytes from the start of the
    view. What is in the cache can be loaded in every mode, however old it is; what is not needs
    normal mode and an idle kernel.

    Raises
    ------
    RangeError, PointerError, InvalidArgumentError, ClosedError: from every method, before anything
        happens.
    BusyError, WrongModeError: where the DRAM is needed, but the kernel has it.
    """

    def __init__(self, channel: Channel, pointer: AxdimmPointer, nbytes: int) -> None:
        self._channel = channel
        self._pointer = pointer
        self._nbytes = nbytes

    def __len__(self) -> int:
        return self._nbytes

    def load(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Ordinary loads: what the cache holds, and for the rest what the DRAM holds."""

        def load(address: int) -> NDArray[np.uint8]:
            self._check_reach(address, nbytes)
            return self._channel.cache.load(address, nbytes)

        return self._access(offset, nbytes, "load", load)

    def store(self, offset: int, data: Any) -> None:
        """Ordinary stores: into the cache, from where they reach the DRAM some time."""
        view = byte_view(data, None, writable=False)

        def store(address: int) -> None:
            self._check_reach(address, view.size)
            self._channel.cache.store(address, view)

        self._access(offset, view.size, "store", store)

    def stream_store(self, offset: int, data: Any) -> None:
        """Non-temporal stores: past the cache. They are in the DRAM when the call returns."""
        view = byte_view(data, None, writable=False)

        def store(address: int) -> None:
            self._check_owned()
            finished(self._channel.write(address, view, "non-temporal store"))

        self._access(offset, view.size, "non-temporal store", store)

    def flush(self, offset: int = 0, nbytes: int | None = None) -> None:
        """CLFLUSH of the lines: written back if a store changed them, then forgotten.

        While the kernel has the DRAM, what is written back is lost: the arbiter refuses it.
        """
        size = self._nbytes - checked_size("offset", offset) if nbytes is None else nbytes
        self._access(offset, size, "flush", lambda at: self._channel.cache.flush(at, size))

    def fence(self) -> None:
        """SFENCE: returns when non-temporal stores are in the DRAM, where they are already."""

    def _access(self, offset: int, nbytes: int, what: str, access: Callable[[int], T]) -> T:
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
            with channel.using_link(f"cached {what} of {size} bytes", size):
                return access(self._pointer.address + offset)

        return channel.use(f"cached {what} of {size} bytes", call, idle=False)

    def _check_reach(self, address: int, nbytes: int) -> None:
        if not self._channel.cache.holds(address, nbytes):
            self._check_owned()

    def _check_owned(self) -> None:
        self._channel.check_idle()
        self._channel.check_mode(Mode.NORMAL)
