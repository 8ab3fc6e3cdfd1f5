"""The device API of the AXDIMM runtime (paper section 4.2, Table 2).

Copies go over the simulated host link unless ``backdoor`` says otherwise. All sizes are bytes.
Simulated time passes where a program waits: in calls without a stream, in ``wait`` and ``await``;
what is queued gets on meanwhile. Any thread may call; a call waits for that of another thread.
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
    """What a channel says that it was built with."""

    capacity_bytes: int
    """Bytes of the channel's address range, the register windows included."""
    lanes: int
    """Functional units of the channel's kernel."""
    block_bytes: int
    read_latency_fabric_cycles: int
    """Latency of host reads in fabric cycles; 0 on an untimed backend."""
    rules: tuple[str, ...]
    """Names of the kernel's update rules."""
    narrow: bool
    """Whether runs may have :class:`~hw.narrow.formats.Formats` of their own."""


class Axdimm(Copies):
    """An opened AXDIMM module, and the runtime's other memories beside it.

    Parameters
    ----------
    device: a backend's name (``"rtl"``, ``"cycles"``, ``"golden"``; ``"rtl:tiny"`` names a
        configuration preset as well), or a transport. A transport given is not closed with the
        driver.
    backdoor: copies put bytes into the DRAM, or take them, without link, clock and arbiter taking
        part. Fast, and not what the machine can do. Each copy may choose for itself.
    stagger: consecutive large allocations start in different banks.
    modes: what an access does that needs the other mode or finds the kernel at work, see
        :class:`~sw_driver.axdimm.channel.ModePolicy`. Each call may choose for itself.
    timeline: where to write, on closing, when what happened in simulated time.
    options: settings of the backend if ``device`` is a name.
    clock: a clock that other devices share; by default the module has one of its own, and waiting
        for it lets no time of others pass.

    Raises
    ------
    InvalidArgumentError: no backend has this name, or ``modes`` or ``timeline`` is impossible.
    IncompatibleDeviceError: what answers is not this driver's device.
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

    # What is there.

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self._session.channels)

    @property
    def transport(self) -> Transport:
        """What the driver drives: its name, sizes and clock. What is read or written there, past
        the driver, is for measurements and tests; it takes its turn with other threads' calls and
        with what is done on the channel."""
        return self._session.transport

    @property
    def host(self) -> HostMemory:
        """Memory of the host: ``host.array(pointer, dtype)`` is an allocation as a numpy array."""
        return self._session.host

    @property
    def gpu(self) -> Any:
        """Memory of the GPU, or its stand-in in host memory. Looks for a GPU on first use."""
        return self._session.gpu

    @property
    def storage(self) -> NvmeStorage:
        """The registered storages as one memory."""
        return self._session.storage

    @property
    def simulated_ns(self) -> float:
        """The program's simulated time; 0 on an untimed backend."""
        domain = self._session.domain
        return domain.program_now * domain.cycle_ns if domain.timed else 0.0

    def mode(self, channel: int) -> Mode:
        """The mode in force when the driver last set it, or opened the device."""
        return self._session.channel(channel).mode

    def memory(self, channel: int) -> MemoryStatistics:
        """How much memory of the channel is allocated and free."""
        return self._session.channel(channel).allocator.statistics()

    def configuration(self, channel: int) -> Configuration:
        """What the channel's registers say about its build. Raises :class:`BusyError`."""
        state = self._session.channel(channel)
        values = state.use(
            "reading the configuration", lambda: state.arbiter.read_many(["capacity", "config"])
        )
        fields = state.arbiter["config"].fields
        built: dict[str, Any] = {each.name: each.extract(values["config"]) for each in fields}
        built |= {"rules": state.rules, "narrow": bool(built["narrow"])}
        return Configuration(**built, capacity_bytes=values["capacity"])

    def rules(self, channel: int) -> tuple[str, ...]:
        """Names of the update rules that the channel's kernel computes, read when it was opened."""
        return self._session.channel(channel).rules

    def narrow(self, channel: int) -> bool:
        """Whether the channel's kernel has narrow formats, read when it was opened."""
        return self._session.channel(channel).narrow

    def copied_bytes(self, channel: int) -> CopiedBytes:
        """How many bytes were copied over the link and through the backdoor."""
        return self._session.channel(channel).copied

    def describe(self) -> dict[str, Any]:
        """The driver's view of the device, of what JSON has, as far as time has passed.

        ``backend``, ``capacity_bytes`` of a channel, ``fabric_mhz``, ``timed``, and in ``channels``
        each channel's ``mode``, ``running`` (whether its kernel is, as far as the driver knows),
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

    # Looking into it.

    def registers(self, channel: int) -> NamedRegisters:
        """A channel's registers by their names. Raises :class:`InvalidArgumentError`."""
        return NamedRegisters(self._session.channel(channel))

    def peek(self, channel: int, address: int, nbytes: int) -> bytes:
        """Bytes of a channel's memory from ``address`` on, allocated or not, over the link.

        Needs normal mode and an idle kernel. Raises :class:`InvalidArgumentError` unless
        there is the channel and all lie below its registers, :class:`BusyError` and
        :class:`WrongModeError`.
        """
        state = self._memory_at(channel, address, nbytes)
        read = partial(finished, state.read(address, nbytes, "peek"))
        return state.use(f"peek of {nbytes} bytes", read, mode=Mode.NORMAL).tobytes()

    def poke(self, channel: int, address: int, data: bytes) -> None:
        """Writes bytes of a channel's memory, whoever has them allocated; see :meth:`peek`."""
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
        """Registers a file or block device as NVMe storage; returns its number.

        ``settings`` and exceptions: see :meth:`~sw_driver.device.storage.NvmeStorage.register`.
        """
        with self._session.opened():
            number = self.storage.register(device, **settings)
            self._session.add_tracks(self.storage)
            return number

    def MallocAxdimm(self, nbytes: int, channel: int) -> AxdimmPointer:
        """Allocates ``nbytes`` of a channel's memory, on a 64-byte line of its own.

        Raises :class:`InvalidArgumentError` for a size or channel, :class:`OutOfMemoryError`.
        """
        state = self._session.channel(channel)
        size = checked_size("nbytes", nbytes, minimum=1)
        with self._session.opened():
            address = state.allocator.allocate(size)
            return state.allocations.add(channel=state.number, address=address, nbytes=size)

    def FreeAxdimm(self, ptr: AxdimmPointer) -> None:
        """Frees an allocation, given its start.

        Raises :class:`PointerError`, and :class:`BusyError` if an operation uses the allocation.
        Garbage collection in the middle of a call frees at that call's end.
        """
        state = self._session.owner(ptr)
        self._session.release(lambda: state.allocator.free(state.allocations.remove(ptr).address))

    def MallocHost(self, nbytes: int, channel: int | None = None) -> HostPointer:
        """Allocates memory of the host; ``channel`` is 0 or left out.

        Raises :class:`InvalidArgumentError` for a size or channel, :class:`OutOfMemoryError`.
        """
        with self._session.opened():
            return self._session.host.allocate(nbytes, channel)

    def FreeHost(self, ptr: HostPointer) -> None:
        """Frees memory of the host. Raises what :meth:`FreeAxdimm` raises."""
        self._session.release(lambda: self._session.host.free(ptr))

    def MallocGpu(self, nbytes: int, channel: int | None = None) -> GpuPointer:
        """Allocates memory of GPU ``channel``, or of its stand-in.

        Raises :class:`InvalidArgumentError` for a size or channel, :class:`OutOfMemoryError`.
        """
        with self._session.opened():
            return self._session.gpu.allocate(nbytes, channel)

    def FreeGpu(self, ptr: GpuPointer) -> None:
        """Frees memory of a GPU. Raises what :meth:`FreeAxdimm` raises."""
        self._session.release(lambda: self._session.gpu.free(ptr))

    def MallocNvme(self, nbytes: int, channel: int | None = None) -> NvmePointer:
        """Allocates storage on device ``channel``, or striped over all that are registered.

        Raises :class:`InvalidArgumentError` for a size or channel, :class:`OutOfMemoryError`.
        """
        with self._session.opened():
            return self._session.storage.allocate(nbytes, channel)

    def FreeNvme(self, ptr: NvmePointer) -> None:
        """Frees storage. Raises what :meth:`FreeAxdimm` raises."""
        self._session.release(lambda: self._session.storage.free(ptr))

    def map(self, ptr: AxdimmPointer, nbytes: int) -> MappedView:
        """The module's memory as a program sees it that accesses the mapping itself.

        Its loads and stores go through the host's cache, which the module cannot tell of changes:
        they may be stale, as on the real machine (paper section 4.1). The copies never are.

        Raises :class:`PointerError`, :class:`RangeError`.
        """
        state = self._session.owner(ptr)
        size = checked_size("nbytes", nbytes, minimum=1)
        state.allocations.range(ptr, size)
        return MappedView(state, ptr, size)

    # Streams.

    def stream(self, channel: int) -> Stream:
        """The stream of a channel; always the same one."""
        return self._session.channel_stream(channel)

    def new_stream(self, name: str) -> Stream:
        """Another stream, for example for copies between GPU and storage."""
        return self._session.new_stream(str(name))

    # Modes.

    def SetArbiterAcc(
        self, channel: int, *, stream: Stream | None = None, modes: str | None = None
    ) -> Handle[None]:
        """Gives the channel's DRAM to its kernel; over when the mode is in force.

        Raises :class:`BusyError` (or waits, by ``modes``), :class:`InvalidArgumentError`, and
        :class:`DeviceTimeoutError` when the mode is not in force in time.
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
        """Starts an update rule on ``nparams`` parameters.

        Returns when the kernel was started, or with ``stream`` at once. The channel has to be in
        acceleration mode (or is switched, by ``modes``) and stays in it. The tensors start on
        64-byte lines of the channel and may be parts of their allocations; one that the rule loads
        and stores is updated in place.

        Parameters
        ----------
        rule: its name, one of :meth:`rules`.
        tensors: a pointer for each tensor of the rule, and of ``formats``, by its name.
        nparams: how many parameters; a multiple of 256 if a tensor is not in FP32.
        hyperparameters: a number for each hyper-parameter of the rule, by its name; see
            :func:`~sw_driver.axdimm.hyperparameters.checked_hyperparameters`.
        formats: those of the tensors, see ``docs/formats.md``; others than FP32 need a kernel that
            has them, see :meth:`narrow`.
        seed: 64 bits, of the random words that round ``p`` to BF16, and without a meaning if it is
            in FP32; runs of one step need seeds of their own.
        timeout_fabric_cycles: when to give the kernel up; the default is ample.
        stream: where to queue the run.
        modes: see :class:`~sw_driver.axdimm.channel.ModePolicy`; None is the device's.

        Raises
        ------
        InvalidArgumentError: the kernel has not the rule or the formats, or tensors, their channel,
            alignment or length, or hyper-parameters are not those that it needs.
        PointerError, RangeError, BusyError, WrongModeError: before anything was started, too. What
            goes wrong later is raised by the handle's ``wait``.
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
        """Starts step ``t`` of Adam on ``nparams`` FP32 parameters; ``p``, ``m``, ``v`` in place.

        It is :meth:`RunOnAxdimmAsync` of the rule ``adam``.

        Parameters
        ----------
        p, m, v, g: parameters, first and second moments, gradients.
        lr, beta1, beta2, eps, weight_decay, t: hyper-parameters.
        timeout_fabric_cycles, stream, modes: see :meth:`RunOnAxdimmAsync`, as for what is raised.
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
        """Waits for what is queued in the channel's stream and for its last run.

        Returns the run's counters, None if this driver started none. Raises what the stream's and
        the handle's ``wait`` raise; ``timeout`` holds for each of them.
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
        """Whether the channel's kernel is idle. Asks, but does not wait for it.

        To ask takes the simulated time of reading a register. A kernel that was found running when
        the device was opened, or whose run was given up, is really asked, over the link.
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
        """Writes the timeline and releases the device and all memories.

        What is queued or in progress, runs included, ends with :class:`ClosedError`, and so do
        later calls; a call of another thread is over first.

        Raises what releasing something raises, when all else has been released, and ``OSError`` if
        the timeline cannot be written. Closing what is closed does no harm.
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
