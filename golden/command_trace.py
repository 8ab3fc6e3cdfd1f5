"""Checker of DRAM command traces against tables of minimum distances between two commands.

A trace has one header line ``# nearmem KIND trace v1 preset=NAME …`` with the figures of the part.
Then comes a line of column names ``tck,MEMORY,command,GROUP,bank,row,column``, then one command a
line in the order of time. The kind gives the names of the memories (channels, vaults) and of the
groups of their banks. The header's figures count, not those of the named part. It has all of the
timing, or none if a known part's holds; it may leave out the geometry of a known part. ``tck``
counts clocks of the memory from the end of its reset. ACT carries a row, reads and writes a column
and, if the recorder knows it, the row; REF and PREA carry no bank.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, TypeVar

__all__ = [
    "BANK",
    "BURST_CLOCKS",
    "GROUP",
    "MEMORY",
    "Rule",
    "RuleChecker",
    "TimingTable",
    "TraceReport",
    "TraceViolation",
    "check_lines",
]

BURST_CLOCKS = 4
"""Clocks that the data of a burst takes: eight transfers (BL8) at double data rate."""

MEMORY, GROUP, BANK = range(3)
"""Scopes of a rule: the part of (group, bank) that two commands share."""


@dataclass(frozen=True, kw_only=True)
class TimingTable:
    """Times of a part in clocks; ``_s`` is between different groups of banks, ``_l`` within one."""

    rows: int
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

    @property
    def written(self) -> int:
        """Clocks from a write command to the end of its data."""
        return self.cwl + BURST_CLOCKS


@dataclass(frozen=True)
class Rule:
    """Minimum distance: ``later`` is ``clocks`` after the ``nth`` last of ``earlier`` in scope."""

    name: str
    earlier: Sequence[str]
    later: Sequence[str]
    scope: int
    clocks: int
    nth: int = 1


def _distances(table: TimingTable, commands: Sequence[str]) -> Iterable[Rule]:
    """Yield the rules of activates, reads, writes and refreshes that all kinds share."""
    reads = [name for name in commands if name.startswith("RD")]
    writes = [name for name in commands if name.startswith("WR")]
    act, ref = ("ACT",), ("REF",)
    yield Rule("tRFC", ref, commands, MEMORY, table.t_rfc)
    yield Rule("tRC", act, act, BANK, table.t_rc)
    yield Rule("tRRD_S", act, act, MEMORY, table.t_rrd_s)
    yield Rule("tRRD_L", act, act, GROUP, table.t_rrd_l)
    yield Rule("tFAW", act, act, MEMORY, table.t_faw, nth=4)
    yield Rule("tRCD", act, (*reads, *writes), BANK, table.t_rcd)
    for names in (reads, writes):
        yield Rule("tCCD_S", names, names, MEMORY, table.t_ccd_s)
        yield Rule("tCCD_L", names, names, GROUP, table.t_ccd_l)
    yield Rule("tWTR_S", writes, reads, MEMORY, table.written + table.t_wtr_s)
    yield Rule("tWTR_L", writes, reads, GROUP, table.written + table.t_wtr_l)
    # The bus turns in one clock and the write preamble takes another.
    yield Rule("read to write", reads, writes, MEMORY, table.cl + BURST_CLOCKS + 2 - table.cwl)


@dataclass(frozen=True)
class TraceViolation:
    """Rule that a command broke."""

    tck: int
    rule: str
    command: str


class _Bound(NamedTuple):
    """Rules of a command in a place, each with the times it looks at, and the command's times."""

    rules: list[tuple[Rule, deque[int]]]
    own: list[deque[int]]


