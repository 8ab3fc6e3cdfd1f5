"""Configuration of the fixed-function pools."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from hw.logic.checks import check_int, check_types
from hw.logic.clocking import check_clocking
from hw.pim.placement import ThermalWeights, UnitPlacement, place

__all__ = [
    "BEAT_BYTES",
    "OPTIONS",
    "PIM_PRESETS",
    "STRIPE_BYTES",
    "PimConfig",
    "configure",
]

BEAT_BYTES = 32
"""Bytes that a vault's memory moves per cycle: 10 GB/s at 312.5 MHz (HMC 2.0)."""

STRIPE_BYTES = 512
"""Consecutive bytes of the striped memory in one bank: a row in each of two layers.

See :attr:`~hw.pim.vault.geometry.VaultGeometry.address_layout`.
"""


@dataclass(frozen=True, kw_only=True)
class PimConfig:
    """Configuration of the pools; the defaults are the paper's machine (IV-D, V-A).

    Examples
    --------
    >>> paper = PimConfig()
    >>> paper.banks, paper.stack_bytes >> 30, paper.clock_mhz
    (32, 8, 312.5)
    >>> PimConfig(total=888).units
    888
    """

    rows: int = 4
    """Rows of the grid of banks, 1 to 8."""

    columns: int = 8
    """Columns of the grid, 1 to 8; the grid has at most 32 banks."""

    total: int = 444
    """Multipliers plus adders in all banks.

    With the default, the 121 + 120 units of an 11 x 11 filter are 54 % of 444 (paper, III-C). Twice
    the default gives 444 multipliers and 444 adders (paper, IV-D).
    """

    weights: ThermalWeights = field(default_factory=ThermalWeights)
    """Relative numbers of units in corner, edge and inside banks."""

    clock_mhz: float = 312.5
    """Clock of units and memory, in MHz (paper, V-A); cycle counts do not depend on it."""

    bank_bytes: int = 1 << 27
    """Bytes of a bank's local memory; its part of the striped memory has the same size.

    A power of two from 1 KiB to 1 GiB. The default makes 8 GiB of 32 banks, the larger of HMC 2.0's
    configurations.
    """

    buffer_bytes: int = 65536
    """Bytes of a bank's operand buffers, both halves together: a power of two from 8 KiB to 1 MiB.

    Half of them belong to the first operand, a quarter to the second. The last quarter exists in
    banks with more than eight lanes: it has the second operand of lanes 8 and up.
    """

    state_words: int = 512
    """Intermediate sums that each lane keeps: a power of two from 64 to 4096."""

    works: int = 8
    """Maximum number of works in flight (accepted, not completed): a power of two, 2 to 32."""

    rings: int = 2
    """Descriptor rings, 1 to 5: one for the host and at least one per core."""

    cores: int = 0
    """Programmable PIMs, 0 to 4: RISC-V cores; each is the master of one ring."""

    scratchpad_bytes: int = 65536
    """Bytes of each core's memory for code, data and stack: a power of two from 8 KiB to 1 MiB."""

    core_clock_ratio: int = 1
    """Clock of the cores divided by that of the pool: 1, 2 or 4. Above 1 it needs an input."""

    clocking: str = "gated"
    """Clocking of the banks' lanes, one of :data:`hw.logic.clocking.CLOCKINGS`.

    Results and cycles do not depend on it.
    """

    def __post_init__(self) -> None:
        check_int("rows", self.rows, 1, 8)
        check_int("columns", self.columns, 1, 8)
        if self.banks > 32:
            raise ValueError(
                f"rows times columns must be 32 banks or fewer, got {self.rows} x {self.columns}; "
                f"the registers have a bit for each of 32"
            )
        check_int("total", self.total, 1, 1024)
        if not isinstance(self.weights, ThermalWeights):
            raise ValueError(f"weights must be ThermalWeights, got {self.weights!r}")
        if not isinstance(self.clock_mhz, int | float) or not 0 < self.clock_mhz <= 10_000:
            raise ValueError(f"clock_mhz must be from above 0 to 10000, got {self.clock_mhz!r}")
        check_int("bank_bytes", self.bank_bytes, 1 << 10, 1 << 30, power_of_two=True)
        check_int("buffer_bytes", self.buffer_bytes, 1 << 13, 1 << 20, power_of_two=True)
        check_int("state_words", self.state_words, 64, 4096, power_of_two=True)
        check_int("works", self.works, 2, 32, power_of_two=True)
        check_int("rings", self.rings, 1, 5)
        check_int("cores", self.cores, 0, 4)
        if self.rings <= self.cores:
            raise ValueError(
                f"rings must be more than cores, {self.cores}, got {self.rings}: the host has one"
            )
        check_int("scratchpad_bytes", self.scratchpad_bytes, 1 << 13, 1 << 20, power_of_two=True)
        check_int("core_clock_ratio", self.core_clock_ratio, 1, 4, power_of_two=True)
        check_types(self)  # also refuses True as a number
        check_clocking(self.clocking)
        _ = self.placement  # raises ``ValueError`` for units that cannot be placed

    @cached_property
    def placement(self) -> UnitPlacement:
        """Multipliers and adders of each bank."""
        return place(
            rows=self.rows,
            columns=self.columns,
            total=self.total,
            weights=self.weights,
        )

    @cached_property
    def banks(self) -> int:
        """Banks of the stack, numbered row by row."""
        return self.rows * self.columns

    @property
    def units(self) -> int:
        """Multipliers and adders in all banks."""
        return sum(self.placement.units)

    @property
    def has_core_clock(self) -> bool:
        """True if there are cores and they have their own clock."""
        return self.cores > 0 and self.core_clock_ratio > 1

    @property
    def lane_groups(self) -> int:
        """Groups of eight lanes in the largest bank; a lane is a multiplier, an adder or both."""
        placement = self.placement
        return -(-max(*placement.multipliers, *placement.adders) // 8)

    @property
    def first_words(self) -> int:
        """Elements of the first operand in one buffer half, per group of eight lanes."""
        return self.buffer_bytes // 16 // self.lane_groups

    @property
    def second_words(self) -> int:
        """Elements of the second operand in one buffer half, per group of eight lanes."""
        return self.buffer_bytes // 32

    @property
    def vault_bytes(self) -> int:
        """Bytes of a bank's memory: its local memory, then its stripes."""
        return 2 * self.bank_bytes

    @cached_property
    def local_bytes(self) -> int:
        """Bytes of the local memory of all banks; bank i begins at i · ``bank_bytes``."""
        return self.banks * self.bank_bytes

    @cached_property
    def striped_start_bytes(self) -> int:
        """First address of the striped memory.

        It is the end of the local memory, or later if the number of banks is no power of two.
        """
        return self.bank_bytes << (self.banks - 1).bit_length()

    @cached_property
    def striped_banks(self) -> int:
        """Banks that hold the stripes in turn: a power of two, the lowest bank numbers."""
        return 1 << self.banks.bit_length() - 1

    @cached_property
    def stack_bytes(self) -> int:
        """Bytes of the address space; the striped memory ends there."""
        return self.striped_start_bytes + self.striped_banks * self.bank_bytes

    def holds(self, address_bytes: int, nbytes: int) -> bool:
        """Return whether every one of these bytes is in a bank's memory."""
        end = address_bytes + nbytes
        local, start = self.local_bytes, self.striped_start_bytes
        if not 0 <= address_bytes <= end <= self.stack_bytes:
            return False
        return end <= local or start <= address_bytes or local == start

    @property
    def memory_description(self) -> str:
        """Address ranges of the local and striped memory, for error messages."""
        start = self.striped_start_bytes
        return (
            f"the local memory, 0x0 to {self.local_bytes - 1:#x}, or the striped memory, "
            f"{start:#x} to {self.stack_bytes - 1:#x}"
        )

    @property
    def vault_gb_per_s(self) -> float:
        """Peak bandwidth of one bank's memory, in GB/s (10^9 bytes a second)."""
        return BEAT_BYTES * self.clock_mhz / 1e3


PIM_PRESETS = {
    "paper": PimConfig(),
    "pairs": PimConfig(total=888),
    "tiny": PimConfig(
        rows=2,
        columns=3,
        total=28,
        bank_bytes=1 << 14,
        buffer_bytes=1 << 13,
        state_words=64,
        works=4,
    ),
}
"""Named configurations: the paper's machine, one with 444 unit pairs, and a small one for tests."""

_WEIGHTS = tuple(item.name for item in fields(ThermalWeights))

OPTIONS = (*(item.name for item in fields(PimConfig) if item.name != "weights"), *_WEIGHTS)
"""Options of :func:`configure`: the fields of :class:`PimConfig` and those of the weights."""


def configure(preset: str = "paper", **options: Any) -> PimConfig:
    """Return the preset with ``options`` changed.

    Raises ``ValueError`` for an unknown preset or option and for values that do not fit.
    """
    if preset not in PIM_PRESETS:
        raise ValueError(f"no configuration {preset!r}; known: {', '.join(PIM_PRESETS)}")
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"no configuration option {name!r}; known: {', '.join(OPTIONS)}")
    config = PIM_PRESETS[preset]
    weights = {name: options.pop(name) for name in _WEIGHTS if name in options}
    return replace(config, weights=replace(config.weights, **weights), **options)
