"""The device API of the AXDIMM runtime (paper section 4.2, Table 2).

Copies go over the simulated host link unless ``backdoor`` says otherwise. All sizes are bytes.
Calls for different channels may be made from different threads at once; calls for one channel
wait for each other.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..control.exclusive import DeviceLock, parse_device
from ..control.server import ControlServer
from ..errors import (
    AlignmentError,
    ClosedError,
    CountMismatchError,
    InvalidHandleError,
    InvalidOptionError,
    NoSuchDeviceError,
    OverlapError,
    WrongChannelError,
)
from ..memory.allocations import AllocationTable, checked_channel, checked_size
from ..memory.allocator import MemoryStatistics
from ..memory.hostbuffer import byte_view
from ..memory.pointers import AxdimmPointer, GpuPointer, HostPointer, NvmePointer
from ..runtime.handles import Handle
from ..runtime.schedule import Schedule
from ..runtime.serialized import SerializedTransport
from ..runtime.streams import Gate, Stream, StreamEnvironment
from ..runtime.timeline import Timeline
from ..runtime.timeorder import TimeOrder
from ..runtime.watchdog import Watchdog
from ..runtime.workers import Worker
from ..transport import LINE_BYTES, Transport
from .backends import BackendOptions, check_backend, open_backend
from .channel import LINK_TRACK, Channel, CopiedBytes, Mode, ModePolicy, Shared
from .control import DriverControl
from .copies import BufferEnd, ChannelEnd, End, MemoryEnd, check_overlap, copy
from .hostcache import HostCache
from .hyperparameters import AdamHyperparameters
from .mapping import MappedView
from .memcpy import Copies
from .runs import BEATS_PER_GROUP, PARAMETER_BYTES, PARAMETERS_PER_BEAT, AdamResult, AdamRun

if TYPE_CHECKING:
    from ..memory.host import HostMemory
    from ..memory.interface import Memory
    from ..memory.nvme import NvmeStorage

__all__ = [
    "Axdimm",
    "AxdimmPointer",
    "Configuration",
    "CopiedBytes",
    "MemoryStatistics",
    "Mode",
    "ModePolicy",
]

T = TypeVar("T")
M = TypeVar("M", bound="Memory")

RUN_TIMEOUT_FABRIC_CYCLES = 100_000
RUN_TIMEOUT_FABRIC_CYCLES_PER_BEAT = 64
STALL_TIMEOUT_S = 120.0

_device_numbers = itertools.count(1)
_open_devices: weakref.WeakSet[Axdimm] = weakref.WeakSet()
"""Closed when the program ends, so that timelines are written and nothing runs on in threads."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What a channel says that it was built with."""

    capacity_bytes: int
    """The register windows included."""
    lanes: int
    """Functional units."""
    block_bytes: int
    read_latency_fabric_cycles: int
    """Of host reads; 0 on an untimed backend."""


