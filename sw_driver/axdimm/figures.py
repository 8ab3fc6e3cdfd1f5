"""Throughput and bandwidth: the paper's figures, conversions, and the bandwidth ceiling."""

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
"""Share of the bandwidth ceiling that the AXDIMM reaches (paper Table 5)."""

BYTES_PER_PARAMETER = rule(PAPER_RULES[0]).bytes_per_parameter
"""Bytes moved for a parameter's update in the paper, in FP32.

It loads p, g, m and v, and stores p, m and v.
"""


def mparams_per_s(parameters: int, fabric_cycles: int, fabric_mhz: float) -> float:
    """Return the throughput in 10^6 parameters a second."""
    return parameters / fabric_cycles * fabric_mhz


def beats_mparams_per_s(beats: int, fabric_cycles: int, fabric_mhz: float) -> float:
    """Return the paper's throughput in 10^6 parameters a second, from 64-byte beats moved."""
    return mparams_per_s(beats, fabric_cycles, fabric_mhz) * LINE_BYTES / BYTES_PER_PARAMETER


def gb_per_s(nbytes: int, fabric_cycles: int, fabric_mhz: float) -> float:
    """Return the bandwidth in 10^9 bytes a second."""
    return nbytes / (fabric_cycles * 1e3 / fabric_mhz)


def ceiling_mparams_per_s(
    channels: int,
    fabric_mhz: float = PAPER_FABRIC_MHZ,
    bytes_per_parameter: float = BYTES_PER_PARAMETER,
) -> float:
    """Return the throughput at the DRAM's peak bandwidth, in 10^6 parameters a second.

    A channel moves one beat of 64 bytes a fabric cycle. With the paper's 28 bytes a parameter, this
    gives 457.14 for a channel of its module and 914.29 for both.
    """
    return channels * fabric_mhz * LINE_BYTES / bytes_per_parameter
