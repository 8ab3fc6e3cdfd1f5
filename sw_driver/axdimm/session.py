"""An opened device, from its opening to its end: channels, streams and the memories beside it."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..device.errors import InvalidArgumentError
from ..device.link import Link
from ..device.memory import AllocationTable, AxdimmPointer, checked_channel
from ..device.timeline import Timeline, timeline_file
from ..device.transport import Transport
from ..runtime.context import Context
from ..runtime.gate import Gate
from ..runtime.handles import Handle
from ..runtime.serialized import SerializedTransport
from ..runtime.streams import Stream
from ..runtime.timeorder import TimeOrder
from ..runtime.watchdog import Watchdog
from ..runtime.workers import Worker
from .backends import BackendOptions, open_backend
from .channel import LINK_TRACK, Channel, ModePolicy
from .timing import GpuTiming, NvmeTiming

if TYPE_CHECKING:
    from ..device.memory import Memory
    from ..device.storage import NvmeStorage
    from ..device.tensors import HostMemory

__all__ = ["Session", "check_flags"]

T = TypeVar("T")
M = TypeVar("M", bound="Memory")

_numbers = itertools.count(1)
_open: weakref.WeakSet[Session] = weakref.WeakSet()
"""Sessions to close when the program ends, so that timelines are written and threads end."""


class Session:
    """What an :class:`~sw_driver.axdimm.device.Axdimm` has while it is open.

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
        stall_timeout_s: float,
        options: BackendOptions | None,
    ) -> None:
        _check_device(device, options)
        check_flags(backdoor=backdoor, stagger=stagger)
        self.backdoor = backdoor
        self.modes = ModePolicy.of(modes)
        if not isinstance(stall_timeout_s, int | float) or not stall_timeout_s > 0:
            raise InvalidArgumentError(
                f"stall_timeout_s is {stall_timeout_s!r}: expected a positive number of seconds",
                stall_timeout_s=stall_timeout_s,
            )
        self.number = next(_numbers)
        self.channels: list[Channel] = []
        self.streams: list[Stream] = []
        self._channel_streams: dict[int, Stream] = {}
        self._streams_lock = threading.Lock()
        self._memories: dict[str, Memory] = {}
        self._memories_lock = threading.RLock()
        self._pid = os.getpid()
        watchdog = Watchdog(stall_timeout_s, self.describe, self._program_waits)
        with ExitStack() as resources:
            if isinstance(device, str):
                self.transport = open_backend(device, options)
            else:
                self.transport = device
            self.name = device if isinstance(device, str) else device.name
            resources.callback(self._close_memories)
            transport = SerializedTransport(self.transport, watchdog)
            if isinstance(device, str):
                resources.callback(transport.close)
            self.context = Context(
                transport=transport,
                watchdog=watchdog,
                order=TimeOrder(transport, watchdog),
                notifier=Worker("nearmem-callbacks"),
                gate=Gate(),
                closing=threading.Event(),
                timeline=self._recorder(timeline),
            )
            self.allocations: AllocationTable[AxdimmPointer] = AllocationTable(
                AxdimmPointer, device=self.number, source="MallocAxdimm"
            )
            shared: dict[str, Any] = {"link": Link(LINK_TRACK), "allocations": self.allocations}
            for number in range(self.transport.channels):
                self.channels.append(Channel(self.context, number, stagger=stagger, **shared))
            self._resources = resources.pop_all()
        _open.add(self)

    def _recorder(self, timeline: str | os.PathLike[str] | None) -> Timeline | None:
        self._timeline_path = None if timeline is None else timeline_file(timeline)
        if timeline is None:
            return None
        if not self.transport.timed:
            raise InvalidArgumentError(
                f"a timeline to {str(timeline)!r} was asked for, but the {self.transport.name} "
                "backend has no clock: use 'cycles' or 'rtl'",
                timeline=str(timeline),
            )
        recorder = Timeline(fabric_mhz=self.transport.fabric_mhz, backend=self.transport.name)
        for number in range(self.transport.channels):
            recorder.track(f"channel {number}")
        recorder.track(LINK_TRACK, "both channels")
        self.transport.record_link(True)
        return recorder

    def _program_waits(self) -> None:
        if not self.context.order.is_stream:
            self.context.gate.program_waits()

    # The memories beside the module's.

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
        """A memory, opened when it is first asked for."""
        with self._memories_lock:
            if kind not in self._memories:
                memory = opened()
                self.context.check_open()
                self._memories[kind] = memory
                self.add_tracks(memory)
            return cast(M, self._memories[kind])

    def add_tracks(self, memory: Memory) -> None:
        """What is shared in ``memory`` gets tracks in the timeline."""
        if self.context.timeline is not None:
            for each in memory.links:
                self.context.timeline.track(each.name, memory.name)

    # Streams.

    def channel_stream(self, channel: int) -> Stream:
        """The stream of a channel; always the same one."""
        state = self.channel(channel)
        with self._streams_lock:
            if state.number not in self._channel_streams:
                self._channel_streams[state.number] = self._add_stream(f"of channel {state.number}")
            return self._channel_streams[state.number]

    def new_stream(self, name: str) -> Stream:
        """Another stream, called ``name``."""
        self.context.check_open()
        with self._streams_lock:
            return self._add_stream(name)

    def queued_in_order(self, channel: int) -> Stream | None:
        """The stream of a channel if it was ever asked for."""
        return self._channel_streams.get(channel)

    def _add_stream(self, name: str) -> Stream:
        stream = Stream(name, len(self.streams), self.context)
        self.streams.append(stream)
        return stream

    def perform(
        self,
        handle: Handle[T],
        action: Callable[[], T],
        stream: Stream | None,
        channel: int | None,
    ) -> Handle[T]:
        """Carries out ``action`` now, or queues it."""
        if stream is not None:
            stream.submit(handle, action, channel)
            return handle
        handle.start()
        try:
            self.context.gate.check_call(handle.what)
            outcome: T | BaseException = action()
        except BaseException as error:
            handle.finish(error)
            raise
        handle.finish(outcome)
        return handle

    # Checks. None of them changes anything.

    def channel(self, channel: int) -> Channel:
        """The channel of that number."""
        self.context.check_open()
        return self.channels[checked_channel(channel, len(self.channels))]

    def owner(self, pointer: AxdimmPointer) -> Channel:
        """The channel of ``pointer``, which has to be of this kind and device."""
        self.context.check_open()
        self.allocations.check_kind(pointer)
        return self.channel(pointer.channel)

    def policy(self, modes: str | None) -> ModePolicy:
        """What an access does that needs the other mode; None is the device's."""
        return self.modes if modes is None else ModePolicy.of(modes)

    def check_stream(self, stream: Stream | None) -> None:
        """Raises :class:`InvalidArgumentError` for what is no stream of this device."""
        if stream is not None and stream not in self.streams:
            raise InvalidArgumentError(
                f"{stream!r} is a {type(stream).__name__}: expected a stream of this device, from "
                "stream() or new_stream()"
            )

    def describe(self) -> str:
        """The driver's view of the device in words. Asks nobody, so it never blocks."""
        channels = "; ".join(channel.describe() for channel in self.channels)
        queued = ", ".join(
            f"stream {stream.name}: {stream.queued}" for stream in self.streams if stream.queued
        )
        return f"{channels}; queued: {queued or 'nothing'}"

    # Closing.

    def close(self) -> None:
        """Closes the device, see :meth:`~sw_driver.axdimm.device.Axdimm.close`."""
        if os.getpid() != self._pid:
            return  # a fork's copy, which has neither threads nor device
        self.context.closing.set()
        self.context.gate.open()
        _open.discard(self)
        try:
            self._end_work()
            with self._memories_lock:
                # Each is released though another fails; none is a second time.
                self._resources.close()
        finally:
            # Also when closing fails, for what was recorded is worth as much.
            self._write_timeline()

    def _end_work(self) -> None:
        """Ends all threads, after what they are at."""
        context = self.context
        with ExitStack() as locks:
            for stream in list(self.streams):
                context.watchdog.until(stream.stop, f"the end of what stream {stream.name} does")
            for state in self.channels:
                state.acquire_for_closing()
                locks.callback(state.leave)
            for state in self.channels:
                run = f"the end of the run on channel {state.number}"
                context.watchdog.until(state.follower.stop, run)
        # They may be waiting for a channel, and are refused now.
        context.watchdog.until(context.notifier.stop, "the callbacks in progress")

    def _write_timeline(self) -> None:
        path, self._timeline_path = self._timeline_path, None
        if self.context.timeline is not None and path is not None:
            self.context.timeline.write(path)

    def _close_memories(self) -> None:
        with ExitStack() as each:
            for memory in self._memories.values():
                each.callback(memory.close)


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
    """Raises :class:`InvalidArgumentError` for what is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name} is {value!r}: expected True or False", option=name)


@atexit.register
def _close_all() -> None:
    for session in list(_open):
        try:
            session.close()
        except Exception:  # the others are closed all the same
            traceback.print_exc()