class RuleChecker:
    """Checker that follows the commands of one memory and collects :attr:`violations`.

    Commands come in the order of time, from clock 0 at the end of reset, when all banks are closed.

    Parameters
    ----------
    table: figures of the part.
    banks: number of groups of banks, and of banks in each.
    columns: columns that a read or write may carry.
    commands: names of all commands; RDA and WRA precharge their bank.
    rules: rules of the kind, besides those of all kinds.
    """

    def __init__(
        self,
        table: TimingTable,
        *,
        banks: tuple[int, int],
        columns: range,
        commands: Sequence[str],
        rules: Iterable[Rule],
    ) -> None:
        self.violations: list[TraceViolation] = []
        self.counts: Counter[str] = Counter()
        self.longest_refresh_gap = 0
        """Largest distance of two REFs, or of the first from the end of reset, in clocks."""
        self._table = table
        self._banks = banks
        self._columns = columns
        self._rules: dict[str, list[Rule]] = {name: [] for name in commands}
        for rule in (*rules, *_distances(table, commands)):
            for name in rule.later:
                self._rules[name].append(rule)
        # Times of the last commands, the newest last, by command and place.
        self._times: dict[tuple[str, tuple[int, ...]], deque[int]] = defaultdict(
            lambda: deque(maxlen=16)
        )
        self._bound: dict[tuple[str, int, int], _Bound] = {}
        self._open: dict[tuple[int, int], int] = {}
        self._last = -1
        self._last_ref = 0
        self._data_end = 0

    def command(
        self,
        tck: int,
        name: str,
        group: int = 0,
        bank: int = 0,
        row: int | None = None,
        column: int | None = None,
    ) -> None:
        """Check the command ``name`` at clock ``tck``; raise ``ValueError`` for no command."""
        bound = self._bound.get((name, group, bank)) or self._bind(tck, name, group, bank)
        self.counts[name] += 1
        self._require(tck > self._last, tck, "order of time", name)
        self._last = tck
        for rule, times in bound.rules:
            if len(times) >= rule.nth and tck - times[-rule.nth] < rule.clocks:
                self._require(False, tck, rule.name, name)
        for times in bound.own:
            times.append(tck)
        if name == "ACT":
            if row is None:
                raise ValueError(f"tCK {tck}: ACT without a row")
            self._require((group, bank) not in self._open, tck, "ACT on open bank", name)
            self._require(0 <= row < self._table.rows, tck, "row range", name)
            self._open[group, bank] = row
        elif name == "PRE":
            self._open.pop((group, bank), None)
        elif name == "PREA":
            self._open.clear()
        elif name == "REF":
            self._require(not self._open, tck, "REF with open bank", name)
            self._refresh(tck)
            self.longest_refresh_gap = max(self.longest_refresh_gap, tck - self._last_ref)
            self._last_ref = tck
        else:
            self._column(tck, name, (group, bank), row, column)

    def _bind(self, tck: int, name: str, group: int, bank: int) -> _Bound:
        """Look up, once, the rules and times that a command in a place depends on."""
        if name not in self._rules:
            raise ValueError(f"tCK {tck}: unknown command {name!r}")
        if not (0 <= group < self._banks[0] and 0 <= bank < self._banks[1]):
            raise ValueError(f"tCK {tck}: no bank {group}.{bank} in {self._table}")
        places = ((), (group,), (group, bank))
        bound = self._bound[name, group, bank] = _Bound(
            [
                (rule, self._times[earlier, places[rule.scope]])
                for rule in self._rules[name]
                for earlier in rule.earlier
            ],
            [self._times[name, place] for place in places],
        )
        return bound

    def finish(self, tck: int) -> None:
        """End the trace at clock ``tck``, where no refresh may be overdue."""
        raise NotImplementedError

    def _refresh(self, tck: int) -> None:
        """Check the distance of a refresh from those before it."""
        raise NotImplementedError

    def _require(self, fulfilled: bool, tck: int, rule: str, command: str) -> None:
        if not fulfilled:
            self.violations.append(TraceViolation(tck, rule, command))

    def _column(
        self, tck: int, name: str, place: tuple[int, int], row: int | None, column: int | None
    ) -> None:
        table = self._table
        if column is None:
            raise ValueError(f"tCK {tck}: {name} without a column")
        opened = self._open.get(place)
        self._require(opened is not None, tck, f"{name[:2]} on closed bank", name)
        self._require(row is None or opened in (None, row), tck, "other row open", name)
        self._require(column in self._columns, tck, "column range", name)
        begin = tck + (table.cl if name.startswith("RD") else table.cwl)
        self._require(begin >= self._data_end, tck, "data bus overlap", name)
        self._data_end = begin + BURST_CLOCKS
        if name.endswith("A"):
            self._open.pop(place, None)


