"""Settings of the framework that trains on the platform."""

from __future__ import annotations

from dataclasses import dataclass

from hw.narrow.formats import FP32_FORMATS, Formats
from sw_driver.numbers import check_fields, check_name

__all__ = ["CHANNELS", "MODULE", "FrameworkSettings"]

CHANNELS = 2


@dataclass(frozen=True, kw_only=True)
class FrameworkSettings:
    """The paper's framework, with its open points. Raises ``ValueError`` for invalid settings.

    Examples
    --------
    >>> FrameworkSettings(updater="cpu").ahead_ops
    20
    >>> FrameworkSettings(updater="gpu7")
    Traceback (most recent call last):
        ...
    ValueError: updater is 'gpu7': expected one of module, cpu
    """

    updater: str = "module"
    """Device that updates parameters: ``module``, or ``cpu`` as in the paper's baseline.

    The baseline has the same runtime (6.3) and, in the paper, the same tensors in the same places.
    So its memory has as many parts.
    """
    ahead_ops: int = 20
    """Operations that PyTorch queues ahead of the GPU; their parameters are fetched meanwhile.

    With 0, nothing is prefetched.
    """
    formats: Formats = FP32_FORMATS
    """Formats of tensors in the module, on NVMe, and in transfers.

    The GPU has all tensors in FP32. It fetches the copy of parameters if there is one. States
    include their scales.
    """

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
