"""What others may see of an opened device, and do to it: for ``nearmem ctl``.

The process that has the device open answers on a Unix socket (:mod:`.server`); whoever asks uses
:mod:`.client`. Both ends have the methods of :class:`Controlled`, and no device is known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypedDict

from sw_driver.errors import AxdimmError
from sw_driver.transport import kernel_window

__all__ = [
    "PATIENCE_S",
    "AddressError",
    "AllocationEntry",
    "ChannelState",
    "ControlError",
    "Controlled",
    "MemoryEntry",
    "NoSuchRegisterError",
    "Operation",
    "RegisterAccessError",
    "RegisterValue",
    "check_range",
]

PATIENCE_S = 1.0
"""How long a call of :class:`Controlled` may wait for a channel that others use."""


class ControlError(AxdimmError):
    """A device's control service was not understood, or did not understand."""


class NoSuchRegisterError(AxdimmError, ValueError):
    """No register or field has this name, or more than one."""


class RegisterAccessError(AxdimmError, ValueError):
    """The register cannot be written, or not with this value."""


class AddressError(AxdimmError, ValueError):
    """The bytes are not all in the channel's memory below the register windows."""


class Operation(TypedDict):
    """What a channel is doing."""

    name: str
    progress: float | None
    """From 0 to 1; None if it is not known."""


class ChannelState(TypedDict):
    """What a channel is doing and has done."""

    channel: int
    mode: str
    """``normal`` or ``acceleration``, as in the register map."""
    draining: bool
    """A mode switch waits for transfers in flight."""
    kernel_busy: bool
    operation: Operation | None
    queued: dict[str, int]
    """Operations that wait, by their stream."""
    copied_bytes: dict[str, int]
    """By the driver, by the way they took."""
    counters: dict[str, int]
    """Of the arbiter, by register."""
    fabric_cycles: int
    """Simulated so far; 0 on an untimed backend."""


class RegisterValue(TypedDict):
    """A register and what it holds."""

    window: str
    """``arbiter`` or ``kernel``."""
    name: str
    offset: int
    """In bytes, from the start of the window."""
    value: int | None
    """All 64 bits; None if it cannot be read now."""
    fields: dict[str, int | str]
    """Values by field; an encoded value that has a name is given by it."""
    note: str
    """Why there is no value."""


class AllocationEntry(TypedDict):
    """A piece of memory that is in use."""

    memory: str
    channel: int
    address: int
    nbytes: int
    users: int
    """Operations that need it."""


class MemoryEntry(TypedDict):
    """A channel of a kind of memory."""

    memory: str
    channel: int
    total_bytes: int
    free_bytes: int
    largest_free_bytes: int
    allocations: int


class Controlled(Protocol):
    """A device as its control service sees it.

    Any thread may call, several at once. A call that needs a channel which somebody else keeps for
    longer than :data:`PATIENCE_S` raises :class:`~sw_driver.errors.BusyError` and has changed
    nothing; after the device was closed, all raise :class:`~sw_driver.errors.ClosedError`. A
    channel that does not exist is a :class:`~sw_driver.errors.NoSuchChannelError`. Results are of
    what JSON has.
    """

    def describe(self) -> dict[str, Any]:
        """What the device is; waits for nobody.

        ``backend``, ``preset``, ``channels``, ``capacity_bytes`` of a channel (the register windows
        included), ``fabric_mhz``, ``timed``, ``configuration`` (what the channels say about their
        build), ``fabric_cycles`` simulated so far, for each channel, and ``stand_ins`` (names of
        what stands in for hardware that is not there). The control service adds ``name``, ``pid``,
        ``program``, ``device`` and ``started``.
        """
        ...

    def channel_state(self, channel: int) -> ChannelState:
        """What the channel is doing and has done."""
        ...

    def registers(self, channel: int, names: Sequence[str] | None = None) -> list[RegisterValue]:
        """The registers of these names, ``WINDOW.REGISTER`` or ``REGISTER``; of None, all.

        Those of the kernel have a value in acceleration mode only. Raises
        :class:`NoSuchRegisterError`.
        """
        ...

    def write_register(self, channel: int, register: str, value: int | str) -> None:
        """Writes a register, or changes one field of it: ``WINDOW.REGISTER[.FIELD]``.

        ``value`` is an integer, as such or as text, or the name of an encoded value. What keeps the
        driver's view of the device from being true is done in its place or refused: a write of the
        arbiter's mode is :meth:`set_mode`. Raises :class:`NoSuchRegisterError`,
        :class:`RegisterAccessError`, :class:`~sw_driver.errors.WrongModeError`.
        """
        ...

    def set_mode(self, channel: int, mode: str) -> None:
        """Switches the channel to ``normal`` or ``acceleration`` mode and waits for it.

        Raises :class:`~sw_driver.errors.BusyError` while the kernel runs and
        :class:`RegisterAccessError` for a mode that is none.
        """
        ...

    def allocations(self) -> list[AllocationEntry]:
        """The allocations of all memories."""
        ...

    def memory(self) -> list[MemoryEntry]:
        """How much memory there is and is free, of memories that have a size of their own."""
        ...

    def peek(self, channel: int, address: int, nbytes: int, backdoor: bool = False) -> bytes:
        """Bytes of the channel's memory, over the link or through the backdoor.

        Over the link, only in normal mode (:class:`~sw_driver.errors.WrongModeError`). Raises
        :class:`AddressError`, :class:`~sw_driver.errors.BusyError`.
        """
        ...

    def poke(self, channel: int, address: int, data: bytes, backdoor: bool = False) -> None:
        """Writes bytes of the channel's memory; raises what :meth:`peek` raises."""
        ...


def check_range(capacity_bytes: int, address: int, nbytes: int) -> None:
    """Raises :class:`AddressError` unless the bytes lie below a channel's register windows."""
    end = kernel_window(capacity_bytes)
    if nbytes < 1 or address < 0 or address + nbytes > end:
        raise AddressError(
            f"{nbytes} bytes at {address:#x} are not in the channel's memory: expected at least 1, "
            f"from 0 to {end:#x}, where the registers begin",
            address=address,
            nbytes=nbytes,
            end=end,
        )
