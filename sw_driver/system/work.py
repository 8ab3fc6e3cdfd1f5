"""Cost of an operation on a device, by where its tensors are.

A cost is time, and bytes that share links and memories with transfers and with other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..machine.machine import Machine
from ..workload.trace import Op

__all__ = ["DeviceWork", "Flow", "work_of"]


class Flow(NamedTuple):
    """Bytes that a device moves while it works.

    The device sits at its own memory, which is one of the ends. Both ends are that memory for data
    kept there.
    """

    nbytes: int
    source: str
    target: str
    """Names of memories."""


class DeviceWork(NamedTuple):
    """Cost of an entry in a device's queue; the entry ends when the time and all flows are over.

    Examples
    --------
    >>> from sw_driver.machine.tiny import TINY
    >>> from sw_driver.system.engine import Engine
    >>> engine = Engine(TINY)
    >>> reading = DeviceWork(500, [Flow(1000, "host", "gpu")])
    >>> done = engine.queue("gpu").work(lambda: reading, "forward")
    >>> engine.run()
    600
    """

    duration_ns: int
    flows: Sequence[Flow] = ()
    """Flows, one after the other or all at once, by the device's ``accesses``."""
    launch_ns: int = 0
    """Time in ns before both."""


def work_of(machine: Machine, op: Op, device: str, where: Callable[[int], str]) -> DeviceWork | int:
    """Return the cost of an operation on a device.

    ``where`` names the memory of each tensor by its id; an empty text is the device's own memory.
    The cost is a launch, then the longer of arithmetic and bytes. If the bytes share nothing, the
    result is the ns of :meth:`~sw_driver.machine.parts.Device.cost`. Raises
    :class:`~sw_driver.machine.parts.MachineError` for an unknown device or memory.
    """
    unit = machine.device(device)
    own = unit.memory
    moved = {(own, own): 0}
    for tensor, nbytes in zip(op.reads, op.read_bytes, strict=True):
        ends = where(tensor) or own, own
        moved[ends] = moved.get(ends, 0) + nbytes
    for tensor, nbytes in zip(op.writes, op.write_bytes, strict=True):
        ends = own, where(tensor) or own
        moved[ends] = moved.get(ends, 0) + nbytes
    if len(moved) == 1 and machine.memory(own).total_gb_per_s is None:
        return unit.cost(op)
    flows = [Flow(nbytes, *ends) for ends, nbytes in moved.items() if nbytes]
    return DeviceWork(unit.compute_ns(op), flows, unit.start_ns)
