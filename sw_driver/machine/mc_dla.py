"""Parts of Kwon and Rhu's systems (Table II), one of each kind, and of two later classes.

A design (:mod:`sw_driver.system.mc_dla.designs`) says how many there are and how they are joined.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ..numbers import check_name
from .machine import Machine
from .measured import V100_PCIE
from .parts import (
    Device,
    Figure,
    Link,
    MachineError,
    Memory,
    assumed,
    calibrated,
    given,
    link,
    predicted,
)
from .processors import A100, H100

__all__ = ["CATALOGUES", "MC_DLA", "MC_DLA_RTL", "parts_of"]

_TABLE_2 = "paper, Table II"
_LATENCY = given(100, f"{_TABLE_2}: memory access latency, 100 cycles at 1 GHz")
_HOP = assumed(100, "a hop: no figure; as the memories' 100 cycles")


def _catalogue(
    name: str,
    *,
    node_bytes: Figure,
    tflop_per_s: Figure,
    gb_per_s: Figure,
    link_gb_per_s: Figure,
    dimms_gb_per_s: Figure,
    pcie_gb_per_s: Figure,
) -> Machine:
    """Return a catalogue: a device-node, a memory-node, a host and the links between them.

    The links are one of the device-node's six, the memory-node's ten DIMMs, and an uplink to the
    host.
    """
    return Machine(
        name=name,
        memories=(
            Memory(name="node", capacity_bytes=node_bytes),
            Memory(
                name="memory_node",
                capacity_bytes=given(10 * 128 * 10**9, "paper V-C: ten LRDIMMs of 128 GB"),
            ),
            Memory(
                name="host",
                capacity_bytes=assumed(512 << 30, "a DGX-1 has 512 GB; never the bound"),
            ),
        ),
        devices=(
            Device(
                name="node",
                memory="node",
                tflop_per_s=tflop_per_s,
                gb_per_s=gb_per_s,
                launch_ns=_LATENCY,
            ),
        ),
        links=(
            *_to_memory_node(link_gb_per_s, dimms_gb_per_s),
            link("pcie", "host", "node", pcie_gb_per_s, V100_PCIE["latency_ns"]),
        ),
        junctions=("port",),
    )


def _to_memory_node(link_gb_per_s: Figure, dimms_gb_per_s: Figure) -> tuple[Link, Link]:
    return (
        link("link", "node", "port", link_gb_per_s, _HOP),
        link("dimms", "port", "memory_node", dimms_gb_per_s, _LATENCY, "half"),
    )


MC_DLA = _catalogue(
    "mc_dla",
    node_bytes=given(16 << 30, "paper III-B: V100 with 16 GB; Table II has none"),
    tflop_per_s=calibrated(
        64,
        f"a quarter of {_TABLE_2}'s 1024 PEs of 125 MACs at 1 GHz, 256: fitted to MC-DLA(S)'s "
        "largest loss, 24 % (V-B)",
    ),
    gb_per_s=given(900, f"{_TABLE_2}: memory bandwidth"),
    link_gb_per_s=given(25, f"{_TABLE_2}: a link's rate in each direction"),
    dimms_gb_per_s=given(256, f"{_TABLE_2}: a memory-node's ten DDR4-3200 DIMMs"),
    pcie_gb_per_s=calibrated(
        14.2,
        "of PCIe 3.0 x16's 15.75 GB/s, of which copies reach 12: fitted to the means of MC-DLA(B), "
        "3.5 and 2.1 (V-B)",
    ),
)
"""Parts of Kwon and Rhu's Table II, with the fitted figures."""

_HALF = "half of what the data sheet has for TF32 without sparsity, as 64 is of the V100's 125"
_NINE_TENTHS = "nine tenths of the lanes' rate, as 14.2 are of 15.75"

CATALOGUES = {
    catalogue.name: catalogue
    for catalogue in (
        MC_DLA,
        _catalogue(
            "a100",
            node_bytes=given(80 * 10**9, "NVIDIA A100 data sheet: SXM4, 80 GB"),
            tflop_per_s=assumed(156 / 2, f"NVIDIA A100 data sheet; {_HALF}"),
            gb_per_s=A100.gb_per_s,
            link_gb_per_s=given(
                50, "NVIDIA A100 data sheet: NVLink 600 GB/s, both directions of six pairs of links"
            ),
            dimms_gb_per_s=given(256, "ten DDR4-3200 DIMMs, as the paper's"),
            pcie_gb_per_s=assumed(28.4, f"PCIe 4.0 x16; {_NINE_TENTHS}"),
        ),
        _catalogue(
            "h100",
            node_bytes=given(80 * 10**9, "NVIDIA H100 data sheet: SXM5"),
            tflop_per_s=assumed(494 / 2, f"NVIDIA H100 data sheet; {_HALF}"),
            gb_per_s=H100.gb_per_s,
            link_gb_per_s=given(
                75, "NVIDIA H100 data sheet: NVLink 900 GB/s, both directions of six triples"
            ),
            dimms_gb_per_s=given(448, "ten DDR5-5600 DIMMs, each of 8 bytes"),
            pcie_gb_per_s=assumed(56.8, f"PCIe 5.0 x16; {_NINE_TENTHS}"),
        ),
    )
}
"""Catalogues of parts by name.

Later ones have the paper's number of links, each as fast as two or three links of the real GPU.
"""

MC_DLA_RTL = "mc_dla_rtl"
"""Name of the catalogue that is :data:`MC_DLA` with rates of the RTL's memory-node.

A cycle model computes these rates when the catalogue is first used.
"""


def parts_of(name: str) -> Machine:
    """Return the catalogue of this name, one of :data:`CATALOGUES` or :data:`MC_DLA_RTL`."""
    check_name("parts", name, [*CATALOGUES, MC_DLA_RTL], MachineError)
    return _with_rtl_rates() if name == MC_DLA_RTL else CATALOGUES[name]


@cache
def _with_rtl_rates() -> Machine:
    # Imported here because few callers need it; the rates take some seconds.
    from sw_driver.predict.memory_node.rates import PAPER_NODE, link_gb_per_s, memory_gb_per_s

    source = "cycle model of the RTL's memory-node"
    links = _to_memory_node(
        predicted(link_gb_per_s(PAPER_NODE), f"{source}: reads of 4 KB"),
        predicted(memory_gb_per_s(PAPER_NODE), f"{source}: all links both ways"),
    )
    return replace(MC_DLA, name=MC_DLA_RTL, links=(*links, MC_DLA.link("pcie")))
