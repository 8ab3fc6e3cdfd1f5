"""Interface of the driver to a module: 64-byte lines over the host link.

Registers are lines at their addresses. Channels share the link in turns, see
:class:`TimedTransport`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hw.logic.line import LINE_BYTES

from ..device.clock import Clock, Domain, finished
from ..device.link import LINK_FABRIC_CYCLES_PER_LINE, ReservedLink
from ..device.streams import one_call, whole_call
from ..device.transport import DeviceFault, DeviceTimeout

__all__ = [
    "LINE_BYTES",
    "LINK_FABRIC_CYCLES_PER_LINE",
    "TURN",
    "WINDOW_BYTES",
    "TimedTransport",
    "Transport",
    "alone",
    "arbiter_window",
    "check_bytes",
    "finished",
    "kernel_window",
    "read_bytes",
    "write_bytes",
]

T = TypeVar("T")

WINDOW_BYTES = 4096
"""Bytes of each of the two register windows at the top of a channel's address range."""

LINK_CHUNK_LINES = 16
"""Lines after which another channel may use the host link."""
LINK_CHUNK_LINES_ALONE = 1024
"""Lines after which another channel may use the host link if none can request it earlier."""
TURN = "the operation on channel {channel}"
"""Name of the resource that one operation at a time holds: a channel."""

alone = one_call(TURN)
"""Decorator that makes a transport's method with a ``channel`` a call of its own."""

READ_ATTEMPTS = 64
"""Attempts of the host to read a line in time."""


class Transport(ABC):
    """A module with one or more channels, reached over its host link.

    Methods about simulated time have defaults for an untimed transport. See
    :class:`sw_driver.device.transport.Transport` for calls and time. The ``..._steps`` are the same
    calls as generators; other channels may run at each ``yield``. A backend marks a call without
    such steps as :data:`alone`.
    """

    name: str
    """The backend's name in reports."""

    timed: bool = False
    """True if there is a simulated time; a purely functional model has none."""

    domain: Domain
    """The module's time, in fabric cycles."""

    channels: int
    """Number of channels."""

    capacity_bytes: int
    """Bytes of one channel's address range, including the register windows at its top."""

    fabric_mhz: float
    """Fabric clock of the module, in MHz."""

    subnormals: str = "kept"
    """Treatment of subnormal numbers in its kernels: ``kept`` or ``flushed``."""

    def join(self, clock: Clock) -> None:
        """Use a clock that is shared with other devices; only before the first call."""
        self.domain.check_open()
        self.domain = Domain(
            clock, mhz=self.fabric_mhz, question_cycles=self.domain.question_cycles
        )

    @abstractmethod
    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """Write whole lines over the host link, from byte ``address`` (a multiple of 64)."""

    @abstractmethod
    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Read whole lines over the host link; late reads are repeated until they succeed."""

    @abstractmethod
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
        """Read the 64-bit register at ``address`` until ``bits & mask == value``; return the bits.

        Raises :class:`~sw_driver.device.transport.DeviceTimeout` if that does not happen in time.
        """

    def write_steps(
        self, channel: int, address: int, data: NDArray[np.uint8]
    ) -> Generator[None, None, None]:
        """Yield the steps of :meth:`write_lines`."""
        yield from ()
        self.write_lines(channel, address, data)

    def read_steps(
        self, channel: int, address: int, nbytes: int
    ) -> Generator[None, None, NDArray[np.uint8]]:
        """Yield the steps of :meth:`read_lines`, and return its result."""
        yield from ()
        return self.read_lines(channel, address, nbytes)

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: int
    ) -> Generator[None, None, int]:
        """Yield the steps of :meth:`poll`, and return its result."""
        yield from ()
        return self.poll(channel, address, mask, value, **times)  # type: ignore[call-arg]

    def whole(self, channel: int, label: str, steps: Generator[Any, None, T]) -> T:
        """Carry out steps on a channel, see :func:`~sw_driver.device.streams.whole_call`."""
        return whole_call(self.domain, label, steps, TURN.format(channel=channel))

    @abstractmethod
    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """Write bytes directly to the DRAM, bypassing link, clock and arbiter."""

    @abstractmethod
    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Read bytes directly from the DRAM, bypassing link, clock and arbiter."""

    def fabric_cycles(self, channel: int) -> int:
        """Return the channel's simulated fabric cycles; 0 on an untimed backend."""
        self.domain.check_open()
        return 0

    def now(self, channel: int) -> int:
        """Return the module's time until which the channel was used, in fabric cycles."""
        self.domain.check_open()
        return 0

    def record_link(self, record: bool) -> None:
        """Start or stop recording the uses of the host link."""
        del record

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        """Return the channel's uses of the link since the last call, and discard them.

        Shape (n, 2): start and end in fabric cycles of :meth:`now`'s time. They are in order and
        disjoint, also from those of other channels.
        """
        return np.empty((0, 2), dtype=np.uint64)

    def close(self) -> None:
        """Release the device once calls of other threads are over; a second call does nothing."""
        with self.domain.clock.within():
            self.domain.close()


