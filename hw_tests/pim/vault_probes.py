"""Command sequences that stand right at the edge of one timing rule of a vault each.

Both the device and the trace checker of ``golden`` are probed with them: one clock too early (for
refresh: too late) must be refused for exactly that rule, at the edge must be accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hw.pim.vault_device import VaultViolation
from hw.pim.vault_timing import VaultTiming, vault_part

__all__ = ["PROBE_ROWS", "PROBE_TIMINGS", "Probe", "VaultProbeCommand", "vault_probes"]

START = 20
PROBE_ROWS = 16

_HMC2 = vault_part("hmc2").timing

PROBE_TIMINGS = {
    # No real parts: every rule differs from the others and from what others imply together, in
    # the second tRC from tRAS + tRP in the other direction.
    "distinct": replace(
        _HMC2, t_rp=16, t_rc=56, t_rrd_l=9, t_faw=32, t_wtr_l=10, t_rfc=90, t_refi=700
    ),
    "long precharge": replace(_HMC2, t_rp=24, t_rc=52, t_rfc=90, t_refi=700),
    "hmc2": _HMC2,
    "cashmc": vault_part("cashmc").timing,
}


@dataclass(frozen=True)
class VaultProbeCommand:
    """One command; ``address`` is a row with ACT, else a column."""

    tck: int
    name: str
    layer: int = 0
    bank: int = 0
    address: int = 1


@dataclass(frozen=True)
class Probe:
    """``commands``, of which the last stands at the edge of ``rule``.

    ``early`` is what to add to the time of the last command to break it; 0 if the sequence breaks
    the rule as it is, whatever the time.
    """

    name: str
    rule: str
    """Rule as the trace checker names it."""
    code: VaultViolation
    commands: tuple[VaultProbeCommand, ...]
    early: int = -1

    def variants(self) -> Iterator[tuple[tuple[VaultProbeCommand, ...], bool]]:
        """(commands, whether they must be accepted)."""
        if self.early == 0:
            yield self.commands, False
            return
        yield self.commands, True
        last = self.commands[-1]
        yield (*self.commands[:-1], replace(last, tck=last.tck + self.early)), False


def vault_probes(timing: VaultTiming) -> list[Probe]:
    """The probes of a vault with four layers or more and two banks in each."""
    found: list[Probe] = []
    t0 = START
    written = timing.cwl + 4
    # Two banks of one layer and one of another, open for a long time at ``later``.
    opened = (act := _act(t0), _act(t0 + 40, 0, 1), _act(t0 + 80, 1, 0))
    later = t0 + 80 + 2 * (timing.t_ras + timing.t_rp)

    def add(
        name: str, rule: str, code: VaultViolation, *commands: VaultProbeCommand, early: int = -1
    ) -> None:
        found.append(Probe(name, rule, code, commands, early))

    def column(
        name: str, tck: int, layer: int = 0, bank: int = 0, at: int = 1
    ) -> VaultProbeCommand:
        return VaultProbeCommand(tck, name, layer, bank, at)

    for name in ("RD", "RDA", "WR", "WRA"):
        plain = name[:2]
        closed = VaultViolation.RD_CLOSED if plain == "RD" else VaultViolation.WR_CLOSED
        add(f"tRCD {name}", "tRCD", VaultViolation.T_RCD, act, column(name, t0 + timing.t_rcd))
        for first in (plain, f"{plain}A"):
            add(f"tCCD_S {first} {name}", "tCCD_S", VaultViolation.T_CCD_S, *opened,
                column(first, later), column(name, later + timing.t_ccd_s, 1))  # fmt: skip
            if timing.t_ccd_l > timing.t_ccd_s:
                add(f"tCCD_L {first} {name}", "tCCD_L", VaultViolation.T_CCD_L, *opened,
                    column(first, later), column(name, later + timing.t_ccd_l, 0, 1))  # fmt: skip
        add(f"{name} closed", f"{plain} on closed bank", closed, *opened,
            column(name, later, 2), early=0)  # fmt: skip
        for closing in ("RDA", "WRA"):
            add(f"{name} after {closing}", f"{plain} on closed bank", closed, *opened,
                column(closing, later), column(name, later + 60), early=0)  # fmt: skip
        add(f"{name} column", "column range", VaultViolation.COLUMN_RANGE, *opened,
            column(name, later, at=8), early=0)  # fmt: skip

    read, write = column("RDA", later), column("WRA", later)
    for name in ("ACT", "REF"):
        lone = _act(0) if name == "ACT" else VaultProbeCommand(0, "REF")

        def at(tck: int, command: VaultProbeCommand = lone) -> VaultProbeCommand:
            return replace(command, tck=tck)

        row_cycle = timing.t_ras + timing.t_rp
        if name == "REF" or timing.t_rc <= row_cycle:
            add(f"tRAS + tRP {name}", "tRAS + tRP", VaultViolation.T_RAS_RP, act,
                column("RDA", t0 + timing.t_rcd), at(t0 + row_cycle))  # fmt: skip
        add(f"tRTP + tRP {name}", "tRTP + tRP", VaultViolation.T_RTP_RP, act, read,
            at(later + timing.t_rtp + timing.t_rp))  # fmt: skip
        add(f"tWR + tRP {name}", "tWR + tRP", VaultViolation.T_WR_RP, act, write,
            at(later + written + timing.t_wr + timing.t_rp))  # fmt: skip
        # The write, not the read behind it that closes the bank, is what has to recover.
        turn = timing.write_to_read_l
        if turn + timing.t_rtp < written + timing.t_wr:
            add(f"tWR + tRP {name} behind a read", "tWR + tRP", VaultViolation.T_WR_RP, act,
                column("WR", later), column("RDA", later + turn),
                at(later + written + timing.t_wr + timing.t_rp))  # fmt: skip
        add(f"tRFC {name}", "tRFC", VaultViolation.T_RFC, VaultProbeCommand(t0, "REF"),
            at(t0 + timing.t_rfc))  # fmt: skip
    if timing.t_rc > timing.t_ras + timing.t_rp:
        add("tRC", "tRC", VaultViolation.T_RC, act, column("RDA", t0 + timing.t_rcd),
            _act(t0 + timing.t_rc))  # fmt: skip
    add("tRRD_S", "tRRD_S", VaultViolation.T_RRD_S, act, _act(t0 + timing.t_rrd_s, 1))
    if timing.t_rrd_l > timing.t_rrd_s:
        add("tRRD_L", "tRRD_L", VaultViolation.T_RRD_L, act, _act(t0 + timing.t_rrd_l, 0, 1))
    if timing.t_faw > 3 * timing.t_rrd_s + timing.t_rrd_l:
        four = tuple(_act(t0 + timing.t_rrd_s * layer, layer) for layer in range(4))
        add("tFAW", "tFAW", VaultViolation.T_FAW, *four, _act(t0 + timing.t_faw, 0, 1))
    turn = timing.cl + 4 + 2 - timing.cwl
    add("read to write", "read to write", VaultViolation.READ_TO_WRITE, *opened,
        column("RD", later), column("WRA", later + turn, 1))  # fmt: skip
    add("tWTR_S", "tWTR_S", VaultViolation.T_WTR_S, *opened, column("WR", later),
        column("RD", later + written + timing.t_wtr_s, 1))  # fmt: skip
    if timing.t_wtr_l > timing.t_wtr_s:
        add("tWTR_L", "tWTR_L", VaultViolation.T_WTR_L, *opened, column("WRA", later),
            column("RDA", later + written + timing.t_wtr_l, 0, 1))  # fmt: skip
    add("ACT open", "ACT on open bank", VaultViolation.ACT_OPEN, act, _act(later), early=0)
    add("REF open", "REF with open bank", VaultViolation.REF_OPEN, act,
        VaultProbeCommand(later, "REF"), early=0)  # fmt: skip
    first = VaultProbeCommand(timing.t_refi, "REF")
    add("tREFI first", "tREFI", VaultViolation.T_REFI, first, early=1)
    add("tREFI next", "tREFI", VaultViolation.T_REFI, first,
        VaultProbeCommand(2 * timing.t_refi, "REF"), early=1)  # fmt: skip
    return found


def _act(tck: int, layer: int = 0, bank: int = 0) -> VaultProbeCommand:
    return VaultProbeCommand(tck, "ACT", layer, bank)
