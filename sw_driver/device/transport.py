"""What the driver needs of every device: the interface between them.

Behind it stands a golden model, the Verilated RTL or whatever else has registers; the driver does
not know which. Each kind of device adds how it moves data.
"""

from __future__ import annotations

from typing import Protocol

from .clock import Domain

__all__ = ["DeviceFault", "DeviceTimeout", "Transport"]


class DeviceFault(RuntimeError):
    """The device broke its own rules, for example a DRAM timing constraint in the simulation.

    Nothing is to be trusted from there on. ``dram_trace`` and ``wave`` of
    :class:`~sw_driver.axdimm.backends.BackendOptions` record what led to it.
    """


class DeviceTimeout(TimeoutError):
    """The device did not reach the awaited state in the given number of cycles."""


class Transport(Protocol):
    """A device, or a network of them. Each call takes the time that it takes.

    A call begins at ``domain.now``, or later, and leaves there when it is over. Any thread may
    call: one that is not in the middle of a call of ``domain.clock`` waits for those of others, see
    :func:`~sw_driver.device.streams.whole_call`. Generators are for who is in the middle of one.
    After :meth:`close` each call raises :class:`~sw_driver.device.errors.ClosedError`.
    """

    name: str
    """The backend's name, as in reports."""

    timed: bool
    """Whether the device has a simulated time; a purely functional model has none."""

    domain: Domain
    """The device's time. Nothing but what is above may set another one, before the first call."""

    def close(self) -> None:
        """Releases the device. Calling it twice does no harm."""
        ...
