"""Command sequences that stand right at the edge of one timing rule of a vault each.

See :mod:`hw_tests.dram.probes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hw.pim.vault.timing import VaultTiming, vault_part
from hw.sim.dram_device import Violation
from hw_tests.dram.probes import LATER, OPENED, START, Command, Probe, act, common_probes

__all__ = ["PROBE_ROWS", "PROBE_TIMINGS", "vault_probes"]

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


def vault_probes(timing: VaultTiming) -> Iterator[Probe]:
    """The probes of a vault with four layers or more and two banks in each."""
    columns = ("RD", "RDA", "WR", "WRA")
    yield from common_probes(timing, columns, wrong_column=8)
    for name in columns:
        kind = name[:2]
        closed = Violation.RD_CLOSED if kind == "RD" else Violation.WR_CLOSED
        for closing in ("RDA", "WRA"):
            yield Probe(f"{name} after {closing}", f"{kind} on closed bank", closed,
                (*OPENED, Command(LATER, closing), Command(LATER + 60, name)),
                early=0)  # fmt: skip
    row_cycle = timing.t_ras + timing.t_rp
    recovered = LATER + timing.cwl + 4 + timing.t_wr + timing.t_rp
    soonest = Command(START + timing.t_rcd, "RDA")
    for lone in (act(0), Command(0, "REF")):
        name = lone.name
        if name == "REF" or timing.t_rc <= row_cycle:
            yield Probe(f"tRAS + tRP {name}", "tRAS + tRP", Violation.T_RP,
                (act(START), soonest, replace(lone, tck=START + row_cycle)))  # fmt: skip
        yield Probe(f"tRTP + tRP {name}", "tRTP + tRP", Violation.T_RP,
            (act(START), Command(LATER, "RDA"),
             replace(lone, tck=LATER + timing.t_rtp + timing.t_rp)))  # fmt: skip
        yield Probe(f"tWR + tRP {name}", "tWR + tRP", Violation.T_RP,
            (act(START), Command(LATER, "WRA"), replace(lone, tck=recovered)))  # fmt: skip
        # The write, not the read behind it that closes the bank, is what has to recover.
        turn = LATER + timing.write_to_read_l
        if turn + timing.t_rtp + timing.t_rp < recovered:
            yield Probe(f"tWR + tRP {name} behind a read", "tWR + tRP", Violation.T_RP,
                (act(START), Command(LATER, "WR"), Command(turn, "RDA"),
                 replace(lone, tck=recovered)))  # fmt: skip
    if timing.t_rc > row_cycle:
        yield Probe("tRC", "tRC", Violation.T_RC,
            (act(START), soonest, act(START + timing.t_rc)))  # fmt: skip
    refi = timing.t_refi
    for name, before, last in (
        ("first", (), refi),
        ("next", (Command(refi, "REF"),), 2 * refi),
    ):
        yield Probe(f"tREFI {name}", "tREFI", Violation.T_REFI, (*before, Command(last, "REF")),
            early=1)  # fmt: skip
