"""What of a transport is about simulated time, for one that has none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["UntimedTransport"]


class UntimedTransport:
    """Answers all that :class:`~sw_driver.transport.Transport` asks of time: it is always 0."""

    timed: bool = False
    subnormals: str = "kept"

    def fabric_cycles(self, channel: int) -> int:
        """0: nobody counts them."""
        return 0

    def now(self, channel: int) -> int:
        """0, see :meth:`fabric_cycles`."""
        return 0

    def host_time(self) -> int:
        """0, see :meth:`fabric_cycles`."""
        return 0

    def set_host_time(self, fabric_cycle: int) -> None:
        """Nothing."""

    def engage(self, channel: int, fabric_cycle: int) -> None:
        """Nothing."""

    def disengage(self, channel: int) -> None:
        """Nothing."""

    def record_link(self, record: bool) -> None:
        """Nothing."""

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        """None."""
        return np.empty((0, 2), dtype=np.uint64)
