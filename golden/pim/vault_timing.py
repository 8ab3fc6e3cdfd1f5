"""Checker of command traces of a vault of the memory stack, independent of the hardware.

The figures are those of two published models of HMC, each in the unit of its source. Ramulator 1.0
(``src/HMC.h``, ``HMC_2500``) has clocks of 0.8 ns, CasHMC 1.3 (``ConfigDRAM.ini``) nanoseconds.
Precharges are part of the last read or write of a bank (RDA, WRA). For traces see
:mod:`golden.command_trace`.
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

__all__ = ["VAULT_TABLES", "VaultChecker", "VaultTable", "check_vault_trace"]

_READS = ("RD", "RDA")
_WRITES = ("WR", "WRA")
_COMMANDS = ("ACT", *_READS, *_WRITES, "REF")
_COLUMNS_OF_A_ROW = 8
_CLOCK_PS = 800


@dataclass(frozen=True, kw_only=True)
class VaultTable(TimingTable):
    """Timing and organisation of a vault for the checker."""

    layers: int
    banks_per_layer: int


_RAMULATOR = VaultTable(
    # Org::HMC_8GB, whose bank groups are the layers.
    layers=8,
    banks_per_layer=2,
    rows=65536,
    # speed_table of HMC_2500.
    t_ccd_s=4, t_ccd_l=6,
    cl=17, t_rcd=17, t_rp=17, cwl=13,
    t_ras=34, t_rc=51,
    t_rtp=9, t_wtr_s=3, t_wtr_l=9, t_wr=19,
    t_rrd_s=7, t_rrd_l=8, t_faw=17,
    t_rfc=200, t_refi=9750,
)  # fmt: skip


def _clocks(nanoseconds: float) -> int:
    return -(-round(1000 * nanoseconds) // _CLOCK_PS)


def _cashmc() -> VaultTable:
    ns = {
        "cwl": 3.2, "cl": 9.9, "t_ras": 21.6, "t_rcd": 10.2, "t_rc": 32.0, "t_rp": 7.7,
        "t_rtp": 4.9, "t_wr": 8.0, "t_rfc": 59.0, "t_faw": 19.2,
    }  # fmt: skip
    # No difference between layers.
    both = {"t_ccd": 3.2, "t_rrd": 3.2, "t_wtr": 4.9}
    return replace(
        _RAMULATOR,
        **{name: _clocks(value) for name, value in ns.items()},
        **{f"{name}_{end}": _clocks(value) for name, value in both.items() for end in "sl"},
        t_refi=7_800_000 // _CLOCK_PS,
    )


VAULT_TABLES: Mapping[str, VaultTable] = MappingProxyType(
    {
        "hmc2": _RAMULATOR,
        "cashmc": _cashmc(),
        # No real part: few rows, a refresh of 80 ns every 1.92 us, for tests.
        "tiny": replace(_RAMULATOR, rows=8, t_rfc=80_000 // 800, t_refi=1_920_000 // 800),
    }
)
"""Known parts by name."""


def _rules(table: VaultTable) -> Iterable[Rule]:
    # A bank to activate and all banks to refresh have been precharged.
    for later, scope in (("ACT",), BANK), (("REF",), MEMORY):
        yield Rule("tRAS + tRP", ("ACT",), later, scope, table.t_ras + table.t_rp)
        yield Rule("tRTP + tRP", _READS, later, scope, table.t_rtp + table.t_rp)
        yield Rule("tWR + tRP", _WRITES, later, scope, table.written + table.t_wr + table.t_rp)


class VaultChecker(RuleChecker):
    """:class:`~golden.command_trace.RuleChecker` of a vault.

    The time to the first refresh begins at the end of reset. No refresh may be postponed.
    """

    def __init__(self, table: VaultTable) -> None:
        super().__init__(
            table,
            banks=(table.layers, table.banks_per_layer),
            columns=range(_COLUMNS_OF_A_ROW),
            commands=_COMMANDS,
            rules=_rules(table),
        )

    def finish(self, tck: int) -> None:
        self._require(tck - self._last_ref <= self._table.t_refi, tck, "tREFI", "end of trace")

    def _refresh(self, tck: int) -> None:
        self.finish(tck)


def check_vault_trace(lines: Iterable[str]) -> TraceReport:
    """Check a trace of vaults, see :func:`golden.command_trace.check_lines`."""
    return check_lines(
        lines,
        kind="vault",
        columns="tck,vault,command,layer,bank,row,column",
        tables=VAULT_TABLES,
        checker=VaultChecker,
    )
