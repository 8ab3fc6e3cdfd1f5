"""A module on the host's bus, reached through a memory map: of a UIO device, a BAR, a file."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import (
    ClosedError,
    DeviceInUseError,
    InvalidOptionError,
    NoSuchDeviceError,
)
from sw_driver.memory.hostbuffer import aligned_bytes
from sw_driver.transport import (
    LINE_BYTES,
    WINDOW_BYTES,
    DeviceFault,
    DeviceTimeout,
    Transport,
    check_bytes,
    kernel_window,
)

from ..registers import REGISTER_BYTES, arbiter_registers

__all__ = ["MappedFile", "MappedTransport", "MemoryMap"]

UIO = Path("/sys/class/uio")
"""Where Linux says how large the maps of a UIO device are."""

_WORD_BYTES = (4, 8)
"""Of an access to a register."""


class MemoryMap(Protocol):
    """Bytes of the module in the host's address space."""

    name: str
    """For messages."""

    nbytes: int
    """How many there are."""

    def load(self, offset: int, nbytes: int) -> int:
        """One read of 4 or 8 bytes at a multiple of them, little endian."""
        ...

    def store(self, offset: int, value: int, nbytes: int) -> None:
        """One write of 4 or 8 bytes at a multiple of them, little endian."""
        ...

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Whole lines, by accesses of any width and order."""
        ...

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Whole lines, by accesses of any width and order."""
        ...

    def close(self) -> None:
        """Releases the map. Calling it twice does no harm."""
        ...


class MappedFile:
    """The map of a file or device that can be mapped; see :class:`MemoryMap`.

    A ``load`` or ``store`` is one access of its width: an element of a ``memoryview``, for which
    CPython copies four or eight aligned bytes, one instruction of the processor. (A store by
    ``ctypes`` would read before.) ``read`` and ``write`` are the C library's ``memcpy`` between
    places that are both aligned to lines, so its accesses are aligned, too.

    Parameters
    ----------
    path: ``/dev/uioN``, a BAR such as ``/sys/bus/pci/devices/0000:01:00.0/resource2``,
        ``/dev/mem``, or any file.
    offset: byte of the file at which the map begins, a multiple of the page size; of a UIO device,
        into its map.
    nbytes: how many to map; None is all that follow, where the system tells how many there are.
    uio_map: which of a UIO device's maps.

    Raises
    ------
    NoSuchDeviceError: it cannot be opened, is too short or cannot be mapped.
    InvalidOptionError: an option is impossible, or says too little.
    DeviceInUseError: another program, or this one, has it open through this class.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        offset: int = 0,
        nbytes: int | None = None,
        uio_map: int = 0,
    ) -> None:
        self.name = os.fspath(path)
        page = mmap.PAGESIZE
        if not isinstance(offset, int) or offset < 0 or offset % page:
            raise InvalidOptionError(
                f"offset is {offset!r}: expected a multiple of the page size, {page}", offset=offset
            )
        try:
            self._file = os.open(self.name, os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)
        except OSError as error:
            raise NoSuchDeviceError(
                f"{self.name!r} cannot be opened to read and write ({error.strerror}): name a "
                "device or file that this user may use",
                name=self.name,
            ) from None
        try:
            self._lock()
            size, begin = self._extent(uio_map)
            self.nbytes = self._checked(size, offset, nbytes)
            self._open_map(begin + offset)
        except BaseException:
            os.close(self._file)
            raise
        self._closed = False

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeviceInUseError(
                f"{self.name!r} is open in another program, or in this one: close it there first",
                name=self.name,
            ) from None

    def _extent(self, uio_map: int) -> tuple[int | None, int]:
        """Bytes that there are, None if nobody tells, and where they begin for ``mmap``."""
        maps = UIO / Path(self.name).name / "maps"
        if maps.is_dir():
            numbers = sorted(int(each.name.removeprefix("map")) for each in maps.iterdir())
            if uio_map not in numbers:
                raise InvalidOptionError(
                    f"uio_map is {uio_map!r}: {self.name!r} has the maps {numbers}", uio_map=uio_map
                )
            # See Linux' documentation of UIO: the map is chosen by the offset.
            size = int((maps / f"map{uio_map}" / "size").read_text(), 0)
            return size, uio_map * mmap.PAGESIZE
        if uio_map:
            raise InvalidOptionError(
                f"uio_map is {uio_map!r}: {self.name!r} is no UIO device and has none: leave it "
                "out",
                uio_map=uio_map,
            )
        return os.fstat(self._file).st_size or None, 0

    def _checked(self, size: int | None, offset: int, nbytes: int | None) -> int:
        if nbytes is None and size is None:
            raise InvalidOptionError(
                f"nbytes is None, but {self.name!r} does not tell its size: say how many to map",
                nbytes=nbytes,
            )
        if nbytes is None:
            assert size is not None
            nbytes = size - offset
        if not isinstance(nbytes, int) or nbytes < 1:
            raise InvalidOptionError(
                f"nbytes is {nbytes!r}, from byte {offset}: expected at least 1", nbytes=nbytes
            )
        if size is not None and offset + nbytes > size:
            raise NoSuchDeviceError(
                f"{self.name!r} has {size} bytes, expected {nbytes} from byte {offset} on",
                name=self.name,
            )
        return nbytes

    def _open_map(self, begin: int) -> None:
        try:
            self._map = mmap.mmap(self._file, self.nbytes, offset=begin)
        except (OSError, ValueError, OverflowError) as error:
            raise NoSuchDeviceError(
                f"{self.nbytes} bytes of {self.name!r} cannot be mapped ({error}): name one that "
                "can",
                name=self.name,
            ) from None
        whole = memoryview(self._map)
        lines = whole[: self.nbytes - self.nbytes % LINE_BYTES]
        self._words: dict[int, memoryview[int]] = {4: lines.cast("I"), 8: lines.cast("Q")}
        self._views = [whole, lines, *self._words.values()]

    def load(self, offset: int, nbytes: int) -> int:
        """See :class:`MemoryMap`."""
        return self._words[nbytes][offset // nbytes]

    def store(self, offset: int, value: int, nbytes: int) -> None:
        """See :class:`MemoryMap`."""
        self._words[nbytes][offset // nbytes] = value

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`MemoryMap`."""
        data = aligned_bytes(nbytes)
        data[:] = np.frombuffer(self._map, np.uint8, nbytes, offset)
        return data

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """See :class:`MemoryMap`."""
        if data.ctypes.data % LINE_BYTES:
            copy = aligned_bytes(data.size)
            copy[:] = data
            data = copy
        np.frombuffer(self._map, np.uint8, data.size, offset)[:] = data

    def close(self) -> None:
        """See :class:`MemoryMap`."""
        if not self._closed:
            self._closed = True
            for view in reversed(self._views):
                view.release()
            self._map.close()
            os.close(self._file)


