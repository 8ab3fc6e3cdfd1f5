"""Checks a trace of the commands to a vault of the memory stack, independently of the hardware.

The rules are a table of minimum distances between two commands, in the way simulators of memories
state them. The figures are those of two published models of HMC, each in the unit of its source:
Ramulator 1.0 (``src/HMC.h``, ``HMC_2500``) in clocks of 0.8 ns, CasHMC 1.3 (``ConfigDRAM.ini``) in
nanoseconds. Precharges are part of the last read or write of a bank (RDA, WRA).

Trace format: one header line ``# nearmem vault trace v1 part=NAME …`` that may give ``layers=``,
``banks_per_layer=`` and ``rows=`` where they differ from the part's, one line of column names
``tck,command,layer,bank,row,column``, then one command a line in the order of time. ``tck`` counts
clocks from the end of reset. ACT carries a row, RD, RDA, WR and WRA a column, REF no bank.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

__all__ = [
    "VAULT_TABLES",
    "VaultChecker",
    "VaultTable",
    "VaultTraceReport",
    "VaultTraceViolation",
    "check_vault_trace",
]

_READS = ("RD", "RDA")
_WRITES = ("WR", "WRA")
_COLUMNS = (*_READS, *_WRITES)
_COMMANDS = ("ACT", *_COLUMNS, "REF")
_COLUMNS_OF_A_ROW = 8
_BURST = 4
_CLOCK_PS = 800


@dataclass(frozen=True, kw_only=True)
class VaultTable:
    """What the checker needs to know of a vault; times in clocks, named as simulators do."""

    layers: int
    banks_per_layer: int
    rows: int
    cl: int
    cwl: int
    rcd: int
    rp: int
    ras: int
    rc: int
    ccd_s: int
    ccd_l: int
    rrd_s: int
    rrd_l: int
    faw: int
    wr: int
    wtr_s: int
    wtr_l: int
    rtp: int
    rfc: int
    refi: int


_RAMULATOR = VaultTable(
    # Org::HMC_8GB, whose bank groups are the layers.
    layers=8,
    banks_per_layer=2,
    rows=65536,
    # speed_table of HMC_2500.
    ccd_s=4, ccd_l=6,
    cl=17, rcd=17, rp=17, cwl=13,
    ras=34, rc=51,
    rtp=9, wtr_s=3, wtr_l=9, wr=19,
    rrd_s=7, rrd_l=8, faw=17,
    rfc=200, refi=9750,
)  # fmt: skip


def _clocks(nanoseconds: float) -> int:
    return -(-round(1000 * nanoseconds) // _CLOCK_PS)


def _cashmc() -> VaultTable:
    ns = {
        "cwl": 3.2, "cl": 9.9, "ras": 21.6, "rcd": 10.2, "rc": 32.0, "rp": 7.7, "rtp": 4.9,
        "wr": 8.0, "rfc": 59.0, "faw": 19.2,
    }  # fmt: skip
    # No difference between layers.
    both = {"ccd": 3.2, "rrd": 3.2, "wtr": 4.9}
    return replace(
        _RAMULATOR,
        **{name: _clocks(value) for name, value in ns.items()},
        **{f"{name}_{end}": _clocks(value) for name, value in both.items() for end in "sl"},
        refi=7_800_000 // _CLOCK_PS,
    )


VAULT_TABLES: Mapping[str, VaultTable] = MappingProxyType(
    {
        "hmc2": _RAMULATOR,
        "cashmc": _cashmc(),
        # No real part: few rows, a refresh of 80 ns every 1.92 us, for tests.
        "tiny": replace(_RAMULATOR, rows=8, rfc=80_000 // 800, refi=1_920_000 // 800),
    }
)
"""Known parts by name."""


@dataclass(frozen=True)
class _Rule:
    """``later`` comes at least ``clocks`` after the ``nth`` last of ``earlier`` in its scope."""

    name: str
    earlier: tuple[str, ...]
    later: tuple[str, ...]
    scope: str
    """``bank``, ``layer`` or ``vault``."""
    clocks: int
    nth: int = 1


def _rules(table: VaultTable) -> list[_Rule]:
    written = table.cwl + _BURST
    act, ref = ("ACT",), ("REF",)
    rules: list[_Rule] = []
    # A bank to activate and all banks to refresh have been precharged.
    for later, scope in ((act, "bank"), (ref, "vault")):
        rules.append(_Rule("tRAS + tRP", act, later, scope, table.ras + table.rp))
        rules.append(_Rule("tRTP + tRP", _READS, later, scope, table.rtp + table.rp))
        rules.append(_Rule("tWR + tRP", _WRITES, later, scope, written + table.wr + table.rp))
    for each in (_READS, _WRITES):
        rules.append(_Rule("tCCD_S", each, each, "vault", table.ccd_s))
        rules.append(_Rule("tCCD_L", each, each, "layer", table.ccd_l))
    return [
        *rules,
        _Rule("tRCD", act, _COLUMNS, "bank", table.rcd),
        _Rule("tRC", act, act, "bank", table.rc),
        _Rule("tRRD_S", act, act, "vault", table.rrd_s),
        _Rule("tRRD_L", act, act, "layer", table.rrd_l),
        _Rule("tFAW", act, act, "vault", table.faw, nth=4),
        _Rule("read to write", _READS, _WRITES, "vault", table.cl + _BURST + 2 - table.cwl),
        _Rule("tWTR_S", _WRITES, _READS, "vault", written + table.wtr_s),
        _Rule("tWTR_L", _WRITES, _READS, "layer", written + table.wtr_l),
        _Rule("tRFC", ref, _COMMANDS, "vault", table.rfc),
    ]


@dataclass(frozen=True)
class VaultTraceViolation:
    """A rule that a command broke."""

    tck: int
    rule: str
    command: str


class VaultChecker:
    """Follows the commands of one vault; :attr:`violations` collects what they break.

    Commands are given in the order of time, from clock 0 at the end of reset, when all banks are
    closed and the time to the first refresh begins.
    """

    def __init__(self, table: VaultTable) -> None:
        self.table = table
        self.violations: list[VaultTraceViolation] = []
        self.counts: Counter[str] = Counter()
        self.longest_refresh_gap = 0
        """Largest distance of two REF commands, or of the first from the end of reset."""
        self._rules = _rules(table)
        # Times of the last commands, the newest first, by command, scope and place.
        self._times: dict[tuple[str, str, tuple[int, ...]], deque[int]] = {}
        self._open: dict[tuple[int, int], int] = {}
        self._last = -1
        self._last_ref = 0
        self._data_end = 0

    def command(
        self,
        tck: int,
        name: str,
        layer: int = 0,
        bank: int = 0,
        row: int | None = None,
        column: int | None = None,
    ) -> None:
        """The command ``name`` at clock ``tck``; ``ValueError`` for what is no command."""
        table = self.table
        if name not in _COMMANDS:
            raise ValueError(f"tCK {tck}: unknown command {name!r}")
        if not (0 <= layer < table.layers and 0 <= bank < table.banks_per_layer):
            raise ValueError(f"tCK {tck}: no bank {layer}.{bank} in {table}")
        self.counts[name] += 1
        self._require(tck > self._last, tck, "order of time", name)
        self._last = tck
        places = {"bank": (layer, bank), "layer": (layer,), "vault": ()}
        for rule in self._rules:
            if name in rule.later:
                for earlier in rule.earlier:
                    times = self._times.get((earlier, rule.scope, places[rule.scope]), ())
                    if len(times) >= rule.nth:
                        self._require(
                            tck - times[rule.nth - 1] >= rule.clocks, tck, rule.name, name
                        )
        for scope, place in places.items():
            self._times.setdefault((name, scope, place), deque(maxlen=4)).appendleft(tck)
        if name == "ACT":
            if row is None:
                raise ValueError(f"tCK {tck}: ACT without a row")
            self._require((layer, bank) not in self._open, tck, "ACT on open bank", name)
            self._require(0 <= row < table.rows, tck, "row range", name)
            self._open[layer, bank] = row
        elif name == "REF":
            self._require(not self._open, tck, "REF with open bank", name)
            self._refreshed(tck, name)
        else:
            self._column(tck, name, (layer, bank), column)

    def finish(self, tck: int) -> None:
        """Ends the trace at clock ``tck``: no refresh may be overdue there."""
        self._require(tck - self._last_ref <= self.table.refi, tck, "tREFI", "end of trace")

    def _require(self, fulfilled: bool, tck: int, rule: str, command: str) -> None:
        if not fulfilled:
            self.violations.append(VaultTraceViolation(tck, rule, command))

    def _refreshed(self, tck: int, name: str) -> None:
        self.finish(tck)
        self.longest_refresh_gap = max(self.longest_refresh_gap, tck - self._last_ref)
        self._last_ref = tck

    def _column(self, tck: int, name: str, place: tuple[int, int], column: int | None) -> None:
        table = self.table
        if column is None:
            raise ValueError(f"tCK {tck}: {name} without a column")
        self._require(place in self._open, tck, f"{name[:2]} on closed bank", name)
        self._require(0 <= column < _COLUMNS_OF_A_ROW, tck, "column range", name)
        begin = tck + (table.cl if name in _READS else table.cwl)
        self._require(begin >= self._data_end, tck, "data bus overlap", name)
        self._data_end = begin + _BURST
        if name.endswith("A"):
            self._open.pop(place, None)


@dataclass
class VaultTraceReport:
    """Outcome of :func:`check_vault_trace`."""

    part: str
    violations: list[VaultTraceViolation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Commands by name."""
    longest_refresh_gap: int = 0
    """Clocks."""
    last_tck: int = 0


