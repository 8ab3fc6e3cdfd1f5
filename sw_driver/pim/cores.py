"""A core of the programmable PIM as the driver has it: its firmware, its queue, what stops it."""

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
_REFUSED = 3
_RING_REASON = 0x80
"""The firmware's reason for a stop after a kernel that wrote its ring's registers."""


class Kernel(NamedTuple):
    """What a core was asked for: the kernel, what it may touch, and which of that are results."""

    name: str
    windows: list[Window]
    results: list[Window]


class KernelCounters(NamedTuple):
    """What a core counts of a kernel: the operations that the pools do for it, and cycles of its
    clock, with those that it waited for the pools, for other cores, and otherwise for memory."""

    multiplications_done: int
    multiplications_left: int
    additions_done: int
    additions_left: int
    cycles: int
    pool_cycles: int
    barrier_cycles: int
    memory_cycles: int


def window_of(tensor: PlacedTensor) -> Window:
    """The whole beats that hold the tensor."""
    span = tensor.span
    start = span.start // BEAT_BYTES * BEAT_BYTES
    return Window(start, -(-(span.stop - start) // BEAT_BYTES) * BEAT_BYTES)


def offset_in(tensor: PlacedTensor, windows: Sequence[Window]) -> int:
    """The tensor as a kernel's argument; ``windows`` are those from 1 on.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if none shows all of it.
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
    """The core ``number``, which has no other master. It is started with its first kernel, and
    again with the first one after it was stopped.

    ``limit_cycles``: a kernel that takes as many is stopped.
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
        """The last kernels, by their numbers."""
        self._errors: dict[int, KernelError] = {}
        self._runs = False
        self._first = 0
        """Number of the first kernel since the core was started."""
        self.offered = 0
        """Kernels that were offered, from the first start on."""
        self.ended = 0
        """Those that are known to have ended, or to have been stopped."""

    def kernel(self, number: int) -> Kernel | None:
        """One of the last kernels."""
        return self._kernels.get(number)

    def offer(self, command: Command, kernel: Kernel) -> int:
        """Puts a kernel into the queue and tells the core; returns its number."""
        slot = self._firmware.slot(command, kernel.windows)
        if self.offered - self.ended >= QUEUE_SLOTS:
            self.look()
        if self.offered - self.ended >= QUEUE_SLOTS:
            raise RefusedWorkError(
                f"{self._name} has {QUEUE_SLOTS} kernels that have not ended, as many as its queue "
                f"holds: wait for one of them; {kernel.name}",
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
        """Takes note of kernels that have ended, and of what stopped the core."""
        if not self._runs or not self._registers.read_field("tail", "pending"):
            return
        # Before what is looked at, so that what comes after that is pending again.
        self._registers.write("tail", _PENDING)
        # Before the count, which does not change any more in a core that is stopped.
        names = ("cause", "reason", "address")
        cause, reason, address = self._registers.read_fields("status", *names)
        count = self._registers.read_field("tail", "count")
        while (self.ended - self._first) % _COUNTS != count:
            if not self._end(self.ended):
                # A kernel wrote the core's own registers: whatever it says is worth nothing.
                self._registers.write("control", 0)
                self._stopped("tail", 0, count)
                return
        if cause:
            self._stopped(name_of(core_map()["status"]["cause"], cause), reason, address)

    def has_ended(self, number: int) -> bool:
        """Whether a kernel has ended, as far as :meth:`look` knows.

        Raises :class:`~sw_driver.device.errors.KernelError` if it failed.
        """
        if number in self._errors:
            raise self._errors[number]
        return number < self.ended

    def counters(self) -> KernelCounters:
        """Of the kernel that runs, or ran last."""
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
        """Note what the core says of a kernel that has ended; return whether it has."""
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
        """What has not ended does not end any more."""
        self._runs = False
        self._registers.write("interrupt", 0)
        what = f"stopped {self._name}: {name}"
        if name == "limit":
            what += f", it took {self._limit_cycles} cycles"
        elif name == "tail":
            what += f", a kernel wrote that {address} were done, which is not so"
        elif name == "stop" and reason == _RING_REASON:
            what += ", a kernel wrote registers of its ring"
        elif name == "stop":
            what += f", exception {reason} at {address:#x}"
        elif name != "ring":
            what += f", at {self._where(address)}"
        for number in range(self.ended, self.offered):
            self._fail(number, name, what if number == self.ended else f"was not begun: {what}")
        self.ended = self.offered

    def _where(self, address: int) -> str:
        number, offset = divmod((address & ~_UNCACHED) - _WINDOWS_START, WINDOW_BYTES)
        windows = self._kernels[self.ended].windows if self.ended in self._kernels else []
        if not 1 <= number <= len(windows):
            return f"{address:#x}"
        start, size = windows[number - 1]
        return (
            f"{address:#x}, byte {offset} of window {number}, which shows {size} bytes from "
            f"{start:#x} of the stack on"
        )

    def _fail(self, number: int, cause: str, what: str) -> None:
        self._errors[number] = KernelError(
            f"the kernel {self._kernels[number].name}, number {number}, {what}; the pool and other "
            "cores go on, and so does this one with its next kernel",
            cause=cause,
        )