class TimedTransport(Transport):
    """A module with a simulated time; its channels share the host link.

    The link carries a line in two fabric cycles. It is granted for several lines at a time, to the
    channel with the earliest simulated time. Time without a grant stays free for later requests
    with an earlier time. A channel's clock stands still while no call uses the channel.

    A backend defines how its channels carry out the granted accesses.
    """

    timed = True

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.link = ReservedLink()
        """Reservations of all channels on the host link."""
        self._wakes: list[int | None] = [None] * channels
        self._records = False
        self._recorded: list[list[tuple[int, int]]] = [[] for _ in range(channels)]

    # The backend's part. Times are the module's, in fabric cycles.

    @abstractmethod
    def put(self, channel: int, start: int, line: int, data: NDArray[np.uint8]) -> None:
        """Advance to ``start`` and write lines from ``line`` on, as the link carries them."""

    @abstractmethod
    def ask(self, channel: int, start: int, line: int, target: NDArray[np.uint8]) -> None:
        """Advance to ``start`` and request lines; after :meth:`answers`, ``target`` has them."""

    @abstractmethod
    def answers(self, channel: int) -> list[tuple[int, int]]:
        """Advance until all requests are answered; return the late stretches.

        A stretch is its first line and number of lines.
        """

    @abstractmethod
    def rest(self, channel: int, until: int) -> None:
        """Advance the channel to ``until``, without requests."""

    @abstractmethod
    def stand_still(self, channel: int, until: int) -> None:
        """Skip to ``until`` with the channel's clock stopped."""

    def wake(self, channel: int, at: int | None) -> None:
        """Note when the polled channel is read next; None once polling has ended.

        The channel's clock runs until then.
        """
        self._wakes[channel] = at

    @abstractmethod
    def forget(self, channel: int) -> None:
        """Discard the requests of a call that was interrupted."""

    def catch_up(self, channel: int) -> Generator[None, None, None]:
        """Carry out a deferred :meth:`rest`, in steps."""
        yield from ()

    def pause(self, channel: int, interval_fabric_cycles: int, left_fabric_cycles: int) -> int:
        """Return the fabric cycles until a polled register must be read again."""
        return interval_fabric_cycles

    # Calls.

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """See :class:`Transport`."""
        self.whole(channel, "writing lines", self.write_steps(channel, address, data))

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`Transport`."""
        return self.whole(channel, "reading lines", self.read_steps(channel, address, nbytes))

    def poll(self, channel: int, address: int, mask: int, value: int, **times: int) -> int:
        """See :class:`Transport`."""
        steps = self.poll_steps(channel, address, mask, value, **times)
        return self.whole(channel, "polling a register", steps)

    def write_steps(
        self, channel: int, address: int, data: NDArray[np.uint8]
    ) -> Generator[None, None, None]:
        """See :class:`Transport`."""
        check_bytes(self, channel, address, data.size)
        self._begin(channel)
        yield from self.catch_up(channel)
        done = 0
        while done < data.size:
            start, lines = yield from self._grant(channel, (data.size - done) // LINE_BYTES)
            part = data[done : done + LINE_BYTES * lines]
            self.put(channel, start, (address + done) // LINE_BYTES, part)
            done += part.size
        self.domain.now = self.now(channel)

    def read_steps(
        self, channel: int, address: int, nbytes: int
    ) -> Generator[None, None, NDArray[np.uint8]]:
        """See :class:`Transport`."""
        check_bytes(self, channel, address, nbytes)
        data = np.zeros(nbytes, np.uint8)
        first = address // LINE_BYTES
        self._begin(channel)
        yield from self.catch_up(channel)
        missing = [(first, nbytes // LINE_BYTES)]
        for _ in range(READ_ATTEMPTS):
            for line, lines in missing:
                while lines:
                    start, granted = yield from self._grant(channel, lines)
                    place = slice(
                        LINE_BYTES * (line - first), LINE_BYTES * (line - first + granted)
                    )
                    self.ask(channel, start, line, data[place])
                    line, lines = line + granted, lines - granted
            missing = self.answers(channel)
            self.domain.now = self.now(channel)
            if not missing:
                return data
        raise DeviceFault(
            f"channel {channel}: host reads stayed late while reading {nbytes} bytes at "
            f"{address:#x}"
        )

    def poll_steps(
        self,
        channel: int,
        address: int,
        mask: int,
        value: int,
        *,
        interval_fabric_cycles: int,
        timeout_fabric_cycles: int,
    ) -> Generator[None, None, int]:
        """See :class:`Transport`."""
        check_bytes(self, channel, address, LINE_BYTES)
        line = np.zeros(LINE_BYTES, np.uint8)
        bits = 0
        wake = self._wakes[channel]  # of an outer poll
        self._begin(channel)
        end = self.now(channel) + timeout_fabric_cycles
        try:
            while True:
                yield from self.catch_up(channel)
                start, _ = yield from self._grant(channel, 1)
                self.ask(channel, start, address // LINE_BYTES, line)
                late = self.answers(channel)
                self.domain.now = now = self.now(channel)
                if not late:
                    bits = int.from_bytes(line[:8].tobytes(), "little")
                    if bits & mask == value:
                        return bits
                if now >= end:
                    raise DeviceTimeout(
                        f"channel {channel}: register at {address:#x} read {bits:#x} after "
                        f"{timeout_fabric_cycles} fabric cycles, awaited {value:#x} in the bits "
                        f"{mask:#x}"
                    )
                wait = interval_fabric_cycles
                self.domain.now = now + (wait if late else self.pause(channel, wait, end - now))
                self.wake(channel, self.domain.now)
                yield
                self._begin(channel)
        finally:
            self.wake(channel, wake)

    def record_link(self, record: bool) -> None:
        """See :class:`Transport`."""
        self._records = record

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        """See :class:`Transport`."""
        uses, self._recorded[channel] = self._recorded[channel], []
        return np.array(uses, dtype=np.uint64).reshape(-1, 2)

    def _begin(self, channel: int) -> None:
        """Begin a call: advance the channel to ``domain.now``, unless it is later."""
        self.forget(channel)
        if self.now(channel) < self.domain.now:
            pass_time = self.stand_still if self._wakes[channel] is None else self.rest
            pass_time(channel, self.domain.now)

    def _grant(self, channel: int, lines: int) -> Generator[None, None, tuple[int, int]]:
        """Wait for the link; return the start of the grant and how many of ``lines`` it covers.

        The grant is long while no other channel can request the link.
        """
        self.domain.now = self.now(channel)
        yield
        now = self.now(channel)
        pace = LINK_FABRIC_CYCLES_PER_LINE
        chunks = (self.domain.horizon - now) // (pace * LINK_CHUNK_LINES)
        chunk = min(max(1, chunks) * LINK_CHUNK_LINES, LINK_CHUNK_LINES_ALONE, lines)
        start, granted = self.link.grant(now, pace, chunk)
        if self._records:
            self._recorded[channel].append((start, start + pace * granted))
        return start, granted


def check_bytes(
    transport: Transport, channel: int, address: int, nbytes: int, *, lines: bool = True
) -> None:
    """Raise ``ValueError`` unless a channel has these bytes; ``lines`` requires whole lines."""
    if not 0 <= channel < transport.channels:
        raise ValueError(f"channel must be from 0 to {transport.channels - 1}, got {channel}")
    if address < 0 or nbytes < 0 or address + nbytes > transport.capacity_bytes:
        raise ValueError(
            f"{nbytes} bytes at {address:#x} are not within the channel's "
            f"{transport.capacity_bytes} bytes"
        )
    if lines and (address % LINE_BYTES or nbytes % LINE_BYTES):
        raise ValueError(
            f"{nbytes} bytes at {address:#x} are not whole lines of {LINE_BYTES} bytes"
        )


def arbiter_window(capacity_bytes: int) -> int:
    """Return the byte address of the arbiter's registers: the last 4 KB of the channel."""
    return capacity_bytes - WINDOW_BYTES


