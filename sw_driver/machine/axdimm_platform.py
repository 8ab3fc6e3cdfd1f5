"""Platform of Kim et al., Table 3 and Figure 5: a module, a GPU and two drives at one Xeon.

The board has PCIe slots (Intel DBS2600CW2), so the GPU is the PCIe card, not the faster SXM2
module. The module's two channels have DRAM of their own and share one DDR4 link to the host
(paper 5.2). The two drives are one memory, since the driver spreads each allocation over all
registered drives (:mod:`sw_driver.device.storage`). GPU and drives exchange data over ``direct``,
without the host's memory (paper 4.4).
"""

from __future__ import annotations

from dataclasses import replace

from .machine import Machine
from .measured import ADAM_BYTES, FIRECUDA_520, V100_PCIE
from .parts import Device, Figure, Link, Memory, assumed, given, link
from .processors import V100

__all__ = ["AXDIMM_PLATFORM", "TRAINING_LIMITS"]

_DRIVES = 2


def _ddr4(name: str, a: str, b: str, gb_per_s: float, source: str) -> Link:
    latency = assumed(0, "some 100 ns, nothing beside a tensor's time")
    return link(name, a, b, given(gb_per_s, source), latency, "half")


def _drives(name: str, a: str, b: str, latency: Figure) -> Link:
    """Return a link as fast as both drives together."""
    one = FIRECUDA_520["read_gb_per_s"]
    both = replace(one, value=_DRIVES * one.value, source=f"two drives: {one.source}")
    return link(name, a, b, both, latency)


def _pcie(name: str, a: str, b: str, latency: Figure) -> Link:
    return link(name, a, b, V100_PCIE["read_gb_per_s"], latency)


_COUNTED = assumed(0, "in the latency of the GPU's or the drives' end")
_MODULE_BYTES = given(16 << 30, "paper 3.1: two independent channels of 16 GB")
_ADAM_GB_PER_S = 140.32 * ADAM_BYTES / 1000
_ADAM = "paper, Table 5: the core's Adam does 140.32 MP/s, of 28 bytes each (6.2)"
_DDR4_1600 = "paper 3.1: 64 bits at 800 MHz, twice the frequency of the host's memory (6.2)"

AXDIMM_PLATFORM = Machine(
    name="axdimm_platform",
    memories=(
        Memory(name="gpu", capacity_bytes=given(32 << 30, "paper, Table 3: V100 32GB")),
        Memory(name="host", capacity_bytes=given(32 << 30, "paper, Table 3: DDR4 32GB")),
        Memory(name="module0", capacity_bytes=_MODULE_BYTES),
        Memory(name="module1", capacity_bytes=_MODULE_BYTES),
        Memory(
            name="nvme",
            capacity_bytes=given(_DRIVES * 2 * 10**12, "paper 6.1: two 2TB NVMe SSDs"),
        ),
    ),
    devices=(
        replace(V100, cache_bytes=None),  # no result of the paper depends on it
        Device(
            name="cpu",
            memory="host",
            tflop_per_s=given(
                0.0704, "Intel: E5-2698 v4 at 2.2 GHz; AVX2: two FMA of 8 FP32 a cycle; one core"
            ),
            gb_per_s=given(_ADAM_GB_PER_S, _ADAM),
            launch_ns=assumed(0, "a call of a function"),
        ),
    ),
    links=(
        _pcie("root_port", "root", "port", _COUNTED),
        _pcie("pcie", "port", "gpu", V100_PCIE["latency_ns"]),
        _ddr4("ddr", "root", "host", 6.4, "paper, Table 3: 800 MT/s; of 8 bytes"),
        _ddr4("module", "root", "phy", 6.4, "paper 2.3: seen as a DDR4-800 DIMM; of 8 bytes"),
        _ddr4("channel0", "phy", "module0", 12.8, _DDR4_1600),
        _ddr4("channel1", "phy", "module1", 12.8, _DDR4_1600),
        _ddr4("cpu", "root", "core", _ADAM_GB_PER_S, _ADAM),
        _drives("drives", "storage", "nvme", FIRECUDA_520["latency_ns"]),
        _drives("nvme", "root", "storage", _COUNTED),
        _drives("direct", "port", "storage", _COUNTED),
    ),
    junctions=("root", "port", "storage", "phy", "core"),
)

TRAINING_LIMITS = {
    "host.capacity_bytes": "16GiB",
    "module0.capacity_bytes": "8GiB",
    "module1.capacity_bytes": "8GiB",
}
"""Memory limits of the paper's training runs (6.3), for :meth:`Machine.override`."""
