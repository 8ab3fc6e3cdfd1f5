"""Checks a trace of DDR4 commands against the rules of JESD79-4, independently of the hardware.

The timing table below is in nanoseconds and clocks as the standard gives it, by speed bin, die
density and page size; the numbers of clocks are computed from it. Trace format: one header line
``# nearmem dram trace v1 preset=NAME …``, one line of column names
``tck,channel,command,bank_group,bank,row,column``, then one command a line in the order of time.
The header may give the geometry as ``bank_groups=``, ``banks_per_group=``, ``rows=`` and
``columns=``; what it does not give is the preset's. Timing is always the preset's.
``tck`` counts DRAM clocks of the channel from the end of its reset. ACT carries a row, RD and WR a
column (a multiple of 8) and, if the recorder knows it, the row; REF and PREA carry no bank.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

__all__ = [
    "PARTS",
    "CommandChecker",
    "DramTimingTable",
    "TraceReport",
    "TraceViolation",
    "check_trace",
]

BURST_CLOCKS = 4
"""BL8 at double data rate."""

MAX_POSTPONED = 8
"""Refreshes that may be postponed or pulled in (JESD79-4, refresh command)."""

MAX_REFRESHES_IN_TWO_INTERVALS = 16
"""JESD79-4, refresh command: REF commands within 2 x tREFI."""


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
}


def _clocks(picoseconds: int, tck_ps: int) -> int:
    """Clocks that a duration takes, by the rounding algorithm of JESD79-4 (factor 0.974)."""
    return (picoseconds * 1000 // tck_ps + 974) // 1000


@dataclass(frozen=True, kw_only=True)
class DramTimingTable:
    """What the checker needs to know of a part; all times in clocks."""

    bank_groups: int
    banks_per_group: int
    rows: int
    columns: int
    cl: int
    cwl: int
    t_rcd: int
    t_rp: int
    t_ras: int
    t_rc: int
    t_ccd_s: int
    t_ccd_l: int
    t_rrd_s: int
    t_rrd_l: int
    t_faw: int
    t_wr: int
    t_wtr_s: int
    t_wtr_l: int
    t_rtp: int
    t_rfc: int
    t_refi: int


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
    """No part of the standard: few rows, frequent refreshes (160 ns every 2 us), for tests."""
    values = dict(vars(_part(1600, 16, 8, 4)))
    return DramTimingTable(
        **{**values, "columns": 256, "t_rfc": 160_000 // 1250, "t_refi": 2_000_000 // 1250}
    )


PARTS: Mapping[str, DramTimingTable] = MappingProxyType(
    {
        "ddr4_1600_16gbit_x8": _part(1600, 16, 8, 1 << 17),
        "ddr4_1600_8gbit_x16": _part(1600, 8, 16, 1 << 16),
        "ddr4_2400_8gbit_x8": _part(2400, 8, 8, 1 << 16),
        "tiny": _tiny(),
    }
)
"""Known parts by preset name."""


@dataclass(frozen=True)
class TraceViolation:
    """A rule that a command broke."""

    tck: int
    rule: str
    command: str


_NEVER = -(1 << 60)


class CommandChecker:
    """Follows the commands of one channel; :attr:`violations` collects what they break.

    Commands are given in the order of time, from clock 0 at the end of reset, when all banks are
    closed and no refresh is owed. With ``refresh`` false, missing refreshes are not a violation.
    """

    def __init__(self, part: DramTimingTable, *, refresh: bool = True) -> None:
        self.part = part
        self.refresh = refresh
        self.violations: list[TraceViolation] = []
        self.counts: Counter[str] = Counter()
        banks = part.bank_groups * part.banks_per_group
        self._open: list[int | None] = [None] * banks
        self._act = [_NEVER] * banks
        self._pre = [_NEVER] * banks
        self._rd = [_NEVER] * banks
        self._wr = [_NEVER] * banks
        self._group_act = [_NEVER] * part.bank_groups
        self._group_rd = [_NEVER] * part.bank_groups
        self._group_wr = [_NEVER] * part.bank_groups
        self._last_act = self._last_rd = self._last_wr = _NEVER
        self._acts: deque[int] = deque([_NEVER] * 4, 4)
        self._last = -1
        self._data_end = _NEVER
        self._refs: deque[int] = deque(maxlen=MAX_REFRESHES_IN_TWO_INTERVALS)
        self._last_ref = 0
        self._in_refresh_until = _NEVER
        # Refreshes that fell due less those given; the intervals up to ``_intervals`` are in it.
        self._owed = 0
        self._intervals = 0
        self.longest_refresh_gap = 0
        """Largest distance of two REF commands, or of the first from the end of reset."""

    def command(
        self,
        tck: int,
        name: str,
        bank_group: int = 0,
        bank: int = 0,
        row: int | None = None,
        column: int | None = None,
    ) -> None:
        """The command ``name`` at clock ``tck``; ``ValueError`` for what is no command."""
        part = self.part
        self.counts[name] += 1
        self._require(tck > self._last, tck, "order of time", name)
        self._last = tck
        self._require(tck >= self._in_refresh_until, tck, "tRFC", name)
        if name in ("ACT", "RD", "WR", "PRE") and not (
            0 <= bank_group < part.bank_groups and 0 <= bank < part.banks_per_group
        ):
            raise ValueError(f"tCK {tck}: no bank {bank_group}.{bank} in {part}")
        index = bank_group * part.banks_per_group + bank
        if name == "RD":
            self._column(tck, name, index, bank_group, row, column)
            self._read(tck, index, bank_group)
        elif name == "WR":
            self._column(tck, name, index, bank_group, row, column)
            self._write(tck, index, bank_group)
        elif name == "ACT":
            self._activate(tck, index, bank_group, row)
        elif name == "PRE":
            self._precharge(tck, name, index)
        elif name == "PREA":
            for each in range(len(self._open)):
                self._precharge(tck, name, each)
        elif name == "REF":
            self._refresh(tck)
        else:
            raise ValueError(f"tCK {tck}: unknown command {name!r}")

    def finish(self, tck: int) -> None:
        """Ends the trace at clock ``tck``: no refresh may be overdue there."""
        self._fall_due(tck, "end of trace")

    def _require(self, fulfilled: bool, tck: int, rule: str, command: str) -> None:
        if not fulfilled:
            self.violations.append(TraceViolation(tck, rule, command))

    def _activate(self, tck: int, index: int, group: int, row: int | None) -> None:
        part = self.part
        if row is None:
            raise ValueError(f"tCK {tck}: ACT without a row")
        require = self._require
        require(self._open[index] is None, tck, "ACT on open bank", "ACT")
        require(0 <= row < part.rows, tck, "row range", "ACT")
        require(tck - self._pre[index] >= part.t_rp, tck, "tRP", "ACT")
        require(tck - self._act[index] >= part.t_rc, tck, "tRC", "ACT")
        require(tck - self._last_act >= part.t_rrd_s, tck, "tRRD_S", "ACT")
        require(tck - self._group_act[group] >= part.t_rrd_l, tck, "tRRD_L", "ACT")
        require(tck - self._acts[0] >= part.t_faw, tck, "tFAW", "ACT")
        self._acts.append(tck)
        self._open[index] = row
        self._act[index] = self._group_act[group] = self._last_act = tck

    def _precharge(self, tck: int, name: str, index: int) -> None:
        part = self.part
        if self._open[index] is not None:
            require = self._require
            require(tck - self._act[index] >= part.t_ras, tck, "tRAS", name)
            require(tck - self._rd[index] >= part.t_rtp, tck, "tRTP", name)
            recovered = self._wr[index] + part.cwl + BURST_CLOCKS + part.t_wr
            require(tck >= recovered, tck, "tWR", name)
        self._open[index] = None
        self._pre[index] = tck

    def _column(
        self, tck: int, name: str, index: int, group: int, row: int | None, column: int | None
    ) -> None:
        part = self.part
        if column is None:
            raise ValueError(f"tCK {tck}: {name} without a column")
        require = self._require
        opened = self._open[index]
        require(opened is not None, tck, f"{name} on closed bank", name)
        require(row is None or opened is None or row == opened, tck, "other row open", name)
        require(0 <= column < part.columns and column % 8 == 0, tck, "column range", name)
        require(tck - self._act[index] >= part.t_rcd, tck, "tRCD", name)
        last, same = (
            (self._last_rd, self._group_rd) if name == "RD" else (self._last_wr, self._group_wr)
        )
        require(tck - last >= part.t_ccd_s, tck, "tCCD_S", name)
        require(tck - same[group] >= part.t_ccd_l, tck, "tCCD_L", name)

    def _read(self, tck: int, index: int, group: int) -> None:
        part = self.part
        require = self._require
        data_written = part.cwl + BURST_CLOCKS
        require(tck - self._last_wr >= data_written + part.t_wtr_s, tck, "tWTR_S", "RD")
        require(tck - self._group_wr[group] >= data_written + part.t_wtr_l, tck, "tWTR_L", "RD")
        require(tck + part.cl >= self._data_end, tck, "data bus overlap", "RD")
        self._data_end = tck + part.cl + BURST_CLOCKS
        self._rd[index] = self._group_rd[group] = self._last_rd = tck

    def _write(self, tck: int, index: int, group: int) -> None:
        part = self.part
        # The bus turns in one clock and the write preamble takes another.
        turn = part.cl + BURST_CLOCKS + 2 - part.cwl
        self._require(tck - self._last_rd >= turn, tck, "read to write", "WR")
        self._require(tck + part.cwl >= self._data_end, tck, "data bus overlap", "WR")
        self._data_end = tck + part.cwl + BURST_CLOCKS
        self._wr[index] = self._group_wr[group] = self._last_wr = tck

    def _refresh(self, tck: int) -> None:
        part = self.part
        self._require(all(row is None for row in self._open), tck, "REF with open bank", "REF")
        self._require(tck - max(self._pre) >= part.t_rp, tck, "tRP", "REF")
        self._fall_due(tck, "REF")
        self._owed = max(self._owed - 1, -MAX_POSTPONED)
        self.longest_refresh_gap = max(self.longest_refresh_gap, tck - self._last_ref)
        if self.refresh:
            self._require(
                tck - self._last_ref <= (MAX_POSTPONED + 1) * part.t_refi, tck, "tREFI", "REF"
            )
            if len(self._refs) == self._refs.maxlen:
                self._require(
                    tck - self._refs[0] >= 2 * part.t_refi, tck, "16 REF in 2 tREFI", "REF"
                )
        self._refs.append(tck)
        self._last_ref = tck
        self._in_refresh_until = tck + part.t_rfc

    def _fall_due(self, tck: int, command: str) -> None:
        """Counts the refreshes that fell due before ``tck``."""
        intervals = (tck - 1) // self.part.t_refi
        self._owed += intervals - self._intervals
        self._intervals = intervals
        if self.refresh:
            self._require(self._owed <= MAX_POSTPONED, tck, "tREFI", command)


@dataclass
class TraceReport:
    """Outcome of :func:`check_trace`."""

    preset: str
    violations: list[TraceViolation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Commands by name, over all channels."""
    longest_refresh_gap: int = 0
    """Clocks, over all channels."""
    last_tck: int = 0


