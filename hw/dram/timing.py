"""Timing of a DRAM, in DRAM clocks (tCK)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from hw.logic.checks import check_types

__all__ = [
    "BURST_TCK",
    "MAX_POSTPONED_REFRESHES",
    "CommandTiming",
    "DramTiming",
    "base_name",
    "honest_name",
]

BURST_TCK = 4
"""DRAM clocks that the data of a burst (BL8, double data rate) takes: one fabric cycle."""

MAX_POSTPONED_REFRESHES = 8
"""Maximum number of refreshes postponed, and of refreshes pulled in (JESD79-4, refresh command)."""


_SCHEDULING_TCK = 40


@dataclass(frozen=True, kw_only=True)
class CommandTiming:
    """Minimum distances between the commands of a DRAM (JESD79-4 names), in tCK except ``tck_ps``.

    ``_s`` applies between different bank groups (of a vault: layers), ``_l`` within one. The fabric
    clock period is always four tCK. Raises ``ValueError`` for numbers that contradict each other
    or that the controller does not schedule.
    """

    LONGEST_TCK: ClassVar[int]
    """Longest distance that the controller can count, in tCK; refreshes may be further apart."""

    LEAST_CWL: ClassVar[int]
    """Minimum ``cwl`` that the controller's registered data path can serve, in tCK."""

    tck_ps: int
    """DRAM clock period in ps. Where it is set, DDR4 times that are fixed in ns follow it."""

    cl: int
    """CAS latency in tCK: read command to first data."""
    cwl: int
    """CAS write latency in tCK: write command to first data."""
    t_rcd: int
    """Activate to read or write, in tCK."""
    t_rp: int
    """Precharge to activate or refresh, in tCK."""
    t_ras: int
    """Activate to precharge, in tCK."""
    t_rc: int
    """Activate to activate of the same bank, in tCK."""
    t_ccd_s: int
    """Read to read, write to write, in tCK."""
    t_ccd_l: int
    """Read to read, write to write, within a bank group, in tCK."""
    t_rrd_s: int
    """Activate to activate of another bank, in tCK."""
    t_rrd_l: int
    """Activate to activate of another bank within a bank group, in tCK."""
    t_faw: int
    """Window that holds at most four activates, in tCK."""
    t_wr: int
    """End of write data to precharge, in tCK."""
    t_wtr_s: int
    """End of write data to read, in tCK."""
    t_wtr_l: int
    """End of write data to read within a bank group, in tCK."""
    t_rtp: int
    """Read to precharge, in tCK."""
    t_rfc: int
    """Refresh to any command, in tCK."""
    t_refi: int
    """Distance of refreshes in tCK: their average, or the maximum if none may be postponed."""

    def __post_init__(self) -> None:
        check_types(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise ValueError(f"{field.name} must be a positive integer, got {value!r}")
            if value > self.LONGEST_TCK and field.name not in ("tck_ps", "t_rfc", "t_refi"):
                raise ValueError(
                    f"{field.name} must be at most {self.LONGEST_TCK} tCK, got {value!r}"
                )
        at_least = (
            ("cwl", self.LEAST_CWL, "the data paths are registered"),
            ("cl", self.cwl, "the bus turn-around is computed for it"),
            ("t_ccd_s", BURST_TCK, "a burst takes four tCK"),
            ("t_ccd_l", self.t_ccd_s, "it is never shorter than t_ccd_s"),
            ("t_rrd_l", self.t_rrd_s, "it is never shorter than t_rrd_s"),
            ("t_wtr_l", self.t_wtr_s, "it is never shorter than t_wtr_s"),
            ("t_rc", self.t_ras, "it is never shorter than t_ras"),
            ("t_faw", self.t_rrd_s, "it is never shorter than t_rrd_s"),
            (
                "t_refi",
                self.t_rfc + self.beside_refresh,
                "tRFC and the time for some work; with this t_refi, t_rfc may be "
                f"{self.t_refi - self.beside_refresh}",
            ),
        )
        for name, low, why in at_least:
            if getattr(self, name) < low:
                raise ValueError(
                    f"{name} must be at least {low} ({why}), got {getattr(self, name)}"
                )

    @property
    def beside_refresh(self) -> int:
        """Minimum time between the end of a refresh and the next, in tCK."""
        return 1

    @property
    def read_to_write(self) -> int:
        """Read command to write command in tCK, any bank.

        It is the read burst, one clock to turn the bus and one clock of write preamble (JESD79-4,
        read followed by write).
        """
        return self.cl - self.cwl + BURST_TCK + 2

    @property
    def write_to_read_s(self) -> int:
        """Write command to read command in tCK, different bank groups or layers."""
        return self.cwl + BURST_TCK + self.t_wtr_s

    @property
    def write_to_read_l(self) -> int:
        """Write command to read command in tCK, same bank group or layer."""
        return self.cwl + BURST_TCK + self.t_wtr_l

    @property
    def write_to_precharge(self) -> int:
        """Write command to precharge of its bank in tCK."""
        return self.cwl + BURST_TCK + self.t_wr


class DramTiming(CommandTiming):
    """DDR4 timing of a part at one speed."""

    LONGEST_TCK = 4096
    LEAST_CWL = 5

    @property
    def beside_refresh(self) -> int:
        """Minimum time between the end of a refresh and the next, in tCK.

        It covers opening a bank, moving a burst and closing the banks, each in fabric cycles, and
        the time in which the schedulers turn to it.
        """
        longest = max(self.t_ras, self.t_rc - self.t_rp, self.write_to_precharge)
        return self.t_rcd + longest + self.t_rp + _SCHEDULING_TCK

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.t_ccd_s != BURST_TCK or self.t_ccd_l > 2 * BURST_TCK:
            raise ValueError(
                f"t_ccd_s must be {BURST_TCK} and t_ccd_l at most {2 * BURST_TCK}, as in every "
                f"DDR4 speed; got {self.t_ccd_s} and {self.t_ccd_l}"
            )


_CHANGED = "_changed"


def base_name(name: str, known: Mapping[str, Any]) -> str:
    """Return the known name within a name made by :func:`honest_name`, or the name as it is."""
    base = name.removesuffix(_CHANGED)
    return base if base in known else name


def honest_name(part: Any, known: Mapping[str, Any]) -> str:
    """Return the name of a DRAM part, a dataclass with ``name``, ``geometry`` and ``timing``.

    A part is ``NAME_changed`` if its figures differ from the ``known`` part of its name. Fewer rows
    do not count, since simulations leave some out, nor does ``allow_nonstandard``.
    """
    base = base_name(part.name, known)
    if base not in known:
        return part.name

    def figures(dram_part: Any) -> dict[str, Any]:
        geometry = replace(dram_part.geometry, rows=known[base].geometry.rows)
        values = {field.name: getattr(dram_part, field.name) for field in fields(dram_part)}
        return values | {"geometry": geometry, "name": base, "allow_nonstandard": None}

    more = part.geometry.rows > getattr(part, "device_rows", part.geometry.rows)
    return base + _CHANGED if more or figures(part) != figures(known[base]) else base
