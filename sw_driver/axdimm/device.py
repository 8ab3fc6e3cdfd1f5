"""Device API of the AXDIMM runtime (paper section 4.2, Table 2).

Copies go over the simulated host link unless ``backdoor`` is set. All sizes are bytes. Simulated
time passes only while a program waits: in calls without a stream, in ``wait`` and ``await``. Queued
operations progress meanwhile. Any thread may call; a call waits for the calls of other threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hw.narrow.formats import FP32_FORMATS, Formats

from ..device.clock import Clock
from ..device.errors import InvalidArgumentError
from ..device.memory import (
    AxdimmPointer,
    GpuPointer,
    HostPointer,
    MemoryStatistics,
    NvmePointer,
    checked_size,
)
from ..device.streams import Handle, Stream, check_timeout, perform
from .backends import BackendOptions
from .channel import Channel, CopiedBytes, Mode, ModePolicy
from .launch import launch
from .mapping import MappedView
from .memcpy import Copies
from .named_registers import NamedRegisters
from .runs import KernelRun, RunResult
from .session import Session
from .transport import Transport, finished, kernel_window

if TYPE_CHECKING:
    from ..device.storage import NvmeStorage
    from ..device.tensors import HostMemory

__all__ = ["Axdimm", "Configuration"]


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Build parameters of a channel, read from its registers."""

    capacity_bytes: int
    """Bytes of the channel's address range, including the register windows."""
    lanes: int
    """Number of functional units in the channel's kernel."""
    block_bytes: int
    read_latency_fabric_cycles: int
    """Latency of host reads in fabric cycles; 0 on an untimed backend."""
    rules: tuple[str, ...]
    """Names of the kernel's update rules."""
    narrow: bool
    """True if runs may use :class:`~hw.narrow.formats.Formats` other than FP32."""