_GEOMETRY = ("bank_groups", "banks_per_group", "rows", "columns")


def _described_part(preset: str, settings: Mapping[str, str]) -> DramTimingTable:
    """The part ``preset`` with the geometry that a header gives."""
    if preset not in PARTS:
        raise ValueError(f"unknown preset {preset!r} in the header; known: {', '.join(PARTS)}")
    geometry: dict[str, int] = {}
    for name in _GEOMETRY:
        text = settings.get(name)
        if text is None:
            continue
        if not text.isdecimal() or int(text) == 0:
            raise ValueError(f"{name} in the header must be a positive integer, got {text!r}")
        geometry[name] = int(text)
    return replace(PARTS[preset], **geometry)


def check_trace(lines: Iterable[str], *, refresh: bool = True) -> TraceReport:
    """Checks a whole trace, given as its lines; each channel by itself, up to its last command.

    A channel's clock may stand still while others run, so refreshes are demanded of it only as
    long as it gives commands.

    Raises ``ValueError`` for a malformed trace or an unknown preset.
    """
    source = iter(lines)
    header = next(source, "").split()
    if header[:5] != ["#", "nearmem", "dram", "trace", "v1"]:
        raise ValueError(f"not a DRAM trace: its first line is {' '.join(header)!r}")
    settings = dict(item.split("=", 1) for item in header[5:] if "=" in item)
    preset = settings.get("preset", "")
    part = _described_part(preset, settings)
    names = next(source, "").strip()
    if names != "tck,channel,command,bank_group,bank,row,column":
        raise ValueError(f"unexpected column names {names!r}")
    report = TraceReport(preset)
    checkers: dict[str, CommandChecker] = {}
    ends: dict[str, int] = {}
    for line in source:
        tck, channel, name, group, bank, row, column = line.rstrip("\n").split(",")
        checker = checkers.get(channel)
        if checker is None:
            checker = checkers[channel] = CommandChecker(part, refresh=refresh)
        checker.command(
            int(tck),
            name,
            int(group or 0),
            int(bank or 0),
            int(row) if row else None,
            int(column) if column else None,
        )
        ends[channel] = int(tck)
    report.last_tck = max(ends.values(), default=0)
    for channel, checker in checkers.items():
        checker.finish(ends[channel])
        report.violations += checker.violations
        report.counts += checker.counts
        report.longest_refresh_gap = max(report.longest_refresh_gap, checker.longest_refresh_gap)
    return report
