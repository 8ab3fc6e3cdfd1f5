"""One channel of an opened module: its mode, its runs, and who may use it when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from hw.rules.update_rule import UpdateRule

from ..device.errors import (
    BusyError,
    ClosedError,
    DeviceTimeoutError,
    IncompatibleDeviceError,
    InvalidArgumentError,
    KernelError,
    WrongModeError,
)
from ..device.link import Link
from ..device.memory import AllocationTable, AxdimmPointer
from ..device.transport import DeviceTimeout, kernel_window
from ..runtime.context import Context
from ..runtime.workers import Worker
from .allocator import ChannelAllocator
from .hostcache import HostCache
from .lines import read_bytes, write_bytes
from .registers import RegisterWindow, arbiter_registers, kernel_registers, kernel_rules
from .runs import ACTIVITY_REGISTERS, PARAMETERS_PER_BEAT, DramActivity, KernelRun, RunResult

__all__ = ["LINK_TRACK", "Channel", "CopiedBytes", "Mode", "ModePolicy"]

LINK_TRACK = "host link"
MODE_POLL_FABRIC_CYCLES = 8
MODE_TIMEOUT_FABRIC_CYCLES = 1_000_000
RUN_POLL_FABRIC_CYCLES = 256
RUN_POLL_CHUNK_FABRIC_CYCLES = (50_000, 1_000_000)
"""Shortest and longest call into the device, in fabric cycles, by which a run is followed. Who
closes the channel, or looks in, has to wait for the call's end, and a long run should not take
many."""


class Mode(StrEnum):
    """Modes of the arbiter (paper section 3.2), by their names in the register map."""

    NORMAL = "normal"
    ACCELERATION = "acceleration"


class ModePolicy(StrEnum):
    """What an access does that finds its channel in the other mode, or its kernel at work."""

    RAISE = "raise"
    """Raises :class:`~sw_driver.device.errors.WrongModeError` or
    :class:`~sw_driver.device.errors.BusyError`."""
    WAIT = "wait"
    """Waits for the kernel's run and switches the mode."""

    @classmethod
    def of(cls, value: str) -> ModePolicy:
        """The policy called ``value``. Raises
        :class:`~sw_driver.device.errors.InvalidArgumentError`."""
        try:
            return cls(value)
        except ValueError:
            raise InvalidArgumentError(
                f"modes is {value!r}: expected one of {', '.join(cls)}", modes=value
            ) from None


@dataclass(frozen=True, kw_only=True)
class CopiedBytes:
    """Bytes copied since the device was opened, by the way they took."""

    link_to_device: int = 0
    link_to_host: int = 0
    backdoor_to_device: int = 0
    backdoor_to_host: int = 0


