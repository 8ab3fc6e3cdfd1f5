"""The registers of a channel, as ``channel.rdl`` describes them."""

from __future__ import annotations

from pathlib import Path

from hw.csr.register_map import RegisterMap, load_registers

__all__ = ["CHANNEL_RDL", "arbiter_map", "kernel_map"]

CHANNEL_RDL = Path(__file__).with_name("channel.rdl")


def arbiter_map() -> RegisterMap:
    """The arbiter's registers."""
    return load_registers("axdimm_arbiter", CHANNEL_RDL)


def kernel_map() -> RegisterMap:
    """The Adam kernel's registers."""
    return load_registers("axdimm_kernel", CHANNEL_RDL)
