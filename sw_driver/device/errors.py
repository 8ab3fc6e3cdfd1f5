"""Exceptions of the driver: one for each thing that a program may do about an error.

A message states the deciding numbers, what was expected and what to do; ``details`` has the same
numbers. Misuse is refused before anything is sent to the device: memory, modes and allocations stay
as they were. Where this does not hold, the class states what is left behind.
"""

from __future__ import annotations

__all__ = [
    "AxdimmError",
    "BusyError",
    "ClosedError",
    "DeadlockError",
    "DeviceInUseError",
    "DeviceTimeoutError",
    "GpuError",
    "IncompatibleDeviceError",
    "InvalidArgumentError",
    "KernelError",
    "OutOfMemoryError",
    "PointerError",
    "RangeError",
    "RefusedWorkError",
    "RemoteMemoryError",
    "StorageError",
    "StreamFailedError",
    "UnknownWorkError",
    "UpsetError",
    "WaitTimeoutError",
    "WrongModeError",
    "shown",
]

_SHOWN = 120
"""Longest text of a value in a message, in characters."""


def shown(value: object) -> str:
    """Return a value as text for a message: one line, shortened."""
    text = " ".join(map(str.strip, repr(value).splitlines()))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class AxdimmError(Exception):
    """Base of all exceptions of the driver; ``details`` has the numbers of the message."""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


class InvalidArgumentError(AxdimmError, ValueError):
    """An argument has a value that is not allowed.

    It may be a device's name, a channel, size, count, rate or option, a rule's tensor or
    hyper-parameter, a buffer, register, handle, bank or layer. Nothing was done. The message names
    the value and the allowed ones.
    """


class PointerError(AxdimmError, ValueError):
    """A pointer is not of this device and kind of memory, is freed, or cannot be freed.

    Only the start of an allocation can be freed. Nothing was done, even if the same address has
    been allocated again since.
    """


class RangeError(AxdimmError, ValueError):
    """A range reaches beyond its allocation, or overlaps another range of the same operation.

    Source and destination of a copy must not overlap, nor may a tensor that a run stores overlap
    another of its tensors. Nothing was copied or started.
    """


class OutOfMemoryError(AxdimmError, MemoryError):
    """No free range is large enough; the message states the free bytes and the largest range.

    Nothing was allocated. Free something, split the tensor over the channels, or give a simulated
    channel more than its 64 MiB: ``BackendOptions(settings={"capacity_bytes": ...})``.
    """


class IncompatibleDeviceError(AxdimmError):
    """The device does not match this driver.

    Its identification, register map or capacity differs, or it has an update rule that the driver
    does not know. The device was released. Some of its registers were read, none was written.
    """


class DeviceInUseError(AxdimmError):
    """The device or storage is in use, by another process or another part of this one.

    It is the module on the bus, the device-node of a network, or a file or block device for
    storage, which may also be mounted. Nothing was opened; the other user is not disturbed.
    """


class ClosedError(AxdimmError):
    """The device was closed, or the process is a fork of the one that opened it.

    It was closed before the call, or while the call waited or copied. A copy in progress ended
    after a piece of at most 1 MiB; ``details["copied_bytes"]`` counts the copied bytes. Queued
    operations were not carried out.
    """


class WrongModeError(AxdimmError):
    """The channel is in the wrong mode for the access.

    Copies over the link need normal mode. Runs and the kernel's registers need acceleration mode.
    Nothing was done. Call ``SetArbiterNormal`` or ``SetArbiterAcc``, or pass ``modes="wait"``.
    """


class BusyError(AxdimmError):
    """The channel's kernel is running, or an operation uses the allocation to be freed.

    A queued operation counts, too. Nothing was done; the run goes on. Wait for its handle, or pass
    ``modes="wait"``.
    """


class KernelError(AxdimmError):
    """The kernel refused or stopped the run; ``cause`` is the cause's name in the register map.

    The channel is in acceleration mode, its kernel idle. A refused run changed nothing. A stopped
    run (``read_error``, ``write_error``) has updated some of the parameters.

    For a PIM's core: the kernel failed or was stopped, and may have written some results. If the
    core was stopped, the kernels queued behind it were not begun. The core takes new kernels.
    """

    def __init__(self, message: str, *, cause: str, **details: object) -> None:
        super().__init__(message, cause=cause, **details)
        self.cause = cause


class UpsetError(AxdimmError):
    """A channel noticed that a bit of its own state was lost; ``cause`` names the check.

    After a run: it was stopped or had ended, and some of the parameters may be wrong. After a mode
    switch: what was copied before it may be wrong. The channel takes new copies and runs: copy the
    tensors in again.
    """

    def __init__(self, message: str, *, cause: str, **details: object) -> None:
        super().__init__(message, cause=cause, **details)
        self.cause = cause


class WaitTimeoutError(AxdimmError, TimeoutError):
    """The operation did not end within ``timeout`` seconds of host time.

    A work of a PIM did not end within ``timeout_cycles`` of simulated time. The operation goes on
    when it is waited for again.
    """


class DeviceTimeoutError(AxdimmError, TimeoutError):
    """The device did not finish within a number of cycles that is ample for a sound one.

    ``details["state"]`` describes the device's state. A run was given up: its channel stays busy
    until ``PollAxdimm`` finds the kernel idle. If the device is sound but slow, pass a larger
    ``timeout_fabric_cycles``.
    """


class StreamFailedError(AxdimmError):
    """An earlier operation of the stream failed, so this one was not carried out.

    ``__cause__`` is that failure; ``stream.wait`` raises it. Handle it, call ``stream.recover()``,
    and queue again what is still needed.
    """


class DeadlockError(AxdimmError, RuntimeError):
    """A wait can never end.

    Streams wait for each other or for an operation that was never queued, or a callback waits. The
    message names the waiting operations. Queued operations stay queued.
    """


class GpuError(AxdimmError):
    """The GPU or its library failed, or lacks the requested feature.

    After a failed copy, the destination's bytes from ``copied_bytes`` on are undefined.
    """


class StorageError(AxdimmError):
    """A path cannot be storage, or a read or write of storage failed or was short.

    It is also raised for reading an allocation after a failed write: its contents are unknown, so
    it can only be freed. Other allocations stay as they were. After a failed read, the destination
    is unchanged from ``copied_bytes`` on.
    """


class RefusedWorkError(AxdimmError, ValueError):
    """The PIM's pool refused a work; ``cause`` is the cause's name in the PIM specification.

    ``full`` means that the pool holds the most works it can. Nothing was read or written; the pool
    goes on.
    """

    def __init__(self, message: str, *, cause: str, **details: object) -> None:
        super().__init__(message, cause=cause, **details)
        self.cause = cause


class UnknownWorkError(AxdimmError, LookupError):
    """The PIM's pool does not know the work id.

    It never issued the id, or a later work has reused the completed work's slot and registers.
    """


class RemoteMemoryError(AxdimmError):
    """A memory-node refused a transfer, or cannot be reached.

    The refused part was not done; other pieces of the same copy may have been. The copy leaves its
    stream, which goes on. Each wait for the copy's handle raises this. So does, once, the first
    synchronization with what is queued behind the copy: the stream, an event of it, or a stream
    that waits for such an event.
    """
