"""The driver's side of a core of the programmable PIM: its firmware, its queue and its faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hw.pim.config import BEAT_BYTES
from sw_driver.device.errors import InvalidArgumentError, KernelError, RefusedWorkError
from sw_driver.device.registers import name_of

from .placing import PlacedTensor
from .programs import (
    COUNTS_BYTES,
    FIRMWARE_BYTES,
    QUEUE_BYTES,
    QUEUE_SLOTS,
    SLOT_BYTES,
    WINDOW_BYTES,
    Command,
    Firmware,
    Window,
)
from .registers import PoolRegisters, core_map, ring_map
from .ring import core_place
from .transport import PimTransport

__all__ = ["TROUBLES", "Core", "Kernel", "KernelCounters", "offset_in", "window_of"]

_COUNTS = 1 << 16
_PENDING = core_map()["tail"]["pending"].mask
_WINDOWS_START, _UNCACHED = 0x4000_0000, 0x8000_0000
TROUBLES = {1: "it has no such kernel", 2: "its arguments are another number of words"}
EXCEPTIONS = {
    0: "misaligned jump",
    1: "access fault of a fetch",
    2: "illegal instruction",
    3: "breakpoint",
    4: "misaligned load",
    5: "access fault of a load",
    6: "misaligned store",
    7: "access fault of a store",
    11: "environment call",
}
"""Names of exceptions by RISC-V's numbers."""
_REFUSED = 3
_RING_REASON = 0x80
"""The firmware's reason for a stop after a kernel that wrote its ring's registers."""


class Kernel(NamedTuple):
    """A kernel that a core was given, with the windows that it may use and its results."""

    name: str
    windows: list[Window]
    results: list[Window]


class KernelCounters(NamedTuple):
    """A core's counters of a kernel, with cycles of the core's clock."""

    multiplications_done: int
    """Multiplications that the pools have done for the kernel.

    The next three are those left to do, and additions done and left.
    """
    multiplications_left: int
    additions_done: int
    additions_left: int
    cycles: int
    """All cycles of the kernel; the next three are parts of them."""
    pool_cycles: int
    """Cycles of waiting for the pools."""
    barrier_cycles: int
    """Cycles of waiting for other cores."""
    memory_cycles: int
    """Cycles of any other waiting for memory."""


