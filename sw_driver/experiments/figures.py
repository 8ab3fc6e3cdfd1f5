"""Figures that several experiments share: the paper's, throughput, and the module's ceiling."""

from __future__ import annotations

from sw_driver.axdimm.runs import BEATS_PER_GROUP, PARAMETER_BYTES, PARAMETERS_PER_BEAT

__all__ = [
    "BYTES_PER_PARAMETER",
    "PAPER_EFFICIENCY",
    "PAPER_FABRIC_MHZ",
    "PAPER_MPARAMS_PER_S",
    "beats_mparams_per_s",
    "ceiling_mparams_per_s",
    "fitting_mparams_per_s",
    "gb_per_s",
    "mparams_per_s",
]

PAPER_FABRIC_MHZ = 200.0
"""Paper section 3.1."""

PAPER_MPARAMS_PER_S = 789.38
"""Measured on the AXDIMM, both channels (paper Table 5)."""

PAPER_EFFICIENCY = 0.863
"""Of the bandwidth's ceiling (paper Table 5)."""

BYTES_PER_PARAMETER = BEATS_PER_GROUP * PARAMETER_BYTES
"""Memory traffic of a parameter's update: p, g, m, v are loaded, p, m, v are stored, in FP32."""


def mparams_per_s(parameters: int, fabric_cycles: int, fabric_mhz: float) -> float:
    """Throughput in 10^6 parameters a second."""
    return parameters / fabric_cycles * fabric_mhz


def beats_mparams_per_s(beats: int, fabric_cycles: int, fabric_mhz: float) -> float:
    """Throughput in 10^6 parameters a second, from the beats of 64 bytes that were moved."""
    return mparams_per_s(beats, fabric_cycles, fabric_mhz) * PARAMETERS_PER_BEAT / BEATS_PER_GROUP


def gb_per_s(nbytes: int, fabric_cycles: int, fabric_mhz: float) -> float:
    """Bandwidth in 10^9 bytes a second."""
    return nbytes / (fabric_cycles * 1e3 / fabric_mhz)


def ceiling_mparams_per_s(channels: int, fabric_mhz: float = PAPER_FABRIC_MHZ) -> float:
    """What the DRAM's peak bandwidth allows, in 10^6 parameters a second.

    A channel moves one beat of 64 bytes a fabric cycle, and 16 parameters take 7 beats (4 loads
    and 3 stores of 4 bytes each): 457.14 for a channel of the paper's module, 914.29 for both.
    """
    return channels * fabric_mhz * PARAMETERS_PER_BEAT / BEATS_PER_GROUP


def fitting_mparams_per_s(bandwidth_gb_per_s: float) -> float:
    """Parameters, in 10^6 a second, whose bytes fit into a bandwidth."""
    return bandwidth_gb_per_s * 1e3 / BYTES_PER_PARAMETER