class MappedTransport(Transport):
    """A module in the host's address space; see :class:`~sw_driver.transport.Transport`.

    For hardware with AXI4 ports for its host (``host=axi4``), the channels at consecutive
    addresses. Registers are read and written by one access of ``word_bytes``, or two; memory is
    copied. Nothing has a simulated time: counters of the kernel count, all other times are 0.
    Times of waiting are the host's.

    What the hardware refused, because the mode was switched past the driver, an error of the bus
    may not tell: the arbiter's count of it is read after each access.

    Parameters
    ----------
    device: path of what is mapped, or a map.
    channels: channels of the module.
    capacity_bytes: of each channel, the register windows included; None is the map's share.
    word_bytes: widest access to a register, 8, or 4 for a bus that has no more.
    fabric_mhz: the module's clock, by which times of waiting are told.
    now, sleep: the host's time, in seconds.

    Raises
    ------
    InvalidOptionError: an option is impossible, or the map too small.
    NoSuchDeviceError, DeviceInUseError: see :class:`MappedFile`.
    """

    name = "mapped"

    def __init__(
        self,
        device: str | os.PathLike[str] | MemoryMap,
        *,
        channels: int = 2,
        capacity_bytes: int | None = None,
        word_bytes: int = REGISTER_BYTES,
        fabric_mhz: float = 200.0,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not isinstance(channels, int) or channels < 1:
            raise InvalidOptionError(
                f"channels is {channels!r}: expected at least 1", channels=channels
            )
        if word_bytes not in _WORD_BYTES:
            raise InvalidOptionError(
                f"word_bytes is {word_bytes!r}: expected 4 or 8", word_bytes=word_bytes
            )
        if not isinstance(fabric_mhz, int | float) or not fabric_mhz > 0:
            raise InvalidOptionError(
                f"fabric_mhz is {fabric_mhz!r}: expected a positive number", fabric_mhz=fabric_mhz
            )
        self.channels = channels
        self.fabric_mhz: float = fabric_mhz
        self._word_bytes = word_bytes
        self._now = now
        self._sleep = sleep
        self._map = MappedFile(device) if isinstance(device, str | os.PathLike) else device
        try:
            self.capacity_bytes = self._checked_capacity(capacity_bytes)
        except BaseException:
            self._map.close()
            raise
        self._windows = kernel_window(self.capacity_bytes)
        self._refusals = arbiter_registers(self, 0).address("refused")
        self._refused: dict[int, int] = {}
        self._closed = False

    def _checked_capacity(self, capacity_bytes: int | None) -> int:
        share = self._map.nbytes // self.channels
        capacity = share if capacity_bytes is None else capacity_bytes
        if (
            not isinstance(capacity, int)
            or capacity < 4 * WINDOW_BYTES
            or capacity & (capacity - 1)
            or capacity > share
        ):
            raise InvalidOptionError(
                f"capacity_bytes is {capacity!r}: expected what a channel was built with, a power "
                f"of two of at least {4 * WINDOW_BYTES}; {self._map.name!r} has {self._map.nbytes} "
                f"bytes for {self.channels} channels",
                capacity_bytes=capacity,
            )
        return capacity

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """See :class:`~sw_driver.transport.Transport`."""
        source = np.ascontiguousarray(data, dtype=np.uint8).reshape(-1)
        begin, in_memory = self._begin(channel, address, source.size)
        if in_memory:
            self._map.write(begin, source[:in_memory])
        for place in range(in_memory, source.size, LINE_BYTES):
            value = int.from_bytes(source[place : place + REGISTER_BYTES].tobytes(), "little")
            self._store(begin + place, value)
        self._check_refused(channel, f"writing {source.size} bytes at {address:#x}")

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`~sw_driver.transport.Transport`."""
        begin, in_memory = self._begin(channel, address, nbytes)
        data = np.zeros(nbytes, np.uint8)
        if in_memory:
            data[:in_memory] = self._map.read(begin, in_memory)
        for place in range(in_memory, nbytes, LINE_BYTES):
            value = self._load(begin + place)
            data[place : place + REGISTER_BYTES] = np.frombuffer(
                value.to_bytes(REGISTER_BYTES, "little"), np.uint8
            )
        self._check_refused(channel, f"reading {nbytes} bytes at {address:#x}")
        return data

    def poll(
        self,
        channel: int,
        address: int,
        mask: int,
        value: int,
        *,
        interval_fabric_cycles: int,
        timeout_fabric_cycles: int,
    ) -> int:
        """See :class:`~sw_driver.transport.Transport`; the cycles are told by the host's time."""
        begin, _ = self._begin(channel, address, LINE_BYTES)
        cycle_s = 1e-6 / self.fabric_mhz
        end = self._now() + timeout_fabric_cycles * cycle_s
        while True:
            # Asked once more when the time is over: the host may have been away.
            left = end - self._now()
            found = self._load(begin)
            if found & mask == value:
                break
            if left <= 0:
                raise DeviceTimeout(
                    f"channel {channel}: the register at {address:#x} read {found:#x} after "
                    f"{timeout_fabric_cycles * cycle_s:g} s, awaited {value:#x} in the bits "
                    f"{mask:#x}"
                )
            self._sleep(min(left, interval_fabric_cycles * cycle_s))
        self._check_refused(channel, f"polling {address:#x}")
        return found

    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """Raises :class:`~sw_driver.errors.InvalidOptionError`: hardware has no backdoor."""
        self._refuse_backdoor()

    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Raises :class:`~sw_driver.errors.InvalidOptionError`: hardware has no backdoor."""
        self._refuse_backdoor()
        return np.empty(0, np.uint8)

    def _refuse_backdoor(self) -> None:
        raise InvalidOptionError(
            f"{self._map.name!r} is mapped and has no backdoor, which only simulations have: copy "
            "with backdoor=False",
            backdoor=True,
        )

    def close(self) -> None:
        """See :class:`~sw_driver.transport.Transport`."""
        self._closed = True
        self._map.close()

    def __enter__(self) -> MappedTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, channel: int, address: int, nbytes: int) -> tuple[int, int]:
        """Where in the map the access begins, and how many of its bytes are not registers."""
        if self._closed:
            raise ClosedError("the device was closed: open it again")
        check_bytes(self, channel, address, nbytes)
        if channel not in self._refused:
            self._refused[channel] = self._refusals_of(channel)
        in_memory = max(0, min(nbytes, self._windows - address))
        return channel * self.capacity_bytes + address, in_memory

    def _load(self, place: int) -> int:
        step = self._word_bytes
        parts = [self._map.load(place + part, step) for part in range(0, REGISTER_BYTES, step)]
        return sum(part << 8 * step * number for number, part in enumerate(parts))

    def _store(self, place: int, value: int) -> None:
        step = self._word_bytes
        for part in range(0, REGISTER_BYTES, step):
            self._map.store(place + part, value >> 8 * part & (1 << 8 * step) - 1, step)

    def _refusals_of(self, channel: int) -> int:
        return self._load(channel * self.capacity_bytes + self._refusals)

    def _check_refused(self, channel: int, what: str) -> None:
        before, now = self._refused[channel], self._refusals_of(channel)
        if now != before:
            self._refused[channel] = now
            raise DeviceFault(
                f"channel {channel} refused {now - before} accesses while {what}: nobody was "
                "there to answer"
            )
