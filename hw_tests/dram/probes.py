"""Command sequences that stand right at the edge of one timing rule each.

Both the device and the trace checker of ``golden`` are probed with them: one clock too early (for
refresh: too late) must be refused for exactly that rule, at the edge must be accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hw.dram.presets import DDR4_1600_16GBIT_X8
from hw.dram.timing import CommandTiming, DramTiming
from hw.sim.dram_device import Violation

__all__ = [
    "LATER",
    "OPENED",
    "PROBE_TIMING",
    "START",
    "Command",
    "Probe",
    "act",
    "common_probes",
    "probes",
]

START = 20
LATER = 400
"""When banks that were activated at ``START`` have been open for long."""

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
    """One command; ``address`` is a row with ACT, a column with reads and writes.

    ``group`` is a bank group or a layer.
    """

    tck: int
    name: str
    group: int = 0
    bank: int = 0
    address: int = 0


def act(tck: int, group: int = 0, bank: int = 0) -> Command:
    return Command(tck, "ACT", group, bank, 1)


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


# Two banks of one group and one of another.
OPENED = (act(START), act(START + 40, 0, 1), act(START + 80, 1, 0))


def common_probes(
    timing: CommandTiming, columns: Sequence[str], wrong_column: int
) -> Iterator[Probe]:
    """The probes of what all kinds of DRAM keep; ``columns`` are the reads and writes of one.

    The DRAM has four groups or more and two banks or more in each.
    """
    written = timing.cwl + 4
    for name in columns:
        kind = name[:2]
        closed = Violation.RD_CLOSED if kind == "RD" else Violation.WR_CLOSED
        yield Probe(f"tRCD {name}", "tRCD", Violation.T_RCD,
            (act(START), Command(START + timing.t_rcd, name)))  # fmt: skip
        for first in columns:
            if not first.startswith(kind):
                continue
            since = (*OPENED, Command(LATER, first))
            yield Probe(f"tCCD_S {first} {name}", "tCCD_S", Violation.T_CCD_S,
                (*since, Command(LATER + timing.t_ccd_s, name, 1)))  # fmt: skip
            if timing.t_ccd_l > timing.t_ccd_s:
                yield Probe(f"tCCD_L {first} {name}", "tCCD_L", Violation.T_CCD_L,
                    (*since, Command(LATER + timing.t_ccd_l, name, 0, 1)))  # fmt: skip
        yield Probe(f"{name} closed", f"{kind} on closed bank", closed,
            (*OPENED, Command(LATER, name, 2)), early=0)  # fmt: skip
        yield Probe(f"{name} column", "column range", Violation.COLUMN_RANGE,
            (*OPENED, Command(LATER, name, address=wrong_column)), early=0)  # fmt: skip
    yield Probe("tRRD_S", "tRRD_S", Violation.T_RRD_S,
        (act(START), act(START + timing.t_rrd_s, 1)))  # fmt: skip
    if timing.t_rrd_l > timing.t_rrd_s:
        yield Probe("tRRD_L", "tRRD_L", Violation.T_RRD_L,
            (act(START), act(START + timing.t_rrd_l, 0, 1)))  # fmt: skip
    if timing.t_faw > 3 * timing.t_rrd_s + timing.t_rrd_l:
        four = tuple(act(START + timing.t_rrd_s * group, group) for group in range(4))
        yield Probe("tFAW", "tFAW", Violation.T_FAW, (*four, act(START + timing.t_faw, 0, 1)))
    for read in columns:
        for write in columns:
            if not (read.startswith("RD") and write.startswith("WR")):
                continue
            turn = timing.cl + 4 + 2 - timing.cwl
            yield Probe(f"{read} to {write}", "read to write", Violation.READ_TO_WRITE,
                (*OPENED, Command(LATER, read), Command(LATER + turn, write, 1)))  # fmt: skip
            since = (*OPENED, Command(LATER, write))
            yield Probe(f"tWTR_S {write} {read}", "tWTR_S", Violation.T_WTR_S,
                (*since, Command(LATER + written + timing.t_wtr_s, read, 1)))  # fmt: skip
            if timing.t_wtr_l > timing.t_wtr_s:
                yield Probe(f"tWTR_L {write} {read}", "tWTR_L", Violation.T_WTR_L,
                    (*since, Command(LATER + written + timing.t_wtr_l, read, 0, 1)))  # fmt: skip
    yield Probe("ACT open", "ACT on open bank", Violation.ACT_OPEN,
        (act(START), act(LATER)), early=0)  # fmt: skip
    yield Probe("REF open", "REF with open bank", Violation.REF_OPEN,
        (act(START), Command(LATER, "REF")), early=0)  # fmt: skip
    for name in ("ACT", "REF"):
        yield Probe(f"tRFC {name}", "tRFC", Violation.T_RFC,
            (Command(START, "REF"), Command(START + timing.t_rfc, name)))  # fmt: skip


def probes(timing: DramTiming) -> Iterator[Probe]:
    """The probes of a DDR4 part with four bank groups."""
    yield from common_probes(timing, ("RD", "WR"), wrong_column=4)
    written = timing.cwl + 4
    for name, closed in (("RD", Violation.RD_CLOSED), ("WR", Violation.WR_CLOSED)):
        yield Probe(f"{name} precharged", f"{name} on closed bank", closed,
            (*OPENED, Command(LATER, "PRE"), Command(LATER + 40, name)), early=0)  # fmt: skip
    refresh = Command(START, "REF")
    for name in ("PRE", "PREA"):
        for later in (act(LATER + timing.t_rp), Command(LATER + timing.t_rp, "REF")):
            yield Probe(f"tRP {name} {later.name}", "tRP", Violation.T_RP,
                (act(START), Command(LATER, name), later))  # fmt: skip
        yield Probe(f"tRAS {name}", "tRAS", Violation.T_RAS,
            (act(START), Command(START + timing.t_ras, name)))  # fmt: skip
        for column, rule, code, clocks in (
            ("WR", "tWR", Violation.T_WR, written + timing.t_wr),
            ("RD", "tRTP", Violation.T_RTP, timing.t_rtp),
        ):
            yield Probe(f"{rule} {name}", rule, code,
                (*OPENED, Command(LATER, column), Command(LATER + clocks, name)))  # fmt: skip
        yield Probe(f"tRFC {name}", "tRFC", Violation.T_RFC,
            (refresh, Command(START + timing.t_rfc, name)))  # fmt: skip
    if timing.t_rc > timing.t_ras + timing.t_rp:
        yield Probe("tRC", "tRC", Violation.T_RC,
            (act(START), Command(START + timing.t_ras, "PRE"), act(START + timing.t_rc)),
        )  # fmt: skip
    refi = timing.t_refi
    # Eight are owed; paying one lets one more tREFI pass.
    owed = Command(8 * refi + refi // 2, "REF")
    # Of twelve in advance eight count, and with the next one 17 intervals may begin after them.
    advance = tuple(Command(START + timing.t_rfc * count, "REF") for count in range(12))
    counted_from = (advance[-1].tck - 1) // refi * refi
    latest = Command(advance[-1].tck + 9 * refi, "REF")
    for name, before, last in (
        ("first", (), 9 * refi),
        ("next", (refresh,), START + 9 * refi),
        ("debt", (owed,), 10 * refi),
        ("credit", (*advance, latest), counted_from + 18 * refi),
    ):
        yield Probe(f"tREFI {name}", "tREFI", Violation.T_REFI, (*before, Command(last, "REF")),
            early=1)  # fmt: skip
    burst = tuple(Command(START + timing.t_rfc * count, "REF") for count in range(16))
    yield Probe("REF rate", "16 REF in 2 tREFI", Violation.REF_RATE,
        (*burst, Command(START + 2 * refi, "REF")))  # fmt: skip
