"""Timing that JESD79-4 requires of a DDR4 part at a clock, from nanoseconds, clocks and sizes.

Figures: JESD79-4C, refresh parameters by density (tRFC1, tREFI), speed bins (tAA, tRCD, tRP, tRAS,
CWL), timing parameters by speed grade (all others).
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "DENSITIES_GBIT",
    "FASTEST_BIN_PS",
    "LONGEST_TCK_PS",
    "SHORTEST_TCK_PS",
    "WIDTHS",
    "clocks",
    "standard_timing",
]

WIDTHS = (4, 8, 16)
"""Data bits of a device."""

FASTEST_BIN_PS = 12500
"""tAA, tRCD and tRP of the fastest bins (1600J, 2400P, 3200W), in ps; no DDR4 has less."""

_T_RFC1_PS = {2: 160_000, 4: 260_000, 8: 350_000, 16: 550_000}
DENSITIES_GBIT = tuple(_T_RFC1_PS)


class _Grade(NamedTuple):
    """Minimum times of a speed grade, in ps except ``cwl``; three values are for x4, x8, x16."""

    tck_ps: int
    """Shortest clock period of the grade; the grade before it ends there."""
    cwl: int
    t_ras: int
    t_ccd_l: int
    t_rrd_s: tuple[int, int, int]
    t_rrd_l: tuple[int, int, int]
    t_faw: tuple[int, int, int]


_GRADES = (
    _Grade(1250, 9, 35000, 6250, (5000, 5000, 6000), (6000, 6000, 7500), (20000, 25000, 35000)),
    _Grade(1071, 10, 34000, 5355, (4200, 4200, 5300), (5300, 5300, 6400), (17000, 23000, 30000)),
    _Grade(937, 11, 33000, 5355, (3700, 3700, 5300), (5300, 5300, 6400), (15000, 21000, 30000)),
    _Grade(833, 12, 32000, 5000, (3300, 3300, 5300), (4900, 4900, 6400), (13000, 21000, 30000)),
    _Grade(750, 14, 32000, 5000, (3000, 3000, 5300), (4900, 4900, 6400), (12000, 21000, 30000)),
    _Grade(682, 16, 32000, 5000, (2700, 2700, 5300), (4900, 4900, 6400), (10875, 21000, 30000)),
    _Grade(625, 16, 32000, 5000, (2500, 2500, 5300), (4900, 4900, 6400), (10000, 21000, 30000)),
)
"""Speed grades DDR4-1600, 1866, 2133, 2400, 2666, 2933 and 3200."""

LONGEST_TCK_PS = 1600
"""Longest clock period with the DLL on, in ps: CL 9 and 10."""
SHORTEST_TCK_PS = _GRADES[-1].tck_ps

_T_FAW_TCK = (16, 20, 28)


def clocks(duration_ps: int, tck_ps: int) -> int:
    """Return the minimum number of clocks of ``tck_ps`` that ``duration_ps`` takes.

    JESD79-4's rounding algorithm rounds up, except for 2.5 % of a clock, since tables are rounded.
    """
    return (1000 * duration_ps // tck_ps + 974) // 1000


def standard_timing(
    tck_ps: int, *, bin_ps: int, density_gbit: int, width_bits: int
) -> dict[str, int]:
    """Return the fields of :class:`~hw.dram.timing.DramTiming` except ``tck_ps``.

    They are the minimum times at a clock of a part with tAA, tRCD and tRP of ``bin_ps``, and its
    maximum ``t_refi``. A clock that no DDR4 has gets the figures of the nearest speed grade.
    """
    grade = next((candidate for candidate in _GRADES if tck_ps >= candidate.tck_ps), _GRADES[-1])
    size = WIDTHS.index(width_bits)

    def longer(least_tck: int, duration_ps: int) -> int:
        return max(least_tck, clocks(duration_ps, tck_ps))

    return {
        "cl": longer(grade.cwl, bin_ps),
        "cwl": grade.cwl,
        "t_rcd": clocks(bin_ps, tck_ps),
        "t_rp": clocks(bin_ps, tck_ps),
        "t_ras": clocks(grade.t_ras, tck_ps),
        "t_rc": clocks(grade.t_ras + bin_ps, tck_ps),
        "t_ccd_s": 4,
        "t_ccd_l": longer(5, grade.t_ccd_l),
        "t_rrd_s": longer(4, grade.t_rrd_s[size]),
        "t_rrd_l": longer(4, grade.t_rrd_l[size]),
        "t_faw": longer(_T_FAW_TCK[size], grade.t_faw[size]),
        "t_wr": clocks(15000, tck_ps),
        "t_wtr_s": longer(2, 2500),
        "t_wtr_l": longer(4, 7500),
        "t_rtp": longer(4, 7500),
        "t_rfc": clocks(_T_RFC1_PS[density_gbit], tck_ps),
        "t_refi": 7_800_000 // tck_ps,
    }
