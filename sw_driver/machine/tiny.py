"""A machine of round numbers, for results that can be worked out by hand."""

from __future__ import annotations

from .machine import Machine
from .parts import Device, Memory, assumed, link

__all__ = ["TINY"]

_WHY = "a round number"


TINY = Machine(
    name="tiny",
    memories=(
        Memory(name="gpu", capacity_bytes=assumed(10_000, _WHY)),
        Memory(name="host", capacity_bytes=assumed(100_000, _WHY)),
        Memory(name="disk", capacity_bytes=assumed(1_000_000, _WHY)),
    ),
    devices=(
        Device(
            name="gpu",
            memory="gpu",
            tflop_per_s=assumed(1, _WHY),
            gb_per_s=assumed(100, _WHY),
            launch_ns=assumed(10, _WHY),
        ),
        Device(
            name="cpu",
            memory="host",
            tflop_per_s=assumed(0.1, _WHY),
            gb_per_s=assumed(10, _WHY),
            launch_ns=assumed(0, _WHY),
        ),
    ),
    links=(
        link("pcie", "root", "gpu", assumed(4, _WHY), assumed(100, _WHY)),
        link("ddr", "root", "host", assumed(2, _WHY), assumed(0, _WHY), "half"),
        link("nvme", "root", "disk", assumed(1, _WHY), assumed(1000, _WHY)),
    ),
    junctions=("root",),
)
"""A GPU, a host and a disk with links of 4, 2 and 1 bytes/ns; the host's link is half-duplex."""