class Channel:
    """A channel; :class:`~sw_driver.axdimm.device.Axdimm` has one for each of the module's.

    Its lock is held for whatever needs the channel to stay as it is, but not while a run is
    followed: a channel whose kernel runs can be asked for its state.
    """

    def __init__(
        self,
        context: Context,
        number: int,
        *,
        link: Link,
        allocations: AllocationTable[AxdimmPointer],
        stagger: bool,
    ) -> None:
        self.number = number
        self.track = f"channel {number}"
        self.link = link
        """The host link, by which copies of all channels follow each other."""
        self._context = context
        self._transport = context.transport
        self._lock = threading.RLock()
        self.arbiter = arbiter_registers(self._transport, number)
        self._identify()
        self.rules = kernel_rules(self._transport, number)
        """Names of the kernel's update rules, in the order in which its register selects them."""
        self.kernel = kernel_registers(self._transport, number, self.rules)
        self.allocator = ChannelAllocator(
            limit_bytes=kernel_window(self._transport.capacity_bytes), stagger=stagger
        )
        self.allocations = allocations
        """Allocations in the DRAM of all the module's channels."""
        self.cache = HostCache(self._transport, number)
        """What the host's cache keeps of the DRAM for programs that use its mapping."""
        self.follower = Worker(f"nearmem-channel{number}")
        self.run: KernelRun | None = None
        self.copied = CopiedBytes()
        self.occupied_until = 0
        """Simulated time at which the channel's last copy ended, in fabric cycles."""
        status = self.arbiter.read("status")
        self.mode = _mode_in_force(self.arbiter, status)
        # Another driver, closed during a run, may have left the kernel at work.
        self.unfinished = bool(self.arbiter["status"]["kernel_busy"].extract(status))
        """Whether the kernel was started, or found running, and has not been seen idle since."""

    def _identify(self) -> None:
        for name in ("magic", "version"):
            found = self.arbiter.read_field("id", name)
            expected = self.arbiter["id"][name].reset
            if found != expected:
                raise IncompatibleDeviceError(
                    f"channel {self.number} has {name} {found:#x}, this driver expects "
                    f"{expected:#x}",
                    channel=self.number,
                    found=found,
                    expected=expected,
                )
        capacity = self.arbiter.read("capacity")
        if capacity != self._transport.capacity_bytes:
            raise IncompatibleDeviceError(
                f"channel {self.number} says it has {capacity} bytes, its transport "
                f"{self._transport.capacity_bytes}",
                channel=self.number,
                found=capacity,
                expected=self._transport.capacity_bytes,
            )

    @property
    def running(self) -> bool:
        """Whether a run that somebody follows is in progress."""
        return self.run is not None and not self.run.done

    # Who may use it.

    @contextmanager
    def exclusive(self, *, in_time: bool = True) -> Iterator[None]:
        """The channel for the caller alone; it may have been closed while waiting for it.

        Not ``in_time``, it takes no simulated time.
        """
        if not self._lock.acquire(blocking=False):
            what = f"channel {self.number}, in use by another call"
            with self._context.order.blocked():
                self._context.watchdog.acquire(self._lock, what)
        try:
            self._context.check_open()
            if in_time and not self.running:
                self._follow_on()
            yield
        finally:
            self._lock.release()

    def _follow_on(self) -> None:
        """What the caller does next follows, in simulated time, what was done here before."""
        before = max(self._transport.now(self.number), self.occupied_until)
        if self._transport.host_time() < before:
            self._transport.set_host_time(before)

    @contextmanager
    def in_mode(self, mode: Mode | None, policy: ModePolicy) -> Iterator[None]:
        """The channel for the caller alone, its kernel idle, and in ``mode`` if one is given.

        Raises :class:`BusyError` and :class:`WrongModeError`, or waits and switches, by ``policy``.
        """
        while True:
            with self.exclusive():
                if policy is ModePolicy.RAISE or not self.running:
                    self.check_idle()
                    if mode is not None:
                        if policy is ModePolicy.WAIT and self.mode is not mode:
                            self.switch(mode)
                        self.check_mode(mode)
                    yield
                    return
                run = self.run
            # Not under the lock, so that others can ask meanwhile.
            assert run is not None
            with self._context.order.blocked(on=run):
                run.await_end()

    def try_exclusive(self) -> bool:
        """Whether the caller has got the lock, at once; then it has to call :meth:`leave`."""
        return self._lock.acquire(blocking=False)

    def leave(self) -> None:
        """Gives back the lock that :meth:`try_exclusive` took."""
        self._lock.release()

    def acquire_for_closing(self) -> None:
        """Waits for the call in progress and lets no other in."""
        self._context.watchdog.acquire(self._lock, f"the call in progress on channel {self.number}")

    def busy(self) -> bool:
        """Whether a kernel that nobody follows still runs. For the owner of the lock."""
        # The arbiter answers in both modes, the kernel in one.
        if self.unfinished:
            self.unfinished = bool(self.arbiter.read_field("status", "kernel_busy"))
        return self.unfinished

    def check_idle(self) -> None:
        """Raises :class:`BusyError` while the kernel runs. For the owner of the lock."""
        if self.running and self.run:
            raise BusyError(
                f"channel {self.number} is running {self.run.nparams} parameters: wait first",
                channel=self.number,
                nparams=self.run.nparams,
            )
        if self.busy():
            what = (
                "that was in progress when the device was opened, or started past this driver"
                if self.run is None
                else f"of {self.run.nparams} parameters that is not followed any more"
            )
            raise BusyError(
                f"channel {self.number} is still busy with a run {what}: wait until "
                f"PollAxdimm({self.number})",
                channel=self.number,
                nparams=None if self.run is None else self.run.nparams,
            )

    def check_mode(self, needed: Mode) -> None:
        """Raises :class:`WrongModeError` in the other mode."""
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

    def set_mode(self, mode: Mode, policy: ModePolicy) -> None:
        """Switches to ``mode``, by ``policy`` waiting for the kernel's run."""
        with self.in_mode(None, policy):
            self.switch(mode)

    def switch(self, mode: Mode) -> None:
        """Switches to ``mode``. For the owner of the lock."""
        began = self._transport.host_time()
        code = self.arbiter["mode"]["mode"].code(mode)
        self.arbiter.write({"mode": code << self.arbiter["mode"]["mode"].lsb})
        try:
            self.arbiter.poll(
                "status",
                {"mode": code, "draining": 0},
                interval=MODE_POLL_FABRIC_CYCLES,
                timeout=MODE_TIMEOUT_FABRIC_CYCLES,
            )
        except DeviceTimeout as timeout:
            raise DeviceTimeoutError(
                f"channel {self.number} was not in {mode} mode after "
                f"{MODE_TIMEOUT_FABRIC_CYCLES} fabric cycles: {timeout}",
                channel=self.number,
                timeout_fabric_cycles=MODE_TIMEOUT_FABRIC_CYCLES,
                state=self.describe(),
            ) from timeout
        self.mode = mode
        self.record(f"to {mode} mode", "mode", began, mode=str(mode))

    # The host's accesses. For the owner of the lock.

    def read(self, address: int, nbytes: int, what: str) -> NDArray[np.uint8]:
        """Reads bytes over the link, never what the host's cache alone holds."""
        with self.using_link(what, nbytes):
            self.cache.flush(address, nbytes)
            return read_bytes(self._transport, self.number, address, nbytes)

    def write(self, address: int, data: NDArray[np.uint8], what: str) -> None:
        """Writes bytes over the link, past the host's cache."""
        with self.using_link(what, data.nbytes):
            self.cache.flush(address, data.size)
            write_bytes(self._transport, self.number, address, data)

    @contextmanager
    def using_link(self, what: str, nbytes: int) -> Iterator[None]:
        """Puts the caller's use of the link on its track."""
        timeline = self._context.timeline
        if timeline is None:
            yield
            return
        self._transport.link_uses(self.number)  # of registers
        try:
            yield
        finally:
            uses = self._transport.link_uses(self.number)
            timeline.add_uses(LINK_TRACK, what, uses, "link", channel=self.number, bytes=nbytes)

    def count(self, way: str, nbytes: int) -> None:
        """Counts bytes copied."""
        self.copied = replace(self.copied, **{way: getattr(self.copied, way) + nbytes})

    # Runs.

    def start(self, settings: dict[str, int], run: KernelRun) -> None:
        """Starts the kernel. For the owner of the lock."""
        self.kernel.write(settings)
        self.unfinished = True
        self.run = run
        self.kernel.write({"control": self.kernel["control"]["start"].mask})
        run.kernel_began = self._transport.host_time()

    def follow(self, run: KernelRun, timeout_fabric_cycles: int) -> RunResult:
        """Waits for the kernel. Nobody else has business with the channel meanwhile.

        Raises what ended the run otherwise, see :meth:`~sw_driver.runtime.handles.Handle.wait`.
        """
        status = self._await_kernel(run, timeout_fabric_cycles)
        fields = self.kernel["status"]
        causes = {code: name for name, code in fields["cause"].encoding}
        code = fields["cause"].extract(status)
        cause = causes.get(code, f"cause_{code}")
        if not fields["done"].extract(status) or fields["error"].extract(status):
            raise KernelError(
                f"the kernel refused or stopped the run of {run.nparams} parameters on channel "
                f"{run.channel}: {cause}",
                cause=cause,
                channel=run.channel,
                nparams=run.nparams,
                status=status,
            )
        sums = {f"sum_{name}": name for name in run.rule.sums}
        counters = self.kernel.read_many(
            ["cycles", "beats_read", "beats_written", "idle_cycles", *sums]
        )
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
        )
        if self._context.timeline is not None:
            self._context.timeline.add(
                self.track,
                run.what,
                run.kernel_began,
                run.kernel_began + result.fabric_cycles,
                "kernel",
                parameters=run.nparams,
                beats_read=result.beats_read,
                beats_written=result.beats_written,
            )
        return result

    def _await_kernel(self, run: KernelRun, timeout_fabric_cycles: int) -> int:
        left = timeout_fabric_cycles
        shortest, longest = RUN_POLL_CHUNK_FABRIC_CYCLES
        # A beat takes a cycle, so before that it does not end, unless it is refused. Channels that
        # ask for nothing are simulated side by side, without taking turns at the link.
        early = run.beats // RUN_POLL_FABRIC_CYCLES * RUN_POLL_FABRIC_CYCLES
        while True:
            passed = timeout_fabric_cycles - left
            chunk = min(left, longest, max(shortest, passed // 16))
            interval = RUN_POLL_FABRIC_CYCLES
            if passed < early:
                interval = chunk = min(chunk, early - passed)
            with suppress(DeviceTimeout):
                status = self.kernel.poll("status", {"busy": 0}, interval=interval, timeout=chunk)
                self.unfinished = False
                return status
            left -= chunk
            if self._context.closing.is_set():
                raise ClosedError(
                    f"the device was closed during a run of {run.nparams} parameters on "
                    f"channel {run.channel}"
                )
            if left <= 0:
                status = self.kernel.read("status")
                raise DeviceTimeoutError(
                    f"the run of {run.nparams} parameters on channel {run.channel} did not end "
                    f"in {timeout_fabric_cycles} fabric cycles; the kernel's status reads "
                    f"{status:#x}; {self.describe()}",
                    channel=run.channel,
                    nparams=run.nparams,
                    timeout_fabric_cycles=timeout_fabric_cycles,
                    status=status,
                    state=self.describe(),
                )
            run.reach(self._parameters_done(run.rule))
            self._context.order.reach(self._transport.host_time())

    def _parameters_done(self, rule: UpdateRule) -> int:
        """How many parameters of the run in progress are through."""
        # Each is written once to each output; without one, those that were read.
        register = "beats_written" if rule.outputs else "beats_read"
        beats = self.kernel.read(register)
        return beats * PARAMETERS_PER_BEAT // len(rule.outputs or rule.inputs)

    def _activity(self) -> DramActivity:
        values = self.arbiter.read_many(list(ACTIVITY_REGISTERS.values()))
        return DramActivity(
            **{name: values[register] for name, register in ACTIVITY_REGISTERS.items()}
        )

    # What others are told.

    def record(self, name: str, category: str, began: int, **arguments: object) -> None:
        """Puts what ends now on the channel's track."""
        if self._context.timeline is not None:
            ended = self._transport.host_time()
            self._context.timeline.add(self.track, name, began, ended, category, **arguments)

    def describe(self) -> str:
        """The driver's view of the channel in words. Asks nobody, so it never blocks."""
        run = "no run"
        if self.run is not None:
            progress = self.run.progress
            state = "over" if self.run.done else f"{progress.done} of {progress.total} updated"
            run = f"last run of {self.run.nparams} parameters {state}"
        kernel = "kernel not seen idle" if self.unfinished else "kernel idle"
        return f"channel {self.number}: {self.mode} mode, {kernel}, {run}"


def _mode_in_force(arbiter: RegisterWindow, status: int) -> Mode:
    """The mode that an arbiter's status tells."""
    field = arbiter["status"]["mode"]
    return next(mode for mode in Mode if field.code(mode) == field.extract(status))