@dataclass
class TraceReport:
    """Result of checking a trace."""

    preset: str
    violations: list[TraceViolation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Commands by name, over all memories."""
    longest_refresh_gap: int = 0
    """Largest distance of two REF commands, over all memories, in clocks."""
    last_tck: int = 0


_Table = TypeVar("_Table", bound=TimingTable)

_TIMING = [item.name for item in fields(TimingTable) if item.name != "rows"]


def _described_part(
    tables: Mapping[str, _Table], preset: str, settings: Mapping[str, str]
) -> _Table:
    """Return the part of a header: its figures, completed from the known part ``preset``."""
    kind = type(next(iter(tables.values())))
    names = [item.name for item in fields(kind)]
    given = {name: settings[name] for name in names if name in settings}
    for name, text in given.items():
        if not text.isdecimal() or int(text) == 0:
            raise ValueError(f"{name} in the header must be a positive integer, got {text!r}")
    figures = {name: int(text) for name, text in given.items()}
    known = tables.get(preset)
    needed = _TIMING if known and figures.keys() & set(_TIMING) else [] if known else names
    if missing := [name for name in needed if name not in figures]:
        raise ValueError(
            f"the header of preset {preset!r} lacks {', '.join(missing)}: give all of the timing, "
            f"or a known part without any; known: {', '.join(tables)}"
        )
    return replace(known, **figures) if known else kind(**figures)


def check_lines(
    lines: Iterable[str],
    *,
    kind: str,
    columns: str,
    tables: Mapping[str, _Table],
    checker: Callable[[_Table], RuleChecker],
) -> TraceReport:
    """Check a trace, given as its lines; each memory by itself, up to its last command.

    A memory's clock may stand still while others run, so it must refresh only until its last
    command. ``columns`` are the names of the second line, ``tables`` the known parts.

    Raises ``ValueError`` for a malformed trace or a part that is neither known nor described.
    """
    source = iter(lines)
    header = next(source, "").split()
    if header[:5] != ["#", "nearmem", kind, "trace", "v1"]:
        raise ValueError(f"not a {kind} trace: its first line is {' '.join(header)!r}")
    settings = dict(item.split("=", 1) for item in header[5:] if "=" in item)
    preset = settings.get("preset", "")
    part = _described_part(tables, preset, settings)
    names = next(source, "").strip()
    if names != columns:
        raise ValueError(f"unexpected column names {names!r}")
    report = TraceReport(preset)
    checkers: dict[str, RuleChecker] = {}
    ends: dict[str, int] = {}
    for number, line in enumerate(source, 3):
        try:
            tck, memory, name, group, bank, row, column = line.rstrip("\n").split(",")
            at, place = int(tck), (int(group or 0), int(bank or 0))
            row_and_column = [
                int(field_text) if field_text else None for field_text in (row, column)
            ]
        except ValueError:
            raise ValueError(
                f"line {number} is {line!r}: expected {columns}, in integers"
            ) from None
        if memory not in checkers:
            checkers[memory] = checker(part)
        checkers[memory].command(at, name, *place, *row_and_column)
        ends[memory] = at
    report.last_tck = max(ends.values(), default=0)
    for memory, memory_checker in checkers.items():
        memory_checker.finish(ends[memory])
        report.violations += memory_checker.violations
        report.counts += memory_checker.counts
        report.longest_refresh_gap = max(
            report.longest_refresh_gap, memory_checker.longest_refresh_gap
        )
    return report
