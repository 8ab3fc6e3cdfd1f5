"""Command sequences that stand right at the edge of one timing rule each.

Both the device and the trace checker of ``golden`` are probed with them: one clock too early (for
refresh: too late) must be refused for exactly that rule, at the edge must be accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hw.dram.device import Violation
from hw.dram.presets import DDR4_1600_16GBIT_X8
from hw.dram.timing import DramTiming

__all__ = ["PROBE_TIMING", "Command", "Probe", "probes"]

START = 20

PROBE_TIMING = replace(
    DDR4_1600_16GBIT_X8.timing,
    t_rc=45,
    t_ccd_l=6,
    t_rrd_l=7,
    t_faw=26,
    t_wtr_s=3,
    t_rtp=7,
    t_rfc=60,
    t_refi=600,
)
"""No real part: every rule differs from the others and from what others imply together."""


@dataclass(frozen=True)
class Command:
    """One command; ``address`` is a row with ACT, a column with RD and WR."""

    tck: int
    name: str
    bank_group: int = 0
    bank: int = 0
    address: int = 0


@dataclass(frozen=True)
class Probe:
    """``commands``, of which the last stands at the edge of ``rule``.

    ``early`` is what to add to the time of the last command to break it; 0 if the sequence breaks
    the rule as it is, whatever the time.
    """

    name: str
    rule: str
    """Rule as the trace checker names it."""
    code: Violation
    commands: tuple[Command, ...]
    early: int = -1

    def variants(self) -> Iterator[tuple[tuple[Command, ...], bool]]:
        """(commands, whether they must be accepted)."""
        if self.early == 0:
            yield self.commands, False
            return
        yield self.commands, True
        last = self.commands[-1]
        yield (*self.commands[:-1], replace(last, tck=last.tck + self.early)), False


def probes(timing: DramTiming) -> list[Probe]:
    """The probes of a part with four bank groups."""
    found: list[Probe] = []
    t0 = START
    long_open = t0 + 2 * timing.t_ras
    write_data = timing.cwl + 4

    def add(
        name: str, rule: str, code: Violation, *commands: Command, at: int = 0, early: int = -1
    ) -> None:
        """The last command is moved to ``at`` (unless 0)."""
        last = replace(commands[-1], tck=at) if at else commands[-1]
        found.append(Probe(name, rule, code, (*commands[:-1], last), early))

    def act(tck: int, group: int = 0, bank: int = 0, row: int = 1) -> Command:
        return Command(tck, "ACT", group, bank, row)

    def pre(tck: int, group: int = 0, bank: int = 0) -> Command:
        return Command(tck, "PRE", group, bank)

    def column(name: str, tck: int, group: int = 0, bank: int = 0, at: int = 8) -> Command:
        return Command(tck, name, group, bank, at)

    # Two banks of one group and one of another, open for a long time at ``long_open``.
    opened = (act(t0), act(t0 + 40, 0, 1), act(t0 + 80, 1, 0))
    later = long_open + 120

    for name in ("RD", "WR"):
        add(f"tRCD {name}", "tRCD", Violation.T_RCD, act(t0), column(name, t0 + timing.t_rcd))
        add(f"tCCD_S {name}", "tCCD_S", Violation.T_CCD_S, *opened, column(name, later),
            column(name, later + timing.t_ccd_s, 1))  # fmt: skip
        add(f"tCCD_L {name}", "tCCD_L", Violation.T_CCD_L, *opened, column(name, later),
            column(name, later + timing.t_ccd_l, 0, 1))  # fmt: skip
        closed = Violation.RD_CLOSED if name == "RD" else Violation.WR_CLOSED
        add(f"{name} closed", f"{name} on closed bank", closed, *opened,
            column(name, later, 2), early=0)  # fmt: skip
        add(f"{name} precharged", f"{name} on closed bank", closed, *opened, pre(later),
            column(name, later + 40), early=0)  # fmt: skip
        add(f"{name} unaligned column", "column range", Violation.COLUMN_RANGE, *opened,
            column(name, later, at=4), early=0)  # fmt: skip

    for closing in (pre(0), Command(0, "PREA")):
        name = closing.name
        add(f"tRP {name}", "tRP", Violation.T_RP, act(t0), replace(closing, tck=long_open),
            act(long_open + timing.t_rp))  # fmt: skip
        add(f"tRAS {name}", "tRAS", Violation.T_RAS, act(t0), closing, at=t0 + timing.t_ras)
        add(f"tWR {name}", "tWR", Violation.T_WR, *opened, column("WR", later), closing,
            at=later + write_data + timing.t_wr)  # fmt: skip
        add(f"tRTP {name}", "tRTP", Violation.T_RTP, *opened, column("RD", later), closing,
            at=later + timing.t_rtp)  # fmt: skip
        add(f"tRP {name} REF", "tRP", Violation.T_RP, act(t0), replace(closing, tck=long_open),
            Command(long_open + timing.t_rp, "REF"))  # fmt: skip
    if timing.t_rc > timing.t_ras + timing.t_rp:
        add("tRC", "tRC", Violation.T_RC, act(t0), pre(t0 + timing.t_ras), act(t0 + timing.t_rc))
    add("tRRD_S", "tRRD_S", Violation.T_RRD_S, act(t0), act(t0 + timing.t_rrd_s, 1))
    add("tRRD_L", "tRRD_L", Violation.T_RRD_L, act(t0), act(t0 + timing.t_rrd_l, 0, 1))
    four = tuple(act(t0 + timing.t_rrd_s * group, group) for group in range(4))
    add("tFAW", "tFAW", Violation.T_FAW, *four, act(t0 + timing.t_faw, 0, 1))
    turn = timing.cl + 4 + 2 - timing.cwl
    add("read to write", "read to write", Violation.READ_TO_WRITE, *opened, column("RD", later),
        column("WR", later + turn, 1))  # fmt: skip
    add("tWTR_S", "tWTR_S", Violation.T_WTR_S, *opened, column("WR", later),
        column("RD", later + write_data + timing.t_wtr_s, 1))  # fmt: skip
    add("tWTR_L", "tWTR_L", Violation.T_WTR_L, *opened, column("WR", later),
        column("RD", later + write_data + timing.t_wtr_l, 0, 1))  # fmt: skip
    add("ACT open", "ACT on open bank", Violation.ACT_OPEN, act(t0), act(later), early=0)

    ref = Command(t0, "REF")
    for after in (act(0), ref, pre(0), Command(0, "PREA")):
        add(f"tRFC {after.name}", "tRFC", Violation.T_RFC, ref, after, at=t0 + timing.t_rfc)
    add("REF open", "REF with open bank", Violation.REF_OPEN, act(t0), Command(later, "REF"),
        early=0)  # fmt: skip
    add("tREFI first", "tREFI", Violation.T_REFI, Command(9 * timing.t_refi, "REF"), early=1)
    add("tREFI next", "tREFI", Violation.T_REFI, ref, Command(t0 + 9 * timing.t_refi, "REF"),
        early=1)  # fmt: skip
    # Eight are owed; paying one lets one more tREFI pass.
    eight = 8 * timing.t_refi + timing.t_refi // 2
    add("tREFI debt", "tREFI", Violation.T_REFI, Command(eight, "REF"),
        Command(10 * timing.t_refi, "REF"), early=1)  # fmt: skip
    burst = tuple(Command(t0 + timing.t_rfc * count, "REF") for count in range(16))
    add("REF rate", "16 REF in 2 tREFI", Violation.REF_RATE, *burst,
        Command(t0 + 2 * timing.t_refi, "REF"))  # fmt: skip
    return found
