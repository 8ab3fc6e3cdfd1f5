"""What the driver needs of a module: 64-byte lines over the host link, and nothing more.

Registers are lines at their addresses. What shares the link with other channels takes its turn:
see :class:`TimedTransport`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hw.logic.line import LINE_BYTES

from ..device.clock import Clock, Domain, finished
from ..device.link import LINK_FABRIC_CYCLES_PER_LINE, Link
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
"""Lines after which another channel may have the host link."""
LINK_CHUNK_LINES_ALONE = 1024
"""Lines after which another channel may have the host link if none can ask for it before."""
TURN = "what is done on channel {channel}"
"""Name of what one operation at a time has: a channel."""

alone = one_call(TURN)
"""Makes a transport's method, of which ``channel`` is an argument, a call of its own."""

READ_ATTEMPTS = 64
"""How often the host asks for a line that comes late."""


class Transport(ABC):
    """A module with one or more channels, reached over its host link.

    What is about simulated time is here as of a transport that has none, for those to inherit. See
    :class:`sw_driver.device.transport.Transport` for calls and time. The ``..._steps`` are the same
    calls as generators, in which other channels have their turn at each ``yield``. A backend marks
    a call that is not made of such steps as :data:`alone`.
    """

    name: str
    """The backend's name, as in reports."""

    timed: bool = False
    """Whether there is a simulated time; a purely functional model has none."""

    domain: Domain
    """The module's time, in fabric cycles."""

    channels: int
    """Channels of the module."""

    capacity_bytes: int
    """Bytes of one channel's address range, the register windows at its top included."""

    fabric_mhz: float
    """Fabric clock of the module."""

    subnormals: str = "kept"
    """What becomes of subnormal numbers in its kernels: ``kept`` or ``flushed``."""

    def join(self, clock: Clock) -> None:
        """Tells the time by a clock that others share, from the beginning on."""
        self.domain.check_open()
        self.domain = Domain(
            clock, mhz=self.fabric_mhz, question_cycles=self.domain.question_cycles
        )

    @abstractmethod
    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """Writes whole lines over the host link, from byte ``address`` (a multiple of 64)."""

    @abstractmethod
    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Reads whole lines over the host link; late reads are repeated until they succeed."""

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
        """Reads the 64-bit register at ``address`` until ``(it & mask) == value``; returns it.

        Raises :class:`~sw_driver.device.transport.DeviceTimeout` when the state is not reached in
        time.
        """

    def write_steps(
        self, channel: int, address: int, data: NDArray[np.uint8]
    ) -> Generator[None, None, None]:
        """The steps of :meth:`write_lines`."""
        yield from ()
        self.write_lines(channel, address, data)

    def read_steps(
        self, channel: int, address: int, nbytes: int
    ) -> Generator[None, None, NDArray[np.uint8]]:
        """The steps of :meth:`read_lines`."""
        yield from ()
        return self.read_lines(channel, address, nbytes)

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: int
    ) -> Generator[None, None, int]:
        """The steps of :meth:`poll`."""
        yield from ()
        return self.poll(channel, address, mask, value, **times)  # type: ignore[call-arg]

    def whole(self, channel: int, what: str, steps: Generator[Any, None, T]) -> T:
        """Carry out steps on a channel, see :func:`~sw_driver.device.streams.whole_call`."""
        return whole_call(self.domain, what, steps, TURN.format(channel=channel))

    @abstractmethod
    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """Puts bytes into the DRAM without the link, the clock or the arbiter noticing."""

    @abstractmethod
    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Takes bytes from the DRAM without the link, the clock or the arbiter noticing."""

    def fabric_cycles(self, channel: int) -> int:
        """Fabric cycles that the channel has been simulated for; 0 on an untimed backend."""
        self.domain.check_open()
        return 0

    def now(self, channel: int) -> int:
        """The module's time up to which the channel has been used, in fabric cycles."""
        self.domain.check_open()
        return 0

    def record_link(self, record: bool) -> None:
        """Whether uses of the host link are recorded from now on."""
        del record

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        """The channel's uses of the link since it was last asked, and forgets them.

        Shape (n, 2): begin and end in fabric cycles of :meth:`now`'s time, in order, disjoint from
        each other and from the other channels'.
        """
        return np.empty((0, 2), dtype=np.uint64)

    def close(self) -> None:
        """Releases the device, when calls of other threads are over. Calling it twice does no
        harm."""
        with self.domain.clock.within():
            self.domain.close()


