"""The device API of the AXDIMM runtime (paper section 4.2, Table 2).

Copies go over the simulated host link unless ``backdoor`` says otherwise. All sizes are bytes.
Calls for different channels may be made from different threads at once; calls for one channel
wait for each other, except that a channel whose kernel is running refuses them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from operator import index
from types import TracebackType
from typing import Any

import numpy as np

from .allocator import ChannelAllocator
from .backends import BackendOptions, open_backend
from .errors import (
    AlignmentError,
    BusyError,
    ClosedError,
    CopyRangeError,
    CountMismatchError,
    DeviceTimeoutError,
    DoubleFreeError,
    ForeignPointerError,
    FreedPointerError,
    IncompatibleDeviceError,
    InteriorPointerError,
    InvalidSizeError,
    KernelError,
    NoSuchChannelError,
    OverlapError,
    WrongChannelError,
    WrongModeError,
)
from .hostbuffer import byte_view
from .hyperparameters import AdamHyperparameters
from .pointers import AxdimmPointer
from .registers import RegisterWindow, arbiter_registers, kernel_registers
from .runs import (
    ACTIVITY_REGISTERS,
    BEATS_PER_GROUP,
    PARAMETER_BYTES,
    PARAMETERS_PER_BEAT,
    AdamResult,
    AdamRun,
    DramActivity,
)
from .transport import LINE_BYTES, DeviceTimeout, Transport, kernel_window

__all__ = [
    "Axdimm",
    "AxdimmPointer",
    "Configuration",
    "CopiedBytes",
    "MemoryStatistics",
    "Mode",
]

MODE_POLL_FABRIC_CYCLES = 8
MODE_TIMEOUT_FABRIC_CYCLES = 1_000_000
RUN_POLL_FABRIC_CYCLES = 256
RUN_POLL_CHUNK_FABRIC_CYCLES = 200_000
"""Longest call into the device, so that closing the driver need not wait for a run's end."""
RUN_TIMEOUT_FABRIC_CYCLES = 100_000
RUN_TIMEOUT_FABRIC_CYCLES_PER_BEAT = 64

_device_numbers = itertools.count(1)


class Mode(StrEnum):
    """Modes of the arbiter (paper section 3.2), by their names in the register map."""

    NORMAL = "normal"
    ACCELERATION = "acceleration"


@dataclass(frozen=True, kw_only=True)
class MemoryStatistics:
    """Memory of a channel."""

    total_bytes: int
    free_bytes: int
    largest_free_bytes: int
    allocations: int


@dataclass(frozen=True, kw_only=True)
class CopiedBytes:
    """Bytes copied since the device was opened, by the way they took."""

    link_to_device: int = 0
    link_to_host: int = 0
    backdoor_to_device: int = 0
    backdoor_to_host: int = 0


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


@dataclass(frozen=True)
class _Allocation:
    address: int
    nbytes: int


