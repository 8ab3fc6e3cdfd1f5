"""What a system is made of: memories, devices and links, each rate with where it comes from."""

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
