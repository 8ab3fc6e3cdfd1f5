"""Rates that links reach in practice, and the memory traffic of Adam."""

from __future__ import annotations

from .parts import Figure, assumed, given

__all__ = ["ADAM_BYTES", "FIRECUDA_520", "V100_PCIE"]

ADAM_BYTES = 28
"""Bytes that Adam in FP32 moves per parameter (AXDIMM paper, section 6.2).

It reads p, g, m and v, and writes p, m and v.
"""


_V100_RATE = given(
    12.0,
    "about 12 of PCIe 3.0 x16's 15.75 GB/s from pinned memory: 12 for the V100 (ZaidQureshi/bam, "
    "issue 54); 12.2 to the device and 12.9 from it, as NVIDIA's bandwidthTest counts, for the "
    "P100 before it (mpicbg-scicomp/gearshifft, pull request 82)",
)

V100_PCIE: dict[str, Figure] = {
    "read_gb_per_s": _V100_RATE,
    "write_gb_per_s": _V100_RATE,
    "latency_ns": given(
        7_000,
        "a small cudaMemcpy takes about 7 us, measured by NVIDIA on a machine with V100s "
        "(developer.nvidia.com/gdrcopy)",
    ),
}
"""A V100 on PCIe 3.0 x16 with pinned host memory."""

_FIRECUDA_RATE = assumed(
    3.45,
    "the link is the bound, as over PCIe 4.0 the drive reads 5 and writes 4.3 GB/s (Tom's Hardware "
    "on its controller, Phison PS5016-E16), and four lanes of PCIe 3.0 carry 3.94 GB/s, 3.60 with "
    "24 bytes of header and framing to a payload of 256; what a drive gets out of them is taken "
    "from the FireCuda 510, Seagate's for just that link: up to 3.45 GB/s (hardware-corner.net)",
)

FIRECUDA_520: dict[str, Figure] = {
    "read_gb_per_s": _FIRECUDA_RATE,
    "write_gb_per_s": _FIRECUDA_RATE,
    "latency_ns": assumed(
        70_000,
        "no maker states one: the upper end of the 20 to 70 us that random 4 KiB reads of NVMe "
        "drives take (simplyblock.io, glossary)",
    ),
}
"""A Seagate FireCuda 520 of 2 TB on PCIe 3.0 x4."""
