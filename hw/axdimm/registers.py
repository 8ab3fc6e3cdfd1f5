"""The registers of a channel, as ``channel.rdl`` describes them."""

from __future__ import annotations

from pathlib import Path

from hw.csr.register_map import RegisterMap, load_registers

__all__ = ["CHANNEL_RDL", "WINDOW_ADDR_WIDTH", "WINDOW_BYTES", "arbiter_map", "kernel_map"]

WINDOW_ADDR_WIDTH = 12
"""Width of the addresses in a register window, in bits."""

WINDOW_BYTES = 1 << WINDOW_ADDR_WIDTH
"""Bytes of a register window; the arbiter's is at the top of the channel's addresses, the kernel's
below it."""

CHANNEL_RDL = Path(__file__).with_name("channel.rdl")


def arbiter_map() -> RegisterMap:
    """The arbiter's registers."""
    return load_registers("axdimm_arbiter", CHANNEL_RDL)


def kernel_map() -> RegisterMap:
    """The Adam kernel's registers."""
    return load_registers("axdimm_kernel", CHANNEL_RDL)
