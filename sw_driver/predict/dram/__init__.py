"""DDR4 channel that the predictors of a module and of a memory-node share."""

from __future__ import annotations

from typing import Protocol

from hw.dram.config import ControllerConfig
from hw.dram.presets import DramPart

__all__ = ["DramConfig"]


class DramConfig(Protocol):
    """Configuration of hardware with DDR4 channels, such as a module's or a memory-node's.

    The capacity does not affect the time: predicted runs may be larger than the memory.
    """

    @property
    def part(self) -> DramPart:
        """Memory of a channel and its timing."""
        ...

    @property
    def controller(self) -> ControllerConfig:
        """Queues and refresh of a channel's controller."""
        ...
