"""DRAM parts by name: the organisation of a channel and its timing at one speed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hw.dram.geometry import DramGeometry
from hw.dram.timing import DramTiming

__all__ = [
    "DDR4_1600_8GBIT_X16",
    "DDR4_1600_16GBIT_X8",
    "DDR4_2400_8GBIT_X8",
    "DDR4_3200_8GBIT_X8",
    "PARTS",
    "TINY",
    "DramPart",
    "part",
]


@dataclass(frozen=True, kw_only=True)
class DramPart:
    """A named geometry with its timing."""

    name: str
    geometry: DramGeometry
    timing: DramTiming

    def with_capacity(self, capacity_bytes: int) -> DramPart:
        """The same part with fewer or more rows, see :meth:`DramGeometry.with_capacity`."""
        return replace(self, geometry=self.geometry.with_capacity(capacity_bytes))


DDR4_1600_16GBIT_X8 = DramPart(
    name="ddr4_1600_16gbit_x8",
    geometry=DramGeometry(bank_groups=4, rows=1 << 17),
    timing=DramTiming(
        tck_ps=1250,
        cl=11,
        cwl=9,
        t_rcd=11,
        t_rp=11,
        t_ras=28,
        t_rc=39,
        t_ccd_s=4,
        t_ccd_l=5,
        t_rrd_s=4,
        t_rrd_l=5,
        t_faw=20,
        t_wr=12,
        t_wtr_s=2,
        t_wtr_l=6,
        t_rtp=6,
        t_rfc=440,
        t_refi=6240,
    ),
)
"""A channel of the paper's module (AXDIMM, memory): 16 GB in eight 16 Gbit x8 dies, DDR4-1600."""

DDR4_1600_8GBIT_X16 = DramPart(
    name="ddr4_1600_8gbit_x16",
    geometry=DramGeometry(bank_groups=2, rows=1 << 16),
    timing=replace(DDR4_1600_16GBIT_X8.timing, t_rrd_s=5, t_rrd_l=6, t_faw=28, t_rfc=280),
)
"""Four 8 Gbit x16 dies: two bank groups and 2 KB pages, hence the longer tRRD and tFAW."""

DDR4_2400_8GBIT_X8 = DramPart(
    name="ddr4_2400_8gbit_x8",
    geometry=DramGeometry(bank_groups=4, rows=1 << 16),
    timing=DramTiming(
        tck_ps=833,
        cl=16,
        cwl=12,
        t_rcd=16,
        t_rp=16,
        t_ras=39,
        t_rc=55,
        t_ccd_s=4,
        t_ccd_l=6,
        t_rrd_s=4,
        t_rrd_l=6,
        t_faw=26,
        t_wr=18,
        t_wtr_s=3,
        t_wtr_l=9,
        t_rtp=9,
        t_rfc=421,
        t_refi=9360,
    ),
)
"""Eight 8 Gbit x8 dies at DDR4-2400 (CL 16)."""

DDR4_3200_8GBIT_X8 = DramPart(
    name="ddr4_3200_8gbit_x8",
    geometry=DDR4_2400_8GBIT_X8.geometry,
    timing=DramTiming(
        tck_ps=625,
        cl=22,
        cwl=16,
        t_rcd=22,
        t_rp=22,
        t_ras=52,
        t_rc=74,
        t_ccd_s=4,
        t_ccd_l=8,
        t_rrd_s=4,
        t_rrd_l=8,
        t_faw=34,
        t_wr=24,
        t_wtr_s=4,
        t_wtr_l=12,
        t_rtp=12,
        t_rfc=560,
        t_refi=12480,
    ),
)
"""Eight 8 Gbit x8 dies at DDR4-3200, speed bin 3200AA (22-22-22; JESD79-4, speed bin tables)."""

TINY = DramPart(
    name="tiny",
    geometry=DramGeometry(bank_groups=4, rows=4, columns=256),
    timing=replace(DDR4_1600_16GBIT_X8.timing, t_rfc=128, t_refi=1600),
)
"""128 KB with the paper's timing but short, frequent refreshes: for tests, not a real part."""

PARTS = {
    item.name: item
    for item in (
        DDR4_1600_16GBIT_X8,
        DDR4_1600_8GBIT_X16,
        DDR4_2400_8GBIT_X8,
        DDR4_3200_8GBIT_X8,
        TINY,
    )
}


def part(name: str) -> DramPart:
    """The part called ``name``; raises ``ValueError`` with the known names."""
    if name not in PARTS:
        raise ValueError(f"no DRAM part {name!r}; known parts: {', '.join(PARTS)}")
    return PARTS[name]
