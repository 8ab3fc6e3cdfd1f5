"""One channel of an opened module: its mode, its runs, and the order of its users."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..device.clock import Awaited, Steps
from ..device.errors import (
    BusyError,
    DeviceTimeoutError,
    IncompatibleDeviceError,
    InvalidArgumentError,
    KernelError,
    UpsetError,
    WrongModeError,
)
from ..device.link import ReservedLink
from ..device.memory import AllocationTable, AxdimmPointer
from ..device.streams import Handle
from ..device.timeline import Timeline
from ..device.transport import DeviceTimeout
from .allocator import channel_memory
from .hostcache import HostCache
from .registers import ChannelRegisters, arbiter_registers, kernel_built, kernel_registers
from .runs import ACTIVITY_REGISTERS, DramActivity, KernelRun, RunResult
from .transport import TURN, Transport, read_bytes, write_bytes

__all__ = ["LINK_TRACK", "Channel", "CopiedBytes", "Mode", "ModePolicy"]

T = TypeVar("T")

LINK_TRACK = "host link"
MODE_POLL_FABRIC_CYCLES = 8
MODE_TIMEOUT_FABRIC_CYCLES = 1_000_000
RUN_POLL_FABRIC_CYCLES = 256
RUN_POLL_CHUNK_FABRIC_CYCLES = (50_000, 1_000_000)
"""Shortest and longest interval between updates of a run's progress, in fabric cycles."""


class Mode(StrEnum):
    """Modes of the arbiter (paper section 3.2), by their names in the register map."""

    NORMAL = "normal"
    ACCELERATION = "acceleration"


class ModePolicy(StrEnum):
    """Reaction of an access that needs the channel's other mode, or an idle kernel."""

    RAISE = "raise"
    """Raise :class:`~sw_driver.device.errors.WrongModeError` or
    :class:`~sw_driver.device.errors.BusyError`."""
    WAIT = "wait"
    """Wait for the kernel's run and switch the mode."""

    @classmethod
    def of(cls, value: str) -> ModePolicy:
        """Return the policy called ``value``.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError`.
        """
        try:
            return cls(value)
        except ValueError:
            raise InvalidArgumentError(
                f"modes is {value!r}: expected one of {', '.join(cls)}", modes=value
            ) from None


@dataclass(frozen=True, kw_only=True)
class CopiedBytes:
    """Bytes copied since the device was opened, by path and direction."""

    link_to_device: int = 0
    link_to_host: int = 0
    backdoor_to_device: int = 0
    backdoor_to_host: int = 0


