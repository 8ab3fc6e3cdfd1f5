"""A module on the host's bus, accessed through a memory map of a UIO device, a BAR or a file."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sw_driver.axdimm.transport import (
    LINE_BYTES,
    WINDOW_BYTES,
    Transport,
    alone,
    check_bytes,
    kernel_window,
)
from sw_driver.device.clock import OTHERS_FIRST, Domain, Steps
from sw_driver.device.errors import DeviceInUseError, InvalidArgumentError
from sw_driver.device.transport import DeviceTimeout

from ...numbers import LEAST, check_integer, check_number
from ..registers import REGISTER_BYTES

__all__ = ["MappedFile", "MappedTransport"]

UIO = Path("/sys/class/uio")
"""Folder in which Linux states the sizes of UIO maps."""


class MappedFile:
    """The module's bytes in the host's address space: map 0 of a UIO device, a BAR, or a file.

    The file is locked, so that two programs cannot drive the same module.

    Attributes
    ----------
    name: the path, for messages.
    nbytes: size of the map in bytes.

    Raises
    ------
    InvalidArgumentError: ``path`` cannot be opened or mapped.
    DeviceInUseError: another program, or this one, has it open through this class.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        with ExitStack() as opened:
            try:
                file = os.open(self.name, os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)
                opened.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                size = UIO / Path(self.name).name / "maps/map0/size"
                self.nbytes = int(size.read_text(), 0) if size.exists() else os.fstat(file).st_size
                self._map = opened.enter_context(mmap.mmap(file, self.nbytes))
                # CPython accesses an element of eight aligned bytes with one instruction.
                whole = self.nbytes // REGISTER_BYTES * REGISTER_BYTES
                self._words = opened.enter_context(memoryview(self._map)[:whole].cast("Q"))
            except BlockingIOError:
                raise DeviceInUseError(
                    f"{self.name!r} is open in another program, or in this one: close it there "
                    "first",
                    name=self.name,
                ) from None
            except (OSError, ValueError, TypeError) as error:
                raise InvalidArgumentError(
                    f"{self.name!r} cannot be mapped to read and write ({error}): name a device or "
                    "file that this user may map",
                    name=self.name,
                ) from None
            self._opened = opened.pop_all()

    def load(self, offset: int) -> int:
        """Read 8 aligned bytes, little endian, in one access."""
        return self._words[offset // REGISTER_BYTES]

    def store(self, offset: int, value: int) -> None:
        """Write 8 aligned bytes, little endian, in one access."""
        self._words[offset // REGISTER_BYTES] = value

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Read whole lines with accesses of any width and order."""
        return np.frombuffer(self._map, np.uint8, nbytes, offset).copy()

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Write whole lines with accesses of any width and order."""
        np.frombuffer(self._map, np.uint8, data.size, offset)[:] = data

    def close(self) -> None:
        """Release the map; a second call does nothing."""
        self._opened.close()


class MappedTransport(Transport):
    """A module in the host's address space; see :class:`~sw_driver.axdimm.transport.Transport`.

    It is for hardware with AXI4 host ports (``host=axi4``) and channels at consecutive addresses.
    There is no simulated time: the kernel's counters count, all other times are 0. Timeouts are in
    host time.

    Parameters
    ----------
    device: path to map, or a map, for example with ``read`` and ``write`` by a DMA engine.
    channels: channels of the module; each has an equal share of the map.
    fabric_mhz: the module's clock in MHz, which converts timeouts to seconds.

    Raises
    ------
    InvalidArgumentError: ``device`` cannot be opened, mapped or divided into the channels, or a
        number is wrong.
    DeviceInUseError: another program, or this one, has it open.

    Examples
    --------
    >>> MappedTransport("no-such-device", channels=2)
    Traceback (most recent call last):
        ...
    sw_driver.device.errors.InvalidArgumentError: 'no-such-device' cannot be mapped to read ...
    """

    name = "mapped"

    def __init__(
        self,
        device: str | os.PathLike[str] | MappedFile,
        *,
        channels: int = 2,
        fabric_mhz: float = 200.0,
    ) -> None:
        check_integer("channels", channels)
        check_number("fabric_mhz", fabric_mhz, LEAST)
        self.channels = channels
        self.fabric_mhz = fabric_mhz
        self.domain = Domain(mhz=fabric_mhz)
        self._map = device if isinstance(device, MappedFile) else MappedFile(device)
        self.capacity_bytes = self._map.nbytes // channels
        if self.capacity_bytes < 4 * WINDOW_BYTES or self.capacity_bytes.bit_count() != 1:
            self.close()
            raise InvalidArgumentError(
                f"{self._map.name!r} has {self._map.nbytes} bytes for {channels} channels: "
                f"expected, for each, a power of two of at least {4 * WINDOW_BYTES}",
                channels=channels,
            )
        self._windows = kernel_window(self.capacity_bytes)

    @alone
    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """See :class:`~sw_driver.axdimm.transport.Transport`."""
        source = np.ascontiguousarray(data, dtype=np.uint8).reshape(-1)
        begin, in_memory = self._place(channel, address, source.size)
        if in_memory:
            self._map.write(begin, source[:in_memory])
        for offset in range(in_memory, source.size, LINE_BYTES):
            register = source[offset : offset + REGISTER_BYTES].tobytes()
            self._map.store(begin + offset, int.from_bytes(register, "little"))

    @alone
    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`~sw_driver.axdimm.transport.Transport`."""
        begin, in_memory = self._place(channel, address, nbytes)
        data = np.zeros(nbytes, np.uint8)
        if in_memory:
            data[:in_memory] = self._map.read(begin, in_memory)
        for offset in range(in_memory, nbytes, LINE_BYTES):
            register = self._map.load(begin + offset).to_bytes(REGISTER_BYTES, "little")
            data[offset : offset + REGISTER_BYTES] = np.frombuffer(register, np.uint8)
        return data

    def poll(self, channel: int, address: int, mask: int, value: int, **times: int) -> int:
        """See :class:`~sw_driver.axdimm.transport.Transport`; host time replaces the cycles."""
        steps = self.poll_steps(channel, address, mask, value, **times)
        return self.whole(channel, "polling a register", steps)

    def poll_steps(
        self,
        channel: int,
        address: int,
        mask: int,
        value: int,
        *,
        interval_fabric_cycles: int,
        timeout_fabric_cycles: int,
    ) -> Steps:
        """See :meth:`poll`. Other channels may be polled meanwhile."""
        place, _ = self._place(channel, address, LINE_BYTES)
        cycle_s = 1e-6 / self.fabric_mhz
        end = time.monotonic() + timeout_fabric_cycles * cycle_s
        while True:
            # Read once more after the timeout: the host may have been suspended.
            left = end - time.monotonic()
            bits = self._map.load(place)
            if bits & mask == value:
                return bits
            if left <= 0:
                raise DeviceTimeout(
                    f"channel {channel}: the register at {address:#x} read {bits:#x} after "
                    f"{timeout_fabric_cycles * cycle_s:g} s, awaited {value:#x} in the bits "
                    f"{mask:#x}"
                )
            time.sleep(min(left, interval_fabric_cycles * cycle_s))
            yield OTHERS_FIRST

    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """Raise :class:`~sw_driver.device.errors.InvalidArgumentError`: there is no backdoor."""
        raise self._no_backdoor()

    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Raise :class:`~sw_driver.device.errors.InvalidArgumentError`: there is no backdoor."""
        raise self._no_backdoor()

    def _no_backdoor(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self._map.name!r} is mapped and has no backdoor, which only simulations have: copy "
            "with backdoor=False",
            backdoor=True,
        )

    def close(self) -> None:
        """Close the map once calls of other threads are over."""
        with self.domain.clock.within():
            super().close()
            self._map.close()

    def __enter__(self) -> MappedTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, channel: int, address: int, nbytes: int) -> tuple[int, int]:
        """Return the access's offset in the map, and how many of its bytes are not registers."""
        self.domain.check_open()
        check_bytes(self, channel, address, nbytes)
        in_memory = max(0, min(nbytes, self._windows - address))
        return channel * self.capacity_bytes + address, in_memory
