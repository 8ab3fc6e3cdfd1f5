"""All systems that are compared, by authors."""

from __future__ import annotations

from collections.abc import Mapping

from . import axdimm, device, hetero_pim, mc_dla, memferry, sentinel, today
from .system import System

__all__ = ["DRAWN", "FAMILIES", "SYSTEMS", "WITHOUT_HARDWARE"]

FAMILIES: Mapping[str, tuple[System, ...]] = {
    "the GPU alone": device.SYSTEMS,
    "in use today": today.SYSTEMS,
    "ZeRO-Offload": memferry.SYSTEMS[:2],
    "Kim et al.": axdimm.SYSTEMS,
    "Yao et al.": memferry.SYSTEMS[2:],
    "Ren et al.": sentinel.SYSTEMS,
    "Kwon and Rhu": mc_dla.SYSTEMS,
    "Liu et al.": hetero_pim.SYSTEMS,
}
"""Systems by paper, or of no paper; each family has one colour in pictures."""

SYSTEMS = tuple(system for family in FAMILIES.values() for system in family)

DRAWN = (
    "all on the GPU",
    "recomputation",
    "ZeRO-Offload",
    "AXDIMM, our RTL's rate",
    "MemFerry",
    "GO-MemFerry, AXDIMM",
    "Sentinel over PCIe",
    "Sentinel over CXL",
    "MC-DLA's memory-nodes",
    "heterogeneous PIM, calibrated",
)
"""Systems that are lines in pictures; the others would lie next to these."""

WITHOUT_HARDWARE = (
    "all on the GPU",
    "recomputation",
    "ZeRO-Offload",
    "ZeRO-Offload, DeepSpeed",
    "MemFerry",
    "GO-MemFerry",
    "Sentinel over PCIe",
    "MC-DLA's policy over PCIe",
)
"""Systems that run on a GPU and a host as they are sold."""
