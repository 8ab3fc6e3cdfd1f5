"""Figures of the module: the paper's, throughput, and the ceiling of the bandwidth."""

from __future__ import annotations

from hw.rules import PAPER_RULES, rule

from .transport import LINE_BYTES

__all__ = [
    "BYTES_PER_PARAMETER",
    "PAPER_CPU_MPARAMS_PER_S",
    "PAPER_EFFICIENCY",
    "PAPER_FABRIC_MHZ",
    "PAPER_MPARAMS_PER_S",
    "beats_mparams_per_s",
    "ceiling_mparams_per_s",
    "gb_per_s",
    "mparams_per_s",
]

PAPER_FABRIC_MHZ = 200.0
"""Fabric clock of the paper's module in MHz (section 3.1)."""

PAPER_MPARAMS_PER_S = 789.38
"""Throughput measured on the AXDIMM, both channels, in 10^6 parameters a second (paper Table 5)."""

PAPER_CPU_MPARAMS_PER_S = 140.32
"""Throughput measured on one core of the paper's host, in 10^6 parameters a second (Table 5)."""

PAPER_EFFICIENCY = 0.863
"""Share of the bandwidth's ceiling that the AXDIMM reaches (paper Table 5)."""

BYTES_PER_PARAMETER = rule(PAPER_RULES[0]).bytes_per_parameter
"""Memory traffic of a parameter's update in the paper: p, g, m, v are loaded, p, m, v are stored,
in FP32."""


def mparams_per_s(parameters: int, fabric_cycles: int, fabric_mhz: float) -> float:
    """Throughput in 10^6 parameters a second."""
    return parameters / fabric_cycles * fabric_mhz


def beats_mparams_per_s(beats: int, fabric_cycles: int, fabric_mhz: float) -> float:
    """The paper's throughput in 10^6 parameters a second, from the beats of 64 bytes moved."""
    return mparams_per_s(beats, fabric_cycles, fabric_mhz) * LINE_BYTES / BYTES_PER_PARAMETER


def gb_per_s(nbytes: int, fabric_cycles: int, fabric_mhz: float) -> float:
    """Bandwidth in 10^9 bytes a second."""
    return nbytes / (fabric_cycles * 1e3 / fabric_mhz)


def ceiling_mparams_per_s(
    channels: int,
    fabric_mhz: float = PAPER_FABRIC_MHZ,
    bytes_per_parameter: float = BYTES_PER_PARAMETER,
) -> float:
    """What the DRAM's peak bandwidth allows, in 10^6 parameters a second.

    A channel moves one beat of 64 bytes a fabric cycle: with the paper's 28 bytes a parameter,
    457.14 for a channel of its module, 914.29 for both.
    """
    return channels * fabric_mhz * LINE_BYTES / bytes_per_parameter
