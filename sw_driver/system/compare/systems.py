"""All systems that are compared, by authors."""

from __future__ import annotations

from collections.abc import Mapping

from . import axdimm, device, hetero_pim, mc_dla, memferry, sentinel, today
from .system import System

__all__ = [
    "ADAPTERS",
    "DEFAULT",
    "DRAWN",
    "FAMILIES",
    "IN_USE",
    "MOST_SEARCHED_OPS",
    "SYSTEMS",
    "WITHOUT_HARDWARE",
]

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

DEFAULT = (
    "all on the GPU",
    "recomputation",
    "DDP",
    "ZeRO-1",
    "ZeRO-2",
    "FSDP (ZeRO-3)",
    "8-bit optimizer, paged",
    "activation offload",
    "ZeRO-Offload, as run",
    "ZeRO-Infinity",
    "Smart-Infinity",
    "AXDIMM, DDR5-4800",
    "MemFerry, AXDIMM",
    "Sentinel over CXL",
    "MC-DLA's memory-nodes",
    "heterogeneous PIM, calibrated",
)
"""Systems of a comparison's table, unless all are wanted.

They are those in use today, and the fastest of each paper. Those for several GPUs need them; then
the papers' are left out. So a table has twelve rows at most.
"""

ADAPTERS = ("LoRA", "QLoRA")
"""Systems that train adapters only; their times are no answer for all parameters."""

MOST_SEARCHED_OPS = 20_000
"""Operations that the search of a system in :data:`DEFAULT` may simulate; about three seconds."""

_ALONE = tuple(system.name for system in device.SYSTEMS)
IN_USE = (
    *_ALONE,
    *(one.name for one in today.SYSTEMS if one.name not in ADAPTERS and not one.hardware),
)
"""Systems that people use today for all parameters, which others have to beat."""

WITHOUT_HARDWARE = (
    "all on the GPU",
    "recomputation",
    "ZeRO-Offload",
    "ZeRO-Offload, DeepSpeed",
    "MemFerry",
    "GO-MemFerry",
    "Sentinel over PCIe",
    "MC-DLA's policy over PCIe",
    *(name for name in IN_USE if name not in _ALONE),
)
"""Systems that train all parameters on GPUs and hosts as they are sold."""
