"""Transfer times of the GPU and NVMe devices beside the module: those of the paper's host."""

from __future__ import annotations

from dataclasses import dataclass

from ..device.link import LinkTiming
from ..machine.measured import FIRECUDA_520, V100_PCIE

__all__ = ["GpuTiming", "NvmeTiming"]


@dataclass(frozen=True, kw_only=True)
class GpuTiming(LinkTiming):
    """Timing of a V100 on PCIe 3.0 x16 with pinned host memory.

    Source: :data:`sw_driver.machine.measured.V100_PCIE`.
    """

    read_gb_per_s: float = V100_PCIE["read_gb_per_s"].value
    write_gb_per_s: float = V100_PCIE["write_gb_per_s"].value
    latency_us: float = V100_PCIE["latency_ns"].value / 1000


@dataclass(frozen=True, kw_only=True)
class NvmeTiming(LinkTiming):
    """Timing of the paper's drive (Table 3: Seagate FireCuda 520, 2 TB) in the paper's host.

    The host's PCIe 3.0 is the limit. Source: :data:`sw_driver.machine.measured.FIRECUDA_520`.

    Examples
    --------
    >>> drive = NvmeTiming()
    >>> drive.read_gb_per_s, drive.latency_us
    (3.45, 70.0)
    >>> round(drive.duration_ns(1 << 20, writing=False))
    373935
    """

    read_gb_per_s: float = FIRECUDA_520["read_gb_per_s"].value
    write_gb_per_s: float = FIRECUDA_520["write_gb_per_s"].value
    latency_us: float = FIRECUDA_520["latency_ns"].value / 1000
