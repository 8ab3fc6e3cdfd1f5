"""Registers of a channel by name."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hw.axdimm.registers import arbiter_map
from hw.csr.register_map import RegisterMap
from hw.kernel.config import MOST_RULES
from hw.kernel.registers import kernel_map
from hw.rules import RULES

from ..device.errors import IncompatibleDeviceError
from ..device.registers import RegisterWindow
from .transport import LINE_BYTES, Transport, arbiter_window, finished, kernel_window

__all__ = ["COUNTERS", "ChannelRegisters", "arbiter_registers", "kernel_built", "kernel_registers"]

COUNTERS = tuple(
    register.name
    for register in arbiter_map().registers
    if [field.name for field in register.fields] == ["count"]
)
"""Names of the arbiter's counter registers."""

REGISTER_BYTES = 8
"""Bytes of a register, the first of its line, little endian."""


class ChannelRegisters(RegisterWindow):
    """Registers of one map in a channel, over the host link; each has a line of its own.

    Parameters
    ----------
    transport, channel: transport of the module, and the channel's number.
    base: byte address of the window in the channel.
    registers: map of the window.
    """

    def __init__(
        self, transport: Transport, channel: int, *, base: int, registers: RegisterMap
    ) -> None:
        def read(address: int) -> int:
            return _values(transport.read_lines(channel, address, LINE_BYTES))[0]

        def write(address: int, value: int) -> None:
            transport.write_lines(channel, address, _lines([value]))

        super().__init__(registers, read, write, base)
        self._transport = transport
        self._channel = channel

    def read_many(self, names: Sequence[str]) -> dict[str, int]:
        """Return the 64 bits of several registers; neighbours share a call."""
        values: dict[str, int] = {}
        for group in self._neighbours(names):
            data = self._transport.read_lines(
                self._channel, self.address(group[0]), len(group) * LINE_BYTES
            )
            values.update(zip(group, _values(data), strict=True))
        return values

    def write_many(self, values: Mapping[str, int]) -> None:
        """Write registers in the order of ``values``; neighbours share a call."""
        for group in self._neighbours(list(values)):
            data = _lines([values[name] for name in group])
            self._transport.write_lines(self._channel, self.address(group[0]), data)

    def _neighbours(self, names: Sequence[str]) -> list[list[str]]:
        groups: list[list[str]] = []
        expected_address = None
        for name in names:
            if self.address(name) != expected_address:
                groups.append([])
            groups[-1].append(name)
            expected_address = self.address(name) + LINE_BYTES
        return groups

    def poll_steps(
        self, name: str, fields: Mapping[str, int], *, interval: int, timeout: int
    ) -> Generator[None, None, int]:
        """Read a register, in steps, until ``fields`` have the given values; return its 64 bits.

        ``interval`` and ``timeout`` are in fabric cycles. Raises
        :class:`~sw_driver.device.transport.DeviceTimeout`.
        """
        register = self[name]
        mask = value = 0
        for field_name, wanted in fields.items():
            field = register[field_name]
            mask |= field.mask
            value |= wanted << field.lsb
        return self._transport.poll_steps(
            self._channel,
            self.address(name),
            mask,
            value,
            interval_fabric_cycles=interval,
            timeout_fabric_cycles=timeout,
        )

    def poll(self, name: str, fields: Mapping[str, int], *, interval: int, timeout: int) -> int:
        """Run :meth:`poll_steps` at once."""
        return finished(self.poll_steps(name, fields, interval=interval, timeout=timeout))


def _lines(values: Sequence[int]) -> NDArray[np.uint8]:
    """Return lines that hold registers of these values."""
    lines = [value.to_bytes(REGISTER_BYTES, "little").ljust(LINE_BYTES, b"\0") for value in values]
    return np.frombuffer(b"".join(lines), np.uint8)


def _values(lines: NDArray[np.uint8]) -> list[int]:
    """Return the values of the registers in lines."""
    return lines.view("<u8")[:: LINE_BYTES // REGISTER_BYTES].tolist()


def arbiter_registers(transport: Transport, channel: int) -> ChannelRegisters:
    """Return the arbiter's registers, which answer in both modes."""
    return ChannelRegisters(
        transport,
        channel,
        base=arbiter_window(transport.capacity_bytes),
        registers=arbiter_map(),
    )


def kernel_registers(
    transport: Transport,
    channel: int,
    rules: tuple[str, ...] | None = None,
    narrow: bool = False,
) -> ChannelRegisters:
    """Return the kernel's registers, which answer in acceleration mode.

    ``rules`` are the kernel's, ``narrow`` is True if it has narrow formats. If ``rules`` is None,
    both are read from the arbiter, see :func:`kernel_built`.
    """
    if rules is None:
        rules, narrow = kernel_built(transport, channel)
    return ChannelRegisters(
        transport,
        channel,
        base=kernel_window(transport.capacity_bytes),
        registers=kernel_map(rules, narrow),
    )


def kernel_built(transport: Transport, channel: int) -> tuple[tuple[str, ...], bool]:
    """Return the kernel's update rules in register order, and True for narrow formats.

    Raises :class:`~sw_driver.device.errors.IncompatibleDeviceError` for an unknown rule.
    """
    arbiter = arbiter_registers(transport, channel)
    count, narrow = arbiter.read_fields("config", "rules", "narrow")
    if not 1 <= count <= MOST_RULES:
        raise IncompatibleDeviceError(
            f"channel {channel} has {count} update rules, this driver expects 1 to {MOST_RULES}",
            channel=channel,
            found=count,
            expected=MOST_RULES,
        )
    known = {rule.identifier: name for name, rule in RULES.items()}
    identifiers = arbiter.read_many([f"rule_{number}" for number in range(count)])
    for register, value in identifiers.items():
        if value not in known:
            raise IncompatibleDeviceError(
                f"channel {channel} has in {register} the identifier {value:#010x}, of an update "
                f"rule that this driver does not know: it knows {', '.join(RULES)}; add the rule "
                "that the device was built with to hw.rules, or build the device again",
                channel=channel,
                found=value,
                expected=sorted(known),
            )
    return tuple(known[value] for value in identifiers.values()), bool(narrow)