class Axdimm(Copies):
    """An opened AXDIMM module and the runtime's other memories.

    Parameters
    ----------
    device: a backend's name (``"rtl"``, ``"cycles"``, ``"golden"``), with a configuration preset as
        in ``"rtl:tiny"``; or a transport, which the driver does not close.
    backdoor: True to copy directly to and from the DRAM, without link, clock and arbiter. It is
        fast, but real hardware cannot do it. Each copy may override it.
    stagger: True to start consecutive large allocations in different banks.
    modes: reaction of an access that needs the other mode or an idle kernel, see
        :class:`~sw_driver.axdimm.channel.ModePolicy`. Each call may override it.
    timeline: file for the timeline of simulated events, written on closing.
    options: settings of the backend if ``device`` is a name.
    clock: clock shared with other devices. By default the module has its own, and waiting for it
        does not advance other devices.

    Raises
    ------
    InvalidArgumentError: no backend has this name, or ``modes`` or ``timeline`` is not allowed.
    IncompatibleDeviceError: the device does not match this driver.

    Examples
    --------
    >>> import numpy as np
    >>> with Axdimm("cycles") as device:
    ...     values = np.ones(1000, np.float32)
    ...     pointer = device.MallocAxdimm(values.nbytes, channel=0)
    ...     copy = device.MemcpyHost2Axdimm(pointer, values, values.nbytes)
    ...     print(copy.ended - copy.began, "cycles")
    174 cycles
    """

    def __init__(
        self,
        device: str | Transport,
        *,
        backdoor: bool = False,
        stagger: bool = True,
        modes: str = ModePolicy.RAISE,
        timeline: str | os.PathLike[str] | None = None,
        options: BackendOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._session = Session(
            device,
            backdoor=backdoor,
            stagger=stagger,
            modes=modes,
            timeline=timeline,
            options=options,
            clock=clock,
        )

    # State.

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self._session.channels)

    @property
    def transport(self) -> Transport:
        """The driven transport, with its name, sizes and clock.

        Direct accesses bypass the driver; they are for measurements and tests. They wait for other
        threads' calls and for operations on the channel.
        """
        return self._session.transport

    @property
    def host(self) -> HostMemory:
        """Host memory; ``host.array(pointer, dtype)`` returns an allocation as a numpy array."""
        return self._session.host

    @property
    def gpu(self) -> Any:
        """GPU memory, or its stand-in in host memory. The first use looks for a GPU."""
        return self._session.gpu

    @property
    def storage(self) -> NvmeStorage:
        """The registered storages as one memory."""
        return self._session.storage

    @property
    def simulated_ns(self) -> float:
        """The program's simulated time in ns; 0 on an untimed backend."""
        domain = self._session.domain
        return domain.program_now * domain.cycle_ns if domain.timed else 0.0

    def mode(self, channel: int) -> Mode:
        """Return the channel's mode, as set or found by this driver."""
        return self._session.channel(channel).mode

    def memory(self, channel: int) -> MemoryStatistics:
        """Return allocated and free bytes of the channel's memory."""
        return self._session.channel(channel).allocator.statistics()

    def configuration(self, channel: int) -> Configuration:
        """Return the channel's build parameters from its registers; raise :class:`BusyError`."""
        state = self._session.channel(channel)
        values = state.use(
            "reading the configuration", lambda: state.arbiter.read_many(["capacity", "config"])
        )
        fields = state.arbiter["config"].fields
        fields_read: dict[str, Any] = {
            field.name: field.extract(values["config"]) for field in fields
        }
        fields_read |= {"rules": state.rules, "narrow": bool(fields_read["narrow"])}
        return Configuration(**fields_read, capacity_bytes=values["capacity"])

    def rules(self, channel: int) -> tuple[str, ...]:
        """Return the names of the kernel's update rules, read when the device was opened."""
        return self._session.channel(channel).rules

    def narrow(self, channel: int) -> bool:
        """Return True if the kernel has narrow formats, read when the device was opened."""
        return self._session.channel(channel).narrow

    def copied_bytes(self, channel: int) -> CopiedBytes:
        """Return the bytes copied over the link and through the backdoor."""
        return self._session.channel(channel).copied

    def describe(self) -> dict[str, Any]:
        """Return the driver's view of the device at the present time, as JSON types.

        It has ``backend``, ``capacity_bytes`` of a channel, ``fabric_mhz``, ``timed`` and
        ``channels``. Each channel has ``mode``, ``running`` (its kernel, as known to the driver),
        ``rules``, ``fabric_cycles``, ``copied_bytes`` and ``memory``.
        """
        session = self._session
        transport = session.transport
        with session.opened():
            channels = [
                {
                    "mode": str(state.mode),
                    "running": state.is_running(session.domain.program_now) or state.unfinished,
                    "rules": list(state.rules),
                    "fabric_cycles": transport.fabric_cycles(state.number),
                    "copied_bytes": asdict(self.copied_bytes(state.number)),
                    "memory": asdict(self.memory(state.number)),
                }
                for state in session.channels
            ]
        return {
            "backend": transport.name,
            "capacity_bytes": transport.capacity_bytes,
            "fabric_mhz": transport.fabric_mhz,
            "timed": transport.timed,
            "channels": channels,
        }

    # Debug access.

    def registers(self, channel: int) -> NamedRegisters:
        """Return a channel's registers by name; raise :class:`InvalidArgumentError`."""
        return NamedRegisters(self._session.channel(channel))

    def peek(self, channel: int, address: int, nbytes: int) -> bytes:
        """Return bytes of a channel's memory from ``address`` on, read over the link.

        They need not be allocated. Needs normal mode and an idle kernel. Raises
        :class:`InvalidArgumentError` unless the channel exists and the bytes lie below its
        registers, :class:`BusyError` and :class:`WrongModeError`.
        """
        state = self._memory_at(channel, address, nbytes)
        read = partial(finished, state.read(address, nbytes, "peek"))
        return state.use(f"peek of {nbytes} bytes", read, mode=Mode.NORMAL).tobytes()

    def poke(self, channel: int, address: int, data: bytes) -> None:
        """Write bytes of a channel's memory, allocated or not; see :meth:`peek`."""
        source = np.frombuffer(data, dtype=np.uint8)
        state = self._memory_at(channel, address, source.size)
        write = partial(finished, state.write(address, source, "poke"))
        state.use(f"poke of {source.size} bytes", write, mode=Mode.NORMAL)

    def _memory_at(self, channel: int, address: int, nbytes: int) -> Channel:
        state = self._session.channel(channel)
        end = kernel_window(self.transport.capacity_bytes)
        checked_size("address", address, minimum=0)
        checked_size("nbytes", nbytes, minimum=1)
        if address + nbytes > end:
            raise InvalidArgumentError(
                f"{nbytes} bytes at {address:#x} end past {end:#x}, where the registers begin: ask "
                "for less",
                address=address,
                nbytes=nbytes,
                end=end,
            )
        return state

    # Memory.

    def RegisterStorage(self, device: str | os.PathLike[str], **settings: Any) -> int:
        """Register a file or block device as NVMe storage and return its number.

        ``settings`` and exceptions: see :meth:`~sw_driver.device.storage.NvmeStorage.register`.
        """
        with self._session.opened():
            number = self.storage.register(device, **settings)
            self._session.add_tracks(self.storage)
            return number

    def MallocAxdimm(self, nbytes: int, channel: int) -> AxdimmPointer:
        """Allocate ``nbytes`` of a channel's memory, aligned to lines of 64 bytes.

        Raises :class:`InvalidArgumentError` for a bad size or channel, :class:`OutOfMemoryError`.
        """
        state = self._session.channel(channel)
        size = checked_size("nbytes", nbytes, minimum=1)
        with self._session.opened():
            address = state.allocator.allocate(size)
            return state.allocations.add(channel=state.number, address=address, nbytes=size)

    def FreeAxdimm(self, ptr: AxdimmPointer) -> None:
        """Free an allocation, given its start.

        Raises :class:`PointerError`, and :class:`BusyError` if an operation uses the allocation.
        Garbage collection in the middle of a call frees at the end of that call.
        """
        state = self._session.owner(ptr)
        self._session.release(lambda: state.allocator.free(state.allocations.remove(ptr).address))

    def MallocHost(self, nbytes: int, channel: int | None = None) -> HostPointer:
        """Allocate host memory; ``channel`` is 0 or omitted.

        Raises :class:`InvalidArgumentError` for a bad size or channel, :class:`OutOfMemoryError`.
        """
        with self._session.opened():
            return self._session.host.allocate(nbytes, channel)

    def FreeHost(self, ptr: HostPointer) -> None:
        """Free host memory; raise as :meth:`FreeAxdimm`."""
        self._session.release(lambda: self._session.host.free(ptr))

    def MallocGpu(self, nbytes: int, channel: int | None = None) -> GpuPointer:
        """Allocate memory of GPU ``channel``, or of its stand-in.

        Raises :class:`InvalidArgumentError` for a bad size or channel, :class:`OutOfMemoryError`.
        """
        with self._session.opened():
            return self._session.gpu.allocate(nbytes, channel)

    def FreeGpu(self, ptr: GpuPointer) -> None:
        """Free GPU memory; raise as :meth:`FreeAxdimm`."""
        self._session.release(lambda: self._session.gpu.free(ptr))

    def MallocNvme(self, nbytes: int, channel: int | None = None) -> NvmePointer:
        """Allocate storage on device ``channel``, or striped over all registered ones.

        Raises :class:`InvalidArgumentError` for a bad size or channel, :class:`OutOfMemoryError`.
        """
        with self._session.opened():
            return self._session.storage.allocate(nbytes, channel)

    def FreeNvme(self, ptr: NvmePointer) -> None:
        """Free storage; raise as :meth:`FreeAxdimm`."""
        self._session.release(lambda: self._session.storage.free(ptr))

    def map(self, ptr: AxdimmPointer, nbytes: int) -> MappedView:
        """Return the module's memory as a program sees it that accesses the mapping directly.

        Loads and stores go through the host's cache, which does not notice changes by the module.
        They may be stale, as on the real machine (paper section 4.1); the copies never are.

        Raises :class:`PointerError`, :class:`RangeError`.
        """
        state = self._session.owner(ptr)
        size = checked_size("nbytes", nbytes, minimum=1)
        state.allocations.range(ptr, size)
        return MappedView(state, ptr, size)

    # Streams.

    def stream(self, channel: int) -> Stream:
        """Return the channel's stream, always the same one."""
        return self._session.channel_stream(channel)

    def new_stream(self, name: str) -> Stream:
        """Return a new stream, for example for copies between GPU and storage."""
        return self._session.new_stream(str(name))

    # Modes.

    def SetArbiterAcc(
        self, channel: int, *, stream: Stream | None = None, modes: str | None = None
    ) -> Handle[None]:
        """Give the channel's DRAM to its kernel; the handle ends when the mode is in force.

        Raises :class:`BusyError` (or waits, by ``modes``), :class:`InvalidArgumentError`, and
        :class:`DeviceTimeoutError` if the mode is not in force in time.
        """
        return self._set_mode(channel, Mode.ACCELERATION, stream, modes)

    def SetArbiterNormal(
        self, channel: int, *, stream: Stream | None = None, modes: str | None = None
    ) -> Handle[None]:
        """Give the channel's DRAM to the host; the handle ends when the mode is in force.

        Raises as :meth:`SetArbiterAcc`.
        """
        return self._set_mode(channel, Mode.NORMAL, stream, modes)

    def _set_mode(
        self, channel: int, mode: Mode, stream: Stream | None, modes: str | None
    ) -> Handle[None]:
        session = self._session
        state = session.channel(channel)
        policy = session.policy(modes)
        session.check_stream(stream)
        handle: Handle[None] = Handle(
            f"switch of channel {state.number} to {mode} mode", session.domain
        )
        with session.opened():
            return perform(handle, lambda: state.set_mode(mode, policy, handle), stream)

    # Runs.

    def RunOnAxdimmAsync(
        self,
        rule: str,
        tensors: Mapping[str, AxdimmPointer],
        nparams: int,
        hyperparameters: Mapping[str, float],
        channel: int,
        *,
        formats: Formats = FP32_FORMATS,
        seed: int = 0,
        timeout_fabric_cycles: int | None = None,
        stream: Stream | None = None,
        modes: str | None = None,
    ) -> KernelRun:
        """Start an update rule on ``nparams`` parameters.

        Returns when the kernel was started or, with ``stream``, at once. The channel must be in
        acceleration mode (or is switched, by ``modes``) and stays in it. Tensors start on 64-byte
        lines of the channel and may be parts of allocations. A tensor that the rule both loads and
        stores is updated in place.

        Parameters
        ----------
        rule: name of the rule, one of :meth:`rules`.
        tensors: a pointer for each tensor of the rule and of ``formats``, by name.
        nparams: number of parameters, a multiple of 256 if a tensor is not in FP32.
        hyperparameters: a number for each hyper-parameter of the rule, by name; see
            :func:`~sw_driver.axdimm.hyperparameters.checked_hyperparameters`.
        formats: formats of the tensors, see ``docs/formats.md``. Other formats than FP32 need a
            kernel with narrow formats, see :meth:`narrow`.
        seed: 64-bit seed of the random words that round ``p`` to BF16; unused if ``p`` is in FP32.
            Runs of one step need different seeds.
        timeout_fabric_cycles: cycles after which the run is given up; the default is ample.
        stream: stream in which to queue the run.
        modes: see :class:`~sw_driver.axdimm.channel.ModePolicy`; None for the device's.

        Raises
        ------
        InvalidArgumentError: the kernel lacks the rule or the formats. Or the tensors, their
            channel, alignment or length, or the hyper-parameters are wrong.
        PointerError, RangeError, BusyError, WrongModeError: before anything was started, too. The
            handle's ``wait`` raises later errors.
        """
        with self._session.opened():
            return launch(
                self._session,
                rule,
                tensors,
                nparams,
                hyperparameters,
                channel,
                formats=formats,
                seed=seed,
                timeout_fabric_cycles=timeout_fabric_cycles,
                stream=stream,
                modes=modes,
            )

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
    ) -> KernelRun:
        """Start step ``t`` of Adam on ``nparams`` FP32 parameters; update ``p``, ``m``, ``v``.

        This is :meth:`RunOnAxdimmAsync` of the rule ``adam``, and raises as it does.

        Parameters
        ----------
        p, m, v, g: parameters, first and second moments, gradients.
        lr, beta1, beta2, eps, weight_decay, t: hyper-parameters.
        timeout_fabric_cycles, stream, modes: see :meth:`RunOnAxdimmAsync`.
        """
        return self.RunOnAxdimmAsync(
            "adam",
            {"p": p, "m": m, "v": v, "g": g},
            nparams,
            {
                "lr": lr,
                "beta1": beta1,
                "beta2": beta2,
                "eps": eps,
                "weight_decay": weight_decay,
                "t": t,
            },
            channel,
            timeout_fabric_cycles=timeout_fabric_cycles,
            stream=stream,
            modes=modes,
        )

    def WaitAxdimm(self, channel: int, timeout: float | None = None) -> RunResult | None:
        """Wait for the operations queued in the channel's stream and for its last run.

        Returns the run's counters, or None if this driver started no run. Raises as the ``wait`` of
        stream and handle; ``timeout`` holds for each of them.
        """
        state = self._session.channel(channel)
        check_timeout(timeout)
        stream = self._session.queued_in_order(state.number)
        try:
            if stream is not None:
                stream.wait(timeout)
        finally:
            if state.run is not None and not state.run.failed:
                state.run.wait(timeout)
        return None if state.run is None else state.run.wait(timeout)

    def PollAxdimm(self, channel: int) -> bool:
        """Return True if the channel's kernel is idle; does not wait for it.

        The query takes the simulated time of a register read. It reads the device over the link if
        the kernel was running when the device was opened, or if its run was given up.
        """
        session = self._session
        state = session.channel(channel)
        if state.is_running(session.domain.program_now):
            with session.clock:
                session.clock.ask(session.domain)
            return not state.is_running(session.domain.program_now)
        if not state.unfinished:
            return True
        return not state.use("asking the kernel", state.busy, idle=False)

    # Closing.

    def close(self) -> None:
        """Write the timeline, and release the device and all memories.

        Operations queued or in progress, including runs, end with :class:`ClosedError`. So do later
        calls. Calls of other threads are over first.

        Errors of a release are raised after everything else was released; ``OSError`` if the
        timeline cannot be written. A second call does nothing.
        """
        self._session.close()

    def __enter__(self) -> Axdimm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        session = self._session
        copies = "backdoor" if session.backdoor else "host link"
        return (
            f"<Axdimm on {session.name}: {self.channels} channels of "
            f"{session.transport.capacity_bytes} bytes, copies over the {copies}>"
        )
