"""What the driver raises: one named exception for each way to misuse the device or for it to fail.

Every message carries the numbers that decided; the same numbers are in ``details``. An exception
of misuse is raised before anything is sent to the device, so memory, modes and allocations are as
they were.
"""

from __future__ import annotations

__all__ = [
    "AlignmentError",
    "AxdimmError",
    "BusyError",
    "ClosedError",
    "CopyRangeError",
    "CountMismatchError",
    "DeviceInUseError",
    "DeviceTimeoutError",
    "DoubleFreeError",
    "ForeignPointerError",
    "FreedPointerError",
    "GpuError",
    "HostBufferError",
    "HyperparameterError",
    "IncompatibleDeviceError",
    "InteriorPointerError",
    "InvalidHandleError",
    "InvalidOptionError",
    "InvalidSizeError",
    "KernelError",
    "LostDataError",
    "NoSuchChannelError",
    "NoSuchDeviceError",
    "NoSuchRegisterError",
    "NoSuchStorageError",
    "OutOfMemoryError",
    "OverlapError",
    "QueueingError",
    "RegisterAccessError",
    "RemoteMemoryError",
    "StorageError",
    "StorageIOError",
    "StorageInUseError",
    "StreamFailedError",
    "TensorNameError",
    "UnsupportedRuleError",
    "WaitTimeoutError",
    "WrongChannelError",
    "WrongModeError",
]


class AxdimmError(Exception):
    """Base of all exceptions of the driver; ``details`` holds the numbers of the message."""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


class NoSuchDeviceError(AxdimmError, ValueError):
    """The name given to ``Axdimm`` is not a backend."""


class IncompatibleDeviceError(AxdimmError):
    """The device does not identify itself as the one this driver was written for."""


class DeviceInUseError(AxdimmError):
    """Another process, or another part of this one, has the module on the bus open."""


class ClosedError(AxdimmError):
    """The device was closed, or the process forked after it was opened."""


class NoSuchChannelError(AxdimmError, ValueError):
    """The channel is not an integer below the number of channels."""


class InvalidSizeError(AxdimmError, ValueError):
    """A size is not an integer, or not in its range."""


class OutOfMemoryError(AxdimmError, MemoryError):
    """No free range of the channel is large enough."""


class ForeignPointerError(AxdimmError, ValueError):
    """The pointer was not made by this device's allocation function for this kind of memory."""


class InteriorPointerError(ForeignPointerError):
    """Only the start of an allocation can be freed."""


class FreedPointerError(AxdimmError, ValueError):
    """The pointer's allocation has been freed."""


class DoubleFreeError(FreedPointerError):
    """The allocation to free has been freed before."""


class WrongChannelError(AxdimmError, ValueError):
    """A tensor lies on another channel than the one to run on."""


class AlignmentError(AxdimmError, ValueError):
    """A tensor of a run does not start on a 64-byte line, or an array not on an element."""


class OverlapError(AxdimmError, ValueError):
    """A tensor that the run writes overlaps another of its tensors."""


class CopyRangeError(AxdimmError, ValueError):
    """The copy begins before or reaches past its allocation."""


class HostBufferError(AxdimmError, ValueError):
    """The host's buffer is too small, not contiguous, not a buffer, or must be writable."""


class CountMismatchError(AxdimmError, ValueError):
    """The number of parameters is below 1 or more than a tensor's allocation holds."""


class HyperparameterError(AxdimmError, ValueError):
    """A hyper-parameter is out of its range, missing, or none of the update rule's."""


class TensorNameError(AxdimmError, ValueError):
    """The tensors given to a run are not those of its update rule."""


class UnsupportedRuleError(AxdimmError, ValueError):
    """The channel's kernel was not built with the update rule."""


class WrongModeError(AxdimmError):
    """The channel's arbiter is in the other mode than the access needs."""


class BusyError(AxdimmError):
    """The channel's kernel is running; what was asked for has to wait for it."""


class WaitTimeoutError(AxdimmError, TimeoutError):
    """The awaited run did not end in the given host time; it goes on."""


class DeviceTimeoutError(AxdimmError, TimeoutError):
    """The device did not finish in a number of fabric cycles that is ample for a sound one."""


class InvalidOptionError(AxdimmError, ValueError):
    """An option of the device or of a call is not one of its values."""


class QueueingError(AxdimmError, RuntimeError):
    """Inside ``queueing()``, what waits for its end cannot be waited for."""


class InvalidHandleError(AxdimmError, TypeError):
    """What is to be waited for is no handle of this device."""


class StreamFailedError(AxdimmError):
    """An earlier operation of the stream failed, so this one was not carried out."""


class NoSuchRegisterError(AxdimmError, ValueError):
    """No register or field has this name, or more than one."""


class RegisterAccessError(AxdimmError, ValueError):
    """The register cannot be read, or cannot be written, or not with this value."""


class GpuError(AxdimmError):
    """The GPU, or the library that drives it, failed."""


class StorageError(AxdimmError):
    """Base of what goes wrong with NVMe storage."""


class NoSuchStorageError(StorageError, ValueError):
    """What is to be registered is no file or block device that can hold data, or has no room."""


class StorageInUseError(StorageError):
    """The storage is registered already, locked by another process, or mounted."""


class StorageIOError(StorageError):
    """A read or write failed, or moved fewer bytes than asked for."""


class LostDataError(StorageError):
    """A write to this allocation failed: nobody knows what it holds, so it can only be freed."""


class KernelError(AxdimmError):
    """The kernel refused or stopped the run; ``cause`` is its name in the register map."""

    def __init__(self, message: str, *, cause: str, **details: object) -> None:
        super().__init__(message, cause=cause, **details)
        self.cause = cause


class RemoteMemoryError(AxdimmError):
    """A memory-node refused a transfer, or cannot be reached."""
