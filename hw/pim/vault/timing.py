"""DRAM timing of a vault, in clocks of its data TSVs (tCK), with the source of each figure.

The specification of HMC 2.1 fixes what a user of the cube sees: 32 vaults, 8 or 16 banks in each,
rows of 256 bytes, blocks of 32 to 256 bytes, a data bus with a granularity of 32 bytes, and
10 GB/s a vault. It leaves the timing of the DRAM to the maker. Public timing exists only in the
models of simulators. They fall into two families, with a preset for each:

* ``hmc2``: Ramulator 1.0, ``src/HMC.h``, speed ``HMC_2500`` (which cites HMC 2.1; Jeddeloh and
  Keeth, VLSIT 2012; Kim et al., PACT 2013, tCL = tRCD = tRP = 13.75 ns, tRAS = 27.5 ns). DRAMsim3,
  ``configs/HMC_4GB_4Lx16.ini``, has the same CL, tRCD, tRP and tRAS. It is the stricter family.
* ``cashmc``: CasHMC 1.3, ``ConfigDRAM.ini``, whose core timing is that of gem5,
  ``HMC_2500_1x32``: estimates of the bank model DRAMSpec for a 30 nm process.

All agree on tCK = 0.8 ns (2.5 Gb/s a TSV), 32 data TSVs and bursts of eight, that is 32 bytes in
four tCK: one cycle of 312.5 MHz.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hw.dram.timing import BURST_TCK, CommandTiming, honest_name
from hw.pim.vault.geometry import VaultGeometry

__all__ = ["BURST_TCK", "VAULT_PARTS", "VaultPart", "VaultTiming", "vault_part"]


@dataclass(frozen=True, kw_only=True)
class VaultTiming(CommandTiming):
    """Timing of a vault, in tCK; ``t_refi`` is the longest distance between two refreshes."""

    LONGEST_TCK = 160
    LEAST_CWL = BURST_TCK

    tck_ps: int = 800

    @property
    def read_to_activate(self) -> int:
        """Read with precharge to activate of the same bank, in tCK, without tRAS and tRC."""
        return self.t_rtp + self.t_rp

    @property
    def write_to_activate(self) -> int:
        """Write with precharge to activate of the same bank, in tCK, without tRAS and tRC."""
        return self.write_to_precharge + self.t_rp


VAULT_PARTS: dict[str, VaultPart] = {}
"""Known parts by name. ``tiny`` is no real part: 32 KB and frequent refreshes, for tests."""


@dataclass(frozen=True, kw_only=True)
class VaultPart:
    """Named geometry with its timing.

    If its figures differ from those of the part with its name in :data:`VAULT_PARTS`, it is called
    ``NAME_changed``.
    """

    name: str
    geometry: VaultGeometry
    timing: VaultTiming

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", honest_name(self, VAULT_PARTS))

    def with_capacity(self, capacity_bytes: int) -> VaultPart:
        """Return the same part with fewer rows, see :meth:`VaultGeometry.with_capacity`."""
        return replace(self, geometry=self.geometry.with_capacity(capacity_bytes))


_HMC2 = VaultPart(
    name="hmc2",
    # HMC 2.1, 8 GB: 16 banks of 16 MB a vault; Ramulator, Org::HMC_8GB: 8 layers of 2 banks.
    geometry=VaultGeometry(layers=8, banks_per_layer=2, rows=1 << 16),
    # Ramulator 1.0, speed_table, HMC_2500, in tCK of 0.8 ns as there.
    timing=VaultTiming(
        cl=17,  # nCL, 13.6 ns
        cwl=13,  # nCWL
        t_rcd=17,  # nRCD
        t_rp=17,  # nRP
        t_ras=34,  # nRAS, 27.2 ns
        t_rc=51,  # nRC
        t_ccd_s=4,  # nCCDS
        t_ccd_l=6,  # nCCDL
        t_rrd_s=7,  # nRRDS
        t_rrd_l=8,  # nRRDL
        t_faw=17,  # nFAW
        t_wr=19,  # nWR
        t_wtr_s=3,  # nWTRS
        t_wtr_l=9,  # nWTRL
        t_rtp=9,  # nRTP
        t_rfc=200,  # nRFC, 160 ns
        t_refi=9750,  # nREFI, 7.8 us
    ),
)

_CASHMC = VaultPart(
    name="cashmc",
    geometry=_HMC2.geometry,
    # CasHMC 1.3, ConfigDRAM.ini: in ns there, rounded up to tCK here. It has no layers, and no
    # distance from read to write except that of the bus.
    timing=VaultTiming(
        cl=13,  # CL 9.9 ns; gem5 tCL
        cwl=4,  # CWL 3.2 ns
        t_rcd=13,  # tRCD 10.2 ns; gem5 the same
        t_rp=10,  # tRP 7.7 ns; gem5 the same
        t_ras=27,  # tRAS 21.6 ns; gem5 the same
        t_rc=40,  # tRC 32.0 ns
        t_ccd_s=4,  # tCCD 3.2 ns; gem5 tBURST
        t_ccd_l=4,
        t_rrd_s=4,  # tRRD 3.2 ns; gem5 the same
        t_rrd_l=4,
        t_faw=24,  # tFAW 19.2 ns; gem5 has no limit
        t_wr=10,  # tWR 8.0 ns; gem5 the same
        t_wtr_s=7,  # tWTR 4.9 ns
        t_wtr_l=7,
        t_rtp=7,  # tRTP 4.9 ns; gem5 the same
        t_rfc=74,  # tRFC 59.0 ns; gem5 the same
        t_refi=9750,  # REFRESH_PERIOD 7800 ns; gem5 3.9 us
    ),
)

_TINY = VaultPart(
    name="tiny",
    geometry=replace(_HMC2.geometry, rows=8),
    timing=replace(_HMC2.timing, t_rfc=100, t_refi=2400),
)

VAULT_PARTS.update((item.name, item) for item in (_HMC2, _CASHMC, _TINY))


def vault_part(name: str) -> VaultPart:
    """Return the part called ``name``; raise ``ValueError`` with the known names."""
    if name not in VAULT_PARTS:
        raise ValueError(f"no vault part {name!r}; known parts: {', '.join(VAULT_PARTS)}")
    return VAULT_PARTS[name]
