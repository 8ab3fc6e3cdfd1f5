"""How long an NVMe device takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["NvmeTiming"]


@dataclass(frozen=True, kw_only=True)
class NvmeTiming:
    """How long a storage takes: the latency, and then the bytes at the rate.

    The defaults stand for the drive of the paper (Table 3: Seagate FireCuda 520, 2 TB) in the
    paper's host. Over PCIe 4.0 such a drive reads 5 and writes 4.3 GB/s (Tom's Hardware on its
    controller, Phison PS5016-E16). The host's Xeon E5-2698 v4 has PCIe 3.0: four lanes of 8 GT/s
    in 128b/130b coding carry 3.94 GB/s, and 3.60 with 24 bytes of header and framing to a payload
    of 256. So the link is the bound, both ways. What a drive gets out of it is taken from the
    FireCuda 510, Seagate's for just that link: up to 3.45 GB/s (hardware-corner.net, SSD
    database). The latency is an assumption, as neither the paper nor the maker states one: the
    upper end of the 20 to 70 us that random 4 KiB reads of NVMe drives take (simplyblock.io,
    glossary).

    Raises
    ------
    ValueError
        If a rate is not above 0, the latency below 0, or either not finite.
    """

    read_gb_per_s: float = 3.45
    """10^9 bytes a second."""
    write_gb_per_s: float = 3.45
    """10^9 bytes a second."""
    latency_us: float = 70.0
    """From the command to the first byte, once a transfer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            above = value >= 0 if field.name == "latency_us" else value > 0
            if not (above and math.isfinite(value)):
                least = "at least 0" if field.name == "latency_us" else "above 0"
                raise ValueError(f"{field.name} is {value!r}: expected a finite number {least}")

    def duration_ns(self, nbytes: int, *, writing: bool) -> float:
        """The time that ``nbytes`` take."""
        rate_gb_per_s = self.write_gb_per_s if writing else self.read_gb_per_s
        return 1e3 * self.latency_us + nbytes / rate_gb_per_s