def window_of(tensor: PlacedTensor) -> Window:
    """Return the window of whole beats that holds the tensor."""
    span = tensor.span
    start = span.start // BEAT_BYTES * BEAT_BYTES
    return Window(start, -(-(span.stop - start) // BEAT_BYTES) * BEAT_BYTES)


def offset_in(tensor: PlacedTensor, windows: Sequence[Window]) -> int:
    """Return the tensor as a kernel's argument: its address within ``windows``, numbered from 1.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if no window shows all of it.
    """
    span = tensor.span
    for number, (start, size) in enumerate(windows, 1):
        if start <= span.start and span.stop <= start + size:
            return number * WINDOW_BYTES + tensor.address_bytes - start
    shown = ", ".join(f"{start:#x} to {start + size - 1:#x}" for start, size in windows)
    raise InvalidArgumentError(
        f"no window shows a tensor from {span.start:#x} to {span.stop - 1:#x}: they show "
        f"{shown or 'nothing'}"
    )


class Core:
    """The core ``number``, which nothing else controls.

    The first kernel starts the core; after a stop, so does the next one. A kernel that takes
    ``limit_cycles`` is stopped.
    """

    def __init__(
        self, transport: PimTransport, number: int, firmware: Firmware, limit_cycles: int
    ) -> None:
        self._transport = transport
        self._registers = PoolRegisters(transport).cores[number]
        self._place = core_place(transport.config, number)
        self._firmware = firmware
        self._limit_cycles = limit_cycles
        self._name = f"core {number}"
        self._kernels: dict[int, Kernel] = {}
        """The last 16 kernels, by their numbers."""
        self._errors: dict[int, KernelError] = {}
        self._runs = False
        self._first = 0
        """Number of the first kernel since the last start."""
        self.offered = 0
        """Kernels offered since the first start."""
        self.ended = 0
        """Kernels known to have ended or to have been stopped, since the first start."""

    def kernel(self, number: int) -> Kernel | None:
        """Return a kernel by its number, or None if it is not among the last 16."""
        return self._kernels.get(number)

    def offer(self, command: Command, kernel: Kernel) -> int:
        """Put a kernel into the queue, notify the core and return the kernel's number.

        Raises :class:`~sw_driver.device.errors.RefusedWorkError` if the queue is full.
        """
        slot = self._firmware.slot(command, kernel.windows)
        if self.offered - self.ended >= QUEUE_SLOTS:
            self.look()
        if self.offered - self.ended >= QUEUE_SLOTS:
            raise RefusedWorkError(
                f"{self._name} has {QUEUE_SLOTS} kernels that have not ended, and its queue holds "
                f"no more: wait for one of them; {kernel.name}",
                cause="full",
            )
        if not self._runs:
            self._start()
        number = self.offered
        self._write(self._slot(number), slot)
        self._kernels[number] = kernel
        self._kernels.pop(number - QUEUE_SLOTS, None)
        self.offered += 1
        self._registers.write("head", (self.offered - self._first) % _COUNTS)
        return number

    def look(self) -> None:
        """Record the kernels that have ended, and any fault that stopped the core."""
        if not self._runs or not self._registers.read_field("tail", "pending"):
            return
        # Clear the interrupt before reading: any later change sets it again.
        self._registers.write("tail", _PENDING)
        # Read the cause before the count: the count of a stopped core no longer changes.
        names = ("cause", "reason", "address")
        cause, reason, address = self._registers.read_fields("status", *names)
        count = self._registers.read_field("tail", "count")
        while (self.ended - self._first) % _COUNTS != count:
            if not self._end(self.ended):
                # A kernel wrote the core's own registers: they cannot be trusted.
                self._registers.write("control", 0)
                self._stopped("tail", 0, count)
                return
        if cause:
            self._stopped(name_of(core_map()["status"]["cause"], cause), reason, address)

    def has_ended(self, number: int) -> bool:
        """Return whether a kernel had ended by the last :meth:`look`.

        Raises :class:`~sw_driver.device.errors.KernelError` if it failed.
        """
        if number in self._errors:
            raise self._errors[number]
        return number < self.ended

    def counters(self) -> KernelCounters:
        """Return the counters of the kernel that runs, or of the last one."""
        words = self._transport.read_memory(self._place.start + COUNTS_BYTES, 48)
        counts, cycles = words[:32].view("<u8").tolist(), words[32:].view("<u4").tolist()
        return KernelCounters(*counts, *cycles)

    def _start(self) -> None:
        write = self._registers.write
        write("control", 0)
        image = self._firmware.image
        self._write(self._place.start, np.frombuffer(image + bytes(-len(image) % BEAT_BYTES), "u1"))
        self._first = self.offered
        for register, value in (
            ("window_base", self._place.start // BEAT_BYTES),
            ("window_size", FIRMWARE_BYTES // BEAT_BYTES),
            ("limit", self._limit_cycles),
            ("head", 0),
            ("tail", _PENDING),
            ("interrupt", 1),
            ("control", 1),
        ):
            write(register, value)
        self._runs = True

    def _slot(self, number: int) -> int:
        slot = (number - self._first) % QUEUE_SLOTS
        return self._place.start + QUEUE_BYTES + SLOT_BYTES * slot

    def _write(self, address: int, values: object) -> None:
        data = values if isinstance(values, np.ndarray) else np.array(values, "<u4").view("u1")
        self._transport.write_memory(address, data)

    def _end(self, number: int) -> bool:
        """Record the core's result for a kernel; return False if the kernel has not ended."""
        place = self._slot(number) + SLOT_BYTES - BEAT_BYTES
        completion, cause = self._transport.read_memory(place, BEAT_BYTES).view("<u4")[-2:].tolist()
        if number >= self.offered or completion != (number - self._first + 1) % _COUNTS:
            return False
        self.ended += 1
        if not cause:
            return True
        trouble, name = TROUBLES.get(cause & 0xFF, f"cause {cause}"), "kernel"
        if cause & 0xFF == _REFUSED:
            name = name_of(ring_map()["tail"]["cause"], cause >> 8)
            trouble = f"the pool refused a work of it: {name}"
        self._fail(number, name, f"failed on {self._name}: {trouble}")
        return True

    def _stopped(self, name: str, reason: int, address: int) -> None:
        """Fail all kernels that have not ended, since the core was stopped."""
        self._runs = False
        self._registers.write("interrupt", 0)
        trouble = f"stopped {self._name}: {name}"
        if name == "limit":
            trouble += f", it took {self._limit_cycles} cycles"
        elif name == "tail":
            trouble += f", a kernel wrote a wrong count of completed kernels, {address}"
        elif name == "stop" and reason == _RING_REASON:
            trouble += ", a kernel wrote registers of its ring"
        elif name == "stop":
            function = self._firmware.function_at(address)
            trouble += f", {EXCEPTIONS.get(reason, f'exception {reason}')}"
            trouble += f" in {function or 'unknown code'} at {address:#x}"
        elif name != "ring":
            trouble += f", access fault at {self._where(address)}"
        for number in range(self.ended, self.offered):
            is_first = number == self.ended
            self._fail(number, name, trouble if is_first else f"was not begun: {trouble}")
        self.ended = self.offered

    def _where(self, address: int) -> str:
        """Describe an address of a core, with its place in the window."""
        number, offset = divmod((address & ~_UNCACHED) - _WINDOWS_START, WINDOW_BYTES)
        windows = self._kernels[self.ended].windows if self.ended in self._kernels else []
        if not 1 <= number <= len(windows):
            return f"{address:#x}"
        start, size = windows[number - 1]
        return (
            f"{address:#x}, byte {offset} of window {number}, which shows {size} bytes of the "
            f"stack from {start:#x} on"
        )

    def _fail(self, number: int, cause: str, trouble: str) -> None:
        self._errors[number] = KernelError(
            f"the kernel {self._kernels[number].name}, number {number}, {trouble}; the pool and "
            "other cores go on, and this core goes on with its next kernel",
            cause=cause,
        )
