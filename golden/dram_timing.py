"""Checks a trace of DDR4 commands against the rules of JESD79-4, independently of the hardware.

The timing table below is in nanoseconds and clocks as the standard gives it, by speed bin, die
density and page size; the numbers of clocks are computed from it. For traces see
:mod:`golden.command_trace`; a column is a multiple of 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
"""Refreshes that may be postponed or pulled in (JESD79-4, refresh command)."""

MAX_REFRESHES_IN_TWO_INTERVALS = 16
"""REF commands that may come within 2 x tREFI (JESD79-4, refresh command)."""


@dataclass(frozen=True, kw_only=True)
class _Speed:
    """A speed bin: (clocks, picoseconds) means the larger of the two."""

    tck_ps: int
    cl: int
    cwl: int
    t_rcd_ps: int
    t_rp_ps: int
    t_ras_ps: int
    t_rc_ps: int
    t_ccd_l: tuple[int, int]
    # By page size, 1 KB (x4, x8) and 2 KB (x16).
    t_rrd_s: Mapping[int, tuple[int, int]]
    t_rrd_l: Mapping[int, tuple[int, int]]
    t_faw: Mapping[int, tuple[int, int]]


_T_CCD_S = 4
_T_WR_PS = 15000
_T_WTR_S = (2, 2500)
_T_WTR_L = (4, 7500)
_T_RTP = (4, 7500)
_T_REFI_PS = 7_800_000
_T_RFC1_PS = {2: 160_000, 4: 260_000, 8: 350_000, 16: 550_000}

_SPEEDS = {
    1600: _Speed(
        tck_ps=1250,
        cl=11,
        cwl=9,
        t_rcd_ps=13750,
        t_rp_ps=13750,
        t_ras_ps=35000,
        t_rc_ps=48750,
        t_ccd_l=(5, 6250),
        t_rrd_s={1: (4, 5000), 2: (4, 6000)},
        t_rrd_l={1: (4, 6000), 2: (4, 7500)},
        t_faw={1: (20, 25000), 2: (28, 35000)},
    ),
    2400: _Speed(
        tck_ps=833,
        cl=16,
        cwl=12,
        t_rcd_ps=13320,
        t_rp_ps=13320,
        t_ras_ps=32000,
        t_rc_ps=45320,
        t_ccd_l=(5, 5000),
        t_rrd_s={1: (4, 3300), 2: (4, 5300)},
        t_rrd_l={1: (4, 4900), 2: (4, 6400)},
        t_faw={1: (20, 21000), 2: (28, 30000)},
    ),
    3200: _Speed(
        tck_ps=625,
        cl=22,
        cwl=16,
        t_rcd_ps=13750,
        t_rp_ps=13750,
        t_ras_ps=32000,
        t_rc_ps=45750,
        t_ccd_l=(5, 5000),
        t_rrd_s={1: (4, 2500), 2: (4, 5300)},
        t_rrd_l={1: (4, 4900), 2: (4, 6400)},
        t_faw={1: (20, 21000), 2: (28, 30000)},
    ),
}


def _clocks(picoseconds: int, tck_ps: int) -> int:
    """Clocks that a duration takes, by the rounding algorithm of JESD79-4 (factor 0.974)."""
    return (picoseconds * 1000 // tck_ps + 974) // 1000


@dataclass(frozen=True, kw_only=True)
class DramTimingTable(TimingTable):
    """What the checker needs to know of a part."""

    bank_groups: int
    banks_per_group: int
    columns: int


def _part(speed_grade: int, density_gbit: int, width: int, rows: int) -> DramTimingTable:
    speed = _SPEEDS[speed_grade]
    page_kb = 2 if width == 16 else 1

    def both(limit: tuple[int, int]) -> int:
        return max(limit[0], _clocks(limit[1], speed.tck_ps))

    return DramTimingTable(
        bank_groups=2 if width == 16 else 4,
        banks_per_group=4,
        rows=rows,
        columns=1024,
        cl=speed.cl,
        cwl=speed.cwl,
        t_rcd=_clocks(speed.t_rcd_ps, speed.tck_ps),
        t_rp=_clocks(speed.t_rp_ps, speed.tck_ps),
        t_ras=_clocks(speed.t_ras_ps, speed.tck_ps),
        t_rc=_clocks(speed.t_rc_ps, speed.tck_ps),
        t_ccd_s=_T_CCD_S,
        t_ccd_l=both(speed.t_ccd_l),
        t_rrd_s=both(speed.t_rrd_s[page_kb]),
        t_rrd_l=both(speed.t_rrd_l[page_kb]),
        t_faw=both(speed.t_faw[page_kb]),
        t_wr=_clocks(_T_WR_PS, speed.tck_ps),
        t_wtr_s=both(_T_WTR_S),
        t_wtr_l=both(_T_WTR_L),
        t_rtp=both(_T_RTP),
        t_rfc=_clocks(_T_RFC1_PS[density_gbit], speed.tck_ps),
        t_refi=_T_REFI_PS // speed.tck_ps,
    )


def _tiny() -> DramTimingTable:
    """A part of no standard: few rows, frequent refreshes (160 ns every 2 us), for tests."""
    values = dict(vars(_part(1600, 16, 8, 4)))
    return DramTimingTable(
        **{**values, "columns": 256, "t_rfc": 160_000 // 1250, "t_refi": 2_000_000 // 1250}
    )


PARTS: Mapping[str, DramTimingTable] = MappingProxyType(
    {
        "ddr4_1600_16gbit_x8": _part(1600, 16, 8, 1 << 17),
        "ddr4_1600_8gbit_x16": _part(1600, 8, 16, 1 << 16),
        "ddr4_2400_8gbit_x8": _part(2400, 8, 8, 1 << 16),
        "ddr4_3200_8gbit_x8": _part(3200, 8, 8, 1 << 16),
        "tiny": _tiny(),
    }
)
"""Known parts by preset name."""


_COMMANDS = ("ACT", "PRE", "PREA", "RD", "WR", "REF")


def _rules(part: DramTimingTable, refresh: bool) -> Iterable[Rule]:
    for name, scope in (("PRE", BANK), ("PREA", MEMORY)):
        # Of a bank that has been precharged before, PREA comes late enough anyway.
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
        # Refreshes that fell due less those given; the intervals up to ``_intervals`` are in it.
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
        """Counts the refreshes that fell due before ``tck``."""
        intervals = (tck - 1) // self._table.t_refi
        self._owed += intervals - self._intervals
        self._intervals = intervals
        if self.refresh:
            self._require(self._owed <= MAX_POSTPONED, tck, "tREFI", command)


def check_trace(lines: Iterable[str], *, refresh: bool = True) -> TraceReport:
    """Checks the trace of a module, see :func:`golden.command_trace.check_lines`.

    ``refresh`` is that of :class:`CommandChecker`.
    """
    return check_lines(
        lines,
        kind="dram",
        columns="tck,channel,command,bank_group,bank,row,column",
        tables=PARTS,
        geometry=("bank_groups", "banks_per_group", "rows", "columns"),
        checker=lambda part: CommandChecker(part, refresh=refresh),
    )
