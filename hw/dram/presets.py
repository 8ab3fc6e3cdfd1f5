"""DRAM parts by name: the organisation of a channel and its timing at one speed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hw.dram.geometry import DramGeometry
from hw.dram.standard import (
    DENSITIES_GBIT,
    FASTEST_BIN_PS,
    LONGEST_TCK_PS,
    SHORTEST_TCK_PS,
    WIDTHS,
    clocks,
    standard_timing,
)
from hw.dram.timing import DramTiming, base_name, honest_name
from hw.logic.checks import check_int, check_types, is_int

__all__ = [
    "DDR4_1600_8GBIT_X16",
    "DDR4_1600_16GBIT_X8",
    "DDR4_2400_8GBIT_X8",
    "DDR4_3200_8GBIT_X8",
    "PARTS",
    "TINY",
    "DramPart",
    "part",
]

PARTS: dict[str, DramPart] = {}
"""Known parts, by name."""


def _check_clock(tck_ps: int, allow_nonstandard: bool) -> None:
    if not isinstance(allow_nonstandard, bool):
        raise ValueError(f"allow_nonstandard must be True or False, got {allow_nonstandard!r}")
    if allow_nonstandard:
        check_int("tck_ps", tck_ps, 1, 1_000_000)
    elif not (is_int(tck_ps) and SHORTEST_TCK_PS <= tck_ps <= LONGEST_TCK_PS):
        raise ValueError(
            f"tck_ps must be an integer from {SHORTEST_TCK_PS} to {LONGEST_TCK_PS}, as in every "
            f"DDR4, got {tck_ps!r}: give one of these, or set allow_nonstandard=true"
        )


@dataclass(frozen=True, kw_only=True)
class DramPart:
    """A named geometry with its timing, a rank of DDR4 devices.

    A part that has the name of one of :data:`PARTS` but other numbers is renamed to
    ``NAME_changed``. Fewer rows do not count: they only shrink the simulated storage. Raises
    ``ValueError`` for numbers that no DDR4 has (JESD79-4), unless ``allow_nonstandard``.
    """

    name: str
    width_bits: int
    """Data bits of a device: 4, 8 or 16."""
    density_gbit: int
    """Size of a device in Gbit: 2, 4, 8 or 16."""
    bin_ps: int
    """tAA, tRCD and tRP of the part's speed bin in ps."""
    geometry: DramGeometry
    timing: DramTiming
    allow_nonstandard: bool = False
    """Permission for numbers that no DDR4 has."""

    def __post_init__(self) -> None:
        check_types(self)
        for name, values in (("width_bits", WIDTHS), ("density_gbit", DENSITIES_GBIT)):
            if getattr(self, name) not in values:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(str, values))}, "
                    f"got {getattr(self, name)!r}"
                )
        _check_clock(self.timing.tck_ps, self.allow_nonstandard)
        least_ps = 1 if self.allow_nonstandard else FASTEST_BIN_PS
        check_int("bin_ps", self.bin_ps, least_ps, 1_000_000)
        if not self.allow_nonstandard and (wrong := self._against_the_standard()):
            raise ValueError(
                f"{'; '.join(wrong)}: JESD79-4 has no such DDR4 of {self.density_gbit} Gbit "
                f"x{self.width_bits} with tck_ps {self.timing.tck_ps}. Leave out these numbers, "
                "choose another part, or set allow_nonstandard=true"
            )
        object.__setattr__(self, "name", honest_name(self, PARTS))

    def _against_the_standard(self) -> list[str]:
        wrong = [
            f"{name} must be {value}, got {getattr(self.geometry, name)}"
            for name, value in (
                ("bank_groups", 2 if self.width_bits == 16 else 4),
                ("banks_per_group", 4),
                ("columns", 1024),
            )
            if getattr(self.geometry, name) != value
        ]
        if self.geometry.rows > self.device_rows:
            wrong.append(f"rows must be at most {self.device_rows}, got {self.geometry.rows}")
        for name, least in self._standard(FASTEST_BIN_PS, self.timing.tck_ps).items():
            value = getattr(self.timing, name)
            if name == "t_refi" and value > least:
                wrong.append(f"{name} must be at most {least} tCK, got {value}")
            elif name != "t_refi" and value < least:
                wrong.append(f"{name} must be at least {least} tCK, got {value}")
        return wrong

    def _standard(self, bin_ps: int, tck_ps: int) -> dict[str, int]:
        return standard_timing(
            tck_ps, bin_ps=bin_ps, density_gbit=self.density_gbit, width_bits=self.width_bits
        )

    @property
    def device_rows(self) -> int:
        """Rows of a bank that give a device its density."""
        row_bits = self.width_bits * self.geometry.columns
        return (self.density_gbit << 30) // (row_bits * self.geometry.banks)

    @property
    def base(self) -> str:
        """Name of the part of :data:`PARTS` that this one was made from, or its own name."""
        return base_name(self.name, PARTS)

    def timing_at(self, tck_ps: int, *, allow_nonstandard: bool = False) -> dict[str, int]:
        """Return the fields of the part's timing at another clock period.

        A time that equals the standard's follows the standard to the new clock. Other times keep
        their length in ns. Raises ``ValueError`` for a clock that no DDR4 has, unless
        ``allow_nonstandard``.
        """
        _check_clock(tck_ps, allow_nonstandard)
        old_ps = self.timing.tck_ps
        before, after = self._standard(self.bin_ps, old_ps), self._standard(self.bin_ps, tck_ps)
        for name, value in before.items():
            own = getattr(self.timing, name)
            if own != value:
                exact = own * old_ps
                after[name] = exact // tck_ps if name == "t_refi" else clocks(exact, tck_ps)
        return {"tck_ps": tck_ps, **after}

    def with_capacity(self, capacity_bytes: int) -> DramPart:
        """Return the part with fewer rows; see :meth:`DramGeometry.with_capacity`."""
        return replace(self, geometry=self.geometry.with_capacity(capacity_bytes))


