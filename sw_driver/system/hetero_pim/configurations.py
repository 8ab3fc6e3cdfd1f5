"""The five configurations that the paper compares (section VI)."""

from __future__ import annotations

from dataclasses import dataclass

from sw_driver.numbers import check_fields, check_name

__all__ = [
    "CONFIGURATIONS", "CPU", "FIXED", "GPU", "HEADLINE", "HETERO", "PRINCIPLES", "PROGR", "STRICT",
    "Configuration", "Readings",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Answers to what the paper's text leaves open: assumed, but for ``progr_cores``."""

    splits: bool = False
    """True if the host, without RC, splits an operation and launches each phase.

    If not, an operation that needs a core stays off the pools (III-B, IV-C, VI-E).
    """
    stale_steps: int = 1
    """Updates that a step does without, with OP; it may run beside as many steps (III-C)."""
    share: float = 1
    """Share of the time that is offered to the PIMs, by type of operation.

    III-C has 0.9. That leaves out ReLU and pooling, which run on the programmable PIM in IV-D.
    """
    cores: int = 4
    """Cores of the programmable PIM, which share each of its operations (III-B, IV-D)."""
    core_vaults: int = 32
    """Vaults whose bandwidth the cores have together."""
    progr_cores: int = 45
    """Cores of Progr PIM; calibrated, the fewest that are 1.19 times as fast as the CPU (VI-A)."""
    units: int = 444
    """Multipliers and adders: 222 of each (III-C), or 444 (IV-D)."""

    def __post_init__(self) -> None:
        check_fields(self, "stale_steps", "share")


HEADLINE = Readings()
"""Readings by which the figures are judged."""
STRICT = Readings(splits=True, stale_steps=0, share=0.9, cores=1, core_vaults=1, progr_cores=1)
"""Readings that give the runtime and the cores the least."""

PRINCIPLES = ("literal", "earliest")
"""Rules for an operation that the PIMs are offered.

``literal`` follows section III-C: the pools take it, else a core, and the CPU whenever these are
busy. ``earliest`` sends it to the device on which it ends first, with a wait if necessary.
"""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Devices that run a training step, and rules of its schedule."""

    name: str
    devices: tuple[str, ...]
    """Devices among ``pools``, ``core``, ``cpu`` and ``gpu``, the preferred one first."""
    ordered: bool = True
    """Run one operation at a time, in program order, without scheduling."""
    recursive: bool = True
    """RC: a core launches the phases of a kernel on the pools, instead of the host."""
    pipeline: bool = True
    """OP: operations share the pools, including those of the next step."""
    principle: str = "earliest"
    """One of :data:`PRINCIPLES`."""

    def __post_init__(self) -> None:
        check_name("principle", self.principle, PRINCIPLES)


CPU = Configuration(name="CPU", devices=("cpu",))
GPU = Configuration(name="GPU", devices=("gpu",))
PROGR = Configuration(name="Progr PIM", devices=("core",))
FIXED = Configuration(
    name="Fixed PIM", devices=("pools", "cpu"), recursive=False, principle="literal"
)
"""The pools, and the CPU for the operations and phases that they cannot do."""
HETERO = Configuration(name="Hetero PIM", devices=("pools", "core", "cpu"), ordered=False)

CONFIGURATIONS = (CPU, GPU, PROGR, FIXED, HETERO)
