"""What the driver raises: one exception for each thing that a program may do about it.

Every message carries the numbers that decided, what was expected and what to do; the same numbers
are in ``details``. An exception of misuse is raised before anything is sent to the device, so
memory, modes and allocations are as they were. Where that is not so, the class says in what state
things are left.
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
    "WaitTimeoutError",
    "WrongModeError",
    "shown",
]

_SHOWN = 120
"""Characters of a value that a message has, at most."""


def shown(value: object) -> str:
    """Return a value as a message has it: in a line, and short."""
    text = " ".join(map(str.strip, repr(value).splitlines()))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class AxdimmError(Exception):
    """Base of all exceptions of the driver; ``details`` holds the numbers of the message."""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


class InvalidArgumentError(AxdimmError, ValueError):
    """An argument is none of its values: a device's name, a channel, a size, a count, a rate, an
    option, a tensor or hyper-parameter of a rule, a buffer, a register, a handle, a bank, a layer.

    Nothing was done. The message names the value and those that are possible.
    """


class PointerError(AxdimmError, ValueError):
    """What is used as a pointer is none of this device's for this kind of memory, its allocation
    has been freed, or, of what is to be freed, it is not the start of an allocation.

    Nothing was done, also if the same address has been handed out again since.
    """


class RangeError(AxdimmError, ValueError):
    """Bytes to be copied begin before their allocation or reach past its end, source and
    destination share bytes, or a tensor that a run stores overlaps another of its tensors.

    Nothing was copied or started.
    """


class OutOfMemoryError(AxdimmError, MemoryError):
    """No free range is large enough; the message says how much is free, and how much in one piece.

    Nothing was allocated. Free something, split the tensor over the channels, or give a simulated
    channel more than its 64 MiB: ``BackendOptions(settings={"capacity_bytes": ...})``.
    """


class IncompatibleDeviceError(AxdimmError):
    """What answers has another identification, register map or capacity than this driver expects,
    or an update rule that it does not know.

    The device was released; some of its registers have been read, none was written.
    """


class DeviceInUseError(AxdimmError):
    """Another process, or another part of this one, has the module on the bus, the device-node of a
    network, or the file or block device that is to be registered as storage; or that is mounted.

    Nothing was opened; the other user is not disturbed.
    """


class ClosedError(AxdimmError):
    """The device was closed before the call or while it waited or copied, or the process is a fork
    of the one that opened it.

    A copy in progress ended after a piece of 1 MiB or less, and ``copied_bytes`` of ``details``
    counts what is copied; what was queued was not carried out.
    """


class WrongModeError(AxdimmError):
    """The access needs the other mode: copies over the link need normal mode, runs and the kernel's
    registers acceleration mode.

    Nothing was done. Call ``SetArbiterNormal`` or ``SetArbiterAcc``, or pass ``modes="wait"``.
    """


class BusyError(AxdimmError):
    """The channel's kernel is running, or the allocation to free is in use by an operation, queued
    ones included.

    Nothing was done; the run goes on. Wait for its handle, or pass ``modes="wait"``.
    """


class KernelError(AxdimmError):
    """The kernel refused or stopped the run; ``cause`` is its name in the register map.

    The channel is in acceleration mode, its kernel idle. A run that was refused changed nothing,
    one that was stopped (``read_error``, ``write_error``) has updated some of the parameters.

    Of a PIM's core: the kernel failed or was stopped, and may have written some of its results; so
    were those behind it in the core's queue, if the core was stopped. The core takes new ones.
    """

    def __init__(self, message: str, *, cause: str, **details: object) -> None:
        super().__init__(message, cause=cause, **details)
        self.cause = cause


class WaitTimeoutError(AxdimmError, TimeoutError):
    """The operation did not end in the given seconds of host time; it goes on when it is waited for
    again."""


class DeviceTimeoutError(AxdimmError, TimeoutError):
    """The device did not finish in a number of cycles that is ample for a sound one.

    ``details["state"]`` is the device's state in words. A run was given up: its kernel keeps the
    channel busy until ``PollAxdimm`` has found it idle. For a sound device that is slow pass a
    larger ``timeout_fabric_cycles``.
    """


class StreamFailedError(AxdimmError):
    """An earlier operation of the stream failed, so this one was not carried out.

    ``__cause__`` is that failure, which ``stream.wait`` raises itself. Deal with it, call
    ``stream.recover()``, and queue again what is still wanted.
    """


class DeadlockError(AxdimmError, RuntimeError):
    """What is waited for cannot happen any more: streams wait for each other, or for what nobody
    queued, or a callback waits. The message says who waits for what.

    What was queued stays queued.
    """


class GpuError(AxdimmError):
    """The GPU, or the library that drives it, failed, or is asked for what it does not have.

    Of a failed copy, the destination's bytes from ``copied_bytes`` on are undefined.
    """


class StorageError(AxdimmError):
    """A path cannot be registered as storage, a read or write of it failed or was short, or an
    allocation is read of which a write has failed.

    Of a failed read the destination is as it was from ``copied_bytes`` on. A failed write makes its
    allocation unusable: nobody knows what it holds, so it can only be freed. Others are as they
    were.
    """


class RefusedWorkError(AxdimmError, ValueError):
    """The PIM's pool refused a work; ``cause`` is the cause's name in its specification, ``full``
    if it holds as many works as it can.

    Nothing was read or written; the pool goes on.
    """

    def __init__(self, message: str, *, cause: str, **details: object) -> None:
        super().__init__(message, cause=cause, **details)
        self.cause = cause


class UnknownWorkError(AxdimmError, LookupError):
    """The PIM's pool has not given out this work id, or another work has taken its slot since it
    completed, and with it its registers."""


class RemoteMemoryError(AxdimmError):
    """A memory-node refused a transfer, or cannot be reached.

    What was asked of it was not done; other pieces of the same copy may have been. The copy is out
    of its stream, which goes on. Its handle raises this whenever it is waited for. So does, once,
    the first to synchronize with what is behind it: the stream, an event of it, or a stream that
    waits for such an event.
    """
