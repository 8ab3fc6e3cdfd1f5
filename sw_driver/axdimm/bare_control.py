"""A transport without a driver, to be looked at and changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hw.axdimm.registers import arbiter_map
from sw_driver.axdimm.registers import arbiter_registers
from sw_driver.errors import BusyError, ClosedError, NoSuchChannelError, WrongModeError
from sw_driver.transport import LINE_BYTES, Transport

from ..control import (
    PATIENCE_S,
    AllocationEntry,
    ChannelState,
    MemoryEntry,
    RegisterAccessError,
    RegisterValue,
    check_range,
)
from .register_access import find_register, read_registers, write_register

__all__ = ["COUNTERS", "TransportControl"]

COUNTERS = tuple(
    register.name
    for register in arbiter_map().registers
    if [field.name for field in register.fields] == ["count"]
)
"""Registers of the arbiter that count."""

MODE_POLL_FABRIC_CYCLES = 8
MODE_TIMEOUT_FABRIC_CYCLES = 100_000


class TransportControl:
    """A :class:`.Controlled` of nothing but a transport: without allocations, queues and runs.

    The transport is the caller's to close, after :meth:`close`.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._locks = [threading.Lock() for _ in range(transport.channels)]
        self._closed = False
        arbiter = arbiter_registers(transport, 0)
        value = arbiter.read("config")
        self._configuration = {
            field.name: field.extract(value) for field in arbiter["config"].fields
        }

    def close(self) -> None:
        """Waits for calls in progress; later ones raise ClosedError."""
        self._closed = True
        for lock in self._locks:
            with lock:
                pass

    @contextmanager
    def _channel(self, channel: int) -> Iterator[Transport]:
        """The transport, and the channel for the caller alone."""
        if not 0 <= channel < len(self._locks):
            raise NoSuchChannelError(
                f"channel is {channel}: expected an integer from 0 to {len(self._locks) - 1}",
                channel=channel,
                channels=len(self._locks),
            )
        if not self._locks[channel].acquire(timeout=PATIENCE_S):
            raise BusyError(
                f"channel {channel} was in use for {PATIENCE_S} s: try again", channel=channel
            )
        try:
            if self._closed:
                raise ClosedError("the device was closed: open it again")
            yield self._transport
        finally:
            self._locks[channel].release()

    def describe(self) -> dict[str, Any]:
        """See :class:`.Controlled`."""
        transport = self._transport
        return {
            "backend": transport.name,
            "channels": transport.channels,
            "capacity_bytes": transport.capacity_bytes,
            "fabric_mhz": transport.fabric_mhz,
            "timed": transport.timed,
            "configuration": self._configuration,
            "fabric_cycles": [
                transport.fabric_cycles(channel) for channel in range(transport.channels)
            ],
            "stand_ins": [],
        }

    def channel_state(self, channel: int) -> ChannelState:
        """See :class:`.Controlled`."""
        with self._channel(channel) as transport:
            arbiter = arbiter_registers(transport, channel)
            values = arbiter.read_many(["status", *COUNTERS])
            cycles = transport.fabric_cycles(channel)
        status = arbiter["status"]
        state = {field.name: field.extract(values["status"]) for field in status.fields}
        modes = {code: name for name, code in status["mode"].encoding}
        busy = bool(state["kernel_busy"])
        return {
            "channel": channel,
            "mode": modes[state["mode"]],
            "draining": bool(state["draining"]),
            "kernel_busy": busy,
            "operation": {"name": "kernel", "progress": None} if busy else None,
            "queued": {},
            "copied_bytes": {},
            "counters": {name: arbiter[name]["count"].extract(values[name]) for name in COUNTERS},
            "fabric_cycles": cycles,
        }

    def registers(self, channel: int, names: Sequence[str] | None = None) -> list[RegisterValue]:
        """See :class:`.Controlled`."""
        with self._channel(channel) as transport:
            return read_registers(transport, channel, names)

    def write_register(self, channel: int, register: str, value: int | str) -> None:
        """See :class:`.Controlled`."""
        path = find_register(register)
        if (path.window, path.register.name) == ("arbiter", "mode"):
            codes = {str(code): name for name, code in path.register["mode"].encoding}
            self.set_mode(channel, codes.get(str(value), str(value)))
            return
        with self._channel(channel) as transport:
            write_register(transport, channel, register, value)

    def set_mode(self, channel: int, mode: str) -> None:
        """See :class:`.Controlled`."""
        with self._channel(channel) as transport:
            arbiter = arbiter_registers(transport, channel)
            codes = dict(arbiter["mode"]["mode"].encoding)
            if mode not in codes:
                raise RegisterAccessError(
                    f"no mode {mode!r}: expected {' or '.join(codes)}", mode=mode
                )
            if arbiter.read_field("status", "kernel_busy"):
                raise BusyError(
                    f"the kernel of channel {channel} is running: wait for it", channel=channel
                )
            arbiter.write({"mode": codes[mode]})
            arbiter.poll(
                "status",
                {"mode": codes[mode], "draining": 0},
                interval=MODE_POLL_FABRIC_CYCLES,
                timeout=MODE_TIMEOUT_FABRIC_CYCLES,
            )

    def allocations(self) -> list[AllocationEntry]:
        """See :class:`.Controlled`."""
        return []

    def memory(self) -> list[MemoryEntry]:
        """See :class:`.Controlled`."""
        return []

    def peek(self, channel: int, address: int, nbytes: int, backdoor: bool = False) -> bytes:
        """See :class:`.Controlled`."""
        with self._channel(channel) as transport:
            check_range(transport.capacity_bytes, address, nbytes)
            if backdoor:
                return transport.backdoor_read(channel, address, nbytes).tobytes()
            self._check_normal(channel)
            start, end = _lines(address, nbytes)
            lines = transport.read_lines(channel, start, end - start)
            return lines[address - start :][:nbytes].tobytes()

    def poke(self, channel: int, address: int, data: bytes, backdoor: bool = False) -> None:
        """See :class:`.Controlled`."""
        with self._channel(channel) as transport:
            check_range(transport.capacity_bytes, address, len(data))
            source = np.frombuffer(data, dtype=np.uint8)
            if backdoor:
                transport.backdoor_write(channel, address, source)
                return
            self._check_normal(channel)
            start, end = _lines(address, len(data))
            lines = np.empty(end - start, dtype=np.uint8)
            if end - start != len(data):
                # The first and last line keep their other bytes.
                for edge in {0, lines.nbytes - LINE_BYTES}:
                    lines[edge:][:LINE_BYTES] = transport.read_lines(
                        channel, start + edge, LINE_BYTES
                    )
            lines[address - start :][: len(data)] = source
            transport.write_lines(channel, start, lines)

    def _check_normal(self, channel: int) -> None:
        arbiter = arbiter_registers(self._transport, channel)
        if arbiter.read_field("status", "mode") != arbiter["status"]["mode"].code("normal"):
            raise WrongModeError(
                f"channel {channel} is in acceleration mode, in which the host cannot reach its "
                "memory: switch to normal mode, or use the backdoor",
                channel=channel,
                mode="acceleration",
                needed="normal",
            )


def _lines(address: int, nbytes: int) -> tuple[int, int]:
    """Start and end address of the lines that hold the bytes."""
    start = address // LINE_BYTES * LINE_BYTES
    return start, -(-(address + nbytes) // LINE_BYTES) * LINE_BYTES