class Axdimm(Copies):
    """An opened AXDIMM module, and the runtime's other memories beside it.

    Parameters
    ----------
    device: a backend's name (``"rtl"``, ``"cycles"``, ``"golden"``; ``"rtl:tiny"`` names a
        configuration preset as well; ``"rtl:tiny@axdimm0"`` gives the device a name under which it
        exists once on this machine; ``"/dev/axdimm0"`` is such a name alone), or a transport. A
        transport given is not closed with the driver.
    backdoor: copies put bytes into the DRAM, or take them, without link, clock and arbiter taking
        part. Fast, and not what the machine can do. Each copy may choose for itself.
    stagger: consecutive large allocations start in different banks.
    modes: what an access does that needs the other mode or finds the kernel at work, see
        :class:`~sw_driver.axdimm.channel.ModePolicy`. Each call may choose for itself.
    timeline: where to write, on closing, when what happened in simulated time.
    stall_timeout_s: host time without any progress after which waiting is given up.
    options: settings of the backend if ``device`` is a name.

    Raises
    ------
    NoSuchDeviceError: no backend has this name.
    DeviceInUseError: the device of this name is open.
    IncompatibleDeviceError: what answers is not this driver's device.
    InvalidOptionError: ``modes``, ``timeline`` or ``stall_timeout_s`` is impossible.
    """

    def __init__(
        self,
        device: str | Transport,
        *,
        backdoor: bool = False,
        stagger: bool = True,
        modes: str = ModePolicy.RAISE,
        timeline: str | os.PathLike[str] | None = None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        options: BackendOptions | None = None,
    ) -> None:
        self._number = next(_device_numbers)
        self._pid = os.getpid()
        _check_options(device, options, backdoor=backdoor, stagger=stagger)
        self._backdoor = backdoor
        self._modes = ModePolicy.of(modes)
        if not isinstance(stall_timeout_s, int | float) or not stall_timeout_s > 0:
            raise InvalidOptionError(
                f"stall_timeout_s is {stall_timeout_s!r}: expected a positive number of seconds",
                stall_timeout_s=stall_timeout_s,
            )
        self._closing = threading.Event()
        self._gate = Gate()
        self._closed = False
        self._watchdog = Watchdog(stall_timeout_s, self.describe, self._note_wait)
        self._notifier = Worker("nearmem-callbacks")
        self._channels: list[Channel] = []
        self._streams: list[Stream] = []
        self._streams_lock = threading.Lock()
        self._memories: list[Memory] = []
        self._memories_lock = threading.RLock()
        self._owns_transport = isinstance(device, str)
        self._lock: DeviceLock | None = None
        self._control: ControlServer | None = None
        if isinstance(device, str):
            name = parse_device(device)
            check_backend(name.backend, name.preset)
            self._lock = DeviceLock(name)
            try:
                self._transport = open_backend(name.model, options)
            except BaseException:
                self._lock.release()
                raise
        else:
            self._transport = device
        try:
            self._shared = self._share(timeline)
            self._allocations: AllocationTable[AxdimmPointer] = AllocationTable(
                AxdimmPointer, device=self._number, source="MallocAxdimm"
            )
            for number in range(self._transport.channels):
                self._channels.append(
                    Channel(self._shared, number, allocations=self._allocations, stagger=stagger)
                )
        except BaseException:
            if self._owns_transport:
                self._transport.close()
            if self._lock is not None:
                self._lock.release()
            raise
        self._channel_streams: dict[int, Stream] = {}
        self._host: HostMemory | None = None
        self._gpu: Any = None
        self._storage: NvmeStorage | None = None
        self._environment = StreamEnvironment(
            transport=self._shared.transport,
            watchdog=self._watchdog,
            order=self._order,
            notifier=self._notifier,
            closing=self._closing,
            gate=self._gate,
            check_open=self._check_open,
        )
        self._controlled = DriverControl(
            self._shared,
            self._channels,
            streams=lambda: self._streams,
            memories=lambda: self._memories,
            stand_ins=self._stand_ins,
        )
        if self._lock is not None:
            self._control = ControlServer(self._controlled, self._lock)
        _open_devices.add(self)

    def _note_wait(self) -> None:
        if not self._order.is_stream:
            self._gate.program_waits()

    def _share(self, timeline: str | os.PathLike[str] | None) -> Shared:
        self._timeline_path = None
        recorder = None
        if timeline is not None:
            self._timeline_path = _timeline_path(timeline)
            if not self._transport.timed:
                raise InvalidOptionError(
                    f"a timeline to {str(timeline)!r} was asked for, but the "
                    f"{self._transport.name} backend has no clock: use 'cycles' or 'rtl'",
                    timeline=str(timeline),
                )
            recorder = Timeline(fabric_mhz=self._transport.fabric_mhz, backend=self._transport.name)
            for number in range(self._transport.channels):
                recorder.track(f"channel {number}")
            recorder.track(LINK_TRACK, "both channels")
            self._transport.record_link(True)
        transport = SerializedTransport(self._transport, self._watchdog)
        self._order = TimeOrder(transport, self._watchdog)
        return Shared(
            transport=transport,
            cache=HostCache(transport, reachable=lambda number: self._channels[number].reachable),
            link=Schedule(LINK_TRACK),
            watchdog=self._watchdog,
            order=self._order,
            closing=self._closing,
            timeline=recorder,
            check_open=self._check_open,
        )

    # What is there.

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self._channels)

    @property
    def transport(self) -> Transport:
        """What the driver drives."""
        return self._transport

    @property
    def name(self) -> str | None:
        """Under which the device is listed on this machine; None if it was given as a transport."""
        return None if self._lock is None else self._lock.entry.name

    @property
    def controlled(self) -> DriverControl:
        """What ``nearmem ctl`` sees of the device, and does to it."""
        return self._controlled

    @property
    def backdoor(self) -> bool:
        """Whether copies take the backdoor unless told otherwise."""
        return self._backdoor

    @property
    def modes(self) -> ModePolicy:
        """What accesses do that need the other mode, unless told otherwise."""
        return self._modes

    @property
    def host(self) -> HostMemory:
        """Memory of the host: ``host.array(pointer, dtype)`` is an allocation as a numpy array."""
        with self._memories_lock:
            if self._host is None:
                from ..memory.host import HostMemory

                self._host = self._opened(HostMemory(device=self._number))
            return self._host

    @property
    def gpu(self) -> Any:
        """Memory of the GPU, or its stand-in in host memory. Looks for a GPU on first use."""
        with self._memories_lock:
            if self._gpu is None:
                from ..memory.gpu import open_gpu

                self._gpu = self._opened(open_gpu(device=self._number, host=self.host))
            return self._gpu

    @property
    def storage(self) -> NvmeStorage:
        """Registered storage."""
        with self._memories_lock:
            if self._storage is None:
                from ..memory.nvme import NvmeStorage

                self._storage = self._opened(NvmeStorage(device=self._number))
            return self._storage

    def _stand_ins(self) -> list[str]:
        return [] if self._gpu is None or self._gpu.reason is None else [self._gpu.name]

    def _opened(self, memory: M) -> M:
        self._check_open()
        self._memories.append(memory)
        self._add_tracks(memory)
        return memory

    def _add_tracks(self, memory: Memory) -> None:
        if self._shared.timeline is not None:
            for schedule in memory.schedules:
                self._shared.timeline.track(schedule.name, memory.name)

    @property
    def timeline(self) -> Timeline | None:
        """What was recorded so far; None if nothing is."""
        return self._shared.timeline

    @property
    def simulated_ns(self) -> float:
        """The calling thread's simulated time; 0 on an untimed backend."""
        return self._transport.host_time() * 1000 / self._transport.fabric_mhz

    def mode(self, channel: int) -> Mode:
        """The mode in force when the driver last set it, or opened the device."""
        return self._channel(channel).mode

    def memory(self, channel: int) -> MemoryStatistics:
        """How much memory of the channel is allocated and free."""
        state = self._channel(channel)
        with state.exclusive(in_time=False):
            return state.allocator.statistics()

    def configuration(self, channel: int) -> Configuration:
        """What the channel's registers say about its build. Raises :class:`BusyError`."""
        state = self._channel(channel)
        with state.exclusive():
            state.check_idle()
            values = state.arbiter.read_many(["capacity", "config"])
        fields = state.arbiter["config"].fields
        return Configuration(
            capacity_bytes=values["capacity"],
            **{field.name: field.extract(values["config"]) for field in fields},
        )

    def copied_bytes(self, channel: int) -> CopiedBytes:
        """How many bytes were copied over the link and through the backdoor."""
        state = self._channel(channel)
        with state.exclusive(in_time=False):
            return CopiedBytes(**state.copied)

    def describe(self) -> str:
        """The driver's view of the device in words. Asks nobody, so it never blocks."""
        channels = "; ".join(channel.describe() for channel in self._channels)
        queued = ", ".join(
            f"stream {stream.name}: {stream.queued}" for stream in self._streams if stream.queued
        )
        return f"{channels}; queued: {queued or 'nothing'}"

    # Memory.

    def RegisterStorage(self, device: str | os.PathLike[str], **settings: Any) -> int:
        """Registers a file or block device as NVMe storage; returns its number.

        ``settings`` and exceptions: see :meth:`~sw_driver.memory.nvme.NvmeStorage.register`.
        """
        self._check_open()
        number = self.storage.register(device, **settings)
        self._add_tracks(self.storage)
        return number

    def MallocAxdimm(self, nbytes: int, channel: int) -> AxdimmPointer:
        """Allocates ``nbytes`` of a channel's memory, on a 64-byte line of its own.

        Raises :class:`InvalidSizeError`, :class:`NoSuchChannelError`, :class:`OutOfMemoryError`.
        """
        state = self._channel(channel)
        size = checked_size("nbytes", nbytes, minimum=1)
        with state.exclusive(in_time=False):
            address = state.allocator.allocate(size)
            return state.allocations.add(channel=state.number, address=address, nbytes=size)

    def FreeAxdimm(self, ptr: AxdimmPointer) -> None:
        """Frees an allocation, given its start.

        Raises :class:`ForeignPointerError`, :class:`DoubleFreeError`,
        :class:`InteriorPointerError`, and :class:`BusyError` if an operation uses the allocation.
        """
        state = self._owner(ptr)
        with state.exclusive():
            if not state.running:
                state.busy()  # notices the end of a run that was given up
            state.allocator.free(state.allocations.remove(ptr).address)

    def MallocHost(self, nbytes: int, channel: int | None = None) -> HostPointer:
        """Allocates pinned memory of the host; ``channel`` is 0 or left out.

        Raises :class:`InvalidSizeError`, :class:`NoSuchChannelError`, :class:`OutOfMemoryError`.
        """
        self._check_open()
        return self.host.allocate(nbytes, channel)

    def FreeHost(self, ptr: HostPointer) -> None:
        """Frees memory of the host. Raises what :meth:`FreeAxdimm` raises."""
        self._check_open()
        self.host.free(ptr)

    def MallocGpu(self, nbytes: int, channel: int | None = None) -> GpuPointer:
        """Allocates memory of GPU ``channel``, or of its stand-in.

        Raises :class:`InvalidSizeError`, :class:`NoSuchChannelError`, :class:`OutOfMemoryError`.
        """
        self._check_open()
        return self.gpu.allocate(nbytes, channel)

    def FreeGpu(self, ptr: GpuPointer) -> None:
        """Frees memory of a GPU. Raises what :meth:`FreeAxdimm` raises."""
        self._check_open()
        self.gpu.free(ptr)

    def MallocNvme(self, nbytes: int, channel: int | None = None) -> NvmePointer:
        """Allocates storage on device ``channel``, or striped over all that are registered.

        Raises :class:`InvalidSizeError`, :class:`NoSuchChannelError`, :class:`OutOfMemoryError`.
        """
        self._check_open()
        return self.storage.allocate(nbytes, channel)

    def FreeNvme(self, ptr: NvmePointer) -> None:
        """Frees storage. Raises what :meth:`FreeAxdimm` raises."""
        self._check_open()
        self.storage.free(ptr)

    def map(self, ptr: AxdimmPointer, nbytes: int) -> MappedView:
        """The module's memory as a program sees it that accesses the mapping itself.

        Its loads and stores go through the host's cache, which the module cannot tell of changes:
        they may be stale, as on the real machine (paper section 4.1). The copies never are.

        Raises :class:`ForeignPointerError`, :class:`FreedPointerError`, :class:`CopyRangeError`.
        """
        state = self._owner(ptr)
        size = checked_size("nbytes", nbytes, minimum=1)
        state.allocations.range(ptr, size)
        return MappedView(state, ptr, size)

    # Streams.

    def stream(self, channel: int) -> Stream:
        """The stream of a channel; always the same one."""
        state = self._channel(channel)
        with self._streams_lock:
            found = self._channel_streams.get(state.number)
            if found is None:
                found = self._add_stream(f"of channel {state.number}")
                self._channel_streams[state.number] = found
            return found

    def new_stream(self, name: str) -> Stream:
        """Another stream, for example for copies between GPU and storage."""
        self._check_open()
        with self._streams_lock:
            return self._add_stream(str(name))

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """What is queued in idle streams inside begins when the block ends.

        Without it, when nothing more was queued for some milliseconds.
        """
        self._check_open()
        self._gate.close()
        try:
            yield
        finally:
            self._gate.open()

    def _add_stream(self, name: str) -> Stream:
        stream = Stream(name, len(self._streams), self._environment)
        self._streams.append(stream)
        return stream

    # Copies: the public functions are in memcpy.py.

    def _copy(
        self,
        source_kind: str,
        destination_kind: str,
        dst: Any,
        src: Any,
        nbytes: int,
        *,
        stream: Stream | None = None,
        modes: str | None = None,
        backdoor: bool | None = None,
    ) -> Handle[None]:
        self._check_open()
        call = f"Memcpy{source_kind}2{destination_kind}"
        policy = self._policy(modes)
        size = checked_size("nbytes", nbytes)
        if backdoor is not None:
            _check_flags(backdoor=backdoor)
        through_backdoor = self._backdoor if backdoor is None else backdoor
        if backdoor and "Axdimm" not in (source_kind, destination_kind):
            raise InvalidOptionError(
                f"{call} has no backdoor: only the module's DRAM is simulated", backdoor=backdoor
            )
        # Pointers first: they are misused more often than buffers.
        makers = [
            (destination_kind, dst, True),
            (source_kind, src, False),
        ]
        makers.sort(key=lambda maker: maker[0] == "Host")
        ends = {
            written: self._end(kind, what, size, written, through_backdoor)
            for kind, what, written in makers
        }
        destination, source = ends[True], ends[False]
        check_overlap(destination, source, size)
        channels = {end.channel.number for end in (destination, source) if end.channel}
        self._check_stream(stream)
        held: list[End] = []
        handle: Handle[None] = Handle(
            f"{call} of {size} bytes",
            total=size,
            unit="bytes",
            transport=self._shared.transport,
            watchdog=self._watchdog,
            notifier=self._notifier,
            cleanup=lambda: _release_all(held, handle.what),
        )
        try:
            for end in (destination, source):
                end.hold(handle.what)
                held.append(end)
        except BaseException as error:
            handle.finish(error)
            raise
        return self._perform(
            handle,
            lambda: copy(
                destination, source, size, policy=policy, shared=self._shared, handle=handle
            ),
            stream,
            channels.pop() if len(channels) == 1 else None,
        )

    def _end(self, kind: str, what: Any, nbytes: int, written: bool, backdoor: bool) -> End:
        """An end of a copy. Raises what is wrong with its pointer or buffer."""
        if kind == "Axdimm":
            channel = self._owner(what)
            channel.allocations.range(what, nbytes)
            return ChannelEnd(channel, what, self._shared, backdoor)
        if kind == "Host" and not isinstance(what, HostPointer):
            return BufferEnd(byte_view(what, nbytes, writable=written))
        if kind == "Host":
            self.host.allocations.range(what, nbytes)
            view = self.host.array(what, np.uint8, nbytes)
            return BufferEnd(view, allocation=(self.host.allocations, what))
        memory = self.gpu if kind == "Gpu" else self.storage
        memory.allocations.range(what, nbytes)
        return MemoryEnd(memory, what)

    def _perform(
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
            outcome: T | BaseException = action()
        except BaseException as error:
            handle.finish(error)
            raise
        handle.finish(outcome)
        return handle

    # Modes.

    def SetArbiterAcc(
        self, channel: int, *, stream: Stream | None = None, modes: str | None = None
    ) -> Handle[None]:
        """Gives the channel's DRAM to its kernel; over when the mode is in force.

        Raises :class:`BusyError` (or waits, by ``modes``), :class:`NoSuchChannelError`, and
        :class:`DeviceTimeoutError` when the mode is not in force in time; the request is then
        withdrawn.
        """
        return self._set_mode(channel, Mode.ACCELERATION, stream, modes)

    def SetArbiterNormal(
        self, channel: int, *, stream: Stream | None = None, modes: str | None = None
    ) -> Handle[None]:
        """Gives the channel's DRAM to the host; over when the mode is in force.

        Raises what :meth:`SetArbiterAcc` raises.
        """
        return self._set_mode(channel, Mode.NORMAL, stream, modes)

    def _set_mode(
        self, channel: int, mode: Mode, stream: Stream | None, modes: str | None
    ) -> Handle[None]:
        state = self._channel(channel)
        policy = self._policy(modes)
        self._check_stream(stream)
        handle: Handle[None] = Handle(
            f"switch of channel {state.number} to {mode} mode",
            total=0,
            unit="bytes",
            transport=self._shared.transport,
            watchdog=self._watchdog,
            notifier=self._notifier,
        )
        return self._perform(handle, lambda: state.set_mode(mode, policy), stream, state.number)

    # Runs.

    def RunAdamOnAxdimmAsync(
        self,
        p: AxdimmPointer,
        m: AxdimmPointer,
        v: AxdimmPointer,
        g: AxdimmPointer,
        nparams: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        t: int,
        channel: int,
        *,
        timeout_fabric_cycles: int | None = None,
        stream: Stream | None = None,
        modes: str | None = None,
    ) -> AdamRun:
        """Starts step ``t`` of Adam on ``nparams`` FP32 parameters; ``p``, ``m``, ``v`` in place.

        Returns when the kernel was started, or with ``stream`` at once; the run goes on in a thread
        of its own. The channel has to be in acceleration mode (or is switched, by ``modes``) and
        stays in it. The tensors start on 64-byte lines of the channel and may be parts of their
        allocations.

        Parameters
        ----------
        p, m, v, g: parameters, first and second moments, gradients.
        lr, beta1, beta2, eps, weight_decay, t: see
            :class:`~sw_driver.axdimm.hyperparameters.AdamHyperparameters`.
        timeout_fabric_cycles: when to give the kernel up; the default is ample.
        stream: where to queue the run.
        modes: see :class:`~sw_driver.axdimm.channel.ModePolicy`; None is the device's.

        Raises
        ------
        ForeignPointerError, FreedPointerError, WrongChannelError, CountMismatchError,
        AlignmentError, OverlapError, HyperparameterError, BusyError, WrongModeError: before
        anything was started. What goes wrong later is raised by the handle's ``wait``.
        """
        state = self._channel(channel)
        tensors = {"p": p, "m": m, "v": v, "g": g}
        for name, pointer in tensors.items():
            self._owner(pointer)
            if pointer.channel != state.number:
                raise WrongChannelError(
                    f"{name} is on channel {pointer.channel}, the run is on {state.number}",
                    tensor=name,
                    tensor_channel=pointer.channel,
                    channel=state.number,
                )
        count = _count_of(nparams)
        hyperparameters = AdamHyperparameters(
            lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, t=t
        )
        beats = BEATS_PER_GROUP * -(-count // PARAMETERS_PER_BEAT)
        timeout = (
            RUN_TIMEOUT_FABRIC_CYCLES + RUN_TIMEOUT_FABRIC_CYCLES_PER_BEAT * beats
            if timeout_fabric_cycles is None
            else checked_size("timeout_fabric_cycles", timeout_fabric_cycles, minimum=1)
        )
        policy = self._policy(modes)
        self._check_stream(stream)
        _check_tensors(state, tensors, count)
        settings = {
            "count": count,
            **{f"{name}_in": tensors[name].address for name in "pgmv"},
            **{f"{name}_out": tensors[name].address for name in "pmv"},
            **_constant_bits(hyperparameters),
        }
        held: list[AxdimmPointer] = []
        run = AdamRun(
            channel=state.number,
            nparams=count,
            t=hyperparameters.t,
            transport=self._shared.transport,
            watchdog=self._watchdog,
            notifier=self._notifier,
            cleanup=lambda: state.end_run(run, held),
        )
        try:
            for pointer in tensors.values():
                state.allocations.hold(pointer, run.what)
                held.append(pointer)
            if stream is not None:

                def start_and_follow() -> AdamResult:
                    with state.in_mode(Mode.ACCELERATION, policy):
                        state.start(settings, run)
                    return state.follow(run, timeout)

                stream.submit(run, start_and_follow, state.number)
                return run
            with state.in_mode(Mode.ACCELERATION, policy):
                run.start()
                state.start(settings, run)
                began = self._transport.host_time()
                state.follower.submit(lambda: self._follow(state, run, timeout, began))
        except BaseException as error:
            run.finish(error)
            raise
        return run

    def _follow(self, state: Channel, run: AdamRun, timeout: int, began: int) -> None:
        """Ends ``run`` when the kernel does."""
        outcome: AdamResult | BaseException
        self._transport.set_host_time(began)
        try:
            outcome = state.follow(run, timeout)
        except BaseException as error:  # goes to whoever waits
            outcome = error
        run.finish(outcome)

    def WaitAxdimm(self, channel: int, timeout: float | None = None) -> AdamResult | None:
        """Waits for what is queued in the channel's stream and for its last run.

        Returns the run's counters, None if this driver started none. Raises what the stream's and
        the handle's ``wait`` raise; ``timeout`` holds for each of them.
        """
        state = self._channel(channel)
        stream = self._channel_streams.get(state.number)
        try:
            if stream is not None:
                stream.wait(timeout)
        finally:
            if state.run is not None and not state.run.failed:
                state.run.wait(timeout)
        return None if state.run is None else state.run.wait(timeout)

    def PollAxdimm(self, channel: int) -> bool:
        """Whether the channel's kernel is idle. Never waits for it.

        A kernel that was found running when the device was opened, or whose run was given up, is
        asked over the link.
        """
        state = self._channel(channel)
        if state.running:
            return False
        if not state.unfinished:
            return True
        if not state.try_exclusive():
            return False
        try:
            self._check_open()
            return not state.running and not state.busy()
        finally:
            state.leave()

    # Closing.

    def close(self) -> None:
        """Stops following runs and releases the device. Calling it twice does no harm.

        Calls in progress in other threads end first, long copies after the piece in progress; calls
        that wait for them, later ones and what is queued end with :class:`ClosedError`. Runs go on
        in the device, their handles' ``wait`` raises :class:`ClosedError` unless they end soon.

        Raises :class:`DeviceTimeoutError` if a call in progress does not get on; the device is then
        refused to all but not released.
        """
        if os.getpid() != self._pid:
            return  # a fork's copy, which has neither threads nor device
        self._closing.set()
        self._gate.open()
        _open_devices.discard(self)
        with ExitStack() as locks:
            for stream in list(self._streams):
                self._watchdog.until(stream.stop, f"the end of what stream {stream.name} does")
            for state in self._channels:
                state.acquire_for_closing()
                locks.callback(state.leave)
            for state in self._channels:
                run = f"the end of the run on channel {state.number}"
                self._watchdog.until(state.follower.stop, run)
        # They may be waiting for a channel, and are refused now.
        self._watchdog.until(self._notifier.stop, "the callbacks in progress")
        with self._memories_lock:
            if not self._closed:
                self._closed = True
                self._release()
                if self._shared.timeline is not None and self._timeline_path is not None:
                    self._shared.timeline.write(self._timeline_path)

    def _release(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._owns_transport:
            self._shared.transport.close()
        for memory in self._memories:
            memory.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Axdimm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        copies = "backdoor" if self._backdoor else "host link"
        device = self._transport.name if self._lock is None else self._lock.entry.device
        return (
            f"<Axdimm on {device}: {self.channels} channels of "
            f"{self._transport.capacity_bytes} bytes, copies over the {copies}>"
        )

    # Checks. None of them changes anything.

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ClosedError("the device was closed: open it again")
        self._watchdog.check_process()

    def _channel(self, channel: int) -> Channel:
        self._check_open()
        return self._channels[checked_channel(channel, len(self._channels))]

    def _owner(self, pointer: AxdimmPointer) -> Channel:
        """The channel of ``pointer``, which has to be of this kind and device."""
        self._check_open()
        self._allocations.check_kind(pointer)
        return self._channel(pointer.channel)

    def _policy(self, modes: str | None) -> ModePolicy:
        return self._modes if modes is None else ModePolicy.of(modes)

    def _check_stream(self, stream: Stream | None) -> None:
        if stream is not None and stream not in self._streams:
            raise InvalidHandleError(
                f"{stream!r} is a {type(stream).__name__}: expected a stream of this device, from "
                "stream() or new_stream()"
            )


def _check_options(device: Any, options: Any, **flags: Any) -> None:
    if not isinstance(device, str) and not hasattr(device, "channels"):
        raise NoSuchDeviceError(
            f"device is {device!r}: expected a name such as 'rtl', or a transport",
            name=repr(device),
        )
    if options is not None and not isinstance(options, BackendOptions):
        raise InvalidOptionError(
            f"options is {options!r}: expected BackendOptions or None", options=repr(options)
        )
    _check_flags(**flags)


def _check_flags(**flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidOptionError(f"{name} is {value!r}: expected True or False", option=name)


def _timeline_path(timeline: Any) -> Path:
    """Where the timeline goes. Raises :class:`InvalidOptionError` if it cannot be written."""
    if not isinstance(timeline, str | os.PathLike) or not str(timeline):
        raise InvalidOptionError(
            f"timeline is {timeline!r}: expected the name of a file", timeline=repr(timeline)
        )
    path = Path(timeline).absolute()
    problem = None
    if path.is_dir():
        problem = "is a folder: add a name"
    elif not path.parent.is_dir():
        problem = f"is in {str(path.parent)!r}, which is not a folder: create it"
    elif not os.access(path.parent, os.W_OK):
        problem = f"is in {str(path.parent)!r}, which cannot be written: choose another"
    if problem is not None:
        raise InvalidOptionError(
            f"the timeline {str(timeline)!r} {problem}", timeline=str(timeline)
        )
    return path


def _release_all(ends: list[End], user: str) -> None:
    for end in ends:
        end.release(user)


def _check_tensors(state: Channel, tensors: dict[str, AxdimmPointer], count: int) -> None:
    nbytes = count * PARAMETER_BYTES
    for name, pointer in tensors.items():
        allocation = state.allocations.check(pointer)
        offset = pointer.address - allocation.address
        if offset < 0 or offset + nbytes > allocation.nbytes:
            held = max(0, allocation.nbytes - offset) // PARAMETER_BYTES if offset >= 0 else 0
            raise CountMismatchError(
                f"{name} holds {held} parameters, the run is over {count}",
                tensor=name,
                held=held,
                nparams=count,
            )
        if pointer.address % LINE_BYTES:
            raise AlignmentError(
                f"{name} starts at address {pointer.address:#x}, {pointer.address % LINE_BYTES}"
                f" bytes past a multiple of {LINE_BYTES}",
                tensor=name,
                address=pointer.address,
            )
    for (one, a), (other, b) in itertools.combinations(tensors.items(), 2):
        if a.address < b.address + nbytes and b.address < a.address + nbytes:
            raise OverlapError(
                f"{one} at {a.address:#x} and {other} at {b.address:#x} overlap within "
                f"{nbytes} bytes",
                tensors=(one, other),
                addresses=(a.address, b.address),
                nbytes=nbytes,
            )


def _count_of(nparams: int) -> int:
    try:
        count = 0 if isinstance(nparams, bool) else index(nparams)
    except TypeError:
        count = 0
    if count < 1:
        raise CountMismatchError(
            f"nparams is {nparams!r}: expected an integer of at least 1", nparams=nparams
        )
    return count


def _constant_bits(hyperparameters: AdamHyperparameters) -> dict[str, int]:
    """The kernel's nine constants, by their registers, as FP32 bits."""
    return {name: int(value.view(np.uint32)) for name, value in hyperparameters.constants().items()}


@atexit.register
def _close_all() -> None:
    for device in list(_open_devices):
        try:
            device.close()
        except Exception:  # the others are closed all the same
            traceback.print_exc()
