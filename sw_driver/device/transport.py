"""Driver interface of every device.

It hides whether the device is a golden model, the Verilated RTL or other hardware with registers.
Each kind of device adds its own data transfers.
"""

from __future__ import annotations

from typing import Protocol

from .clock import Domain

__all__ = ["DeviceFault", "DeviceTimeout", "Transport"]


class DeviceFault(RuntimeError):
    """The device broke its own rules, for example a DRAM timing constraint in the simulation.

    Later results cannot be trusted. ``dram_trace`` and ``wave`` of
    :class:`~sw_driver.axdimm.backends.BackendOptions` record the events that led to it.
    """


class DeviceTimeout(TimeoutError):
    """The device did not reach the awaited state in the given number of cycles."""


class Transport(Protocol):
    """A device, or a network of devices. Each call takes simulated time.

    A call begins at ``domain.now`` or later, and leaves its end there. Any thread may call. A call
    waits for the calls of other threads, unless it is made within one of ``domain.clock``; see
    :func:`~sw_driver.device.streams.whole_call`. Generators are for use within a call of the clock.
    After :meth:`close` each call raises :class:`~sw_driver.device.errors.ClosedError`.
    """

    name: str
    """The backend's name, as in reports."""

    timed: bool
    """True if the device has a simulated time; a purely functional model has none."""

    domain: Domain
    """The device's time. Only the driver above may replace it, before the first call."""

    def close(self) -> None:
        """Release the device; a second call does nothing."""
        ...
