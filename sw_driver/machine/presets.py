"""Machines that come with the package, by name."""

from __future__ import annotations

from .axdimm_platform import AXDIMM_PLATFORM
from .hetero_pim import HETERO_PIM
from .machine import Machine
from .memferry import MEMFERRY_A100, MEMFERRY_V100
from .sentinel import TIERS
from .tiny import TINY

__all__ = ["PRESETS"]

PRESETS: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        AXDIMM_PLATFORM,
        HETERO_PIM,
        MEMFERRY_A100,
        MEMFERRY_V100,
        *TIERS.values(),
        TINY,
    )
}