_GEOMETRY = ("layers", "banks_per_layer", "rows")


def check_vault_trace(lines: Iterable[str]) -> VaultTraceReport:
    """Checks a whole trace, given as its lines, up to its last command.

    Raises ``ValueError`` for a malformed trace or an unknown part.
    """
    source = iter(lines)
    header = next(source, "").split()
    if header[:5] != ["#", "nearmem", "vault", "trace", "v1"]:
        raise ValueError(f"not a trace of a vault: its first line is {' '.join(header)!r}")
    settings = dict(item.split("=", 1) for item in header[5:] if "=" in item)
    part = settings.get("part", "")
    if part not in VAULT_TABLES:
        raise ValueError(f"unknown part {part!r} in the header; known: {', '.join(VAULT_TABLES)}")
    for name in _GEOMETRY:
        text = settings.get(name, "1")
        if not text.isdecimal() or int(text) == 0:
            raise ValueError(f"{name} in the header must be a positive integer, got {text!r}")
    geometry = {name: int(settings[name]) for name in _GEOMETRY if name in settings}
    names = next(source, "").strip()
    if names != "tck,command,layer,bank,row,column":
        raise ValueError(f"unexpected column names {names!r}")
    checker = VaultChecker(replace(VAULT_TABLES[part], **geometry))
    last = 0
    for line in source:
        tck, name, layer, bank, row, column = line.rstrip("\n").split(",")
        last = int(tck)
        checker.command(
            last,
            name,
            int(layer or 0),
            int(bank or 0),
            int(row) if row else None,
            int(column) if column else None,
        )
    checker.finish(last)
    return VaultTraceReport(
        part, checker.violations, checker.counts, checker.longest_refresh_gap, last
    )
