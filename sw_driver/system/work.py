"""What an operation takes on a device by where its tensors are: time, and bytes that share links
and memories with transfers and with what other devices do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..machine.machine import Machine
from ..workload.trace import Op

__all__ = ["Flow", "Work", "work_of"]


class Flow(NamedTuple):
    """Bytes that a device moves while it works. It is at its memory: that is one of the ends, and
    both for what is there."""

    nbytes: int
    source: str
    target: str
    """Names of memories."""


class Work(NamedTuple):
    """What an entry of a device's queue takes: it ends when the time and all bytes are over."""

    duration_ns: int
    flows: Sequence[Flow] = ()
    """One after the other, or all together, as the device's ``accesses`` has it."""
    launch_ns: int = 0
    """What passes before both."""


def work_of(machine: Machine, op: Op, device: str, where: Callable[[int], str]) -> Work | int:
    """What an operation takes on a device, when each of its tensors is in the memory that ``where``
    says of its id (an empty text: in the device's own).

    That is a launch and the longer of arithmetic and bytes; the ns of them,
    :meth:`~sw_driver.machine.parts.Device.cost`, if the bytes share nothing. Raises
    :class:`~sw_driver.machine.parts.MachineError` for a device or memory that there is not.
    """
    does = machine.device(device)
    own = does.memory
    moved = {(own, own): 0}
    for tensor, nbytes in zip(op.reads, op.read_bytes, strict=True):
        ends = where(tensor) or own, own
        moved[ends] = moved.get(ends, 0) + nbytes
    for tensor, nbytes in zip(op.writes, op.write_bytes, strict=True):
        ends = own, where(tensor) or own
        moved[ends] = moved.get(ends, 0) + nbytes
    if len(moved) == 1 and machine.memory(own).total_gb_per_s is None:
        return does.cost(op)
    flows = [Flow(nbytes, *ends) for ends, nbytes in moved.items() if nbytes]
    return Work(does.compute_ns(op), flows, int(does.launch_ns.value))