def _part(speed: int, density_gbit: int, width_bits: int, *, tck_ps: int, bin_ps: int) -> DramPart:
    """Return a rank of devices, 64 bits wide together, with the standard's minimum times."""
    banks = 8 if width_bits == 16 else 16
    timing = standard_timing(
        tck_ps, bin_ps=bin_ps, density_gbit=density_gbit, width_bits=width_bits
    )
    # tck_ps is rounded; tREFI must not exceed 7.8 us of the exact clock either.
    timing["t_refi"] = min(timing["t_refi"], 7800 * speed // 2000)
    made = DramPart(
        name=f"ddr4_{speed}_{density_gbit}gbit_x{width_bits}",
        width_bits=width_bits,
        density_gbit=density_gbit,
        bin_ps=bin_ps,
        geometry=DramGeometry(
            bank_groups=banks // 4, rows=(density_gbit << 20) // (width_bits * banks)
        ),
        timing=DramTiming(tck_ps=tck_ps, **timing),
    )
    PARTS[made.name] = made
    return made


# tAA, tRCD and tRP are those of the speed bins (JESD79-4C, speed bin tables).
DDR4_1600_16GBIT_X8 = _part(1600, 16, 8, tck_ps=1250, bin_ps=13750)  # 1600K, 11-11-11
"""DRAM of the paper's channel (AXDIMM, memory): 16 GB in eight 16 Gbit x8 dies, DDR4-1600."""

DDR4_1600_8GBIT_X16 = _part(1600, 8, 16, tck_ps=1250, bin_ps=13750)
"""Four 8 Gbit x16 dies: two bank groups and 2 KB pages, hence the longer tRRD and tFAW."""

_part(1866, 8, 8, tck_ps=1071, bin_ps=13920)  # 1866M, 13-13-13
_part(2133, 8, 4, tck_ps=937, bin_ps=14060)  # 2133P, 15-15-15

DDR4_2400_8GBIT_X8 = _part(2400, 8, 8, tck_ps=833, bin_ps=13320)  # 2400R, 16-16-16
"""Eight 8 Gbit x8 dies at DDR4-2400 (CL 16)."""

_part(2400, 8, 16, tck_ps=833, bin_ps=14160)  # 2400T, 17-17-17
_part(2666, 16, 8, tck_ps=750, bin_ps=14250)  # 2666V, 19-19-19
_part(2933, 16, 4, tck_ps=682, bin_ps=14320)  # 2933Y, 21-21-21

DDR4_3200_8GBIT_X8 = _part(3200, 8, 8, tck_ps=625, bin_ps=13750)  # 3200AA, 22-22-22
"""Eight 8 Gbit x8 dies at DDR4-3200."""

_part(3200, 16, 16, tck_ps=625, bin_ps=13750)

TINY = PARTS["tiny"] = replace(
    DDR4_1600_16GBIT_X8,
    name="tiny",
    geometry=DramGeometry(bank_groups=4, rows=4, columns=256),
    timing=replace(DDR4_1600_16GBIT_X8.timing, t_rfc=128, t_refi=1600),
    allow_nonstandard=True,
)
"""128 KB with the paper's timing but short, frequent refreshes: for tests, not a real part."""


def part(name: str) -> DramPart:
    """Return the part called ``name``; raise ``ValueError`` with the known names."""
    if name not in PARTS:
        raise ValueError(f"no DRAM part {name!r}; known parts: {', '.join(PARTS)}")
    return PARTS[name]
