"""How long transfers between a device and the host take in simulated time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

__all__ = ["GpuTiming", "LinkTiming", "NvmeTiming"]


@dataclass(frozen=True, kw_only=True)
class LinkTiming:
    """A transfer takes the latency, and then its bytes at the rate.

    Raises ``ValueError`` for a rate that is not above 0, a latency below 0, or either not finite.
    """

    read_gb_per_s: float
    """From the device, in 10^9 bytes a second."""
    write_gb_per_s: float
    """To the device, in 10^9 bytes a second."""
    latency_us: float
    """From the call to the first byte, once a transfer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), "above 0"
            fits = isinstance(value, int | float) and isfinite(value) and value > 0
            if field.name == "latency_us":
                fits, least = fits or value == 0, "at least 0"
            if not fits:
                raise ValueError(f"{field.name} is {value!r}: expected a finite number {least}")

    def duration_ns(self, nbytes: int, *, writing: bool) -> float:
        """Time of a transfer of ``nbytes`` from or, ``writing``, to the device."""
        rate_gb_per_s = self.write_gb_per_s if writing else self.read_gb_per_s
        return 1e3 * self.latency_us + nbytes / rate_gb_per_s


@dataclass(frozen=True, kw_only=True)
class GpuTiming(LinkTiming):
    """Of a V100 on PCIe 3.0 x16 with pinned host memory.

    About 12 GB/s is what such GPUs reach of the link's 15.75 GB/s: 12 GB/s for the V100
    (ZaidQureshi/bam, issue 54), 12.2 to the device and 12.9 from it, as NVIDIA's bandwidthTest
    counts, for the P100 before it (mpicbg-scicomp/gearshifft, pull request 82). A small copy takes
    about 7 us with cudaMemcpy, measured by NVIDIA on a machine with V100s
    (developer.nvidia.com/gdrcopy).
    """

    read_gb_per_s: float = 12.0
    write_gb_per_s: float = 12.0
    latency_us: float = 7.0


@dataclass(frozen=True, kw_only=True)
class NvmeTiming(LinkTiming):
    """Of the drive of the paper (Table 3: Seagate FireCuda 520, 2 TB) in the paper's host.

    Over PCIe 4.0 such a drive reads 5 and writes 4.3 GB/s (Tom's Hardware on its controller, Phison
    PS5016-E16). The host's Xeon E5-2698 v4 has PCIe 3.0: four lanes of 8 GT/s in 128b/130b coding
    carry 3.94 GB/s, and 3.60 with 24 bytes of header and framing to a payload of 256. So the link
    is the bound, both ways. What a drive gets out of it is taken from the FireCuda 510, Seagate's
    for just that link: up to 3.45 GB/s (hardware-corner.net, SSD database). The latency is an
    assumption, as neither the paper nor the maker states one: the upper end of the 20 to 70 us that
    random 4 KiB reads of NVMe drives take (simplyblock.io, glossary).
    """

    read_gb_per_s: float = 3.45
    write_gb_per_s: float = 3.45
    latency_us: float = 70.0