class Channel:
    """A channel; :class:`~sw_driver.axdimm.device.Axdimm` has one for each of the module's.

    One user at a time holds the channel. A run does not hold it while the kernel computes, so
    others can then query its state.
    """

    def __init__(
        self,
        transport: Transport,
        number: int,
        *,
        link: ReservedLink,
        allocations: AllocationTable[AxdimmPointer],
        stagger: bool,
        timeline: Timeline | None,
        opened: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.number = number
        self.opened = opened
        """Function that enters a call of the device; see
        :class:`~sw_driver.axdimm.session.Session`."""
        self.track = f"channel {number}"
        self.link = link
        """The host link. Copies of all channels use it one after the other."""
        self.domain = transport.domain
        self._timeline = timeline
        self._transport = transport
        self._user = self.domain.turn(TURN.format(channel=number))
        self.arbiter = arbiter_registers(self._transport, number)
        self._identify()
        self.rules, self.narrow = kernel_built(self._transport, number)
        """Names of the kernel's update rules in register order; True for narrow formats."""
        self.kernel = kernel_registers(self._transport, number, self.rules, self.narrow)
        self.allocator = channel_memory(self._transport.capacity_bytes, stagger=stagger)
        self.allocations = allocations
        """Allocations in the DRAM of all channels of the module."""
        self.cache = HostCache(self._transport, number)
        """Contents of the host's cache, for programs that access the mapped DRAM."""
        self.run: KernelRun | None = None
        self._copied = asdict(CopiedBytes())
        self.occupied_until = 0
        """End of the channel's last copy, in simulated fabric cycles."""
        status = self.arbiter.read("status")
        self.mode = _mode_in_force(self.arbiter, status)
        # Another driver that was closed during a run may have left the kernel running.
        self.unfinished = bool(self.arbiter["status"]["kernel_busy"].extract(status))
        """True if the kernel was started, or found running, and not seen idle since."""

    def _identify(self) -> None:
        for name in ("magic", "version"):
            value = self.arbiter.read_field("id", name)
            expected = self.arbiter["id"][name].reset
            if value != expected:
                raise IncompatibleDeviceError(
                    f"channel {self.number} has {name} {value:#x}, this driver expects "
                    f"{expected:#x}",
                    channel=self.number,
                    found=value,
                    expected=expected,
                )
        capacity = self.arbiter.read("capacity")
        if capacity != self._transport.capacity_bytes:
            raise IncompatibleDeviceError(
                f"channel {self.number} reports {capacity} bytes, its transport "
                f"{self._transport.capacity_bytes}",
                channel=self.number,
                found=capacity,
                expected=self._transport.capacity_bytes,
            )

    def is_running(self, now: int) -> bool:
        """Return True if a followed run is in progress at fabric cycle ``now``."""
        return self.run is not None and (not self.run.over or self.run.ended > now)

    # Exclusive use.

    def take(self, user: object) -> Generator[Awaited, None, None]:
        """Wait until the channel is free, and hold it for ``user`` until :meth:`leave`.

        In simulated time, the user's next action follows everything done here before.
        """
        while self._user.holder is not None:
            yield self._user
        if self.run is None or not self.is_running(self.domain.now):
            before = max(self._transport.now(self.number), self.occupied_until)
            self.domain.now = max(self.domain.now, before)
        self._user.holder = user

    def leave(self) -> None:
        """Release the channel for others."""
        self._user.release(self.domain)

    def take_in_mode(
        self, user: object, mode: Mode | None, policy: ModePolicy
    ) -> Generator[Awaited | None, None, None]:
        """Take the channel with an idle kernel, and in ``mode`` if one is given.

        ``policy`` decides whether to raise :class:`BusyError` and :class:`WrongModeError`, or to
        wait and switch. See :meth:`take`.
        """
        while True:
            yield from self.take(user)
            try:
                if policy is ModePolicy.RAISE or not self.is_running(self.domain.now):
                    if self.run is not None or self.unfinished:
                        self.check_idle()
                    if mode is not None:
                        if policy is ModePolicy.WAIT and self.mode is not mode:
                            yield from self.switch(mode)
                        if self.mode is not mode:
                            self.check_mode(mode)
                    return
            except BaseException:
                self.leave()
                raise
            # Release it while the kernel runs, so that others can query it.
            self.leave()
            yield self.run

    def use(
        self, label: str, call: Callable[[], T], *, mode: Mode | None = None, idle: bool = True
    ) -> T:
        """Make a call of the device for the program, which holds the channel meanwhile.

        With ``idle`` or a ``mode``, raises :class:`BusyError` while the kernel runs and
        :class:`WrongModeError` in another mode.
        """
        handle: Handle[T] = Handle(label, self.domain)

        def steps() -> Steps:
            if idle or mode is not None:
                yield from self.take_in_mode(handle, mode, ModePolicy.RAISE)
            else:
                yield from self.take(handle)
            try:
                yield
                return call()
            finally:
                self.leave()

        with self.opened():
            handle.carry_out(steps())
        return handle.outcome()

    def busy(self) -> bool:
        """Return True if a kernel that is not followed still runs."""
        # The arbiter answers in both modes, the kernel only in acceleration mode.
        if self.unfinished:
            self.unfinished = bool(self.arbiter.read_field("status", "kernel_busy"))
        return self.unfinished

    def check_idle(self) -> None:
        """Raise :class:`BusyError` while the kernel runs."""
        if self.run is not None and self.is_running(self.domain.now):
            raise BusyError(
                f"channel {self.number} is running {self.run.nparams} parameters: wait first",
                channel=self.number,
                nparams=self.run.nparams,
            )
        if self.unfinished and self.busy():
            origin = (
                "that was in progress when the device was opened, or started past this driver"
                if self.run is None
                else f"of {self.run.nparams} parameters that is not followed any more"
            )
            raise BusyError(
                f"channel {self.number} is still busy with a run {origin}: wait until "
                f"PollAxdimm({self.number})",
                channel=self.number,
                nparams=None if self.run is None else self.run.nparams,
            )

    def check_mode(self, needed: Mode) -> None:
        """Raise :class:`WrongModeError` in the other mode."""
        if self.mode is not needed:
            call = "SetArbiterNormal" if needed is Mode.NORMAL else "SetArbiterAcc"
            raise WrongModeError(
                f"channel {self.number} is in {self.mode} mode, {needed} mode is needed: call "
                f"{call}({self.number})",
                channel=self.number,
                mode=str(self.mode),
                needed=str(needed),
            )

    # Modes.

    def set_mode(self, mode: Mode, policy: ModePolicy, user: object) -> Steps:
        """Switch to ``mode``; ``policy`` decides whether to wait for the kernel's run."""
        yield from self.take_in_mode(user, None, policy)
        try:
            yield from self.switch(mode)
        finally:
            self.leave()

    def switch(self, mode: Mode) -> Generator[None, None, None]:
        """Switch to ``mode``. The caller holds the channel."""
        yield
        began = self.domain.now
        code = self.arbiter["mode"]["mode"].code(mode)
        self.arbiter.write("mode", code << self.arbiter["mode"]["mode"].lsb)
        try:
            status = yield from self.arbiter.poll_steps(
                "status",
                {"mode": code, "draining": 0},
                interval=MODE_POLL_FABRIC_CYCLES,
                timeout=MODE_TIMEOUT_FABRIC_CYCLES,
            )
        except DeviceTimeout as timeout:
            status = self.arbiter.read("status")
            draining = self.arbiter["status"]["draining"].extract(status)
            waits = "transfers in flight" if draining else "nothing that its status shows"
            raise DeviceTimeoutError(
                f"channel {self.number} was not in {mode} mode after "
                f"{MODE_TIMEOUT_FABRIC_CYCLES} fabric cycles: it waits for {waits}; {timeout}",
                channel=self.number,
                timeout_fabric_cycles=MODE_TIMEOUT_FABRIC_CYCLES,
                state=self.describe(),
            ) from timeout
        self.mode = mode
        self.record(f"to {mode} mode", "mode", began, mode=str(mode))
        upsets = [
            field.name
            for field in self.arbiter["status"].fields
            if field.name.startswith("upset_") and field.extract(status)
        ]
        if upsets:
            raise UpsetError(
                f"channel {self.number} noticed that a bit of its state was lost, by "
                f"{' and '.join(upsets)}: what was copied before this mode switch may be wrong, "
                "copy it again",
                cause=", ".join(upsets),
                channel=self.number,
            )

    # Accesses of the host. The caller holds the channel.

    def read(
        self, address: int, nbytes: int, label: str
    ) -> Generator[None, None, NDArray[np.uint8]]:
        """Read bytes over the link, after flushing their lines from the host's cache."""
        with self.using_link(label, nbytes) if self._timeline else nullcontext():
            if self.cache.held:
                self.cache.flush(address, nbytes)
            return (yield from read_bytes(self._transport, self.number, address, nbytes))

    def write(
        self, address: int, data: NDArray[np.uint8], label: str
    ) -> Generator[None, None, None]:
        """Write bytes over the link, after flushing their lines from the host's cache."""
        with self.using_link(label, data.nbytes) if self._timeline else nullcontext():
            if self.cache.held:
                self.cache.flush(address, data.size)
            yield from write_bytes(self._transport, self.number, address, data)

    @contextmanager
    def using_link(self, label: str, nbytes: int) -> Iterator[None]:
        """Record the block's use of the link on its track."""
        if self._timeline is None:
            yield
            return
        self._transport.link_uses(self.number)  # discard earlier register accesses
        try:
            yield
        finally:
            uses = self._transport.link_uses(self.number)
            arguments = {"channel": self.number, "bytes": nbytes}
            self._timeline.add_uses(LINK_TRACK, label, uses, "link", **arguments)

    def count(self, path: str, nbytes: int) -> None:
        """Add copied bytes to a counter of :class:`CopiedBytes`."""
        self._copied[path] += nbytes

    @property
    def copied(self) -> CopiedBytes:
        """Bytes copied since the device was opened."""
        return CopiedBytes(**self._copied)

    # Runs.

    def start(self, settings: dict[str, int], run: KernelRun) -> Generator[None, None, None]:
        """Start the kernel. The caller holds the channel."""
        yield
        self.kernel.write_many(settings)
        self.unfinished = True
        self.run = run
        self.kernel.write("control", self.kernel["control"]["start"].mask)
        run.kernel_began = self.domain.now

    def follow(
        self, run: KernelRun, timeout_fabric_cycles: int
    ) -> Generator[None, None, RunResult]:
        """Wait for the kernel and return the run's counters.

        Raises the run's error, see :meth:`~sw_driver.device.streams.Handle.wait`.
        """
        status = yield from self._await_kernel(run, timeout_fabric_cycles)
        fields = self.kernel["status"]
        cause = self._check_upset(run, status)
        if not fields["done"].extract(status) or fields["error"].extract(status):
            raise KernelError(
                f"the kernel refused or stopped the run of {run.nparams} parameters on channel "
                f"{run.channel}: {cause}",
                cause=cause,
                channel=run.channel,
                nparams=run.nparams,
                status=status,
            )
        yield
        sums = {f"sum_{name}": name for name in run.rule.sums}
        more = ["not_finite"] if self.narrow else []
        counters = self.kernel.read_many(
            ["cycles", "beats_read", "beats_written", "idle_cycles", *sums, *more]
        )
        not_finite = counters.get("not_finite", 0)
        result = RunResult(
            nparams=run.nparams,
            fabric_cycles=counters["cycles"],
            beats_read=counters["beats_read"],
            beats_written=counters["beats_written"],
            idle_fabric_cycles=counters["idle_cycles"],
            activity=self._activity() if self._transport.timed else None,
            sums={
                name: float(np.uint32(counters[register]).view(np.float32))
                for register, name in sums.items()
            },
            not_finite=not_finite,
            skipped=run.formats.skip_not_finite and not_finite > 0,
        )
        if self._timeline is not None:
            self._timeline.add(
                self.track,
                run.label,
                run.kernel_began,
                run.kernel_began + result.fabric_cycles,
                "kernel",
                parameters=run.nparams,
                beats_read=result.beats_read,
                beats_written=result.beats_written,
            )
        return result

    def _check_upset(self, run: KernelRun, status: int) -> str:
        """Return the cause in the kernel's status; raise :class:`UpsetError` if it is an upset."""
        cause = self.kernel["status"]["cause"]
        code = cause.extract(status)
        name = {code: name for name, code in cause.encoding}.get(code, f"cause_{code}")
        if name.endswith("_upset"):
            raise UpsetError(
                f"the kernel noticed that a bit of its state was lost in the run of {run.nparams} "
                f"parameters on channel {run.channel}, {name}: its results are not to be trusted, "
                "copy the tensors in again",
                cause=name,
                channel=run.channel,
                nparams=run.nparams,
                status=status,
            )
        return name

    def _waits_for(self, run: KernelRun, status: int) -> str:
        """Return what a run that does not end waits for, in words."""
        read, written = self.kernel.read_many(["beats_read", "beats_written"]).values()
        parts = {"loading": "reads", "computing": "results", "storing": "writes"}
        waits = [
            noun for part, noun in parts.items() if self.kernel["status"][part].extract(status)
        ]
        return (
            f"it waits for {' and '.join(waits) or 'nothing that its status shows'}, "
            f"after {read} beats read and {written} written of {run.beats}"
        )

    def _await_kernel(
        self, run: KernelRun, timeout_fabric_cycles: int
    ) -> Generator[None, None, int]:
        left = timeout_fabric_cycles
        shortest, longest = RUN_POLL_CHUNK_FABRIC_CYCLES
        # A beat takes a cycle, so the run ends no earlier, unless it is refused.
        early = run.fewest_beats // RUN_POLL_FABRIC_CYCLES * RUN_POLL_FABRIC_CYCLES
        while True:
            passed = timeout_fabric_cycles - left
            chunk = min(left, longest, max(shortest, passed // 16))
            interval = RUN_POLL_FABRIC_CYCLES
            if passed < early:
                interval = chunk = min(chunk, early - passed)
            with suppress(DeviceTimeout):
                status = yield from self.kernel.poll_steps(
                    "status", {"busy": 0}, interval=interval, timeout=chunk
                )
                self.unfinished = False
                return status
            left -= chunk
            if left <= 0:
                status = self.kernel.read("status")
                self._check_upset(run, status)
                raise DeviceTimeoutError(
                    f"the run of {run.nparams} parameters on channel {run.channel} did not end "
                    f"in {timeout_fabric_cycles} fabric cycles: {self._waits_for(run, status)}; "
                    f"the kernel's status reads {status:#x}; {self.describe()}",
                    channel=run.channel,
                    nparams=run.nparams,
                    timeout_fabric_cycles=timeout_fabric_cycles,
                    status=status,
                    state=self.describe(),
                )
            yield
            register = "beats_written" if run.rule.outputs else "beats_read"
            run.reach(run.parameters_done(self.kernel.read(register)))

    def _activity(self) -> DramActivity:
        values = self.arbiter.read_many(list(ACTIVITY_REGISTERS.values()))
        return DramActivity(
            **{name: values[register] for name, register in ACTIVITY_REGISTERS.items()}
        )

    # Timeline and state.

    def record(self, name: str, category: str, began: int, **arguments: object) -> None:
        """Record an operation that ends now on the channel's track."""
        if self._timeline is not None:
            self._timeline.add(self.track, name, began, self.domain.now, category, **arguments)

    def describe(self) -> str:
        """Return the driver's view of the channel in words; reads no register."""
        run = "no run"
        if self.run is not None:
            progress = self.run.progress
            state = "over" if self.run.over else f"{progress.done} of {progress.total} updated"
            run = f"last run of {self.run.nparams} parameters {state}"
        kernel = "kernel not seen idle" if self.unfinished else "kernel idle"
        return f"channel {self.number}: {self.mode} mode, {kernel}, {run}"


def _mode_in_force(arbiter: ChannelRegisters, status: int) -> Mode:
    """Return the mode in an arbiter's status."""
    field = arbiter["status"]["mode"]
    return next(mode for mode in Mode if field.code(mode) == field.extract(status))
