"""The five configurations that the paper compares (section VI)."""

from __future__ import annotations

from dataclasses import dataclass

from sw_driver.numbers import check_integer, check_name

__all__ = [
    "CONFIGURATIONS", "CPU", "FIXED", "GPU", "HETERO", "PRINCIPLES", "PROGR", "Configuration",
]  # fmt: skip

PRINCIPLES = ("literal", "earliest")
"""Where an operation goes that the PIMs are offered. By section III-C to the pools, else to a core,
and to the CPU whenever these are busy; or to where it ends first, waiting there if it has to."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Who runs a training step, and how it is scheduled."""

    name: str
    devices: tuple[str, ...]
    """Which of ``pools``, ``core``, ``cpu`` and ``gpu`` there are, the preferred one first."""
    ordered: bool = True
    """One operation at a time, in program order: no scheduling."""
    recursive: bool = True
    """RC: a core launches the phases of a kernel on the pools, and not the host."""
    pipeline: bool = True
    """OP: operations share the pools, those of the next step, too."""
    principle: str = "earliest"
    """One of :data:`PRINCIPLES`."""
    cores: int = 1
    """Of the stack. In program order all of them share each operation evenly."""

    def __post_init__(self) -> None:
        check_name("principle", self.principle, PRINCIPLES)
        check_integer("cores", self.cores)


CPU = Configuration(name="CPU", devices=("cpu",))
GPU = Configuration(name="GPU", devices=("gpu",))
PROGR = Configuration(name="Progr PIM", devices=("core",))
FIXED = Configuration(
    name="Fixed PIM", devices=("pools", "cpu"), recursive=False, principle="literal"
)
"""The pools, and the CPU for what they cannot do, phases of their kernels among it."""
HETERO = Configuration(name="Hetero PIM", devices=("pools", "core", "cpu"), ordered=False)

CONFIGURATIONS = (CPU, GPU, PROGR, FIXED, HETERO)
