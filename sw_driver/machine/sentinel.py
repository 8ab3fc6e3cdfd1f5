"""Machines with a fast and a slow memory: that of Sentinel's Table 2, and later ones.

The paper's machine is a socket with its own memory and the memory of the other socket. Its 24
threads are as many as "physical cores in a socket", but that socket has 12 cores. Two threads a
core are assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .machine import Machine
from .measured import FIRECUDA_520, V100_PCIE
from .parts import Device, Figure, Link, Memory, assumed, given, link
from .processors import A100, H100, V100, XEON_8480, XEON_E5_2670_V3

__all__ = ["SENTINEL", "TIERS"]

_TABLE_2 = "paper, Table 2"
_ENOUGH = assumed(1 << 40, "more than any network takes; who plans and experiments set it")


def _tiers(name: str, device: Device, slow: Link, total_gb_per_s: Figure | None = None) -> Machine:
    """Return a machine with a fast and a slow memory, both large enough for any network.

    ``total_gb_per_s`` is the slow memory's rate, if that is a bound besides its link.
    """
    return Machine(
        name=name,
        memories=(
            Memory(name="fast", capacity_bytes=_ENOUGH, total_gb_per_s=device.gb_per_s),
            Memory(name="slow", capacity_bytes=_ENOUGH, total_gb_per_s=total_gb_per_s),
        ),
        devices=(replace(device, memory="fast"),),
        links=(slow,),
    )


_SOCKET = replace(
    XEON_E5_2670_V3,
    gb_per_s=given(34, f"{_TABLE_2}: bandwidth of fast memory"),
    launch_ns=given(87, f"{_TABLE_2}: latency of fast memory"),
)
_CROSS_NS = 96

SENTINEL = _tiers(
    "sentinel",
    _SOCKET,
    link(
        "cross",
        "fast",
        "slow",
        given(19, f"{_TABLE_2}: bandwidth across sockets"),
        given(_CROSS_NS, f"{_TABLE_2}: slow memory's 182.7 ns less fast memory's 87"),
    ),
    given(19, f"{_TABLE_2}: bandwidth of slow memory"),
)
"""The paper's machine. Computation on a memory and its transfers share its rate."""


def _pcie(generation: int, gpu: Device, gb_per_s: Figure) -> Machine:
    """Return a GPU whose kernels and copies reach the host's memory at the same rate."""
    slow = link("pcie", "fast", "slow", gb_per_s, V100_PCIE["latency_ns"])
    return _tiers(f"sentinel_pcie{generation}", gpu, slow)


TIERS: Mapping[str, Machine] = {
    "xeon": SENTINEL,
    "pcie3": _pcie(3, V100, V100_PCIE["read_gb_per_s"]),
    "pcie4": _pcie(
        4,
        A100,
        given(25, "measured, of PCIe 4.0 x16's 31.5 GB/s, for an A100 (ZaidQureshi/bam, issue 54)"),
    ),
    "pcie5": _pcie(
        5,
        H100,
        assumed(
            55.6,
            "NVIDIA's example of what its nvbandwidth measures to a GPU that it does not name "
            "(developer.nvidia.com/blog), of PCIe 5.0 x16's 63.0 GB/s; H100s reach 52.8 to the "
            "host by kernels, and 35.3 from it (NVIDIA/nvbandwidth, issue 24)",
        ),
    ),
    "cxl": _tiers(
        "sentinel_cxl",
        XEON_8480,
        link(
            "cxl",
            "fast",
            "slow",
            assumed(27.8, "of PCIe 5.0 x8's 31.5 GB/s the share that pcie5 reaches of its lanes"),
            assumed(
                150,
                "CXL memory is taken to be as far again as another socket's, some 250 ns in all",
            ),
        ),
        given(
            36,
            "Micron CZ120, CXL 2.0 x8: both ways together, by Intel's MLC with two reads to a "
            "write (Tom's Hardware on its launch)",
        ),
    ),
    "nvme": _tiers(
        "sentinel_nvme",
        _SOCKET,
        Link(name="nvme", a="fast", b="slow", sharing="duplex", **FIRECUDA_520),
    ),
    "ddr4-800": _tiers(
        "sentinel_ddr4_800",
        _SOCKET,
        link(
            "ddr",
            "fast",
            "slow",
            given(6.4, "Kim et al., AXDIMM, 2.3: seen as a DDR4-800 DIMM; of 8 bytes"),
            assumed(_CROSS_NS, "as across sockets"),
            "half",
        ),
    ),
}
"""Machines by their slow memory.

``xeon`` is the paper's other socket. ``pcie3`` to ``pcie5`` are the host's memory for a GPU (V100,
A100, H100). ``cxl``, ``nvme`` and ``ddr4-800`` are a CXL expander, an NVMe drive and a module
behind one DDR4 link, for a host. That host is the paper's socket, and for ``cxl`` one of the first
CPUs with CXL.
"""