def kernel_window(capacity_bytes: int) -> int:
    """Return the byte address of the kernel's registers, below the arbiter's, 4 KB each."""
    return capacity_bytes - 2 * WINDOW_BYTES


def read_bytes(
    transport: Transport, channel: int, address: int, nbytes: int
) -> Generator[None, None, NDArray[np.uint8]]:
    """Read the lines that hold the bytes, in one call; return the bytes."""
    if not nbytes:
        return np.empty(0, dtype=np.uint8)
    start = address % LINE_BYTES
    lines = -(-(start + nbytes) // LINE_BYTES)
    data = yield from transport.read_steps(channel, address - start, lines * LINE_BYTES)
    return data[start : start + nbytes]


def write_bytes(
    transport: Transport, channel: int, address: int, data: NDArray[np.uint8]
) -> Generator[None, None, None]:
    """Write the whole lines in one call, then a partial first and last line by read and write.

    This is the order of non-temporal stores through write-combining buffers, which keep partial
    lines until the fence.
    """
    end = address + data.size
    first = -(-address // LINE_BYTES) * LINE_BYTES
    last = end - end % LINE_BYTES
    if first < last:
        yield from transport.write_steps(channel, first, data[first - address : last - address])
    parts = {(address, min(end, first)), (max(address, last), end)}
    for start, stop in sorted(part for part in parts if part[0] < part[1]):
        line = start - start % LINE_BYTES
        held = yield from transport.read_steps(channel, line, LINE_BYTES)
        held[start - line : stop - line] = data[start - address : stop - address]
        yield from transport.write_steps(channel, line, held)
