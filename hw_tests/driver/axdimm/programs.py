"""Programs of a few steps on both channels, and what a device makes of them.

A step is a list of a name and numbers, so that a program can be drawn, shrunk and kept as JSON.
Numbers choose among what is there: a pointer is a place in the list of all allocations so far,
freed ones included, and wraps around. At first each channel has eight tensors of 600 values.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hw.rules import RULES, rule
from hw_tests.driver.conftest import EVERY_RULE
from hw_tests.driver.device_memory import snapshot
from hw_tests.rules.hyperparameters import hyperparameters
from sw_driver.axdimm import Axdimm, AxdimmPointer
from sw_driver.axdimm.backends import open_backend
from sw_driver.axdimm.hyperparameters import rule_constants
from sw_driver.axdimm.registers import kernel_registers
from sw_driver.axdimm.runs import KernelRun, RunResult
from sw_driver.axdimm.transport import Transport, kernel_window
from sw_driver.device.errors import AxdimmError
from sw_driver.device.streams import Handle, Stream
from sw_driver.device.transport import DeviceFault

__all__ = ["STEPS", "Program", "open_device", "outcome"]

Program = list[list[Any]]
Bytes = NDArray[np.uint8]

VALUES = np.random.default_rng(1).normal(size=6000).astype(np.float32).view(np.uint8)
"""First bytes of each channel."""

LIMIT_S = 60
"""Host time that an operation may take."""

OLD = 20
"""Place that also stands for pointers of drivers that were closed, and of other channels."""

STEPS: dict[str, tuple[int, ...]] = {
    "malloc": (1, 5000),
    "tensors": (1, 1200, 99),
    "free": (OLD,),
    "write": (OLD, 300, 3000, 99, 2),
    "read": (OLD, 300, 3000, 2),
    "copy": (OLD, OLD, 3000, 1),
    "mode": (1, 1, 1),
    "run": (1, len(RULES) - 1, OLD, 700, 1),
    "start": (1, len(RULES) - 1, 300, 7, 5),
    "stray": (1, 1, 40, 1),
    "wait": (1,),
    "recover": (1,),
    "reset": (1,),
}
"""Most that the numbers of a step may be, from 0; see the methods of :class:`_Player`."""

RULE_NAMES = tuple(RULES)


def open_device(backend: str) -> Transport:
    """Open the small module with every rule on a backend."""
    return open_backend(backend, EVERY_RULE)


def outcome(transport: Transport, program: Program, modes: str) -> list[Any]:
    """Return the outcome of each step, of each queued operation, and the memories after all.

    ``modes`` is that of the device. No outcome depends on time, so it is the same on every backend.
    """
    player = _Player(transport, modes)
    results: list[Any] = []
    for name, *numbers in program:
        try:
            results.append(getattr(player, name)(*numbers))
        except (AxdimmError, DeviceFault) as error:
            results.append(type(error).__name__)
    return [*results, *player.finish()]


class _Player:
    """A device with all that a program has allocated and queued on it.

    What is queued on one channel goes on beside the other channel's, and so do runs. Any other step
    waits for the streams first, since the order of a stream and the program is a matter of time.
    """

    def __init__(self, transport: Transport, modes: str) -> None:
        self.transport, self.modes = transport, modes
        self.pointers: list[AxdimmPointer] = []
        self.old = 0
        """Pointers of the drivers that were closed."""
        self.operations: list[tuple[Handle[Any], Bytes | None]] = []
        self.device = Axdimm(transport, modes=modes, stagger=False)
        for channel in range(transport.channels):
            self._allocate(channel)
            transport.backdoor_write(channel, 0, VALUES)

    def malloc(self, channel: int, nbytes: int) -> int:
        """Allocate bytes, maybe none, of a channel."""
        self.pointers.append(self.device.MallocAxdimm(nbytes, channel))
        return self.pointers[-1].address

    def tensors(self, channel: int, count: int, seed: int) -> None:
        """Allocate four tensors of FP32 and write values to them."""
        rng = np.random.default_rng(seed)
        for _ in range(4):
            self.malloc(channel, 4 * count)
            values = rng.normal(size=count).astype(np.float32)
            target = self.pointers[-1]
            self._note(self.device.MemcpyHost2Axdimm(target, values, 4 * count, backdoor=True))

    def free(self, place: int) -> None:
        """Free an allocation, maybe once more."""
        self.settle()
        self.device.FreeAxdimm(self._pointer(place))

    def write(self, place: int, offset: int, nbytes: int, seed: int, way: int) -> None:
        """Write bytes from an offset on: over the link, through the backdoor, or queued."""
        data = np.random.default_rng(seed).integers(0, 256, max(nbytes, 1), np.uint8)
        target = self._pointer(place) + offset
        options = {"backdoor": way == 1, "stream": self._stream(target.channel, way == 2)}
        self._note(self.device.MemcpyHost2Axdimm(target, data, nbytes, **options))

    def read(self, place: int, offset: int, nbytes: int, way: int) -> None:
        """Read as :meth:`write` writes."""
        data = np.zeros(max(nbytes, 1), np.uint8)
        source = self._pointer(place) + offset
        options = {"backdoor": way == 1, "stream": self._stream(source.channel, way == 2)}
        self._note(self.device.MemcpyAxdimm2Host(data, source, nbytes, **options), data)

    def copy(self, to: int, place: int, nbytes: int, queued: int) -> None:
        """Copy between allocations, queued only within a channel."""
        target, source = self._pointer(to), self._pointer(place)
        stream = self._stream(target.channel, queued and target.channel == source.channel)
        self._note(self.device.MemcpyAxdimm2Axdimm(target, source, nbytes, stream=stream))

    def mode(self, channel: int, acceleration: int, queued: int) -> None:
        """Switch to the mode that the channel may be in already."""
        device = self.device
        switch = device.SetArbiterAcc if acceleration else device.SetArbiterNormal
        self._note(switch(channel, stream=self._stream(channel, queued)))

    def run(self, channel: int, number: int, first: int, count: int, queued: int) -> None:
        """Run a rule on the channel's allocations from one place on, or on any from the last."""
        name = RULE_NAMES[number]
        there = [ptr for ptr in self.pointers[self.old :] if ptr.channel == channel or first == OLD]
        names = rule(name).tensors
        tensors = {tensor: there[(first + at) % len(there)] for at, tensor in enumerate(names)}
        stream = self._stream(channel, queued)
        given = hyperparameters(name, 2)
        self._note(
            self.device.RunOnAxdimmAsync(name, tensors, count, given, channel, stream=stream)
        )

    def start(self, channel: int, number: int, count: int, line: int, spread: int) -> list[int]:
        """Start the kernel past the driver, with settings that may be wrong in every way.

        With a ``spread`` of 0 tensors share a line, with 1 they touch; with 5 the last one ends
        two lines before the end of the memory, and ``line`` lines further. The highest two values
        of ``line`` are an input that begins within a line, and a rule that is not there.
        """
        self.settle()
        self.device.SetArbiterAcc(channel).wait()
        chosen = rule(RULE_NAMES[number])
        registers = kernel_registers(self.transport, channel, RULE_NAMES, False)
        lines = -(-count // 16)
        step = lines if spread == 5 else max(lines + spread - 1, 0)
        first = 0x100 + line
        if spread == 5:
            end = kernel_window(self.transport.capacity_bytes) // 64
            first = end - lines * len(chosen.tensors) + line - 2
        places = {name: 64 * (first + step * at) for at, name in enumerate(chosen.tensors)}
        constants = rule_constants(chosen, hyperparameters(chosen.name, 2))
        registers.write_many(
            {
                "count": count,
                "rule": 15 if line == 7 else number,
                **{f"{name}_in": places[name] + (line == 6) * 4 for name in chosen.inputs},
                **{f"{name}_out": places[name] for name in chosen.outputs},
                **{name: int(value.view(np.uint32)) for name, value in constants.items()},
            }
        )
        registers.write("control", 1)
        status = registers.poll("status", {"busy": 0}, interval=16, timeout=1_000_000)
        counts = registers.read_many(["beats_read", "beats_written"])
        self.device.SetArbiterNormal(channel).wait()
        return [status, *counts.values()]

    def stray(self, channel: int, writes: int, line: int, acceleration: int) -> str:
        """Access a line of the memory past the driver, in either mode."""
        self.settle()
        device = self.device
        (device.SetArbiterAcc if acceleration else device.SetArbiterNormal)(channel).wait()
        if writes:
            self.transport.write_lines(channel, 64 * line, np.full(64, line, np.uint8))
            return ""
        return self.transport.read_lines(channel, 64 * line, 64).tobytes().hex()

    def wait(self, channel: int) -> None:
        """Wait for the channel; raise what its stream or its run has raised."""
        self.device.WaitAxdimm(channel)

    def recover(self, channel: int) -> str:
        """Have the channel's stream forget a failure."""
        self._settle_streams()
        return type(self.device.stream(channel).recover()).__name__

    def reset(self, waits: int) -> None:
        """Close the driver and open another, maybe while the kernels still run."""
        self._settle_streams()
        if waits:
            self.settle()
        else:  # whether they were over is a matter of time
            self.operations = [item for item in self.operations if type(item[0]) is not KernelRun]
        self.device.close()
        self.device = Axdimm(self.transport, modes=self.modes, stagger=False)
        self.old = len(self.pointers)
        for channel in range(self.transport.channels):
            self._allocate(channel)
            while not self.device.PollAxdimm(channel):
                pass

    def settle(self) -> None:
        """Wait for all that is under way, failed or not."""
        self._settle_streams()
        for handle, _ in self.operations:
            _ended(handle)

    def finish(self) -> list[Any]:
        """Return what came of each operation, and the state of the device after all."""
        self.settle()
        results = [[_ended(handle), *map(_digest, data)] for handle, *data in self.operations]
        for channel in range(self.transport.channels):
            results.append([str(self.device.mode(channel)), self.device.memory(channel)])
        self.device.close()
        return [*results, *map(_digest, snapshot(self.transport))]

    def _allocate(self, channel: int) -> None:
        for _ in range(8):
            self.malloc(channel, 2400)

    def _pointer(self, place: int) -> AxdimmPointer:
        pointers = self.pointers[self.old if place < OLD else 0 :]
        return pointers[place % len(pointers)]

    def _stream(self, channel: int, queued: bool | int) -> Stream | None:
        if queued:
            return self.device.stream(channel)
        self._settle_streams()
        return None

    def _settle_streams(self) -> None:
        for channel in range(self.transport.channels):
            _ended(self.device.stream(channel))

    def _note(self, handle: Handle[Any], data: Bytes | None = None) -> None:
        """Keep an operation, to compare what came of it."""
        self.operations.append((handle, data))
        if self.modes == "raise":  # whether a channel is busy is a matter of time
            handle.wait()


def _ended(operation: Handle[Any] | Stream) -> Any:
    """Wait; return the name of what it raised, or the results of a run."""
    try:
        result = operation.wait(LIMIT_S)
    except AxdimmError as error:
        return type(error).__name__
    if isinstance(result, RunResult):
        return [result.nparams, result.beats_read, result.beats_written, repr(result.sums)]
    return None


def _digest(data: Bytes | None) -> str:
    return "" if data is None else f"{crc32(data):08x}"
