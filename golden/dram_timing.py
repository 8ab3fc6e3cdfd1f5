"""Checker of DDR4 command traces against the rules of JESD79-4, independent of the hardware.

The tables below are in nanoseconds and clocks as the standard gives them, by speed bin, die
density and page size; the numbers of clocks are computed from them. For traces see
:mod:`golden.command_trace`; a column is a multiple of 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from golden.command_trace import (
    BANK,
    MEMORY,
    Rule,
    RuleChecker,
    TimingTable,
    TraceReport,
    check_lines,
)

__all__ = ["PARTS", "CommandChecker", "DramTimingTable", "check_trace"]

MAX_POSTPONED = 8
"""Maximum number of refreshes postponed, and pulled in (JESD79-4, refresh command)."""

MAX_REFRESHES_IN_TWO_INTERVALS = 16
"""Maximum number of REF commands within 2 x tREFI (JESD79-4, refresh command)."""


@dataclass(frozen=True, kw_only=True)
class _Speed:
    """Speed grade, without its bins; (clocks, picoseconds) means the larger of the two."""

    tck_ps: int
    cwl: int
    t_ras_ps: int
    t_ccd_l: tuple[int, int]
    # By page size: 512 (x4), 1024 (x8) and 2048 (x16) bytes of a device.
    t_rrd_s: Mapping[int, tuple[int, int]]
    t_rrd_l: Mapping[int, tuple[int, int]]
    t_faw: Mapping[int, tuple[int, int]]


def _by_page(
    half: tuple[int, int], one: tuple[int, int], two: tuple[int, int]
) -> Mapping[int, tuple[int, int]]:
    return {512: half, 1024: one, 2048: two}


_T_CCD_S = 4
_T_WR_PS = 15000
_T_WTR_S = (2, 2500)
_T_WTR_L = (4, 7500)
_T_RTP = (4, 7500)
_T_REFI_PS = 7_800_000
_T_RFC1_PS = {2: 160_000, 4: 260_000, 8: 350_000, 16: 550_000}

# These stay the same from 1866 and from 2400 on.
_RRD_S_OF_2K = (4, 5300)
_RRD_L_1866 = _by_page((4, 5300), (4, 5300), (4, 6400))
_RRD_L_2400 = _by_page((4, 4900), (4, 4900), (4, 6400))
_FAW_OF_1K, _FAW_OF_2K = (20, 21000), (28, 30000)

_SPEEDS = {
    1600: _Speed(
        tck_ps=1250,
        cwl=9,
        t_ras_ps=35000,
        t_ccd_l=(5, 6250),
        t_rrd_s=_by_page((4, 5000), (4, 5000), (4, 6000)),
        t_rrd_l=_by_page((4, 6000), (4, 6000), (4, 7500)),
        t_faw=_by_page((16, 20000), (20, 25000), (28, 35000)),
    ),
    1866: _Speed(
        tck_ps=1071,
        cwl=10,
        t_ras_ps=34000,
        t_ccd_l=(5, 5355),
        t_rrd_s=_by_page((4, 4200), (4, 4200), _RRD_S_OF_2K),
        t_rrd_l=_RRD_L_1866,
        t_faw=_by_page((16, 17000), (20, 23000), _FAW_OF_2K),
    ),
    2133: _Speed(
        tck_ps=937,
        cwl=11,
        t_ras_ps=33000,
        t_ccd_l=(5, 5355),
        t_rrd_s=_by_page((4, 3700), (4, 3700), _RRD_S_OF_2K),
        t_rrd_l=_RRD_L_1866,
        t_faw=_by_page((16, 15000), _FAW_OF_1K, _FAW_OF_2K),
    ),
    2400: _Speed(
        tck_ps=833,
        cwl=12,
        t_ras_ps=32000,
        t_ccd_l=(5, 5000),
        t_rrd_s=_by_page((4, 3300), (4, 3300), _RRD_S_OF_2K),
        t_rrd_l=_RRD_L_2400,
        t_faw=_by_page((16, 13000), _FAW_OF_1K, _FAW_OF_2K),
    ),
    2666: _Speed(
        tck_ps=750,
        cwl=14,
        t_ras_ps=32000,
        t_ccd_l=(5, 5000),
        t_rrd_s=_by_page((4, 3000), (4, 3000), _RRD_S_OF_2K),
        t_rrd_l=_RRD_L_2400,
        t_faw=_by_page((16, 12000), _FAW_OF_1K, _FAW_OF_2K),
    ),
    2933: _Speed(
        tck_ps=682,
        cwl=16,
        t_ras_ps=32000,
        t_ccd_l=(5, 5000),
        t_rrd_s=_by_page((4, 2700), (4, 2700), _RRD_S_OF_2K),
        t_rrd_l=_RRD_L_2400,
        t_faw=_by_page((16, 10875), _FAW_OF_1K, _FAW_OF_2K),
    ),
    3200: _Speed(
        tck_ps=625,
        cwl=16,
        t_ras_ps=32000,
        t_ccd_l=(5, 5000),
        t_rrd_s=_by_page((4, 2500), (4, 2500), _RRD_S_OF_2K),
        t_rrd_l=_RRD_L_2400,
        t_faw=_by_page((16, 10000), _FAW_OF_1K, _FAW_OF_2K),
    ),
}

# Speed bins: CL, and tAA, tRCD and tRP in ps.
_BINS = {
    "1600K": (11, 13750),
    "1866M": (13, 13920),
    "2133P": (15, 14060),
    "2400R": (16, 13320),
    "2400T": (17, 14160),
    "2666V": (19, 14250),
    "2933Y": (21, 14320),
    "3200AA": (22, 13750),
}


def _clocks(picoseconds: int, tck_ps: int) -> int:
    """Return the clocks that a duration takes, rounded as in JESD79-4 (factor 0.974)."""
    return (picoseconds * 1000 // tck_ps + 974) // 1000


@dataclass(frozen=True, kw_only=True)
class DramTimingTable(TimingTable):
    """Times and geometry of a part, for the checker."""

    bank_groups: int
    banks_per_group: int
    columns: int


def _part(bin_name: str, density_gbit: int, width: int) -> DramTimingTable:
    speed = _SPEEDS[int(bin_name.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))]
    cl, row_ps = _BINS[bin_name]
    page_bytes = 1024 * width // 8
    bank_groups = 2 if width == 16 else 4

    def both(limit: tuple[int, int]) -> int:
        return max(limit[0], _clocks(limit[1], speed.tck_ps))

    return DramTimingTable(
        bank_groups=bank_groups,
        banks_per_group=4,
        rows=(density_gbit << 30) // (8 * page_bytes * 4 * bank_groups),
        columns=1024,
        cl=cl,
        cwl=speed.cwl,
        t_rcd=_clocks(row_ps, speed.tck_ps),
        t_rp=_clocks(row_ps, speed.tck_ps),
        t_ras=_clocks(speed.t_ras_ps, speed.tck_ps),
        t_rc=_clocks(speed.t_ras_ps + row_ps, speed.tck_ps),
        t_ccd_s=_T_CCD_S,
        t_ccd_l=both(speed.t_ccd_l),
        t_rrd_s=both(speed.t_rrd_s[page_bytes]),
        t_rrd_l=both(speed.t_rrd_l[page_bytes]),
        t_faw=both(speed.t_faw[page_bytes]),
        t_wr=_clocks(_T_WR_PS, speed.tck_ps),
        t_wtr_s=both(_T_WTR_S),
        t_wtr_l=both(_T_WTR_L),
        t_rtp=both(_T_RTP),
        t_rfc=_clocks(_T_RFC1_PS[density_gbit], speed.tck_ps),
        t_refi=_T_REFI_PS // speed.tck_ps,
    )


def _tiny() -> DramTimingTable:
    """Return a non-standard part for tests: few rows, frequent refreshes (160 ns every 2 us)."""
    return replace(
        _part("1600K", 16, 8),
        rows=4,
        columns=256,
        t_rfc=160_000 // 1250,
        t_refi=2_000_000 // 1250,
    )


PARTS: Mapping[str, DramTimingTable] = MappingProxyType(
    {
        "ddr4_1600_16gbit_x8": _part("1600K", 16, 8),
        "ddr4_1600_8gbit_x16": _part("1600K", 8, 16),
        "ddr4_1866_8gbit_x8": _part("1866M", 8, 8),
        "ddr4_2133_8gbit_x4": _part("2133P", 8, 4),
        "ddr4_2400_8gbit_x8": _part("2400R", 8, 8),
        "ddr4_2400_8gbit_x16": _part("2400T", 8, 16),
        "ddr4_2666_16gbit_x8": _part("2666V", 16, 8),
        "ddr4_2933_16gbit_x4": _part("2933Y", 16, 4),
        "ddr4_3200_8gbit_x8": _part("3200AA", 8, 8),
        "ddr4_3200_16gbit_x16": _part("3200AA", 16, 16),
        "tiny": _tiny(),
    }
)
"""Known parts by preset name."""


_COMMANDS = ("ACT", "PRE", "PREA", "RD", "WR", "REF")


def _rules(part: DramTimingTable, refresh: bool) -> Iterable[Rule]:
    for name, scope in (("PRE", BANK), ("PREA", MEMORY)):
        # A bank that was already precharged needs no rule here: PREA then comes late enough.
        yield Rule("tRAS", ("ACT",), (name,), scope, part.t_ras)
        yield Rule("tRTP", ("RD",), (name,), scope, part.t_rtp)
        yield Rule("tWR", ("WR",), (name,), scope, part.written + part.t_wr)
        yield Rule("tRP", (name,), ("ACT",), scope, part.t_rp)
        yield Rule("tRP", (name,), ("REF",), MEMORY, part.t_rp)
    if refresh:
        rate = MAX_REFRESHES_IN_TWO_INTERVALS
        yield Rule("16 REF in 2 tREFI", ("REF",), ("REF",), MEMORY, 2 * part.t_refi, nth=rate)


class CommandChecker(RuleChecker):
    """The :class:`~golden.command_trace.RuleChecker` of a channel.

    At the end of reset no refresh is owed. With ``refresh`` false, missing refreshes are not a
    violation.
    """

    def __init__(self, part: DramTimingTable, *, refresh: bool = True) -> None:
        super().__init__(
            part,
            banks=(part.bank_groups, part.banks_per_group),
            columns=range(0, part.columns, 8),
            commands=_COMMANDS,
            rules=_rules(part, refresh),
        )
        self.refresh = refresh
        # Refreshes due less those issued, counted up to the interval ``_intervals``.
        self._owed = 0
        self._intervals = 0

    def finish(self, tck: int) -> None:
        self._fall_due(tck, "end of trace")

    def _refresh(self, tck: int) -> None:
        self._fall_due(tck, "REF")
        self._owed = max(self._owed - 1, -MAX_POSTPONED)
        if self.refresh:
            longest = (MAX_POSTPONED + 1) * self._table.t_refi
            self._require(tck - self._last_ref <= longest, tck, "tREFI", "REF")

    def _fall_due(self, tck: int, command: str) -> None:
        """Count the refreshes that fell due before ``tck``."""
        intervals = (tck - 1) // self._table.t_refi
        self._owed += intervals - self._intervals
        self._intervals = intervals
        if self.refresh:
            self._require(self._owed <= MAX_POSTPONED, tck, "tREFI", command)


def check_trace(lines: Iterable[str], *, refresh: bool = True) -> TraceReport:
    """Check the trace of a module; see :func:`golden.command_trace.check_lines`.

    ``refresh`` is that of :class:`CommandChecker`.
    """
    return check_lines(
        lines,
        kind="dram",
        columns="tck,channel,command,bank_group,bank,row,column",
        tables=PARTS,
        checker=lambda part: CommandChecker(part, refresh=refresh),
    )
