"""What all parts of an opened device have in common."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ..errors import ClosedError
from .gate import Gate
from .serialized import SerializedTransport
from .timeline import Timeline
from .timeorder import TimeOrder
from .watchdog import Watchdog
from .workers import Worker

__all__ = ["Context"]


@dataclass(frozen=True, kw_only=True)
class Context:
    """An opened device's clock, its threads' meeting points, and whether it is still open."""

    transport: SerializedTransport
    """Calls of different threads for one channel wait for each other."""
    watchdog: Watchdog
    order: TimeOrder
    """Of the streams."""
    notifier: Worker
    """Calls back when a handle is done."""
    gate: Gate
    """Opens when what is to be queued together is."""
    closing: threading.Event
    """Set when the device closes."""
    timeline: Timeline | None
    """Where what happens is recorded, if it is."""

    def check_open(self) -> None:
        """Raises :class:`ClosedError` if the device cannot be used any more."""
        if self.closing.is_set():
            raise ClosedError("the device was closed: open it again")
        self.watchdog.check_process()
