"""How long transfers between a device and the host take in simulated time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

from ..machine.measured import FIRECUDA_520, V100_PCIE

__all__ = ["GpuTiming", "LinkTiming", "NvmeTiming"]


@dataclass(frozen=True, kw_only=True)
class LinkTiming:
    """A transfer takes the latency, and then its bytes at the rate.

    Raises ``ValueError`` for a rate that is not above 0, a latency below 0, or either not finite.
    """

    read_gb_per_s: float
    """Rate from the device, in 10^9 bytes a second."""
    write_gb_per_s: float
    """Rate to the device, in 10^9 bytes a second."""
    latency_us: float
    """Microseconds from the call to the first byte, once a transfer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), "above 0"
            fits = isinstance(value, int | float) and isfinite(value) and value > 0
            if field.name == "latency_us":
                fits, least = fits or value == 0, "at least 0"
            if not fits:
                raise ValueError(f"{field.name} is {value!r}: expected a finite number {least}")

    def duration_ns(self, nbytes: int, *, writing: bool) -> float:
        """Nanoseconds of a transfer of ``nbytes`` from or, ``writing``, to the device."""
        rate_gb_per_s = self.write_gb_per_s if writing else self.read_gb_per_s
        return 1e3 * self.latency_us + nbytes / rate_gb_per_s


@dataclass(frozen=True, kw_only=True)
class GpuTiming(LinkTiming):
    """Timing of a V100 on PCIe 3.0 x16 with pinned host memory: see
    :data:`sw_driver.machine.measured.V100_PCIE`."""

    read_gb_per_s: float = V100_PCIE["read_gb_per_s"].value
    write_gb_per_s: float = V100_PCIE["write_gb_per_s"].value
    latency_us: float = V100_PCIE["latency_ns"].value / 1000


@dataclass(frozen=True, kw_only=True)
class NvmeTiming(LinkTiming):
    """Timing of the paper's drive (Table 3: Seagate FireCuda 520, 2 TB) in the paper's host, whose
    PCIe 3.0 is the bound: see :data:`sw_driver.machine.measured.FIRECUDA_520`."""

    read_gb_per_s: float = FIRECUDA_520["read_gb_per_s"].value
    write_gb_per_s: float = FIRECUDA_520["write_gb_per_s"].value
    latency_us: float = FIRECUDA_520["latency_ns"].value / 1000
