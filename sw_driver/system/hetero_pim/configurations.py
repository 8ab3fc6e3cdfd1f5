"""The five configurations that the paper compares (section VI)."""

from __future__ import annotations

from dataclasses import dataclass

from sw_driver.numbers import check_integer, check_name

__all__ = [
    "CONFIGURATIONS", "CPU", "FIXED", "GPU", "HETERO", "PRINCIPLES", "PROGR", "Configuration",
]  # fmt: skip

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
    cores: int = 1
    """Cores of the stack. In program order, all of them share each operation evenly."""

    def __post_init__(self) -> None:
        check_name("principle", self.principle, PRINCIPLES)
        check_integer("cores", self.cores)


CPU = Configuration(name="CPU", devices=("cpu",))
GPU = Configuration(name="GPU", devices=("gpu",))
PROGR = Configuration(name="Progr PIM", devices=("core",))
FIXED = Configuration(
    name="Fixed PIM", devices=("pools", "cpu"), recursive=False, principle="literal"
)
"""The pools, and the CPU for the operations and phases that they cannot do."""
HETERO = Configuration(name="Hetero PIM", devices=("pools", "core", "cpu"), ordered=False)

CONFIGURATIONS = (CPU, GPU, PROGR, FIXED, HETERO)
