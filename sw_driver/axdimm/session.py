"""State of an opened device: channels, streams, and the other memories."""

from __future__ import annotations

import atexit
import itertools
import os
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..device.clock import Clock, Domain
from ..device.errors import ClosedError, InvalidArgumentError
from ..device.link import ReservedLink
from ..device.memory import AllocationTable, AxdimmPointer, checked_channel
from ..device.streams import Stream
from ..device.timeline import Timeline, timeline_file
from ..files import Unfinished
from .backends import BackendOptions, open_backend
from .channel import LINK_TRACK, Channel, ModePolicy
from .timing import GpuTiming, NvmeTiming
from .transport import Transport

if TYPE_CHECKING:
    from ..device.memory import Memory
    from ..device.storage import NvmeStorage
    from ..device.tensors import HostMemory

__all__ = ["Session", "check_flags"]

T = TypeVar("T")
M = TypeVar("M", bound="Memory")

_numbers = itertools.count(1)
_open: weakref.WeakSet[Session] = weakref.WeakSet()
"""Sessions to close when the program exits, so that timelines are written and threads end."""


class Session:
    """State of an open :class:`~sw_driver.axdimm.device.Axdimm`.

    Parameters and exceptions are those of :class:`~sw_driver.axdimm.device.Axdimm`.
    """

    def __init__(
        self,
        device: str | Transport,
        *,
        backdoor: bool,
        stagger: bool,
        modes: str,
        timeline: str | os.PathLike[str] | None,
        options: BackendOptions | None,
        clock: Clock | None,
    ) -> None:
        _check_device(device, options)
        check_flags(backdoor=backdoor, stagger=stagger)
        self.backdoor = backdoor
        self.modes = ModePolicy.of(modes)
        self.number = next(_numbers)
        self.channels: list[Channel] = []
        self.streams: list[Stream] = []
        self._channel_streams: dict[int, Stream] = {}
        self._memories: dict[str, Memory] = {}
        self.closed = False
        with ExitStack() as resources:
            if isinstance(device, str):
                self.transport = open_backend(device, options)
            else:
                self.transport = device
            self.name = device if isinstance(device, str) else device.name
            resources.callback(self._close_memories)
            if isinstance(device, str):
                resources.callback(self.transport.close)
            if clock is not None:
                self.transport.join(clock)
            self.domain: Domain = self.transport.domain
            self.clock: Clock = self.domain.clock
            self.timeline = self._recorder(timeline)
            self.allocations: AllocationTable[AxdimmPointer] = AllocationTable(
                AxdimmPointer, device=self.number, source="MallocAxdimm"
            )
            shared: dict[str, Any] = {
                "link": ReservedLink(LINK_TRACK),
                "allocations": self.allocations,
            }
            shared |= {"timeline": self.timeline, "opened": self.opened}
            with self.clock:
                self.domain.now = self.domain.program_now
                for number in range(self.transport.channels):
                    channel = Channel(self.transport, number, stagger=stagger, **shared)
                    self.channels.append(channel)
                self.clock.now = max(self.clock.now, self.domain.ticks(self.domain.now))
            self._resources = resources.pop_all()
        _open.add(self)

    def _recorder(self, timeline: str | os.PathLike[str] | None) -> Timeline | None:
        self._timeline_file: Unfinished | None = None
        if timeline is None:
            return None
        path = timeline_file(timeline)
        if not self.transport.timed:
            raise InvalidArgumentError(
                f"the {self.transport.name} backend has no clock and cannot record a timeline to "
                f"{str(timeline)!r}: use 'cycles' or 'rtl'",
                timeline=str(timeline),
            )
        recorder = Timeline(fabric_mhz=self.transport.fabric_mhz, backend=self.transport.name)
        for number in range(self.transport.channels):
            recorder.track(f"channel {number}")
        recorder.track(LINK_TRACK, "both channels")
        self.transport.record_link(True)
        self._timeline_file = Unfinished(path)
        return recorder

    # The memories of host, GPU and storage.

    @property
    def host(self) -> HostMemory:
        """Memory of the host."""
        from ..device.tensors import HostMemory

        return self._memory("host", lambda: HostMemory(device=self.number))

    @property
    def gpu(self) -> Any:
        """Memory of the GPU, or its stand-in."""
        from ..device.tensors import open_gpu

        return self._memory("gpu", lambda: open_gpu(self.number, GpuTiming()))

    @property
    def storage(self) -> NvmeStorage:
        """The registered storages as one memory."""
        from ..device.storage import NvmeStorage

        return self._memory("storage", lambda: NvmeStorage(device=self.number, timing=NvmeTiming()))

    def _memory(self, kind: str, opened: Callable[[], M]) -> M:
        """Return a memory, and open it at the first use."""
        if kind not in self._memories:
            self.check_open()
            self._memories[kind] = memory = opened()
            self.add_tracks(memory)
        return cast(M, self._memories[kind])

    def add_tracks(self, memory: Memory) -> None:
        """Add tracks for the links of ``memory`` to the timeline."""
        if self.timeline is not None:
            for link in memory.links:
                self.timeline.track(link.name, memory.name)

    # Streams.

    def channel_stream(self, channel: int) -> Stream:
        """Return the channel's stream, always the same one."""
        state = self.channel(channel)
        if state.number not in self._channel_streams:
            self._channel_streams[state.number] = self.new_stream(f"of channel {state.number}")
        return self._channel_streams[state.number]

    def new_stream(self, name: str) -> Stream:
        """Return a new stream called ``name``."""
        self.check_open()
        stream = Stream(name, self.domain)
        self.streams.append(stream)
        return stream

    def queued_in_order(self, channel: int) -> Stream | None:
        """Return the channel's stream, or None if it was never used."""
        return self._channel_streams.get(channel)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Begin a call of the open device, once those of other threads are over."""
        with self.clock:
            self.check_open()
            yield

    def release(self, call: Callable[[], None]) -> None:
        """Free something, see :meth:`~sw_driver.device.clock.Clock.release`."""

        def checked() -> None:
            self.check_open()
            call()

        self.clock.release(checked)

    # Checks, which change nothing.

    def check_open(self) -> None:
        """Raise :class:`ClosedError` if the device was closed."""
        if self.closed:
            raise ClosedError("the device was closed: open it again")

    def channel(self, channel: int) -> Channel:
        """Return the channel of that number."""
        self.check_open()
        return self.channels[checked_channel(channel, len(self.channels))]

    def owner(self, pointer: AxdimmPointer) -> Channel:
        """Return the channel of ``pointer``, which must be of this kind and device."""
        self.check_open()
        return self.channels[self.allocations.check(pointer).channel]

    def policy(self, modes: str | None) -> ModePolicy:
        """Return the policy for accesses in the wrong mode; None for the device's."""
        return self.modes if modes is None else ModePolicy.of(modes)

    def check_stream(self, stream: Stream | None) -> None:
        """Raise :class:`InvalidArgumentError` unless it is a stream of this device, or None."""
        if stream is not None and stream not in self.streams:
            raise InvalidArgumentError(
                f"{stream!r} is a {type(stream).__name__}: expected a stream of this device, from "
                "stream() or new_stream()"
            )

    # Closing.

    def close(self) -> None:
        """Close the device, see :meth:`~sw_driver.axdimm.device.Axdimm.close`."""
        if not self.clock.is_forked:
            self.clock.release(self._close)

    def _close(self) -> None:
        self.closed = True
        _open.discard(self)
        try:
            for stream in self.streams:
                stream.close()
            self.clock.close(self.domain)
            # Each is released once, even if another fails.
            self._resources.close()
        finally:
            # Also if closing fails: the recorded events are as valuable.
            self._write_timeline()

    def _write_timeline(self) -> None:
        file, self._timeline_file = self._timeline_file, None
        if self.timeline is not None and file is not None:
            if not file.is_given_up:
                self.timeline.write(file.path)
            file.drop()

    def _close_memories(self) -> None:
        with ExitStack() as callbacks:
            for memory in self._memories.values():
                callbacks.callback(memory.close)


def _check_device(device: Any, options: Any) -> None:
    if not isinstance(device, str) and not hasattr(device, "channels"):
        raise InvalidArgumentError(
            f"device is {device!r}: expected a name such as 'rtl', or a transport",
            name=repr(device),
        )
    if options is not None and not isinstance(options, BackendOptions):
        raise InvalidArgumentError(
            f"options is {options!r}: expected BackendOptions or None", options=repr(options)
        )


def check_flags(**flags: Any) -> None:
    """Raise :class:`InvalidArgumentError` for values that are neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name} is {value!r}: expected True or False", option=name)


@atexit.register
def _close_all() -> None:
    for session in list(_open):
        try:
            session.close()
        except Exception:  # close the other sessions anyway
            traceback.print_exc()
