"""Experiments that the paper argues from, measured on the RTL."""

from __future__ import annotations

from hw.axdimm.config import ModuleConfig
from sw_driver.axdimm.allocator import channel_memory
from sw_driver.axdimm.runs import PARAMETER_BYTES

__all__ = ["check_memory"]


def check_memory(config: ModuleConfig, *, buffer_bytes: int, parameters: int) -> None:
    """Raises :class:`~sw_driver.device.errors.OutOfMemoryError` unless a channel holds the tensors
    of a run and a buffer, before a simulator is built for nothing."""
    memory = channel_memory(config.capacity_bytes)
    for nbytes in (buffer_bytes, *[PARAMETER_BYTES * parameters] * 4):
        memory.allocate(nbytes)
