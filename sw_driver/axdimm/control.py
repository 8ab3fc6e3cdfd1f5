"""A device that the driver has open, to be looked at and changed beside the driver's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from sw_driver.axdimm.channel import Channel, Mode, ModePolicy
from sw_driver.axdimm.registers import COUNTERS, arbiter_registers
from sw_driver.memory.allocations import checked_channel
from sw_driver.memory.interface import FreeSpace, Memory
from sw_driver.runtime.context import Context
from sw_driver.runtime.streams import Stream
from sw_driver.transport import Transport

from ..control import (
    PATIENCE_S,
    AllocationEntry,
    ChannelState,
    MemoryEntry,
    Operation,
    RegisterAccessError,
    RegisterValue,
    check_range,
)
from .register_access import find_register, read_registers, write_register

__all__ = ["DriverControl"]


class DriverControl:
    """A :class:`.Controlled` beside a driver.

    Registers are read whatever the channel does, between the driver's own accesses; that takes
    simulated time, as on the real machine. What changes something needs the channel for itself.

    Parameters
    ----------
    context, channels: of the driver.
    streams, memories: what it has of these by the time it is asked.
    stand_ins: names of what stands in for hardware that is not there.
    """

    def __init__(
        self,
        context: Context,
        channels: Sequence[Channel],
        *,
        streams: Callable[[], Sequence[Stream]],
        memories: Callable[[], Sequence[Memory]],
        stand_ins: Callable[[], list[str]],
    ) -> None:
        self._context = context
        self._transport: Transport = context.transport
        self._channels = channels
        self._streams = streams
        self._memories = memories
        self._stand_ins = stand_ins

    def describe(self) -> dict[str, Any]:
        """See :class:`.Controlled`."""
        self._context.check_open()
        transport = self._transport
        return {
            "backend": transport.name,
            "channels": transport.channels,
            "capacity_bytes": transport.capacity_bytes,
            "fabric_mhz": transport.fabric_mhz,
            "timed": transport.timed,
            "configuration": self._configuration,
            "fabric_cycles": [transport.fabric_cycles(each.number) for each in self._channels],
            "stand_ins": self._stand_ins(),
        }

    @cached_property
    def _configuration(self) -> dict[str, Any]:
        arbiter = arbiter_registers(self._beside(self._channels[0]), 0)
        value = arbiter.read("config")
        built = {field.name: field.extract(value) for field in arbiter["config"].fields}
        return built | {"rules": list(self._channels[0].rules)}

    def channel_state(self, channel: int) -> ChannelState:
        """See :class:`.Controlled`."""
        state = self._channel(channel)
        arbiter = arbiter_registers(self._beside(state), state.number)
        values = arbiter.read_many(["status", *COUNTERS])
        status = arbiter["status"]
        found = {field.name: field.extract(values["status"]) for field in status.fields}
        modes = {code: name for name, code in status["mode"].encoding}
        busy = bool(found["kernel_busy"])
        operation: Operation | None = None
        if state.run is not None and not state.run.done:
            operation = {"name": state.run.what, "progress": state.run.progress.fraction}
        elif busy:
            operation = {"name": "kernel", "progress": None}
        return {
            "channel": state.number,
            "mode": modes[found["mode"]],
            "draining": bool(found["draining"]),
            "kernel_busy": busy,
            "operation": operation,
            "queued": {each.name: each.queued for each in self._streams() if each.queued},
            "copied_bytes": asdict(state.copied),
            "counters": {name: arbiter[name]["count"].extract(values[name]) for name in COUNTERS},
            "fabric_cycles": self._transport.fabric_cycles(state.number),
        }

    def registers(self, channel: int, names: Sequence[str] | None = None) -> list[RegisterValue]:
        """See :class:`.Controlled`."""
        state = self._channel(channel)
        # Not while the mode changes: in normal mode nobody answers for the kernel.
        with state.exclusive(PATIENCE_S, in_time=False):
            return read_registers(self._beside(state), state.number, state.rules, names)

    def write_register(self, channel: int, register: str, value: int | str) -> None:
        """See :class:`.Controlled`."""
        path = find_register(register, self._channel(channel).rules)
        if (path.window, path.register.name) == ("arbiter", "mode"):
            codes = {str(code): name for name, code in path.register["mode"].encoding}
            self.set_mode(channel, codes.get(str(value), str(value)))
            return
        with self._alone(channel) as state:
            write_register(self._transport, state.number, state.rules, path, value)
            if (path.window, path.register.name) == ("kernel", "control"):
                state.unfinished = True

    def set_mode(self, channel: int, mode: str) -> None:
        """See :class:`.Controlled`."""
        if mode not in list(Mode):
            raise RegisterAccessError(f"no mode {mode!r}: expected {' or '.join(Mode)}", mode=mode)
        state = self._channel(channel)
        with state.exclusive(PATIENCE_S):
            state.set_mode(Mode(mode), ModePolicy.RAISE)

    def allocations(self) -> list[AllocationEntry]:
        """See :class:`.Controlled`."""
        self._context.check_open()
        tables = {"axdimm": self._channels[0].allocations}
        tables |= {memory.name: memory.allocations for memory in self._memories()}
        return [
            {
                "memory": name,
                "channel": each.channel,
                "address": each.address,
                "nbytes": each.nbytes,
                "users": len(each.users),
            }
            for name, table in tables.items()
            for each in table
        ]

    def memory(self) -> list[MemoryEntry]:
        """See :class:`.Controlled`."""
        spaces: list[tuple[str, int, FreeSpace]] = []
        for number in range(len(self._channels)):
            state = self._channel(number)
            with state.exclusive(PATIENCE_S):
                spaces.append(("axdimm", number, state.allocator.statistics()))
        for memory in self._memories():
            spaces += [(memory.name, *each) for each in memory.free_space().items()]
        return [
            {
                "memory": name,
                "channel": channel,
                "total_bytes": space.total_bytes,
                "free_bytes": space.free_bytes,
                "largest_free_bytes": space.largest_free_bytes,
                "allocations": space.allocations,
            }
            for name, channel, space in spaces
        ]

    def peek(self, channel: int, address: int, nbytes: int, backdoor: bool = False) -> bytes:
        """See :class:`.Controlled`."""
        with self._alone(channel) as state:
            check_range(self._transport.capacity_bytes, address, nbytes)
            if backdoor:
                return self._transport.backdoor_read(channel, address, nbytes).tobytes()
            state.check_mode(Mode.NORMAL)
            return state.read(address, nbytes, "peek").tobytes()

    def poke(self, channel: int, address: int, data: bytes, backdoor: bool = False) -> None:
        """See :class:`.Controlled`."""
        with self._alone(channel) as state:
            check_range(self._transport.capacity_bytes, address, len(data))
            source = np.frombuffer(data, dtype=np.uint8)
            if backdoor:
                self._transport.backdoor_write(channel, address, source)
                return
            state.check_mode(Mode.NORMAL)
            state.write(address, source, "poke")

    def _channel(self, channel: int) -> Channel:
        self._context.check_open()
        return self._channels[checked_channel(channel, len(self._channels))]

    def _beside(self, state: Channel) -> Transport:
        """The transport, for accesses that follow what the channel did last in simulated time."""
        self._transport.set_host_time(self._transport.now(state.number))
        return self._transport

    @contextmanager
    def _alone(self, channel: int) -> Iterator[Channel]:
        """The channel for the caller alone, its kernel idle."""
        state = self._channel(channel)
        with state.exclusive(PATIENCE_S):
            self._beside(state)
            state.check_idle()
            yield state
