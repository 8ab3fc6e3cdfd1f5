"""Machines to compare systems on: a GPU at a host, with the parts that each system adds.

Each system uses only its own parts: cores of the host, a module and drives as in Kim et al.,
memory-nodes at links of the GPU as in Kwon and Rhu, a CXL expander, or a memory stack as in Liu et
al. No built machine has them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sw_driver.machine import Device, Figure, Machine, Memory, assumed, calibrated, given
from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM
from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.machine.mc_dla import CATALOGUES
from sw_driver.machine.measured import V100_PCIE
from sw_driver.machine.memferry import MEMFERRY_V100
from sw_driver.machine.parts import link
from sw_driver.machine.processors import A100, H100, RTX_4090, V100
from sw_driver.machine.sentinel import TIERS

from ..axdimm.platform import PAPER_RATES

__all__ = ["BASES", "IDLE_KEYS", "WATTS"]

_LINKS = 6
"""Links from a GPU to memory-nodes (Kwon and Rhu)."""
_ENOUGH = assumed(1000, "the GPU's own link is the bound")
_FITTED = AXDIMM_PLATFORM.override(
    PAPER_RATES.changes(),
    lambda value, source: calibrated(value, f"fitted to Kim et al., Table 6, {source}"),
)


def _base(name: str, gpu: Device, gpu_bytes: Figure, pcie: Figure, parts: str = "") -> Machine:
    """Return a machine; ``parts`` names the entry of ``CATALOGUES`` for links to memory-nodes."""
    cxl = TIERS["cxl"]
    memories = [
        Memory(name="gpu", capacity_bytes=gpu_bytes),
        Memory(name="host", capacity_bytes=assumed(256 << 30, "as servers of these years have")),
        *(_FITTED.memory(name) for name in ("module0", "module1", "nvme")),
        Memory(
            name="cxl",
            capacity_bytes=given(256 << 30, "Micron CZ120: the larger of 128 and 256 GB"),
            total_gb_per_s=cxl.memory("slow").total_gb_per_s,
        ),
        HETERO_PIM.memory("stack"),
    ]
    links = [
        link("root_port", "root", "port", _ENOUGH, assumed(0, "in the GPU's")),
        link("pcie", "port", "gpu", pcie, V100_PCIE["latency_ns"]),
        *(
            _FITTED.link(name)
            for name in ("module", "channel0", "channel1", "drives", "nvme", "direct")
        ),
        replace(cxl.link("cxl"), a="gpu", b="cxl"),
    ]
    if parts:
        catalogue = CATALOGUES[parts]
        dimms = catalogue.link("dimms").read_gb_per_s
        rate = catalogue.link("link").read_gb_per_s
        memories.append(replace(catalogue.memory("memory_node"), total_gb_per_s=dimms))
        rate = replace(rate, value=_LINKS * rate.value, source=f"{_LINKS} links: {rate.source}")
        links.append(link("node", "gpu", "memory_node", rate, catalogue.link("link").latency_ns))
    return Machine(
        name=name,
        memories=tuple(memories),
        devices=(gpu, MEMFERRY_V100.device("cpu")),
        links=tuple(links),
        junctions=("root", "port", "storage", "phy"),
    )


def _rate(generation: str) -> Figure:
    return TIERS[generation].link("pcie").read_gb_per_s


BASES: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        _base(
            "v100", V100, given(32 << 30, "Kim et al., Table 3, and Yao et al., V-A: V100, 32 GB"),
            _rate("pcie3"), "mc_dla",
        ),
        _base(
            "a100", A100, given(80 << 30, "NVIDIA A100 data sheet: 80 GB"), _rate("pcie4"), "a100",
        ),
        _base(
            "h100", H100, given(80 << 30, "NVIDIA H100 data sheet: 80 GB"), _rate("pcie5"), "h100",
        ),
        _base(
            "rtx4090", RTX_4090, given(24 << 30, "NVIDIA Ada white paper: RTX 4090, 24 GB"),
            _rate("pcie4"),
        ),
    )
}  # fmt: skip
"""Machines by the name of the GPU.

The first is that of Kim et al. and one of Yao et al. The last has no links to memory-nodes.
"""

IDLE_KEYS = ("cpu.accesses", "gpu.cache_bytes", "memory_node.transfers", "stack.transfers")
"""Settings of these machines that no system depends on."""

WATTS = {
    "v100": given(250, "NVIDIA V100 data sheet: PCIe, the whole card"),
    "a100": given(400, "NVIDIA A100 data sheet: SXM4, the whole module"),
    "h100": given(700, "NVIDIA H100 data sheet: SXM5, the whole module"),
    "rtx4090": given(450, "NVIDIA Ada white paper: RTX 4090, the whole card"),
    "cpu": assumed(105, "a socket of 12 cores: Intel's E5-2650 v4"),
}
"""Power in W of GPUs, by the machine's name, and of the host's cores, while they work."""
