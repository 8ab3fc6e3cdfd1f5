"""A machine of round numbers, on which what happens can be worked out by hand."""

from __future__ import annotations

from .machine import Machine
from .parts import Device, Link, Memory, assumed

__all__ = ["TINY"]

_WHY = "a round number"


def _link(name: str, a: str, b: str, gb_per_s: float, sharing: str, latency_ns: int = 0) -> Link:
    rate = assumed(gb_per_s, _WHY)
    return Link(
        name=name,
        a=a,
        b=b,
        read_gb_per_s=rate,
        write_gb_per_s=rate,
        latency_ns=assumed(latency_ns, _WHY),
        sharing=sharing,
    )


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
        _link("pcie", "root", "gpu", 4, "duplex", latency_ns=100),
        _link("ddr", "root", "host", 2, "half"),
        _link("nvme", "root", "disk", 1, "duplex", latency_ns=1000),
    ),
    junctions=("root",),
)
"""A GPU, a host and a disk: 4, 2 and 1 bytes a ns, the host's over a bus of one direction."""
