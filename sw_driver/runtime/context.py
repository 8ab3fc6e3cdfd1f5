"""What all parts of an opened device have in common."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ..device.errors import ClosedError
from ..device.timeline import Timeline
from .gate import Gate
from .serialized import SerializedTransport
from .timeorder import TimeOrder
from .watchdog import Watchdog
from .workers import Worker

__all__ = ["Context"]


@dataclass(frozen=True, kw_only=True)
class Context:
    """An opened device's clock, its threads' meeting points, and whether it is still open."""

    transport: SerializedTransport
    """The transport, where calls of different threads for one channel wait for each other."""
    watchdog: Watchdog
    order: TimeOrder
    """The order in simulated time of what the streams ask for."""
    notifier: Worker
    """The thread that calls back when a handle is done."""
    gate: Gate
    """The gate that opens when all that is to be queued together is queued."""
    closing: threading.Event
    """Is set when the device closes."""
    timeline: Timeline | None
    """Where what happens is recorded, if it is."""

    def check_open(self) -> None:
        """Raises :class:`ClosedError` if the device cannot be used any more."""
        if self.closing.is_set():
            raise ClosedError("the device was closed: open it again")
        self.watchdog.check_process()
