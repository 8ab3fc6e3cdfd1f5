"""Memories, devices and links of a system. Each rate names its source."""

from .machine import Machine
from .parts import Device, Figure, Link, MachineError, Memory, assumed, calibrated, given, link

__all__ = [
    "Device",
    "Figure",
    "Link",
    "Machine",
    "MachineError",
    "Memory",
    "assumed",
    "calibrated",
    "given",
    "link",
]