class TimedTransport(Transport):
    """A module with a simulated time, whose channels take turns at the host link.

    The link carries a line in two fabric cycles. It is granted for some lines at a time, to who is
    furthest behind in simulated time; what is granted to nobody stays free for those who ask later
    for an earlier time. A channel's own clock stands still while nobody calls for it.

    A backend says what its channels do with what is granted.
    """

    timed = True

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.link = Link()
        """The lines of all channels on the host link."""
        self._wakes: list[int | None] = [None] * channels
        self._records = False
        self._recorded: list[list[tuple[int, int]]] = [[] for _ in range(channels)]

    # What a backend does. Times are the module's, in fabric cycles.

    @abstractmethod
    def put(self, channel: int, start: int, line: int, data: NDArray[np.uint8]) -> None:
        """Lets time pass until ``start``, and then writes the lines from ``line`` on, one after the
        other as the link carries them."""

    @abstractmethod
    def ask(self, channel: int, start: int, line: int, target: NDArray[np.uint8]) -> None:
        """As :meth:`put`, but asks for lines, which are in ``target`` after :meth:`answers`."""

    @abstractmethod
    def answers(self, channel: int) -> list[tuple[int, int]]:
        """Lets time pass until all that was asked for was answered; returns what came late, first
        line and number of each stretch."""

    @abstractmethod
    def rest(self, channel: int, until: int) -> None:
        """Lets the channel's time pass until then, without requests."""

    @abstractmethod
    def stand_still(self, channel: int, until: int) -> None:
        """Time passes until then, but not in the channel, whose clock stands still."""

    def wake(self, channel: int, at: int | None) -> None:
        """The channel, a register of which is polled, is asked again at that time, and until then
        its time passes; None: it is polled no more."""
        self._wakes[channel] = at

    @abstractmethod
    def forget(self, channel: int) -> None:
        """What was asked for by a call that did not come to its end is not waited for."""

    def catch_up(self, channel: int) -> Generator[None, None, None]:
        """Does what was put off of :meth:`rest`, in steps."""
        yield from ()

    def pause(self, channel: int, interval_fabric_cycles: int, left_fabric_cycles: int) -> int:
        """Fabric cycles until a register need be read again that is polled for as many more."""
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
        wanted = [(first, nbytes // LINE_BYTES)]
        for _ in range(READ_ATTEMPTS):
            for line, lines in wanted:
                while lines:
                    start, granted = yield from self._grant(channel, lines)
                    place = slice(
                        LINE_BYTES * (line - first), LINE_BYTES * (line - first + granted)
                    )
                    self.ask(channel, start, line, data[place])
                    line, lines = line + granted, lines - granted
            wanted = self.answers(channel)
            self.domain.now = self.now(channel)
            if not wanted:
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
        found = 0
        wake = self._wakes[channel]  # of a poll that goes on after this one
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
                    found = int.from_bytes(line[:8].tobytes(), "little")
                    if found & mask == value:
                        return found
                if now >= end:
                    raise DeviceTimeout(
                        f"channel {channel}: register at {address:#x} read {found:#x} after "
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
        """A call begins: the channel's time is ``domain.now`` from now on, unless it is later."""
        self.forget(channel)
        if self.now(channel) < self.domain.now:
            pass_time = self.stand_still if self._wakes[channel] is None else self.rest
            pass_time(channel, self.domain.now)

    def _grant(self, channel: int, lines: int) -> Generator[None, None, tuple[int, int]]:
        """Waits for the channel's turn at the link: when it has it, and for how many of ``lines``.

        As long as nobody else can ask, it has the link for many.
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
    """Raises ``ValueError`` unless these are bytes, with ``lines`` whole ones, of a channel."""
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
    """Byte address of the arbiter's registers: the last 4 KB of the channel."""
    return capacity_bytes - WINDOW_BYTES


def kernel_window(capacity_bytes: int) -> int:
    """Byte address of the kernel's registers (acceleration mode): below the arbiter's."""
    return capacity_bytes - 2 * WINDOW_BYTES


def read_bytes(
    transport: Transport, channel: int, address: int, nbytes: int
) -> Generator[None, None, NDArray[np.uint8]]:
    """Reads the lines that hold the bytes, in one call."""
    if not nbytes:
        return np.empty(0, dtype=np.uint8)
    start = address % LINE_BYTES
    lines = -(-(start + nbytes) // LINE_BYTES)
    data = yield from transport.read_steps(channel, address - start, lines * LINE_BYTES)
    return data[start : start + nbytes]


def write_bytes(
    transport: Transport, channel: int, address: int, data: NDArray[np.uint8]
) -> Generator[None, None, None]:
    """Writes the whole lines in one call; then a first and last part, each read before.

    In the order of non-temporal stores through write-combining buffers: parts wait for the fence.
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
