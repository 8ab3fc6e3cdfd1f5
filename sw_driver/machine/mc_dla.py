"""The parts of Kwon and Rhu's systems, Table II: one of each kind.

How many there are of each and how they are joined is the design's
(:mod:`sw_driver.system.mc_dla.designs`).
"""

from __future__ import annotations

from .machine import Machine
from .measured import V100_PCIE
from .parts import Device, Link, Memory, assumed, calibrated, given

__all__ = ["MC_DLA"]

_TABLE_2 = "paper, Table II"
_DIMMS = 10
_PEAK_TFLOP_PER_S = 256
_BUSY_SHARE = 0.25

# The rates that the RTL's links and memory-node could tell enter here, and only here.
_LINK = given(25, f"{_TABLE_2}: a link's rate in each direction")
_PCIE = calibrated(
    14.2,
    "of PCIe 3.0 x16's 15.75 GB/s, of which copies reach 12: fitted to the means of MC-DLA(B), 3.5 "
    "and 2.1 (V-B)",
)
_HOP_NS = assumed(100, "a hop: no figure; as the memories' 100 cycles")
_DIMM_RATE = given(256, f"{_TABLE_2}: a memory-node's ten DDR4-3200 DIMMs")

MC_DLA = Machine(
    name="mc_dla",
    memories=(
        Memory(
            name="node",
            capacity_bytes=given(16 << 30, "paper III-B: V100 with 16 GB; Table II has none"),
        ),
        Memory(
            name="memory_node",
            capacity_bytes=given(_DIMMS * 128 * 10**9, "paper V-C: ten LRDIMMs of 128 GB"),
        ),
        Memory(
            name="host",
            capacity_bytes=assumed(512 << 30, "of a socket: a DGX-1 has 512 GB; never the bound"),
        ),
    ),
    devices=(
        Device(
            name="node",
            memory="node",
            tflop_per_s=calibrated(
                _PEAK_TFLOP_PER_S * _BUSY_SHARE,
                f"{_BUSY_SHARE:.0%} of the 256 of {_TABLE_2}, 1024 PEs of 125 MACs at 1 GHz; the "
                "share is fitted to MC-DLA(S)'s largest loss, 24 % (V-B)",
            ),
            gb_per_s=given(900, f"{_TABLE_2}: memory bandwidth"),
            launch_ns=given(100, f"{_TABLE_2}: memory access latency, 100 cycles"),
        ),
    ),
    links=(
        Link(
            name="link",
            a="node",
            b="port",
            read_gb_per_s=_LINK,
            write_gb_per_s=_LINK,
            latency_ns=_HOP_NS,
            sharing="duplex",
        ),
        Link(
            name="dimms",
            a="port",
            b="memory_node",
            read_gb_per_s=_DIMM_RATE,
            write_gb_per_s=_DIMM_RATE,
            latency_ns=given(100, f"{_TABLE_2}: memory access latency, 100 cycles"),
            sharing="half",
        ),
        Link(
            name="pcie",
            a="host",
            b="node",
            read_gb_per_s=_PCIE,
            write_gb_per_s=_PCIE,
            latency_ns=V100_PCIE["latency_ns"],
            sharing="duplex",
        ),
    ),
    junctions=("port",),
)
"""A device-node, a memory-node and a host; one of the node's links, the memory-node's
DIMMs, and PCIe 3.0 x16."""