@dataclass
class _Channel:
    number: int
    arbiter: RegisterWindow
    kernel: RegisterWindow
    allocator: ChannelAllocator
    follower: ThreadPoolExecutor
    """The one thread that follows this channel's runs."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    mode: Mode = Mode.NORMAL
    allocations: dict[int, _Allocation] = field(default_factory=dict)
    run: AdamRun | None = None
    unfinished: bool = False
    """The kernel was started, or found running, and has not been seen idle since."""
    copied: dict[str, int] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return self.run is not None and not self.run.done


class Axdimm:
    """An opened AXDIMM module.

    Parameters
    ----------
    device: a backend's name (``"rtl"``, ``"golden"``; ``"rtl:tiny"`` names a configuration preset
        as well), or a transport. A transport given is not closed with the driver.
    backdoor: copies put bytes into the DRAM, or take them, without link, clock and arbiter taking
        part. Fast, and not what the machine can do. Each copy may choose for itself.
    stagger: consecutive large allocations start in different banks.
    options: settings of the backend if ``device`` is a name.

    Raises
    ------
    NoSuchDeviceError: no backend has this name.
    IncompatibleDeviceError: what answers is not this driver's device.
    """

    def __init__(
        self,
        device: str | Transport,
        *,
        backdoor: bool = False,
        stagger: bool = True,
        options: BackendOptions | None = None,
    ) -> None:
        self._number = next(_device_numbers)
        self._backdoor = backdoor
        self._allocation_numbers = itertools.count(1)
        self._closing = threading.Event()
        self._owns_transport = isinstance(device, str)
        self._transport = open_backend(device, options) if isinstance(device, str) else device
        try:
            self._channels = [
                self._open_channel(number, stagger) for number in range(self._transport.channels)
            ]
        except BaseException:
            if self._owns_transport:
                self._transport.close()
            raise

    def _open_channel(self, number: int, stagger: bool) -> _Channel:
        follower = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix=f"axdimm{self._number}-channel{number}"
        )
        try:
            # In the thread that will follow the runs: a transport may keep simulated time by
            # thread, and that thread's then begins with the others'. It does not make counts of
            # cycles reproducible: channels share the link, and which of two host threads is first
            # is the host's decision.
            return follower.submit(self._identify, number, stagger, follower).result()
        except BaseException:
            follower.shutdown()
            raise

    def _identify(self, number: int, stagger: bool, follower: ThreadPoolExecutor) -> _Channel:
        arbiter = arbiter_registers(self._transport, number)
        for name in ("magic", "version"):
            found = arbiter.read_field("id", name)
            expected = arbiter["id"][name].reset
            if found != expected:
                raise IncompatibleDeviceError(
                    f"channel {number} has {name} {found:#x}, this driver expects {expected:#x}",
                    channel=number,
                    found=found,
                    expected=expected,
                )
        capacity = arbiter.read("capacity")
        if capacity != self._transport.capacity_bytes:
            raise IncompatibleDeviceError(
                f"channel {number} says it has {capacity} bytes, its transport "
                f"{self._transport.capacity_bytes}",
                channel=number,
                found=capacity,
                expected=self._transport.capacity_bytes,
            )
        channel = _Channel(
            number=number,
            arbiter=arbiter,
            kernel=kernel_registers(self._transport, number),
            allocator=ChannelAllocator(limit_bytes=kernel_window(capacity), stagger=stagger),
            follower=follower,
        )
        status = arbiter.read("status")
        channel.mode = _mode_in_force(arbiter, status)
        # Another driver, closed during a run, may have left the kernel at work.
        channel.unfinished = bool(arbiter["status"]["kernel_busy"].extract(status))
        return channel

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
    def backdoor(self) -> bool:
        """Whether copies take the backdoor unless told otherwise."""
        return self._backdoor

    def mode(self, channel: int) -> Mode:
        """The mode in force when the driver last set it, or opened the device."""
        return self._channel(channel).mode

    def memory(self, channel: int) -> MemoryStatistics:
        """How much memory of the channel is allocated and free."""
        state = self._channel(channel)
        with self._exclusive(state):
            return MemoryStatistics(
                total_bytes=state.allocator.limit_bytes,
                free_bytes=state.allocator.free_bytes,
                largest_free_bytes=state.allocator.largest_free_bytes,
                allocations=len(state.allocations),
            )

    def configuration(self, channel: int) -> Configuration:
        """What the channel's registers say about its build. Raises :class:`BusyError`."""
        state = self._channel(channel)
        with self._exclusive(state):
            self._check_idle(state)
            values = state.arbiter.read_many(["capacity", "config"])
        fields = state.arbiter["config"].fields
        return Configuration(
            capacity_bytes=values["capacity"],
            **{field.name: field.extract(values["config"]) for field in fields},
        )

    def copied_bytes(self, channel: int) -> CopiedBytes:
        """How many bytes were copied over the link and through the backdoor."""
        state = self._channel(channel)
        with self._exclusive(state):
            return CopiedBytes(**state.copied)

    # Memory.

    def MallocAxdimm(self, nbytes: int, channel: int) -> AxdimmPointer:
        """Allocates ``nbytes`` of a channel's memory, on a 64-byte line of its own.

        Raises :class:`InvalidSizeError`, :class:`NoSuchChannelError`, :class:`OutOfMemoryError`.
        """
        state = self._channel(channel)
        size = _size("nbytes", nbytes, minimum=1)
        with self._exclusive(state):
            address = state.allocator.allocate(size)
            number = next(self._allocation_numbers)
            state.allocations[number] = _Allocation(address, size)
        return AxdimmPointer(
            channel=state.number,
            address=address,
            nbytes=size,
            allocation=number,
            device=self._number,
        )

    def FreeAxdimm(self, ptr: AxdimmPointer) -> None:
        """Frees an allocation, given its start.

        Raises :class:`ForeignPointerError`, :class:`DoubleFreeError`,
        :class:`InteriorPointerError`, and :class:`BusyError` if a run uses the allocation.
        """
        state = self._owner(ptr)
        with self._exclusive(state):
            allocation = self._allocation(state, ptr, freed=DoubleFreeError)
            if ptr.address != allocation.address:
                raise InteriorPointerError(
                    f"address {ptr.address:#x} is {ptr.address - allocation.address} bytes into "
                    f"its allocation: free {allocation.address:#x}",
                    address=ptr.address,
                    allocation_address=allocation.address,
                )
            if (
                state.run is not None
                and ptr.allocation in state.run.allocations
                and (state.running or self._unfinished(state))
            ):
                raise BusyError(
                    f"address {ptr.address:#x} on channel {state.number} is in use by a run of "
                    f"{state.run.nparams} parameters: wait for it first",
                    channel=state.number,
                    address=ptr.address,
                    nparams=state.run.nparams,
                )
            state.allocator.free(allocation.address)
            del state.allocations[ptr.allocation]

    def MemcpyHost2Axdimm(
        self, dst: AxdimmPointer, src: Any, nbytes: int, *, backdoor: bool | None = None
    ) -> None:
        """Copies the first ``nbytes`` bytes of ``src`` to ``dst``.

        Bytes of the first and last line that are not copied keep their values: such lines are
        read, changed and written back. ``src`` is bytes-like or a contiguous array. Needs normal
        mode, unless ``backdoor``, which only needs the kernel to be idle.

        Raises :class:`ForeignPointerError`, :class:`FreedPointerError`, :class:`CopyRangeError`,
        :class:`HostBufferError`, :class:`BusyError`, :class:`WrongModeError`.
        """
        size = _size("nbytes", nbytes)
        with self._copying(dst, size, backdoor) as (state, through_backdoor):
            data = byte_view(src, size, writable=False)
            self._check_access(state, through_backdoor)
            if size == 0:
                return
            if through_backdoor:
                self._transport.backdoor_write(state.number, dst.address, data)
                self._count(state, "backdoor_to_device", size)
                return
            start, end = _lines(dst.address, size)
            if start == dst.address and end == dst.address + size:
                self._transport.write_lines(state.number, start, data)
            else:
                lines = np.empty(end - start, dtype=np.uint8)
                edges = {start} if start != dst.address else set()
                if end != dst.address + size:
                    edges.add(end - LINE_BYTES)
                for edge in edges:
                    lines[edge - start : edge - start + LINE_BYTES] = self._transport.read_lines(
                        state.number, edge, LINE_BYTES
                    )
                lines[dst.address - start : dst.address - start + size] = data
                self._transport.write_lines(state.number, start, lines)
            self._count(state, "link_to_device", size)

    def MemcpyAxdimm2Host(
        self, dst: Any, src: AxdimmPointer, nbytes: int, *, backdoor: bool | None = None
    ) -> None:
        """Copies ``nbytes`` bytes from ``src`` to the start of ``dst``.

        ``dst`` is a writable bytes-like object or contiguous array. Otherwise as
        :meth:`MemcpyHost2Axdimm`.
        """
        size = _size("nbytes", nbytes)
        with self._copying(src, size, backdoor) as (state, through_backdoor):
            data = byte_view(dst, size, writable=True)
            self._check_access(state, through_backdoor)
            if size == 0:
                return
            if through_backdoor:
                data[:] = self._transport.backdoor_read(state.number, src.address, size)
                self._count(state, "backdoor_to_host", size)
                return
            start, end = _lines(src.address, size)
            lines = self._transport.read_lines(state.number, start, end - start)
            data[:] = lines[src.address - start : src.address - start + size]
            self._count(state, "link_to_host", size)

    # Modes.

    def SetArbiterAcc(self, channel: int) -> None:
        """Gives the channel's DRAM to its kernel; returns when the mode is in force.

        Raises :class:`BusyError`, :class:`NoSuchChannelError`, and :class:`DeviceTimeoutError`
        when the mode is not in force in time; the request is then withdrawn.
        """
        self._set_mode(channel, Mode.ACCELERATION)

    def SetArbiterNormal(self, channel: int) -> None:
        """Gives the channel's DRAM to the host; returns when the mode is in force.

        Raises what :meth:`SetArbiterAcc` raises.
        """
        self._set_mode(channel, Mode.NORMAL)

    def _set_mode(self, channel: int, mode: Mode) -> None:
        state = self._channel(channel)
        with self._exclusive(state):
            # A kernel found at work in normal mode waits for the DRAM: only this lets it end.
            if mode is Mode.NORMAL or state.mode is Mode.ACCELERATION:
                self._check_idle(state)
            try:
                self._request_mode(state, mode)
            except DeviceTimeout as timeout:
                status = state.arbiter.read("status")
                # Otherwise the switch might yet come, unnoticed, under accesses of the old mode.
                with suppress(DeviceTimeout):
                    self._request_mode(state, state.mode)
                state.mode = _mode_in_force(state.arbiter, state.arbiter.read("status"))
                raise DeviceTimeoutError(
                    f"channel {state.number} was not in {mode} mode after "
                    f"{MODE_TIMEOUT_FABRIC_CYCLES} fabric cycles, its arbiter's status read "
                    f"{status:#x}; the request was withdrawn, {state.mode} mode is in force",
                    channel=state.number,
                    timeout_fabric_cycles=MODE_TIMEOUT_FABRIC_CYCLES,
                    status=status,
                    mode=str(state.mode),
                ) from timeout
            state.mode = mode

    def _request_mode(self, state: _Channel, mode: Mode) -> None:
        code = state.arbiter["mode"]["mode"].code(mode)
        state.arbiter.write({"mode": code << state.arbiter["mode"]["mode"].lsb})
        state.arbiter.poll(
            "status",
            {"mode": code, "draining": 0},
            interval=MODE_POLL_FABRIC_CYCLES,
            timeout=MODE_TIMEOUT_FABRIC_CYCLES,
        )

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
    ) -> AdamRun:
        """Starts step ``t`` of Adam on ``nparams`` FP32 parameters; ``p``, ``m``, ``v`` in place.

        Returns at once; the run goes on in a thread of its own. The channel has to be in
        acceleration mode and stays in it. The tensors start on 64-byte lines of the channel and
        may be parts of their allocations.

        Parameters
        ----------
        p, m, v, g: parameters, first and second moments, gradients.
        lr, beta1, beta2, eps, weight_decay, t: see
            :class:`~sw_driver.hyperparameters.AdamHyperparameters`.
        timeout_fabric_cycles: when to give the kernel up; the default is ample.

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
            else _size("timeout_fabric_cycles", timeout_fabric_cycles, minimum=1)
        )
        with self._exclusive(state):
            self._check_tensors(state, tensors, count)
            self._check_idle(state)
            self._check_mode(state, Mode.ACCELERATION)
            settings = {
                "count": count,
                **{f"{name}_in": tensors[name].address for name in "pgmv"},
                **{f"{name}_out": tensors[name].address for name in "pmv"},
                **_constant_bits(hyperparameters),
            }
            state.kernel.write(settings)
            run = AdamRun(
                channel=state.number,
                nparams=count,
                allocations=frozenset(pointer.allocation for pointer in tensors.values()),
            )
            state.unfinished = True
            state.kernel.write({"control": state.kernel["control"]["start"].mask})
            state.follower.submit(self._follow, state, run, timeout)
            state.run = run
        return run

    def WaitAxdimm(self, channel: int, timeout: float | None = None) -> AdamResult | None:
        """Waits for the channel's last run and returns its counters.

        None if this driver started none. Raises what the handle's ``wait`` raises.
        """
        run = self._channel(channel).run
        return None if run is None else run.wait(timeout)

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
        if not state.lock.acquire(blocking=False):
            return False
        try:
            self._check_open()
            return not state.running and not self._unfinished(state)
        finally:
            state.lock.release()

    def _follow(self, state: _Channel, run: AdamRun, timeout: int) -> None:
        """Ends ``run`` when the kernel does. Nobody else talks to the channel meanwhile."""
        outcome: AdamResult | BaseException
        try:
            outcome = self._await_kernel(state, run, timeout)
        except BaseException as error:  # goes to whoever waits
            outcome = error
        run.finish(outcome)

    def _await_kernel(self, state: _Channel, run: AdamRun, timeout: int) -> AdamResult:
        kernel = state.kernel
        left = timeout
        while True:
            chunk = min(left, RUN_POLL_CHUNK_FABRIC_CYCLES)
            try:
                status = kernel.poll(
                    "status", {"busy": 0}, interval=RUN_POLL_FABRIC_CYCLES, timeout=chunk
                )
                break
            except DeviceTimeout as error:
                left -= chunk
                if self._closing.is_set():
                    raise ClosedError(
                        f"the device was closed during a run of {run.nparams} parameters on "
                        f"channel {run.channel}"
                    ) from error
                if left <= 0:
                    raise DeviceTimeoutError(
                        f"the run of {run.nparams} parameters on channel {run.channel} did not end "
                        f"in {timeout} fabric cycles; the kernel's status reads "
                        f"{kernel.read('status'):#x}",
                        channel=run.channel,
                        nparams=run.nparams,
                        timeout_fabric_cycles=timeout,
                    ) from error
        state.unfinished = False
        fields = kernel["status"]
        if fields["error"].extract(status) or not fields["done"].extract(status):
            causes = {code: name for name, code in fields["cause"].encoding}
            code = fields["cause"].extract(status)
            cause = causes.get(code, f"cause_{code}")
            raise KernelError(
                f"the kernel refused or stopped the run of {run.nparams} parameters on channel "
                f"{run.channel}: {cause}",
                cause=cause,
                channel=run.channel,
                nparams=run.nparams,
                status=status,
            )
        counters = kernel.read_many(["cycles", "beats_read", "beats_written", "idle_cycles"])
        return AdamResult(
            nparams=run.nparams,
            fabric_cycles=counters["cycles"],
            beats_read=counters["beats_read"],
            beats_written=counters["beats_written"],
            idle_fabric_cycles=counters["idle_cycles"],
            activity=_activity(state) if self._transport.timed else None,
        )

    # Closing.

    def close(self) -> None:
        """Stops following runs and releases the device. Calling it twice does no harm.

        Calls in progress in other threads end first; calls that wait for them, and later ones,
        raise :class:`ClosedError`. Runs go on in the device, their handles' ``wait`` raises
        :class:`ClosedError` unless they end soon.
        """
        self._closing.set()
        with ExitStack() as locks:
            for state in self._channels:
                locks.enter_context(state.lock)
            for state in self._channels:
                state.follower.shutdown()
            if self._owns_transport:
                self._transport.close()

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
        return (
            f"<Axdimm on {self._transport.name}: {self.channels} channels of "
            f"{self._transport.capacity_bytes} bytes, copies over the {copies}>"
        )

    # Checks. None of them changes anything.

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ClosedError("the device was closed: open it again")

    @contextmanager
    def _exclusive(self, state: _Channel) -> Iterator[None]:
        """The channel for the caller alone; it may have been closed while waiting for it."""
        with state.lock:
            self._check_open()
            yield

    def _channel(self, channel: int) -> _Channel:
        self._check_open()
        try:
            number = index(channel)
        except TypeError:
            number = -1
        if not 0 <= number < len(self._channels):
            raise NoSuchChannelError(
                f"channel is {channel!r}: expected an integer from 0 to {len(self._channels) - 1}",
                channel=channel,
                channels=len(self._channels),
            )
        return self._channels[number]

    def _owner(self, pointer: AxdimmPointer) -> _Channel:
        if not isinstance(pointer, AxdimmPointer):
            raise ForeignPointerError(
                f"{pointer!r} is a {type(pointer).__name__}: expected what MallocAxdimm returned"
            )
        if pointer.device != self._number:
            raise ForeignPointerError(
                f"address {pointer.address:#x} belongs to device {pointer.device}, this is device "
                f"{self._number}",
                address=pointer.address,
                pointer_device=pointer.device,
                device=self._number,
            )
        return self._channel(pointer.channel)

    def _allocation(
        self,
        state: _Channel,
        pointer: AxdimmPointer,
        freed: type[FreedPointerError] = FreedPointerError,
    ) -> _Allocation:
        allocation = state.allocations.get(pointer.allocation)
        if allocation is None:
            raise freed(
                f"allocation {pointer.allocation} at address {pointer.address:#x} of channel "
                f"{state.number} was freed",
                allocation=pointer.allocation,
                address=pointer.address,
                channel=state.number,
            )
        return allocation

    def _check_idle(self, state: _Channel) -> None:
        if state.running and state.run:
            raise BusyError(
                f"channel {state.number} is running {state.run.nparams} parameters: wait first",
                channel=state.number,
                nparams=state.run.nparams,
            )
        if self._unfinished(state):
            what = (
                "that was in progress when the device was opened"
                if state.run is None
                else f"of {state.run.nparams} parameters that is not followed any more"
            )
            raise BusyError(
                f"channel {state.number} is still busy with a run {what}: wait until "
                f"PollAxdimm({state.number})",
                channel=state.number,
                nparams=None if state.run is None else state.run.nparams,
            )

    def _unfinished(self, state: _Channel) -> bool:
        """Whether a kernel that nobody follows still runs. For the owner of the lock."""
        # The arbiter answers in both modes, the kernel in one.
        if state.unfinished and not state.arbiter.read_field("status", "kernel_busy"):
            state.unfinished = False
        return state.unfinished

    def _check_mode(self, state: _Channel, needed: Mode) -> None:
        if state.mode is not needed:
            call = "SetArbiterNormal" if needed is Mode.NORMAL else "SetArbiterAcc"
            raise WrongModeError(
                f"channel {state.number} is in {state.mode} mode, {needed} mode is needed: call "
                f"{call}({state.number})",
                channel=state.number,
                mode=str(state.mode),
                needed=str(needed),
            )

    def _check_access(self, state: _Channel, through_backdoor: bool) -> None:
        self._check_idle(state)
        if not through_backdoor:
            self._check_mode(state, Mode.NORMAL)

    @contextmanager
    def _copying(
        self, pointer: AxdimmPointer, nbytes: int, backdoor: bool | None
    ) -> Iterator[tuple[_Channel, bool]]:
        state = self._owner(pointer)
        with self._exclusive(state):
            allocation = self._allocation(state, pointer)
            offset = pointer.address - allocation.address
            if offset < 0 or offset + nbytes > allocation.nbytes:
                raise CopyRangeError(
                    f"bytes {offset} to {offset + nbytes} of an allocation of "
                    f"{allocation.nbytes} bytes at {allocation.address:#x}",
                    offset=offset,
                    nbytes=nbytes,
                    allocation_bytes=allocation.nbytes,
                )
            yield state, self._backdoor if backdoor is None else backdoor

    def _count(self, state: _Channel, way: str, nbytes: int) -> None:
        state.copied[way] = state.copied.get(way, 0) + nbytes

    def _check_tensors(
        self, state: _Channel, tensors: dict[str, AxdimmPointer], count: int
    ) -> None:
        nbytes = count * PARAMETER_BYTES
        for name, pointer in tensors.items():
            allocation = self._allocation(state, pointer)
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


def _size(name: str, value: int, minimum: int = 0) -> int:
    try:
        size = index(value)
    except TypeError:
        size = minimum - 1
    if size < minimum:
        raise InvalidSizeError(
            f"{name} is {value!r}: expected an integer of at least {minimum}",
            name=name,
            value=value,
        )
    return size


def _count_of(nparams: int) -> int:
    try:
        count = index(nparams)
    except TypeError:
        count = 0
    if count < 1:
        raise CountMismatchError(
            f"nparams is {nparams!r}: expected an integer of at least 1", nparams=nparams
        )
    return count


def _lines(address: int, nbytes: int) -> tuple[int, int]:
    """Start and end address of the lines that hold the bytes."""
    start = address // LINE_BYTES * LINE_BYTES
    return start, -(-(address + nbytes) // LINE_BYTES) * LINE_BYTES


def _activity(state: _Channel) -> DramActivity:
    values = state.arbiter.read_many(list(ACTIVITY_REGISTERS.values()))
    return DramActivity(**{name: values[register] for name, register in ACTIVITY_REGISTERS.items()})


def _mode_in_force(arbiter: RegisterWindow, status: int) -> Mode:
    """The mode that an arbiter's status tells."""
    field = arbiter["status"]["mode"]
    return next(mode for mode in Mode if field.code(mode) == field.extract(status))


def _constant_bits(hyperparameters: AdamHyperparameters) -> dict[str, int]:
    """The kernel's nine constants, by their registers, as FP32 bits."""
    return {name: int(value.view(np.uint32)) for name, value in hyperparameters.constants().items()}
