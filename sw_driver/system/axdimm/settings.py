"""What can be chosen of the framework that trains on the platform."""

from __future__ import annotations

from dataclasses import dataclass

from hw.narrow.formats import FP32_FORMATS, Formats
from sw_driver.numbers import check_fields, check_name

__all__ = ["CHANNELS", "MODULE", "FrameworkSettings"]

CHANNELS = 2


@dataclass(frozen=True, kw_only=True)
class FrameworkSettings:
    """The paper's framework, with what it leaves open. Raises ``ValueError`` for what cannot be."""

    updater: str = "module"
    """Who updates parameters: ``module`` or ``cpu``, the paper's baseline. It has the same runtime
    (6.3) and, by the paper, the same tensors in the same places, so its memory is in as many parts.
    """
    ahead_ops: int = 20
    """How many operations PyTorch queues ahead of the one that the GPU does: their parameters are
    fetched meanwhile. With 0 nothing is prefetched."""
    formats: Formats = FP32_FORMATS
    """Of tensors in the module, on NVMe, and as they are moved. The GPU has all in FP32; it fetches
    the copy of parameters if there is one. States have their scales with them."""

    def __post_init__(self) -> None:
        check_name("updater", self.updater, ("module", "cpu"), ValueError)
        if self.formats.skip_not_finite or (self.updater == "cpu" and not self.formats.usual):
            raise ValueError(
                f"formats is {self.formats}: expected FP32 for the updater cpu, and no "
                "skip_not_finite, as gradients are read once here"
            )
        check_fields(self, "ahead_ops")


MODULE = FrameworkSettings()
"""The paper's platform."""
